"""Page Race: decoders on one prompt, measured in turn, replayed side by side on one clock."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection
from typing import Any

import gradio as gr

from mtp.drafters.options import shipped
from mtp.errors import DraftscopeError, InputError
from mtp.records.race import Race
from mtp.records.settings import Settings
from viz import panel, shell
from viz.drafter_choice import UNIONS
from viz.pages.common import (
    busy,
    failed,
    filled_from_address,
    filling,
    owner_of,
    prompt_box,
    start_and_stop,
    uploaded,
    watch,
)
from viz.race_shown import OUTSIDE, viewer_race
from viz.runs import Desk, Job, Kept, imported
from viz.texts import part, text

RECORDED = panel.ASSETS / "races" / "first.json"  # what the page shows at first
MOST_BYTES = 16 * 2**20  # of a saved race; 36 laps of 4,096 tokens take less
LAPS_LENGTH = 4  # digits
_KEEP = gr.skip()


def race_view(races: Kept[Race], opened: Collection[str], first: str) -> gr.HTML:
    """A component that replays the race named in its value, {"race"}; `first` before another.
    `opened` names those that came from files.
    """
    return gr.HTML(
        value={"race": first},
        html_template=panel.markup("race"),
        js_on_load=panel.scripts(
            "page", "figure", "race",
            texts=part("race.", "player.", "count.", "table."), controls="race-controls",
        ),
        server_functions=[_race_of(races, opened), _file_of(races)],
        apply_default_css=False,
        elem_id="race-view",
    )  # fmt: skip


def _race_of(races: Kept[Race], opened: Collection[str]) -> Any:
    def race_of(name: str) -> dict[str, Any]:
        """A race as the page replays it."""
        race = races.get(name)
        if race is None:
            return {"error": text("error.gone")}
        state = "recorded" if name == RECORDED.stem else "opened" if name in opened else "own"
        return {**viewer_race(race), "state": state}

    return race_of


def _file_of(races: Kept[Race]) -> Any:
    def race_file(name: str) -> dict[str, str]:
        """A race as a file that can be opened again."""
        race = races.get(name)
        if race is None:
            return {"error": text("error.gone")}
        return {"name": f"draftscope-race-seed{race.seed}.json", "race": race.to_json()}

    return race_file


def build(
    desk: Desk, races: Kept[Race], header: shell.Header, status: gr.HTML, app: gr.Blocks
) -> None:
    """Lays the page out and binds its events."""
    recorded = Race.from_json(RECORDED.read_bytes())
    races.pin(RECORDED.stem, recorded)
    names = [*OUTSIDE, *(name for name in shipped() if name != "draft-model"), *UNIONS]
    with gr.Column(elem_id="race-controls"):
        prompt = prompt_box("race-prompt")
        prompt.value = recorded.prompt
        decoders = gr.Dropdown(
            names,
            value=[racer.decoder for racer in recorded.racers],
            multiselect=True,
            allow_custom_value=True,  # a link or file may name others; a race says what is known
            label=text("race.decoders"),
            elem_id="race-decoders",
        )
        repeats = gr.Number(
            recorded.repeats, precision=0, label=text("race.repeats"), elem_id="race-repeats"
        )
        start, stop = start_and_stop("race")
        upload = gr.UploadButton(
            text("race.open"), file_types=[".json"], size="sm", elem_id="race-open", min_width=120
        )
        gr.HTML(f'<p class="ds-dim ds-note">{text("race.note")}</p>', apply_default_css=False)
    opened: set[str] = set()
    view = race_view(races, opened, RECORDED.stem)

    fields = [prompt, decoders, repeats]
    quiet: dict[str, Any] = {"show_progress": "hidden", "concurrency_limit": None}

    async def measure(
        owner: str, model: str, dtype: str | None, base: Settings, racers: list[str], laps: int
    ) -> AsyncIterator[list[Any]]:
        """Measures the racers, then hands the race to the page: status, view, start, stop."""
        found: dict[str, str] = {}
        job = _race_into(found, desk, races, owner, model, dtype, racers, base, laps)
        async for words in watch(desk, job):
            yield [words, _KEEP, *busy(True)]
        failure = job.failure()
        if failure is not None:
            yield [shell.status(failure, "failed"), _KEEP, *busy(False)]
            return
        name = found.get("race")
        words = shell.status(text("race.over" if name else "race.stopped"))
        yield [words, {"race": name} if name else _KEEP, *busy(False)]

    async def run(request: gr.Request, *asked: Any) -> AsyncIterator[list[Any]]:
        """Races as the controls say."""
        head, rest = asked[: len(vars(header))], asked[len(vars(header)) :]
        try:
            model, dtype, base = shell.settings_from(header, head, str(rest[0] or ""))
            laps = int(shell.number(rest[2], text("race.repeats")))
        except DraftscopeError as error:
            yield [shell.status(str(error), "failed"), _KEEP, _KEEP, _KEEP]
            return
        racers = [str(name) for name in rest[1] or []]
        async for update in measure(owner_of(request), model, dtype, base, racers, laps):
            yield update

    async def load(request: gr.Request) -> AsyncIterator[list[Any]]:
        """Races as the address says: status, view, start, stop, said."""
        query = dict(request.query_params)
        if query.get("tab") != "race" or not query.get("racers"):
            yield [_KEEP] * 5
            return
        racers = query["racers"].split(",")
        laps = query.get("laps", "")[:LAPS_LENGTH]
        times = int(laps) if laps.isdecimal() else _KEEP
        yield [*[_KEEP] * 4, filling([query.get("text", ""), racers, times])]
        try:
            if not laps.isdecimal():
                raise shell.refused(query, "laps")
            model, dtype, values = shell.asked_in(query)
        except InputError as error:
            yield failed(str(error), 5)
            return
        base = Settings(prompt=query.get("text", ""), **values)
        async for update in measure(owner_of(request), model, dtype, base, racers, int(laps)):
            yield [*update, _KEEP]

    def open_file(path: str | None) -> list[Any]:
        """Replays a saved race without a model: status, view, fields."""
        if path is None:
            return [_KEEP] * 5
        try:
            race = Race.from_json(uploaded(path, MOST_BYTES, "race.error.large"))
        except DraftscopeError as error:
            return failed(str(error), 5)
        key = races.add(race)
        opened.add(key)
        names = [racer.decoder for racer in race.racers]
        line = shell.status(text("race.opened"))
        return [line, {"race": key}, race.prompt, names, race.repeats]

    def end(request: gr.Request) -> None:
        desk.stop_all(owner_of(request))

    start.click(run, [*header.components, *fields], [status, view, start, stop], **quiet)
    stop.click(end, None, None, queue=False)
    upload.upload(open_file, upload, [status, view, *fields], **quiet)
    app.load(load, None, [status, view, start, stop, filled_from_address(fields)], **quiet)


def _race_into(
    found: dict[str, str],
    desk: Desk,
    races: Kept[Race],
    owner: str,
    model: str,
    dtype: str | None,
    decoders: list[str],
    settings: Settings,
    repeats: int,
) -> Job:
    """Puts a race in the line; its name appears in `found` when it is over."""

    def work(job: Job) -> None:
        job.tell(text("status.importing"))
        imported("mtp.bench.race")
        from mtp.bench.race import check_racers, run_race
        from mtp.run import check_settings

        check_racers(decoders, repeats)
        check_settings(settings)
        verifier = desk.verifier(model, dtype, job)

        def report(decoder: str, lap: int, laps: int, left: float | None) -> None:
            if left is None:
                job.tell(text("race.warming", decoder=decoder))
            else:
                words = text("race.lap", decoder=decoder, lap=lap, laps=laps, left=f"{left:.0f}")
                job.tell(words, (lap - 1) / laps)

        race = run_race(verifier, decoders, settings, repeats, report, lambda: job.stopped)
        if race is not None:
            found["race"] = races.add(race)

    return desk.submit(work, owner)
