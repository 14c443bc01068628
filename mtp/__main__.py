"""The command line: `python -m mtp models | generate | show | bench | train | record | …`."""

from __future__ import annotations

import argparse
import importlib
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from mtp import recording
from mtp.arguments import (
    add_model,
    add_sampling,
    load,
    pairs_from,
    settings_from,
    tell_progress,
    write,
)
from mtp.errors import DraftscopeError, InputError

if TYPE_CHECKING:
    from mtp.records.trace import Trace

_TRAINING = {
    "corpus": ("sample completions from a model", "mtp.train.corpus"),
    "byte-lm": ("train the byte-level model", "mtp.train.byte_lm"),
    "circuits": ("train circuit heads on a frozen model", "mtp.train.circuits"),
    "ptp": ("train noise rows on a frozen model", "mtp.train.ptp"),
    "scaling": ("train noise-reading drafters of several sizes", "mtp.train.scaling"),
    "inverse": ("train noise rows from scratch, without a teacher", "mtp.train.inverse"),
}
_FAULT = 2  # exit status for anything the person can put right


class _Parser(argparse.ArgumentParser):
    """Bad arguments are one line, without the usage text."""

    def error(self, message: str) -> NoReturn:
        raise InputError(f"{message}. See: {self.prog} --help")


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command; returns its exit status."""
    try:
        given = sys.argv[1:] if arguments is None else arguments
        chosen = _parser(given).parse_args(given)
        run: Callable[[argparse.Namespace], int] = chosen.run
        return run(chosen)
    except DraftscopeError as error:
        print(" ".join(str(error).split()), file=sys.stderr)
        return _FAULT
    except BrokenPipeError:
        return 0
    except KeyboardInterrupt:
        print("Stopped.", file=sys.stderr)
        return 130


def _parser(arguments: Sequence[str]) -> argparse.ArgumentParser:
    parser = _Parser(prog="python -m mtp", description="Draft several tokens at once, verify them.")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    models = commands.add_parser("models", help="the models known by name")
    models.set_defaults(run=_models)

    fetch = commands.add_parser("fetch", help="bring a model's weights here")
    fetch.add_argument("model")
    fetch.set_defaults(run=_fetch)

    generate = commands.add_parser("generate", help="decode one prompt")
    add_model(generate)
    add_sampling(generate)
    generate.add_argument("--prompt", required=True, help="the text, or - for standard input")
    generate.add_argument("--drafter", default="pld")
    generate.add_argument("--option", action="append", default=[], metavar="K=V")
    generate.add_argument("--trace", type=Path, metavar="OUT.json", help="save the whole run")
    generate.add_argument("--json", action="store_true", help="print summary and text as JSON")
    generate.set_defaults(run=_generate)

    bench = commands.add_parser("bench", help="measure decoders against each other")
    add_model(bench)
    add_sampling(bench)
    bench.add_argument(
        "--drafters",
        required=True,
        metavar="A,B,C",
        help="with options: esp[budget=30,masks=1]; circuits: all trained for the model",
    )
    bench.add_argument("--option", action="append", default=[], metavar="D.K=V")
    bench.add_argument("--prompts", required=True, type=Path, metavar="FILE")
    bench.add_argument(
        "--held-out", action="store_true", help="FILE holds completions; take what training left"
    )
    bench.add_argument("--limit", type=int, help="the first N prompts")
    bench.add_argument("--per-category", type=int, metavar="N", help="the first N of each category")
    bench.add_argument("--repeats", type=int, default=1)
    bench.add_argument("--out", required=True, type=Path, metavar="FOLDER")
    bench.add_argument("--resume", action="store_true", help="go on with a measurement in FOLDER")
    bench.set_defaults(run=_bench)

    show = commands.add_parser("show", help="what a saved run holds")
    show.add_argument("trace", type=Path, metavar="RUN.json")
    show.set_defaults(run=_show)

    recall = commands.add_parser(
        "recall", help="ESP's tokens per call beside its mask's recall, over a measurement of bench"
    )
    recall.add_argument("folder", type=Path, metavar="FOLDER")
    recall.set_defaults(run=_recall)

    recording.add_parsers(commands)

    train = commands.add_parser("train", help="make training data and train models")
    kinds = train.add_subparsers(dest="kind", required=True, metavar="KIND")
    for kind, (about, module) in _TRAINING.items():
        parser_of_kind = kinds.add_parser(kind, help=about)
        if list(arguments[:2]) == ["train", kind]:  # torch is imported only for the one asked for
            loaded = importlib.import_module(module)
            loaded.add_arguments(parser_of_kind)
            parser_of_kind.set_defaults(run=loaded.run)
    return parser


def _models(_: argparse.Namespace) -> int:
    from mtp.models import catalog

    for row in catalog.listing():
        if not row.available:
            continue
        print(f"{row.name:10} {row.title:28} {row.licence:12} {row.state}")
    print("Any Hugging Face id (owner/name) or local folder of a causal language model works too.")
    return 0


def _fetch(chosen: argparse.Namespace) -> int:
    from mtp.models.fetch import fetch

    folder = fetch(chosen.model, tell_progress())
    print(folder)
    return 0


def _read_prompt(argument: str) -> str:
    if argument != "-":
        return argument
    try:
        return sys.stdin.buffer.read().decode("utf-8")
    except UnicodeDecodeError as error:
        raise InputError("The prompt on standard input is not UTF-8 text.") from error


def _generate(chosen: argparse.Namespace) -> int:
    from mtp.run import check_settings, start

    prompt = _read_prompt(chosen.prompt)
    settings = settings_from(chosen, prompt, chosen.drafter, pairs_from(chosen.option))
    check_settings(settings)
    _check_writable(chosen.trace)
    decoding, run = start(load(chosen), settings)
    for step in decoding:
        if not chosen.json and sys.stderr.isatty():
            print(f"\rstep {step.index + 1}", end="", file=sys.stderr)
    trace = decoding.trace(run)
    if chosen.trace:
        write(chosen.trace, trace.to_json())
    if chosen.json:
        plain = json.loads(trace.to_json())
        print(json.dumps({**plain["summary"], "text": trace.text}))
        return 0
    print(trace.text)
    print(f"\n{_sentence(trace)}", file=sys.stderr)
    return 0


def _show(chosen: argparse.Namespace) -> int:
    from mtp.records.trace import Trace

    try:
        content = chosen.trace.read_bytes()
    except OSError as error:
        raise InputError(f"{chosen.trace} cannot be read: {error.strerror}.") from error
    trace = Trace.from_json(content)
    run = trace.run
    print(
        f"{run.drafter} on {run.model} ({run.dtype}, {run.device}), seed {run.seed}, "
        f"temperature {run.temperature:g}, {run.verification}"
    )
    for step in trace.steps:
        stood = sum(token.source == "draft" for token in step.committed)
        written = "".join(token.text for token in step.committed)
        print(
            f"step {step.index + 1}: {len(step.tree.token_ids)} drafted, {stood} stood, "
            f"wrote {written!r}"
        )
    print(trace.text)
    print(_sentence(trace), file=sys.stderr)
    return 0


def _sentence(trace: Trace) -> str:
    """A run's numbers."""
    run, summary = trace.run, trace.summary
    speed = f"{summary.tokens_per_second:.1f}" if summary.tokens_per_second else "–"
    return (
        f"{summary.new_tokens} tokens in {summary.verifier_calls} verifier calls: "
        f"{summary.tokens_per_call:.2f} tokens per call, {speed} tokens/s "
        f"({run.model}, {run.dtype}, {run.device}); ended by {trace.stop_reason}."
    )


