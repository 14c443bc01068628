"""Page Noise: a context, its noise as sliders, and what follows from one call (PTP)."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from concurrent.futures import wait
from typing import Any

import gradio as gr

from mtp.errors import DraftscopeError, InputError, TraceError
from mtp.records.noise import Question
from viz import noise_shown, panel, shell
from viz.noise_shown import Shown, asked_from, head_of, look_at, sweep_at
from viz.pages.common import busy, filled_from_address, filling, owner_of, prompt_box, watch
from viz.runs import Desk, Job, Kept, imported
from viz.texts import part, text

MOST_SHOWN = 12  # each may hold a context's cache
MOST_NOISE = 64  # numbers that an address may hold
WAIT = 120.0  # seconds for an answer; the first may load the model
_KEEP = gr.skip()


def noise_panel(desk: Desk, kept: Kept[Shown], first: str | None) -> gr.HTML:
    """A component that shows the context named in its value, {"noise", "ask"}."""
    return gr.HTML(
        value={"noise": first} if first else None,
        html_template=panel.markup("noise"),
        js_on_load=panel.scripts(
            "page", "figure", "noise",
            texts=part("noise.", "player.data", "player.p", "player.json", "player.nothing_yet",
                       "player.link"),
            controls="noise-controls",
        ),
        server_functions=[_head_of(kept), _look_of(desk, kept), _sweep_of(desk, kept)],
        apply_default_css=False,
        elem_id="noise-view",
    )  # fmt: skip


def _head_of(kept: Kept[Shown]) -> Any:
    def noise_head(key: str) -> dict[str, Any]:
        """The parts of a context that stay."""
        shown = kept.get(key)
        return {"error": text("noise.error.gone")} if shown is None else head_of(shown)

    return noise_head


def _look_of(desk: Desk, kept: Kept[Shown]) -> Any:
    def noise_look(request: list[Any]) -> dict[str, Any]:
        """Everything for one setting of the noise, asked for as [the context's name, question]."""

        def answer(shown: Shown, plain: object, job: Job | None) -> dict[str, Any] | None:
            asked = asked_from(plain, shown.record)
            record = shown.record
            if asked.noise == record.view.noise:
                return look_at(record, record.view, asked)
            if job is None:
                return None
            return look_at(record, _explorer(desk, shown, job).view(asked.noise), asked)

        return _answer(desk, kept, request, answer)

    return noise_look


def _sweep_of(desk: Desk, kept: Kept[Shown]) -> Any:
    def noise_sweep(request: list[Any]) -> dict[str, Any]:
        """One place's noise swept, asked for as [the context's name, question]."""

        def answer(shown: Shown, plain: object, job: Job | None) -> dict[str, Any] | None:
            asked = asked_from(plain, shown.record)
            record = shown.record
            if not asked.drafter:
                return {}
            recorded = record.sweeps[asked.drafter]
            if asked.noise == record.view.noise and asked.place == recorded.place:
                return sweep_at(recorded, asked.noise[asked.place])
            if job is None:
                return None
            explorer = _explorer(desk, shown, job)
            sweep = explorer.sweep(asked.drafter, asked.noise, asked.place)
            return sweep_at(sweep, asked.noise[asked.place])

        return _answer(desk, kept, request, answer)

    return noise_sweep


def _answer(
    desk: Desk,
    kept: Kept[Shown],
    request: object,
    answer: Callable[[Shown, object, Job | None], dict[str, Any] | None],
) -> dict[str, Any]:
    """The answer from the record, or where it is not there (None) from the model, in its turn.

    Errors are sentences.
    """
    key, plain = request if isinstance(request, list) and len(request) == 2 else (None, None)
    shown = kept.get(key)
    if shown is None:
        return {"error": text("noise.error.gone")}
    try:
        found = answer(shown, plain, None)
    except InputError as error:
        return {"error": str(error)}
    if found is not None:
        return found
    job = desk.submit(lambda mine: answer(shown, plain, mine), owner=f"noise {key}")
    assert job.future is not None
    if not wait([job.future], WAIT).done:
        job.stop()
        return {"error": text("noise.error.busy")}
    failure = job.failure()
    if failure is not None or job.future.cancelled():
        return {"error": failure or text("noise.error.busy")}
    result: dict[str, Any] = job.future.result()
    return result


def _explorer(desk: Desk, shown: Shown, job: Job) -> Any:
    """The context's explorer on the loaded model; made anew where another took its place."""
    imported("mtp.ptp.question")
    from mtp.ptp.question import explorer_of, facts_of

    record = shown.record
    verifier = desk.verifier(record.model, record.dtype, job)
    if shown.explorer is None or shown.explorer.backbone is not verifier.backbone:
        if verifier.weights_sha256 != record.weights_sha256:
            raise InputError(text("noise.error.weights", model=record.model))
        explorer = explorer_of(verifier, record.question)
        if facts_of(explorer) != record.drafters:
            raise InputError(text("noise.error.drafters", model=record.model))
        shown.explorer = explorer
    return shown.explorer


def build(desk: Desk, header: shell.Header, status: gr.HTML, app: gr.Blocks) -> None:
    """Lays the page out and binds its events."""
    kept: Kept[Shown] = Kept(MOST_SHOWN)
    recorded = noise_shown.recorded_names()
    first = noise_shown.keep_recorded(recorded[0], kept) if recorded else None
    with gr.Column(elem_id="noise-controls"):
        prompt = prompt_box("noise-prompt")
        answer = gr.Textbox(
            label=text("noise.answer"), placeholder=text("noise.answer.placeholder"),
            lines=1, max_lines=3, elem_id="noise-answer",
        )  # fmt: skip
        with gr.Row():
            start = gr.Button(text("noise.start"), variant="primary", elem_id="noise-start")
            stop = gr.Button(text("decode.stop"), interactive=False, elem_id="noise-stop")
        gr.HTML(f'<p class="ds-dim ds-note">{text("noise.note")}</p>', apply_default_css=False)
    view = noise_panel(desk, kept, first)
    fields = [prompt, answer]
    buttons = [start, stop]
    quiet: dict[str, Any] = {"show_progress": "hidden", "concurrency_limit": None}
    if first is not None:
        shown = kept.get(first)
        assert shown is not None
        prompt.value, answer.value = shown.record.question.prompt, shown.record.question.answer

    async def explore(
        model: str, dtype: str | None, question: Question, owner: str, ask: Any = None
    ) -> AsyncIterator[list[Any]]:
        """Status, view, start, stop while a context is read."""
        found: dict[str, str] = {}
        job = _explore_into(found, desk, kept, owner, model, dtype, question)
        async for words in watch(desk, job):
            yield [words, _KEEP, *busy(True)]
        failure = job.failure()
        if failure is not None:
            yield [shell.status(failure, "failed"), _KEEP, *busy(False)]
            return
        key = found.get("noise")
        words = text("noise.done") if key else text("noise.stopped")
        value = {"noise": key, "ask": ask} if key else _KEEP
        yield [shell.status(f"{words} {desk.loaded()}".strip()), value, *busy(False)]

    async def run(request: gr.Request, *asked: Any) -> AsyncIterator[list[Any]]:
        """Reads the context that the controls say."""
        head, rest = asked[: len(vars(header))], asked[len(vars(header)) :]
        try:
            model, dtype, base = shell.settings_from(header, head, str(rest[0] or ""))
        except DraftscopeError as error:
            yield [shell.status(str(error), "failed"), *[_KEEP] * 3]
            return
        question = Question(
            base.prompt, str(rest[1] or ""), base.mode, base.seed, base.temperature, base.top_k,
            base.top_p,
        )  # fmt: skip
        async for update in explore(model, dtype, question, owner_of(request)):
            yield update

    async def load(request: gr.Request) -> AsyncIterator[list[Any]]:
        """Shows what the address asks for: status, view, start, stop, said."""
        query = dict(request.query_params)
        nothing = [_KEEP] * 5
        if query.get("tab") != "noise":
            yield nothing
            return
        if not query.get("behind"):
            name = query.get("noises") or (recorded[0] if recorded else None)
            if name is None:
                yield nothing
                return
            try:
                ask = ask_from(query)
                key = noise_shown.keep_recorded(name, kept)
            except (InputError, TraceError) as error:
                yield [shell.status(str(error), "failed"), *nothing[1:]]
                return
            shown = kept.get(key)
            assert shown is not None
            line = shell.status(text("noise.shown", model=shown.record.model))
            question = shown.record.question
            said = filling([question.prompt, question.answer])
            yield [line, {"noise": key, "ask": ask}, _KEEP, _KEEP, said]
            return
        yield [*[_KEEP] * 4, filling([query["behind"], query.get("answer", "")])]
        try:
            ask = ask_from(query)
            model, dtype, values = shell.asked_in(query)
        except InputError as error:
            yield [shell.status(str(error), "failed"), *nothing[1:]]
            return
        question = Question(
            prompt=query["behind"], answer=query.get("answer", ""),
            **{
                name: values[name]
                for name in ("mode", "seed", "temperature", "top_k", "top_p")
                if name in values
            },
        )  # fmt: skip
        async for update in explore(model, dtype, question, owner_of(request), ask):
            yield [*update, _KEEP]

    def end(request: gr.Request) -> None:
        desk.stop_all(owner_of(request))

    start.click(run, [*header.components, *fields], [status, view, *buttons], **quiet)
    stop.click(end, None, None, queue=False)
    app.load(load, None, [status, view, *buttons, filled_from_address(fields)], **quiet)


def ask_from(query: Mapping[str, str]) -> dict[str, Any]:
    """The question that an address holds, in the page's form. Raises InputError for what makes no
    sense.
    """
    ask: dict[str, Any] = {}
    if query.get("u"):
        try:
            noise = [float(u) for u in query["u"].split(",")]
        except ValueError:
            noise = []
        if not noise or len(noise) > MOST_NOISE or not all(0 <= u < 1 for u in noise):
            raise shell.refused(query, "u")
        ask["noise"] = noise
    for name, key in (("place", "place"), ("budget", "rows")):
        words = query.get(key)
        if words:
            if not (words.isascii() and words.isdecimal() and len(words) < 5):
                raise shell.refused(query, key)
            ask[name] = int(words) - (name == "place")
    if query.get("drafts"):
        ask["drafter"] = query["drafts"][:40]
    return ask


def _explore_into(
    found: dict[str, str],
    desk: Desk,
    kept: Kept[Shown],
    owner: str,
    model: str,
    dtype: str | None,
    question: Question,
) -> Job:
    """Puts a context in the line; its name appears in `found` when it is read."""

    def work(job: Job) -> None:
        job.tell(text("status.importing"))
        imported("mtp.ptp.question")
        from mtp.models.vocabulary import check_prompt
        from mtp.ptp.question import explorer_of, record
        from mtp.sampling import Sampling

        check_prompt(question.prompt)
        Sampling(question.temperature, question.top_k, question.top_p)
        verifier = desk.verifier(model, dtype, job)
        job.tell(text("status.prefill"))
        explorer = explorer_of(verifier, question, lambda: job.stopped)

        def tell(done: float) -> None:
            job.tell(text("noise.exploring"), done)

        if job.stopped:
            return
        made = record(verifier, question, explorer, tell, lambda: job.stopped)
        if made is not None:
            found["noise"] = kept.add(Shown(made, explorer=explorer))

    return desk.submit(work, owner)
