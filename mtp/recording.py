"""`record`, `record-race`, `record-circuit`, `record-noise`: what pages show at first."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from mtp.arguments import add_model, add_sampling, load, pairs_from, settings_from, write
from mtp.errors import InputError
from mtp.models.catalog import DEFAULT_MODEL, REPOSITORY


def add_parsers(commands: Any) -> None:
    """Adds the commands to a parser's."""
    record = commands.add_parser("record", help="make a recorded run for the app's first view")
    add_model(record)
    add_sampling(record)
    record.add_argument("--prompt", required=True)
    record.add_argument("--drafter", default="pld")
    record.add_argument("--option", action="append", default=[], metavar="K=V")
    record.add_argument("--name", required=True, help="name of the file in assets/traces")
    record.set_defaults(run=_record)

    race = commands.add_parser("record-race", help="make the recorded race of page Race")
    add_model(race)
    add_sampling(race)
    race.add_argument("--prompt", required=True)
    race.add_argument("--drafters", required=True, metavar="A,B,C", help="two to four racers")
    race.add_argument("--laps", type=int, default=3)
    race.add_argument("--name", default="first", help="name of the file in assets/races")
    race.add_argument("--out", type=Path, metavar="FOLDER", help="assets/races if not given")
    race.set_defaults(run=_record_race)

    circuits = commands.add_parser("record-circuit", help="make the recorded views of circuits")
    add_model(circuits)
    circuits.add_argument("--raw", action="store_true", help="no chat template")
    circuits.add_argument("--seed", type=int, default=0)
    circuits.add_argument("--prompt", required=True)
    circuits.add_argument("--answer", default="", help="the beginning of the answer")
    circuits.add_argument(
        "--circuits",
        default="ff-8,cp-8,hmm-8,btree-8",
        metavar="NAME-WINDOW,…",
        help="each makes NAME-WINDOW.json, MODEL-NAME-WINDOW.json for other models than byte",
    )
    circuits.add_argument("--out", type=Path, metavar="FOLDER", help="assets/circuits if not given")
    circuits.set_defaults(run=_record_circuits, model="byte")

    noise = commands.add_parser("record-noise", help="make a recorded context of page Noise")
    add_model(noise)
    add_sampling(noise)
    noise.add_argument("--prompt", required=True)
    noise.add_argument("--answer", default="", help="the beginning of the answer")
    noise.add_argument("--name", default="first", help="name of the file in assets/noise")
    noise.add_argument("--out", type=Path, metavar="FOLDER", help="assets/noise if not given")
    noise.set_defaults(run=_record_noise)


def _record(chosen: argparse.Namespace) -> int:
    from mtp.run import start

    _check_name(chosen.name)
    settings = settings_from(chosen, chosen.prompt, chosen.drafter, pairs_from(chosen.option))
    decoding, run = start(load(chosen), settings)
    for _ in decoding:
        pass
    _put(REPOSITORY / "assets" / "traces", chosen.name, decoding.trace(run).to_json())
    return 0


def _record_race(chosen: argparse.Namespace) -> int:
    from mtp.bench.race import check_racers, run_race
    from mtp.run import check_settings

    _check_name(chosen.name)
    racers = [name.strip() for name in chosen.drafters.split(",")]
    check_racers(racers, chosen.laps)
    settings = settings_from(chosen, chosen.prompt, "ar", {})
    check_settings(settings)

    def report(racer: str, lap: int, laps: int, left: float | None) -> None:
        print(f"{racer}, lap {lap} of {laps}", file=sys.stderr, flush=True)

    race = run_race(load(chosen), racers, settings, chosen.laps, report, lambda: False)
    assert race is not None  # nobody stops it
    _put(chosen.out or REPOSITORY / "assets" / "races", chosen.name, race.to_json() + "\n")
    return 0


def _record_circuits(chosen: argparse.Namespace) -> int:
    from mtp.circuits.view import check_question, explore
    from mtp.records.circuit import Question
    from mtp.records.trace import Mode

    questions = []
    for name in chosen.circuits.split(","):
        circuit, dash, window = name.strip().partition("-")
        if not dash or not window.isdecimal():
            raise InputError(f"--circuits takes NAME-WINDOW, such as hmm-8; not {name[:40]!r}.")
        mode: Mode = "raw" if chosen.raw else "chat"
        questions.append(
            Question(circuit, int(window), chosen.prompt, chosen.answer, mode, chosen.seed)
        )
        check_question(questions[-1], chosen.model)
    verifier = load(chosen)
    folder = chosen.out or REPOSITORY / "assets" / "circuits"
    for question in questions:
        view = explore(verifier, question)
        assert view is not None  # nobody stops it
        model = Path(verifier.name).name
        before = "" if model == DEFAULT_MODEL else f"{model}-"
        _put(folder, f"{before}{question.circuit}-{question.window}", view.to_json() + "\n")
    return 0


def _record_noise(chosen: argparse.Namespace) -> int:
    from mtp.ptp.question import explorer_of, record
    from mtp.records.noise import Question

    _check_name(chosen.name)
    question = Question(
        prompt=chosen.prompt,
        answer=chosen.answer,
        mode="raw" if chosen.raw else "chat",
        seed=chosen.seed,
        temperature=chosen.temperature,
        top_k=chosen.top_k,
        top_p=chosen.top_p,
    )
    verifier = load(chosen)
    made = record(verifier, question, explorer_of(verifier, question))
    assert made is not None  # nobody stops it
    _put(chosen.out or REPOSITORY / "assets" / "noise", chosen.name, made.to_json() + "\n")
    return 0


def _put(folder: Path, name: str, record: str) -> None:
    """Writes a record and says where."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"{folder} cannot be made: {error.strerror}.") from error
    path = folder / f"{name}.json"
    write(path, record)
    print(path)


def _check_name(name: str) -> None:
    if not name.replace("-", "").isalnum():
        raise InputError("The name of a recorded run has letters, digits and hyphens only.")