def _check_writable(path: Path | None) -> None:
    """A run is not begun when its file could not be written in the end."""
    if path is not None and not path.resolve().parent.is_dir():
        raise InputError(f"There is no folder {path.parent} to write {path.name} into.")


def _bench(chosen: argparse.Namespace) -> int:
    from mtp.bench.circuits import circuit_decoders
    from mtp.bench.decoders import split_decoders
    from mtp.bench.measure import Plan, check_plan, run_plan
    from mtp.bench.prompts import Prompt, first_of_each, read_prompts

    if chosen.held_out:
        from mtp.train.completions import read_completions, split

        kept_apart = split([list(read_completions(chosen.prompts))])[0][1]
        prompts = [Prompt(one.prompt) for one in kept_apart]
    else:
        prompts = read_prompts(chosen.prompts)
    if chosen.per_category is not None:
        prompts = first_of_each(prompts, chosen.per_category)
    if chosen.limit is not None:
        prompts = prompts[: max(0, chosen.limit)]
    if not prompts:
        raise InputError("No prompts are left to measure; --limit must be at least 1.")
    decoders = split_decoders(chosen.drafters)
    verifier = None
    if decoders == ["circuits"]:
        verifier = load(chosen)
        decoders = circuit_decoders(verifier.weights_sha256, verifier.name)
    plan = Plan(
        prompts=prompts,
        decoders=decoders,
        options=_by_decoder(pairs_from(chosen.option)),
        base=settings_from(chosen, "-", "ar", {}),
        repeats=chosen.repeats,
    )
    check_plan(plan)
    verifier = verifier or load(chosen)

    def report(line: str) -> None:
        print(line, file=sys.stderr, flush=True)

    print(run_plan(verifier, plan, chosen.out, chosen.resume, report))
    return 0


def _recall(chosen: argparse.Namespace) -> int:
    from mtp.bench.recall import as_json, as_text, recalls, whole_plan

    plan = whole_plan(chosen.folder)
    loading = argparse.Namespace(
        model=plan["model"], dtype=plan["dtype"], device=None, trust_remote_code=False
    )
    found = recalls(load(loading), chosen.folder, lambda line: print(line, file=sys.stderr))
    write(chosen.folder / "recall.json", as_json(found))
    print(as_text(found))
    return 0


def _by_decoder(pairs: dict[str, str]) -> dict[str, dict[str, str]]:
    options: dict[str, dict[str, str]] = {}
    for key, value in pairs.items():
        decoder, dot, name = key.partition(".")
        if not dot:
            raise InputError(f"--option of bench takes DRAFTER.NAME=VALUE; {key[:60]!r} lacks one.")
        options.setdefault(decoder, {})[name] = value
    return options


if __name__ == "__main__":
    sys.exit(main())
