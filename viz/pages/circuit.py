"""Page Circuit: a drafter's circuit on one context, to look at, clamp and sample (MTPC)."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Mapping
from typing import Any

import gradio as gr

from mtp.circuits.structure import CIRCUIT_NAMES
from mtp.drafters.options import OPTIONS, Option
from mtp.errors import DraftscopeError, InputError
from mtp.records.circuit import CircuitView, Question
from viz import circuit_shown, panel, shell
from viz.circuit_asked import MOST_GIVEN, asked_from
from viz.circuit_shown import Shown, look_at, opened_from, view_of
from viz.pages.common import (
    busy,
    context_boxes,
    failed,
    filled_from_address,
    filling,
    or_sentence,
    owner_of,
    start_and_stop,
    uploaded,
    watch,
)
from viz.runs import Desk, Job, Kept, imported
from viz.texts import part, text

SIZES = ("window", "rank", "lora")  # of a circuit; what its drafter takes as options
MOST_BYTES = 32 * 2**20  # of a saved view; 32 tokens of 2,048 in 32 components take less
MOST_VIEWS = 16  # each holds its circuit's numbers
_KEEP = gr.skip()


def circuit_panel(desk: Desk, views: Kept[Shown], first: str | None) -> gr.HTML:
    """A component that shows the view named in its value, {"view", "ask"}."""
    return gr.HTML(
        value={"view": first} if first else None,
        html_template=panel.markup("circuit"),
        js_on_load=panel.scripts(
            "page", "figure", "circuit",
            texts=part("circuit.", "player.data", "player.p", "player.json", "player.nothing_yet",
                       "player.link"),
            controls="circuit-controls",
        ),
        server_functions=[_view_of(desk, views), _look_of(views), _file_of(views)],
        apply_default_css=False,
        elem_id="circuit-view",
    )  # fmt: skip


def _view_of(desk: Desk, views: Kept[Shown]) -> Any:
    def circuit_view(key: str) -> dict[str, Any]:
        """The parts of a view that stay; makes ready for the first question."""
        shown = views.get(key)
        if shown is None:
            return {"error": text("circuit.error.gone")}
        desk.warm_up("mtp.circuits.view")
        return view_of(shown)

    return circuit_view


def _look_of(views: Kept[Shown]) -> Any:
    def circuit_look(request: list[Any]) -> dict[str, Any]:
        """A view under a question, asked for as [its name, the question]."""
        key, plain = request if isinstance(request, list) and len(request) == 2 else (None, None)
        shown = views.get(key)
        if shown is None:
            return {"error": text("circuit.error.gone")}
        try:
            return look_at(shown, asked_from(plain))
        except InputError as error:
            return {"error": str(error)}

    return circuit_look


def _file_of(views: Kept[Shown]) -> Any:
    def circuit_file(key: str) -> dict[str, str]:
        """The whole view as JSON."""
        shown = views.get(key)
        return {"error": text("circuit.error.gone")} if shown is None else {
            "content": shown.view.to_json()
        }  # fmt: skip

    return circuit_file


def build(desk: Desk, header: shell.Header, status: gr.HTML, app: gr.Blocks) -> None:
    """Lays the page out and binds its events."""
    views: Kept[Shown] = Kept(MOST_VIEWS)
    recorded = circuit_shown.recorded_names()
    first = circuit_shown.keep_recorded(recorded[0], views)[0] if recorded else None
    with gr.Column(elem_id="circuit-controls"):
        recordings = gr.Dropdown(
            _choices(views), value=recorded[0] if recorded else None,
            label=text("circuit.recordings"), elem_id="circuit-recorded",
        )  # fmt: skip
        prompt, answer = context_boxes("circuit")
        circuit = gr.Radio(
            [(text(f"circuit.name.{name}"), name) for name in CIRCUIT_NAMES], value="btree",
            label=text("circuit.circuit"), elem_id="circuit-circuit",
        )  # fmt: skip
        with gr.Row(elem_classes="ds-sizes"):
            sizes = [
                gr.Number(
                    0, precision=0, label=text(f"circuit.{name}"), elem_id=f"circuit-{name}",
                    min_width=90,
                )
                for name in SIZES
            ]  # fmt: skip
        buttons = start, stop = start_and_stop("circuit")
        upload = gr.UploadButton(
            text("circuit.open"), file_types=[".json"], size="sm", elem_id="circuit-open",
            min_width=120,
        )  # fmt: skip
        gr.HTML(f'<p class="ds-dim ds-note">{text("circuit.note")}</p>', apply_default_css=False)
    view = circuit_panel(desk, views, first)
    fields = [prompt, answer, circuit, *sizes]
    filled = [header.model, header.mode, header.seed, *fields]
    quiet: dict[str, Any] = {"show_progress": "hidden", "concurrency_limit": None}

    async def explore(
        model: str, dtype: str | None, question: Question, owner: str, ask: Any = None
    ) -> AsyncIterator[list[Any]]:
        """Status, view, recordings, start, stop while a view is made."""
        found: dict[str, str] = {}
        job = _explore_into(found, desk, views, owner, model, dtype, question)
        async for words in watch(desk, job):
            yield [words, _KEEP, _KEEP, *busy(True)]
        failure = job.failure()
        if failure is not None:
            yield [shell.status(failure, "failed"), _KEEP, _KEEP, *busy(False)]
            return
        key = found.get("view")
        words = text("circuit.done") if key else text("circuit.stopped")
        value = {"view": key, "ask": ask} if key else _KEEP
        line = shell.status(f"{words} {desk.loaded()}".strip())
        yield [line, value, None if key else _KEEP, *busy(False)]

    async def run(request: gr.Request, *asked: Any) -> AsyncIterator[list[Any]]:
        """Makes the view that the controls ask for."""
        head, rest = asked[: len(vars(header))], asked[len(vars(header)) :]
        try:
            model, dtype, base = shell.settings_from(header, head, str(rest[0] or ""))
            said = dict(zip(SIZES, rest[3:], strict=True))
            question = Question(
                circuit=str(rest[2]), prompt=base.prompt, answer=str(rest[1] or ""),
                mode=base.mode, seed=base.seed, **sizes_from(said),
            )  # fmt: skip
        except DraftscopeError as error:
            yield failed(str(error), 5)
            return
        async for update in explore(model, dtype, question, owner_of(request)):
            yield update

    def show(name: str | None) -> list[Any]:
        """A recorded view: status, view, and the fields that would make it again."""

        def made() -> list[Any]:
            key, shown = circuit_shown.keep_recorded(str(name), views)
            line = shell.status(text("circuit.shown", label=circuit_shown.label_of(shown.view)))
            return [line, {"view": key}, *fields_of(shown.view)]

        outputs = 2 + len(filled)
        return or_sentence(outputs, made) if name else [_KEEP] * outputs

    def open_file(path: str | None) -> list[Any]:
        """Opens a saved view without a model: status, view, recordings, and the fields that would
        make it again.
        """

        def made() -> list[Any]:
            opened = opened_from(uploaded(str(path), MOST_BYTES, "circuit.error.large"))
            key = views.add(Shown(opened, opened=True))
            line = shell.status(text("circuit.opened.done", label=circuit_shown.label_of(opened)))
            return [line, {"view": key}, None, *fields_of(opened)]

        outputs = 3 + len(filled)
        return [_KEEP] * outputs if path is None else or_sentence(outputs, made)

    async def load(request: gr.Request) -> AsyncIterator[list[Any]]:
        """Shows what the address asks for: status, view, start, stop, said."""
        query = dict(request.query_params)
        nothing = [_KEEP] * 5
        if query.get("tab") != "circuit":
            yield nothing
            return
        if not query.get("context"):
            name = query.get("view") or (recorded[0] if recorded else "")
            try:
                ask = ask_from(query)
            except InputError as error:
                yield failed(str(error), len(nothing))
                return
            line, value, *fitting = show(name)
            if "view" in value:  # else there is none of this name
                value = {**value, "ask": ask}
            chosen = name if name in recorded else _KEEP
            yield [line, value, _KEEP, _KEEP, filling([*fitting, chosen])]
            return
        kind = query["circuit"] if query.get("circuit") in CIRCUIT_NAMES else _KEEP
        head = shell.from_query(query)
        above = [head.get(name, _KEEP) for name in ("model", "mode", "seed")]
        asked = [query["context"], query.get("answer", ""), kind]
        asked += [query[name] if query.get(name, "").isdecimal() else 0 for name in SIZES]
        yield [*[_KEEP] * 4, filling([*above, *asked, None])]
        try:
            ask = ask_from(query)
            model, dtype, values = shell.asked_in(query)
            question = Question(
                circuit=query.get("circuit", "btree"), prompt=query["context"],
                answer=query.get("answer", ""), mode=values.get("mode", "chat"),
                seed=values.get("seed", 0), **sizes_from(query),
            )  # fmt: skip
        except InputError as error:
            yield failed(str(error), len(nothing))
            return
        async for line, value, _, *rest in explore(model, dtype, question, owner_of(request), ask):
            yield [line, value, *rest, _KEEP]

    def end(request: gr.Request) -> None:
        desk.stop_all(owner_of(request))

    start.click(run, [*header.components, *fields], [status, view, recordings, *buttons], **quiet)
    stop.click(end, None, None, queue=False)
    recordings.input(show, recordings, [status, view, *filled], **quiet)
    upload.upload(open_file, upload, [status, view, recordings, *filled], **quiet)
    said = filled_from_address([*filled, recordings])
    app.load(load, None, [status, view, *buttons, said], **quiet)


def fields_of(view: CircuitView) -> list[Any]:
    """What makes a view again, in the fields' order: model, mode, seed, prompt, answer, circuit and
    its sizes.
    """
    return [
        view.model, view.mode, view.seed, view.prompt, view.answer, view.circuit, view.window,
        view.rank, view.lora,
    ]  # fmt: skip


def sizes_from(said: Mapping[str, Any]) -> dict[str, Any]:
    """Window (None: the longest there is), rank and K that fields or an address say; 0 where they
    say nothing. Raises InputError for what a circuit's drafter would not take either.
    """
    known: dict[str, Option] = {option.name: option for option in OPTIONS["mtpc-btree"]}
    found: dict[str, Any] = {}
    for name in SIZES:
        given = said.get(name)
        found[name] = known[name].parse(0 if given in (None, "") else given, text("tab.circuit"))
    return {**found, "window": found["window"] or None}


def ask_from(query: Mapping[str, str]) -> dict[str, Any]:
    """The question that an address holds, in the page's form. Raises InputError for what makes no
    sense.
    """
    ask: dict[str, Any] = {"given": query.get("given", "")[:MOST_GIVEN]}
    if query.get("taken"):
        if re.fullmatch(r"[0-9]{1,6}(\.[0-9]{1,6}){0,1023}", query["taken"]) is None:
            raise shell.refused(query, "taken")
        ask["taken"] = [int(token) for token in query["taken"].split(".")]
    if query.get("pair"):
        found = re.fullmatch(r"([1-9][0-9]{0,3})\.([1-9][0-9]{0,3})", query["pair"])
        if found is None or int(found[1]) >= int(found[2]):
            raise shell.refused(query, "pair")
        ask["pair"] = [int(found[1]) - 1, int(found[2]) - 1]
    if query.get("clamp"):
        found = re.fullmatch(r"([1-9][0-9]{0,3})\.([1-9][0-9]{0,5})", query["clamp"])
        if found is None:
            raise shell.refused(query, "clamp")
        ask["clamp"] = [int(found[1]) - 1, int(found[2]) - 1]
    if query.get("sample"):
        found = re.fullmatch(r"(joint|independent|drawn)\.([1-9][0-9]{0,5})", query["sample"])
        if found is None:
            raise shell.refused(query, "sample")
        ask["sample"] = [found[1], int(found[2]) - (found[1] != "drawn")]
    return ask


def _choices(views: Kept[Shown]) -> list[tuple[str, str]]:
    """(label, name) of the recorded views."""
    labels = []
    for name in circuit_shown.recorded_names():
        one = circuit_shown.keep_recorded(name, views)[1].view
        named = text(f"circuit.name.{one.circuit}")
        label = text("circuit.choice", circuit=named, window=one.window, model=one.model)
        labels.append((label, name))
    return labels


def _explore_into(
    found: dict[str, str],
    desk: Desk,
    views: Kept[Shown],
    owner: str,
    model: str,
    dtype: str | None,
    question: Question,
) -> Job:
    """Puts a view in the line; its name appears in `found` when it is made."""

    def work(job: Job) -> None:
        job.tell(text("status.importing"))
        imported("mtp.circuits.view")
        from mtp.circuits.view import check_question, explore

        check_question(question, model)
        verifier = desk.verifier(model, dtype, job)
        job.tell(text("circuit.exploring"))

        def tell(done: float) -> None:
            job.tell(text("circuit.exploring"), done)

        view = explore(verifier, question, tell, lambda: job.stopped)
        if view is not None:
            found["view"] = views.add(Shown(view))

    return desk.submit(work, owner)
