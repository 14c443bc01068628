"""Page Circuit: a drafter's circuit on one context, to look at, clamp and sample (MTPC)."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Mapping
from typing import Any

import gradio as gr

from mtp.circuits.structure import CIRCUIT_NAMES
from mtp.drafters.options import LONGEST
from mtp.errors import DraftscopeError, InputError, TraceError
from mtp.records.circuit import Question
from viz import circuit_shown, panel, shell
from viz.circuit_shown import Shown, asked_from, look_at, view_of
from viz.pages.common import busy, filled_from_address, filling, owner_of, prompt_box, watch
from viz.runs import Desk, Job, Kept, imported
from viz.texts import part, text

WINDOWS = (LONGEST, "8", "16")
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
    first = circuit_shown.keep_recorded(recorded[0], views) if recorded else None
    with gr.Column(elem_id="circuit-controls"):
        recordings = gr.Dropdown(
            _choices(views), value=recorded[0] if recorded else None,
            label=text("circuit.recordings"), elem_id="circuit-recorded",
        )  # fmt: skip
        prompt = prompt_box("circuit-prompt")
        answer = gr.Textbox(
            label=text("circuit.answer"), placeholder=text("circuit.answer.placeholder"),
            lines=1, max_lines=3, elem_id="circuit-answer",
        )  # fmt: skip
        circuit = gr.Radio(
            [(text(f"circuit.name.{name}"), name) for name in CIRCUIT_NAMES], value="btree",
            label=text("circuit.circuit"), elem_id="circuit-circuit",
        )  # fmt: skip
        window = gr.Dropdown(
            [(text("circuit.window.longest"), LONGEST), *((size, size) for size in WINDOWS[1:])],
            value=LONGEST, allow_custom_value=True, label=text("circuit.window"),
            elem_id="circuit-window",
        )  # fmt: skip
        with gr.Row():
            start = gr.Button(text("circuit.start"), variant="primary", elem_id="circuit-start")
            stop = gr.Button(text("decode.stop"), interactive=False, elem_id="circuit-stop")
        gr.HTML(f'<p class="ds-dim ds-note">{text("circuit.note")}</p>', apply_default_css=False)
    view = circuit_panel(desk, views, first)
    fields = [prompt, answer, circuit, window]
    buttons = [start, stop]
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
            question = Question(
                circuit=str(rest[2]), window=window_from(rest[3]), prompt=base.prompt,
                answer=str(rest[1] or ""), mode=base.mode, seed=base.seed,
            )  # fmt: skip
        except DraftscopeError as error:
            yield [shell.status(str(error), "failed"), *[_KEEP] * 4]
            return
        async for update in explore(model, dtype, question, owner_of(request)):
            yield update

    def show(name: str | None) -> list[Any]:
        """A recorded view: status, view, and the fields that would make it again."""
        if not name:
            return [_KEEP] * 6
        try:
            key = circuit_shown.keep_recorded(name, views)
        except TraceError as error:
            return [shell.status(str(error), "failed"), *[_KEEP] * 5]
        shown = views.get(key)
        assert shown is not None
        one = shown.view
        line = shell.status(text("circuit.shown", label=circuit_shown.label_of(one)))
        return [line, {"view": key}, one.prompt, one.answer, one.circuit, str(one.window)]

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
                yield [shell.status(str(error), "failed"), *nothing[1:]]
                return
            line, value, *filled = show(name)
            if isinstance(value, dict):
                value = {**value, "ask": ask}
            chosen = name if name in recorded else _KEEP
            yield [line, value, _KEEP, _KEEP, filling([*filled, chosen])]
            return
        kind = query["circuit"] if query.get("circuit") in CIRCUIT_NAMES else _KEEP
        filled = [query["context"], query.get("answer", ""), kind, query.get("window", LONGEST)]
        yield [*[_KEEP] * 4, filling([*filled, None])]
        try:
            ask = ask_from(query)
            model, dtype, values = shell.asked_in(query)
            question = Question(
                circuit=query.get("circuit", "btree"), window=window_from(query.get("window")),
                prompt=query["context"], answer=query.get("answer", ""),
                mode=values.get("mode", "chat"), seed=values.get("seed", 0),
            )  # fmt: skip
        except InputError as error:
            yield [shell.status(str(error), "failed"), *nothing[1:]]
            return
        async for line, value, _, *rest in explore(model, dtype, question, owner_of(request), ask):
            yield [line, value, *rest, _KEEP]

    def end(request: gr.Request) -> None:
        desk.stop_all(owner_of(request))

    start.click(run, [*header.components, *fields], [status, view, recordings, *buttons], **quiet)
    stop.click(end, None, None, queue=False)
    recordings.input(show, recordings, [status, view, *fields], **quiet)
    said = filled_from_address([*fields, recordings])
    app.load(load, None, [status, view, *buttons, said], **quiet)


def window_from(value: object) -> int | None:
    """The window that a field or an address names; None for the longest there is.

    Raises InputError for what is neither.
    """
    words = str(value or LONGEST).strip()
    if words == LONGEST:
        return None
    if not words.isascii() or not words.isdecimal() or not 0 < int(words[:6]) <= 1024:
        raise InputError(text("circuit.error.window", given=words[:20]))
    return int(words)


def ask_from(query: Mapping[str, str]) -> dict[str, Any]:
    """The question that an address holds, in the page's form. Raises InputError for what makes no
    sense.
    """
    ask: dict[str, Any] = {"given": query.get("given", "")[: circuit_shown.MOST_GIVEN]}
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
        shown = views.get(circuit_shown.keep_recorded(name, views))
        assert shown is not None
        one = shown.view
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
