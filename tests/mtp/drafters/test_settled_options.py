"""Options of drafters and unions: defaults, ranges, and a sentence for what does not go."""

from __future__ import annotations

import pytest

from mtp.drafters.options import (
    CIRCUITS,
    OPTIONS,
    by_members,
    members_of,
    options_of,
    settle_options,
)
from mtp.drafters.rows import children_per_depth, most_nodes, probe_rows
from mtp.errors import InputError


@pytest.mark.parametrize(
    ("name", "given", "sentence"),
    [
        ("esp", {"masks": 5}, "Option masks of esp is '5'; it can be from 1 to 4."),
        ("esp", {"init": "middle"}, "it can be table, mean, sample, last."),
        ("esp", {"update": -0.1}, "it can be from 0 to 1."),
        ("esp", {"budget": 4, "masks": 2}, "it must be at least 6."),
        ("esp", {"tree": "wide"}, "it can be dynamic or children per depth, such as 15,4"),
        ("esp", {"tree": "3,0"}, "The tree is '3,0'"),
        ("esp", {"tree": "200,100"}, "255 at most in all"),
        ("esp", {"tree": "3,2", "masks": 1}, "is 2 tokens deep and needs as many masks"),
        ("esp", {"depth": 2}, "esp has no option 'depth'; its options: masks, init, update"),
        ("lookahead", {"n": 1}, "it can be from 2 to 8."),
        ("lookahead", {"pool": "none"}, "it can be prompt, window."),
        ("stand", {"budget": "many"}, "it must be a whole number."),
        ("draft-model", {}, "draft-model needs option model"),
        ("esp+pdl", {}, "There is no drafter 'pdl'; there are ar, pld,"),
        ("esp+esp", {}, "names a drafter twice; a union joins two to 4 different drafters"),
        ("ar+pld", {}, "has ar as a member, which drafts nothing"),
        ("esp+", {}, "There is no drafter ''"),
        ("esp+pld", {"masks": 2}, "esp+pld has no option 'masks'; its options: budget, esp.masks"),
        ("esp+pld", {"pld.budget": 2}, "has no option 'pld.budget'"),
        ("esp+pld", {"esp.masks": 9}, "Option esp.masks of esp+pld is '9'"),
        ("esp+pld", {"esp.masks": 4, "budget": 8}, "leaves esp+pld no room for a drafted token"),
        ("esp+lookahead", {"budget": 16}, "leaves esp+lookahead no room"),
        ("draft-model+pld", {}, "needs option model"),
        ("mtpc-hmm", {"window": "short"}, "it must be a whole number."),
        ("mtpc-hmm", {"window": -1}, "it can be from 0 to 1024."),
        ("mtpc-hmm", {"rank": "longest"}, "it must be a whole number."),
    ],
)
def test_what_does_not_go_gets_a_sentence(
    name: str, given: dict[str, object], sentence: str
) -> None:
    with pytest.raises(InputError) as raised:
        settle_options(name, given)
    assert sentence in str(raised.value)


def test_defaults_are_allowed_and_complete() -> None:
    for name, options in OPTIONS.items():
        given = {"model": "somewhere"} if name == "draft-model" else {}
        settled = settle_options(name, given)
        assert list(settled) == [option.name for option in options]


@pytest.mark.parametrize(
    ("given", "window"), [(6, 6), ("8", 8), ("longest", 0), (0, 0), ("0", 0), (8.0, 8)]
)
def test_a_circuits_window_is_any_number(given: object, window: int) -> None:
    for name in CIRCUITS:
        assert settle_options(name, {"window": given})["window"] == window
    union = settle_options("esp+mtpc-hmm", {"mtpc-hmm.window": given})
    assert union["mtpc-hmm.window"] == window


def test_union_options_are_the_members_and_one_budget() -> None:
    names = [option.name for option in options_of("esp+stand")]
    assert names == ["budget", "esp.masks", "esp.init", "esp.update", "esp.tree", "stand.n"]
    settled = settle_options("esp+stand", {"esp.masks": "2", "budget": "90"})
    assert settled["budget"] == 90 and settled["esp.masks"] == 2
    apart = by_members("esp+stand", settled)
    assert list(apart) == ["esp", "stand"]
    assert apart["esp"]["masks"] == 2 and list(apart["stand"]) == ["n"]
    assert by_members("pld", {"n": 3}) == {"pld": {"n": 3}}
    assert settle_options("esp+stand", settled) == settled
    assert members_of("esp+pld+stand") == ("esp", "pld", "stand")


def test_rows_of_blocks() -> None:
    assert children_per_depth("dynamic") is None
    assert children_per_depth("15,4") == (15, 4)
    assert probe_rows("esp", {"masks": 2}, 9) == 20
    assert probe_rows("lookahead", {"n": 4, "window": 5}, 99) == 14
    assert probe_rows("pld", {}, 9) == 0
    assert most_nodes({"esp": {"masks": 2}}, 30) == 9
    assert most_nodes({"esp": {"masks": 1}, "pld": {}}, 60) == 29
    assert most_nodes({"lookahead": {"n": 4, "window": 5}}, 30) == 15
    assert most_nodes({"esp": {"masks": 4}}, 5) == 0
