"""Page Noise: a context, its noise as sliders, and what drafters foresee from it (PTP)."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import Any

import gradio as gr

from mtp.errors import DraftscopeError, InputError
from mtp.records.noise import PLACES, NoiseRecord, Question
from viz import noise_shown, panel, shell
from viz.noise_asked import Questions, tab_of
from viz.noise_shown import Shown, asked_from, head_of, opened_from
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

MOST_NOISE = 64  # numbers that an address may hold
HEAD = ("model", "mode", "seed", "temperature", "top_k", "top_p")  # of the header, with a context
MOST_SAID = 60  # characters of a context in the list
MOST_BYTES = 4 * 2**20  # of a saved context; 16 places of three drafters take a fifth
_KEEP = gr.skip()


def noise_panel(questions: Questions, first: str | None) -> gr.HTML:
    """A component that shows the context named in its value, {"noise", "ask"}. Its event `asked`
    tells that an answer takes a while.
    """
    return gr.HTML(
        value={"noise": first} if first else None,
        html_template=panel.markup("noise"),
        js_on_load=panel.scripts(
            "page", "figure", "noise",
            texts=part("noise.", "player.data", "player.p", "player.json", "player.nothing_yet",
                       "player.link", "status.dismiss"),
            controls="noise-controls",
        ),
        server_functions=[_head_of(questions.kept), *_answers(questions)],
        apply_default_css=False,
        elem_id="noise-view",
    )  # fmt: skip


def _head_of(kept: Kept[Shown]) -> Any:
    def noise_head(key: str) -> dict[str, Any]:
        """The parts of a context that stay."""
        shown = kept.get(key)
        return {"error": text("noise.error.gone")} if shown is None else head_of(shown)

    return noise_head


def _answers(questions: Questions) -> list[Any]:
    """What the page asks by itself; each belongs to the browser tab that asks."""

    async def noise_look(asked: list[Any], request: gr.Request) -> dict[str, Any]:
        return await questions.look(asked, await tab_of(request))

    async def noise_sweep(asked: list[Any], request: gr.Request) -> dict[str, Any]:
        return await questions.sweep(asked, await tab_of(request))

    async def noise_file(asked: list[Any], request: gr.Request) -> dict[str, Any]:
        return await questions.file(asked, await tab_of(request))

    return [noise_look, noise_sweep, noise_file]


def build(desk: Desk, header: shell.Header, status: gr.HTML, app: gr.Blocks) -> None:
    """Lays the page out and binds its events."""
    kept: Kept[Shown] = Kept()
    questions = Questions(desk, kept)
    recorded = noise_shown.recorded_names()
    first, shown = noise_shown.keep_recorded(recorded[0], kept) if recorded else (None, None)
    with gr.Column(elem_id="noise-controls"):
        recordings = gr.Dropdown(
            _choices(kept), value=recorded[0] if recorded else None,
            label=text("noise.recordings"), elem_id="noise-recorded",
        )  # fmt: skip
        prompt, answer = context_boxes("noise")
        places = gr.Number(PLACES, precision=0, label=text("noise.places"), elem_id="noise-places")
        fields = [prompt, answer, places]
        buttons = start, stop = start_and_stop("noise")
        upload = gr.UploadButton(
            text("noise.open"), file_types=[".json"], size="sm", elem_id="noise-open", min_width=120
        )
        gr.HTML(f'<p class="ds-dim ds-note">{text("noise.note")}</p>', apply_default_css=False)
    view = noise_panel(questions, first)
    filled = [*(getattr(header, name) for name in HEAD), *fields]
    quiet: dict[str, Any] = {"show_progress": "hidden", "concurrency_limit": None}
    if shown is not None:
        prompt.value, answer.value = shown.record.question.prompt, shown.record.question.answer

    async def explore(
        model: str, dtype: str | None, question: Question, owner: str, ask: Any = None
    ) -> AsyncIterator[list[Any]]:
        """Status, view, recordings, start, stop while a context is read."""
        found: dict[str, str] = {}
        job = _explore_into(found, questions, owner, model, dtype, question)
        async for words in watch(desk, job):
            yield [words, _KEEP, _KEEP, *busy(True)]
        failure = job.failure()
        if failure is not None:
            yield [shell.status(failure, "failed"), _KEEP, _KEEP, *busy(False)]
            return
        key = found.get("noise")
        words = text("noise.done") if key else text("noise.stopped")
        line = shell.status(f"{words} {desk.loaded()}".strip())
        shown = kept.get(key)
        if shown is not None and ask:
            try:
                asked_from(ask, shown.record)
            except InputError as error:
                line, ask = shell.status(str(error), "failed"), None
        value = {"noise": key, "ask": ask} if key else _KEEP
        yield [line, value, None if key else _KEEP, *busy(False)]

    async def run(request: gr.Request, *asked: Any) -> AsyncIterator[list[Any]]:
        """Reads the context that the controls say."""
        head, rest = asked[: len(vars(header))], asked[len(vars(header)) :]
        try:
            model, dtype, base = shell.settings_from(header, head, str(rest[0] or ""))
            count = int(shell.number(rest[2], text("noise.places")))
        except DraftscopeError as error:
            yield failed(str(error), 5)
            return
        question = Question(
            base.prompt, str(rest[1] or ""), base.mode, base.seed, base.temperature, base.top_k,
            base.top_p, count,
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

            def made() -> list[Any]:
                key, shown = noise_shown.keep_recorded(name, kept)
                ask = ask_from(query)
                asked_from(ask, shown.record)
                line = shell.status(text("noise.shown", model=shown.record.model))
                named = shell.from_query(query)  # page Decode fills these from the address
                mine = fields_of(shown.record)
                over = [named.get(field, own) for field, own in zip(HEAD, mine, strict=False)]
                said = filling([*over, *mine[len(HEAD) :], name])
                return [line, {"noise": key, "ask": ask}, _KEEP, _KEEP, said]

            yield or_sentence(len(nothing), made)
            return
        head = shell.from_query(query)
        above = [head.get(name, _KEEP) for name in HEAD]
        asked_places = _whole(query.get("places"), 2)
        mine = [query["behind"], query.get("answer", ""), asked_places or _KEEP]
        said = filling([*above, *mine, None])
        yield [*[_KEEP] * 4, said]
        try:
            ask = ask_from(query)
            count = places_from(query)
            if len(ask.get("noise", [0.0] * count)) != count:
                raise shell.refused(query, "u")
            model, dtype, values = shell.asked_in(query)
        except InputError as error:
            yield failed(str(error), len(nothing))
            return
        question = Question(
            prompt=query["behind"], answer=query.get("answer", ""), places=count,
            **{
                name: values[name]
                for name in ("mode", "seed", "temperature", "top_k", "top_p")
                if name in values
            },
        )  # fmt: skip
        async for line, value, _, *rest in explore(model, dtype, question, owner_of(request), ask):
            yield [line, value, *rest, _KEEP]

    def show(name: str | None) -> list[Any]:
        """A recorded context: status, view, and the fields that would read it again."""

        def made() -> list[Any]:
            key, shown = noise_shown.keep_recorded(str(name), kept)
            line = shell.status(text("noise.shown", model=shown.record.model))
            return [line, {"noise": key}, *fields_of(shown.record)]

        outputs = 2 + len(filled)
        return or_sentence(outputs, made) if name else [_KEEP] * outputs

    def open_file(path: str | None) -> list[Any]:
        """Shows a saved context without a model: status, view, recordings, and the fields that
        would read it again.
        """

        def made() -> list[Any]:
            shown = opened_from(uploaded(str(path), MOST_BYTES, "noise.error.large"))
            line = shell.status(text("noise.opened", model=shown.record.model[:80]))
            return [line, {"noise": kept.add(shown)}, None, *fields_of(shown.record)]

        outputs = 3 + len(filled)
        return [_KEEP] * outputs if path is None else or_sentence(outputs, made)

    async def follow(request: gr.Request) -> AsyncIterator[list[Any]]:
        """What the model does for a moved slider, and for what is asked while it does: status,
        start, stop. What comes of it, an error as well, is said beside the picture too.
        """
        owner = owner_of(request)
        job, newer = None, questions.job_of(owner)
        if newer is None:
            yield [_KEEP] * 3
            return
        while newer is not None and newer is not job:
            job = newer
            async for words in watch(desk, job):
                yield [words, *busy(True)]
            newer = questions.job_of(owner)
        assert job is not None
        failure = job.failure()
        words = text("noise.stopped.question" if job.stopped else "noise.live")
        line = shell.status(f"{words} {desk.loaded()}".strip())
        yield [shell.status(failure, "failed") if failure else line, *busy(False)]

    def end(request: gr.Request) -> None:
        desk.stop_all(owner_of(request))

    start.click(run, [*header.components, *fields], [status, view, recordings, *buttons], **quiet)
    stop.click(end, None, None, queue=False)
    recordings.input(show, recordings, [status, view, *filled], **quiet)
    upload.upload(open_file, upload, [status, view, recordings, *filled], **quiet)
    view.asked(follow, None, [status, *buttons], **quiet)
    said = filled_from_address([*filled, recordings])
    app.load(load, None, [status, view, *buttons, said], **quiet)


def fields_of(record: NoiseRecord) -> list[Any]:
    """What reads a context again, in the fields' order: those of the header, then the page's."""
    asked = record.question
    mine = (*HEAD[1:], "prompt", "answer", "places")
    return [record.model, *(getattr(asked, name) for name in mine)]


def _choices(kept: Kept[Shown]) -> list[tuple[str, str]]:
    """(label, name) of the recorded contexts."""
    labels = []
    for name in noise_shown.recorded_names():
        record = noise_shown.keep_recorded(name, kept)[1].record
        said = f"{record.question.prompt} {record.question.answer}".strip()
        short = said if len(said) <= MOST_SAID else said[: MOST_SAID - 1] + "…"
        label = text("noise.choice", model=record.model, said=short)
        labels.append((label, name))
    return labels


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
        if query.get(key):
            number = _whole(query[key], 4)
            if number is None:
                raise shell.refused(query, key)
            ask[name] = number - (name == "place")
    if query.get("drafts"):
        ask["drafter"] = query["drafts"][:40]
    return ask


def places_from(query: Mapping[str, str]) -> int:
    """How many places an address asks for. Raises InputError for what makes no sense."""
    number = _whole(query.get("places", str(PLACES)), 2)
    if number is None:
        raise shell.refused(query, "places")
    return number


def _whole(words: str | None, digits: int) -> int | None:
    """The whole number of at most so many digits that an address holds; None for other words."""
    if words and words.isascii() and words.isdecimal() and len(words) <= digits:
        return int(words)
    return None


def _explore_into(
    found: dict[str, str],
    questions: Questions,
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
        verifier = questions.desk.verifier(model, dtype, job)
        job.tell(text("status.prefill"))
        explorer = explorer_of(verifier, question, lambda: job.stopped)

        def tell(done: float) -> None:
            job.tell(text("noise.exploring"), done)

        if job.stopped:
            return
        # The model is there to sweep the other places when they are asked for.
        made = record(verifier, question, explorer, tell, lambda: job.stopped, swept=(0,))
        if made is not None:
            key = questions.kept.add(Shown(made))
            questions.explorers.keep(key, verifier, explorer)
            found["noise"] = key

    return questions.desk.submit(work, owner)
