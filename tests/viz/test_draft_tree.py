"""The draft tree's figure: nothing overlaps, every node is where its verdict puts it."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mtp.records.trace import Budget, Committed, Seconds, Status, Step, TokenText, Tree
from viz.figures import draft_tree, tokens
from viz.texts import table


def make_step(parents: list[int], accepted: int, hostile: str = "a") -> Step:
    """A step over this tree of which the first path of `accepted` nodes stands."""
    depths: list[int] = []
    for parent in parents:
        depths.append(0 if parent < 0 else depths[parent] + 1)
    path: list[int] = []
    while len(path) < accepted:
        last = path[-1] if path else -1
        below = [node for node, parent in enumerate(parents) if parent == last]
        if not below:
            break
        path.append(below[0])
    visited = {-1, *path}
    status: tuple[Status, ...] = tuple(
        "accepted" if node in path else "rejected" if parent in visited else "unreached"
        for node, parent in enumerate(parents)
    )
    size = len(parents)
    draft = [Committed(1, "x", "eA==", "draft", 0.5, (0.0, 1.0), 0.1) for _ in path]
    own = Committed(2, "y", "eQ==", "verifier", 0.5, (0.0, 1.0), 0.1)
    return Step(
        index=0,
        context_length=5,
        root=TokenText(0, hostile),
        tree=Tree(
            token_ids=tuple(range(size)),
            texts=(hostile,) * size,
            parents=tuple(parents),
            depths=tuple(depths),
            log_q=tuple(-0.1 * (node + 1) for node in range(size)),
            log_p=(-1.0,) * size,
            status=status,
            origins=(("pld",),) * size,
            kind=tuple("deterministic" for _ in range(size)),
            trials=(None,) * size,
        ),
        committed=(*draft, own),
        noise=(0.5,) * (max(depths, default=-1) + 2),
        candidates={},
        budget=Budget(10),
        rows=1 + size,
        forwards=1,
        seconds=Seconds(0.0, 0.1, 0.0),
    )


trees = st.lists(st.floats(0, 1, exclude_max=True), max_size=24).map(
    lambda draws: [math.floor(draw * (node + 1)) - 1 for node, draw in enumerate(draws)]
)


@given(parents=trees, accepted=st.integers(0, 6))
def test_no_two_nodes_share_a_place(parents: list[int], accepted: int) -> None:
    laid = draft_tree.spread(make_step(parents, accepted))
    places = [laid.root, *laid.nodes, laid.own]
    assert len(set(places)) == len(places)
    assert all(0 <= place.x <= laid.width and 0 <= place.y <= laid.height for place in places)


@given(parents=trees)
def test_children_stand_one_column_right_and_the_surest_on_their_parents_line(
    parents: list[int],
) -> None:
    step = make_step(parents, 2)
    laid = draft_tree.spread(step)
    first: dict[int, int] = {}
    for node, parent in enumerate(parents):
        above = laid.root if parent < 0 else laid.nodes[parent]
        assert laid.nodes[node].x == above.x + draft_tree.COLUMN
        best = first.get(parent)
        if best is None or step.tree.log_q[node] > step.tree.log_q[best]:
            first[parent] = node
    for parent, node in first.items():
        above = laid.root if parent < 0 else laid.nodes[parent]
        assert laid.nodes[node].y == above.y


@given(parents=trees, accepted=st.integers(0, 6))
def test_every_node_is_in_the_trace_of_its_status(parents: list[int], accepted: int) -> None:
    step = make_step(parents, accepted)
    moments = draft_tree.arrays(step, table())["moments"]
    names = [trace.name for trace in draft_tree.template().data]
    for moment in draft_tree.MOMENTS:
        filled = moments[moment]
        assert len(filled) == len(names)
        shown = {
            name: trace["customdata"]
            for name, trace in zip(names, filled, strict=True)
            if name is not None
        }
        assert shown["root"] == [-1]
        assert shown["verifier"] == ([] if moment == "drafted" else [-2])
        for status in ("accepted", "rejected", "unreached"):
            expected = [n for n, s in enumerate(step.tree.status) if s == status]
            assert shown[status] == ([] if moment == "drafted" else expected)
        assert shown["drafted"] == (list(range(len(parents))) if moment == "drafted" else [])


def test_places_do_not_move_between_moments() -> None:
    arrays = draft_tree.arrays(make_step([-1, 0, 0, -1, 3], 1), table())
    where = []
    for moment in draft_tree.MOMENTS:
        found = {}
        for trace in arrays["moments"][moment]:
            for node, x, y in zip(
                trace.get("customdata", []), trace["x"], trace["y"], strict=False
            ):
                found[node] = (x, y)
        found.pop(-2, None)
        where.append(found)
    assert where[0] == where[1] == where[2]


@pytest.mark.parametrize("hostile", ["<b>x</b>", "<script>", "a&amp;b", "{x}", "%{y}"])
def test_tokens_stay_text(hostile: str) -> None:
    arrays = draft_tree.arrays(make_step([-1, 0], 1, hostile), table())
    for trace in arrays["moments"]["verified"]:
        for words in [*trace.get("text", []), *trace.get("hovertext", [])]:
            assert "<b>x" not in words and "<script" not in words
            assert hostile not in words or not set(hostile) & set("<>&")


def test_width_of_an_edge_grows_with_the_drafters_probability() -> None:
    widths = [draft_tree.edge_width(math.log(q)) for q in (0.01, 0.1, 0.3, 0.6, 1.0)]
    assert widths == sorted(widths) and len(set(widths)) == len(draft_tree.EDGE_WIDTHS)


def test_a_text_that_ends_with_a_draft_has_no_token_of_the_verifiers() -> None:
    step = make_step([-1, 0], 2)
    ended = replace(step, committed=step.committed[:-1])
    traces = draft_tree.arrays(ended, table())["moments"]["committed"]
    names = [trace.name for trace in draft_tree.template().data]
    assert traces[names.index("verifier")]["customdata"] == []


@pytest.mark.parametrize(
    ("token", "label"),
    [
        (" word", "word"),
        (" ", "␣"),
        ("\n", "↵"),
        ("", "∅"),
        ("international", "inte·nal"),
        ("<b>", "&lt;b&gt;"),
        ("<|end|>", "end"),
        ("<|assistant|>", "assista…"),
        ("<|<b>|>", "&lt;|&lt;b&gt;|&gt;"),
        ("‹e2 96›", "‹e2␣96›"),
    ],
)
def test_labels_are_short_and_visible(token: str, label: str) -> None:
    assert tokens.label(token) == label
