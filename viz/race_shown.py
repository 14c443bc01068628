"""A race as page Race is sent it: ticks, places, sentences, figures, tables, and its link."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlencode

from mtp.records.race import Race, Standing, standings
from viz import panel
from viz.figures import race as figures
from viz.texts import table, text

OUTSIDE = ("hf", "hf-pld")  # transformers' own generate, plain and with prompt lookup
EVEN = 0.02  # a ratio this near 1 is called even


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
        "link": link_of(race),
        "racers": racers,
        "said": [sentence(line, race) for line in lines],
        "table": _table(lines, race),
        "times": _times(race),
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
    elif line.decoder in OUTSIDE and line.decoder != "hf":
        parts.append(text("race.said.untold"))
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


def _times(race: Race) -> dict[str, Any]:
    """What a token's time went to, as a table."""
    heads = [text("race.table.decoder"), *(text(f"race.part.{part}") for part, _ in figures.PARTS)]
    rows = [
        [
            racer.decoder,
            *(
                f"{value:.2f}" if value else "–"
                for value in figures.milliseconds(racer.typical).values()
            ),
        ]
        for racer in race.racers
    ]
    return {"heads": heads, "rows": rows}


def link_of(race: Race) -> str | None:
    """The query that measures this race again; None where it would be too long."""
    query = urlencode(
        {
            "tab": "race",
            "racers": ",".join(racer.decoder for racer in race.racers),
            "laps": race.repeats,
            "model": race.model,
            "dtype": race.dtype,
            "mode": race.mode,
            "temperature": race.temperature,
            "top_k": race.top_k,
            "top_p": race.top_p,
            "seed": race.seed,
            "new": race.max_new_tokens,
            "text": race.prompt,
        }
    )
    return query if len(query) <= panel.LINK_LENGTH else None
