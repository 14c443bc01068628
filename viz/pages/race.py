"""Page Race: decoders on one prompt, measured in turn, replayed side by side on one clock."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import gradio as gr

from mtp.drafters.options import shipped
from mtp.errors import DraftscopeError
from mtp.records.race import Race, Standing, standings
from mtp.records.settings import Settings
from viz import panel, shell
from viz.drafter_choice import UNIONS
from viz.figures import race as figures
from viz.pages.common import busy, owner_of, prompt_box, watch
from viz.runs import Desk, Job, Kept
from viz.texts import part, table, text

RECORDED = panel.ASSETS / "races" / "first.json"  # what the page shows at first
OUTSIDE = ("hf", "hf-pld")  # transformers' own generate, plain and with prompt lookup
EVEN = 0.02  # a ratio this near 1 is called even


def race_view(races: Kept[Race], first: str) -> gr.HTML:
    """A component that replays the race named in its value, {"race"}; `first` before another."""
    return gr.HTML(
        value={"race": first},
        html_template=panel.markup("race"),
        js_on_load=panel.scripts(
            "page", "figure", "race",
            texts=part("race.", "player.", "count.", "table."), controls="race-controls",
        ),
        server_functions=[_race_of(races)],
        apply_default_css=False,
        elem_id="race-view",
    )  # fmt: skip


def _race_of(races: Kept[Race]) -> Any:
    def race_of(name: str) -> dict[str, Any]:
        """A race as the page replays it."""
        race = races.get(name)
        if race is None:
            return {"error": text("error.gone")}
        return {**viewer_race(race), "recorded": name == RECORDED.stem}

    return race_of


def viewer_race(race: Race) -> dict[str, Any]:
    """Ticks, places, sentences and figures of a race; its times are the measured ones."""
    lines = standings(race)
    places = {line.decoder: line.place for line in lines}
    plain = next((racer for racer in race.racers if racer.decoder == "ar"), None)
    parted = {line.decoder for line in lines if line.same_text is False}
    colours = figures.colours_of(race)
    racers = []
    for racer in race.racers:
        lap = racer.typical
        outside = racer.decoder in OUTSIDE
        racers.append(
            {
                "decoder": racer.decoder,
                "colour": colours[racer.decoder],
                "place": places[racer.decoder],
                "calls": lap.calls,
                "own_text": text(
                    "race.lane.own.is", tokens=len(lap.ids), plain=len(plain.typical.ids)
                )
                if plain is not None and racer.decoder in parted
                else None,
                # generate's first tokens end its prefill, so they are shown but not timed
                "free": len(lap.ticks[0].pieces) if outside and lap.ticks else 0,
                "ticks": [
                    {"seconds": tick.seconds, "pieces": [list(piece) for piece in tick.pieces]}
                    for tick in lap.ticks
                ],
            }
        )
    title = text(
        "race.title",
        model=race.model,
        dtype=race.dtype,
        device=race.device,
        temperature=f"{race.temperature:g}",
        prompt=" ".join(race.prompt.split()),
    )
    return {
        "title": title,
        "racers": racers,
        "said": [sentence(line, race) for line in lines],
        "table": _table(lines, race),
        "figures": {
            "speed": panel.plain_figure(figures.speeds(race, table())),
            "time": panel.plain_figure(figures.times(race, table())),
        },
    }


def sentence(line: Standing, race: Race) -> str:
    """What a person should know of one racer: faster or slower than plain decoding, and why."""
    if line.decoder == "ar":
        return text("race.said.ar", speed=f"{line.speed:.1f}")
    if line.ratio is None:
        return text("race.said.alone", decoder=line.decoder, speed=f"{line.speed:.1f}")
    key = "even" if abs(line.ratio - 1) < EVEN else "faster" if line.ratio > 1 else "slower"
    parts = [text(f"race.said.{key}", decoder=line.decoder, ratio=f"{line.ratio:.2f}")]
    if line.tokens_per_call is not None and line.call_cost is not None and line.decoder != "hf":
        parts.append(
            text(
                "race.said.why",
                tokens=f"{line.tokens_per_call:.2f}",
                cost=f"{line.call_cost:.2f}",
                draft=f"{100 * (line.draft_share or 0):.0f}",
            )
        )
    if line.same_text is False:
        own = line.decoder in OUTSIDE and race.temperature > 0
        parts.append(text("race.said.own_text" if own else "race.said.parted"))
    return " ".join(parts)


def _table(lines: list[Standing], race: Race) -> dict[str, Any]:
    def number(value: float | None, form: str = ".2f") -> str:
        return "–" if value is None else format(value, form)

    heads = ("place", "decoder", "speed", "ratio", "range", "percall", "cost", "draft", "same")
    rows = [
        [
            line.place,
            line.decoder,
            number(line.speed, ".1f"),
            number(line.ratio),
            f"{number(line.ratio_low)} – {number(line.ratio_high)}" if race.repeats > 1 else "–",
            number(line.tokens_per_call),
            number(line.call_cost),
            "–" if line.draft_share is None else f"{100 * line.draft_share:.1f}%",
            "–" if line.same_text is None else text(f"race.same.{line.same_text}".lower()),
        ]
        for line in lines
    ]
    return {"heads": [text(f"race.table.{head}") for head in heads], "rows": rows}


def build(desk: Desk, races: Kept[Race], header: shell.Header, status: gr.HTML) -> None:
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
            label=text("race.decoders"),
            elem_id="race-decoders",
        )
        repeats = gr.Number(
            recorded.repeats, precision=0, label=text("race.repeats"), elem_id="race-repeats"
        )
        with gr.Row():
            start = gr.Button(text("race.start"), variant="primary", elem_id="race-start")
            stop = gr.Button(text("decode.stop"), interactive=False, elem_id="race-stop")
        gr.HTML(f'<p class="ds-dim ds-note">{text("race.note")}</p>', apply_default_css=False)
    view = race_view(races, RECORDED.stem)

    async def run(request: gr.Request, *asked: Any) -> AsyncIterator[list[Any]]:
        """Measures the racers, then hands the race to the page."""
        head, rest = asked[: len(vars(header))], asked[len(vars(header)) :]
        try:
            model, dtype, base = shell.settings_from(header, head, str(rest[0] or ""))
            laps = int(shell.number(rest[2], text("race.repeats")))
        except DraftscopeError as error:
            yield [shell.status(str(error), "failed"), gr.skip(), gr.skip(), gr.skip()]
            return
        found: dict[str, str] = {}
        chosen = [str(name) for name in rest[1] or []]
        job = _race_into(found, desk, races, owner_of(request), model, dtype, chosen, base, laps)
        async for words in watch(desk, job):
            yield [words, gr.skip(), *busy(True)]
        failure = job.failure()
        if failure is not None:
            yield [shell.status(failure, "failed"), gr.skip(), *busy(False)]
            return
        name = found.get("race")
        words = shell.status(text("race.over" if name else "race.stopped"))
        yield [words, {"race": name} if name else gr.skip(), *busy(False)]

    start.click(
        run,
        [*header.components, prompt, decoders, repeats],
        [status, view, start, stop],
        show_progress="hidden",
        concurrency_limit=None,
    )

    def end(request: gr.Request) -> None:
        desk.stop_all(owner_of(request))

    stop.click(end, None, None, queue=False)


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
