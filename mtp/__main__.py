"""The command line: `python -m mtp models | fetch | generate | bench | train | record | …`."""

from __future__ import annotations

import argparse
import importlib
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

from mtp.errors import DraftscopeError, InputError
from mtp.models.catalog import DEFAULT_MODEL

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
    _add_model(generate)
    _add_sampling(generate)
    generate.add_argument("--prompt", required=True, help="the text, or - for standard input")
    generate.add_argument("--drafter", default="pld")
    generate.add_argument("--option", action="append", default=[], metavar="K=V")
    generate.add_argument("--trace", type=Path, metavar="OUT.json", help="save the whole run")
    generate.add_argument("--json", action="store_true", help="print summary and text as JSON")
    generate.set_defaults(run=_generate)

    bench = commands.add_parser("bench", help="measure decoders against each other")
    _add_model(bench)
    _add_sampling(bench)
    bench.add_argument(
        "--drafters", required=True, metavar="A,B,C", help="with options: esp[budget=30,masks=1]"
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

    record = commands.add_parser("record", help="make a recorded run for the app's first view")
    _add_model(record)
    _add_sampling(record)
    record.add_argument("--prompt", required=True)
    record.add_argument("--drafter", default="pld")
    record.add_argument("--option", action="append", default=[], metavar="K=V")
    record.add_argument("--name", required=True, help="name of the file in assets/traces")
    record.set_defaults(run=_record)

    circuits = commands.add_parser("record-circuit", help="make the recorded views of circuits")
    _add_model(circuits)
    circuits.add_argument("--raw", action="store_true", help="no chat template")
    circuits.add_argument("--seed", type=int, default=0)
    circuits.add_argument("--prompt", required=True)
    circuits.add_argument("--answer", default="", help="the beginning of the answer")
    circuits.add_argument(
        "--circuits",
        default="ff-8,cp-8,hmm-8,btree-8",
        metavar="NAME-WINDOW,…",
        help="each makes NAME-WINDOW.json",
    )
    circuits.add_argument("--out", type=Path, metavar="FOLDER", help="assets/circuits if not given")
    circuits.set_defaults(run=_record_circuits, model="byte")

    noise = commands.add_parser("record-noise", help="make the recorded context of page Noise")
    _add_model(noise)
    _add_sampling(noise)
    noise.add_argument("--prompt", required=True)
    noise.add_argument("--answer", default="", help="the beginning of the answer")
    noise.add_argument("--name", default="first", help="name of the file in assets/noise")
    noise.add_argument("--out", type=Path, metavar="FOLDER", help="assets/noise if not given")
    noise.set_defaults(run=_record_noise)

    train = commands.add_parser("train", help="make training data and train models")
    kinds = train.add_subparsers(dest="kind", required=True, metavar="KIND")
    for kind, (about, module) in _TRAINING.items():
        parser_of_kind = kinds.add_parser(kind, help=about)
        if list(arguments[:2]) == ["train", kind]:  # torch is imported only for the one asked for
            loaded = importlib.import_module(module)
            loaded.add_arguments(parser_of_kind)
            parser_of_kind.set_defaults(run=loaded.run)
    return parser


def _add_model(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", default=DEFAULT_MODEL, help="a name, folder or Hugging Face id")
    parser.add_argument("--dtype", help="float64, float32 or bfloat16; chosen for the processor")
    parser.add_argument("--device", help="cpu or cuda; the GPU if there is one")
    parser.add_argument(
        "--trust-remote-code", action="store_true", help="run program code that comes with a model"
    )


def _add_sampling(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--raw", action="store_true", help="no chat template around the prompt")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--temperature", type=float, default=0.7, help="0 is greedy")
    parser.add_argument("--top-k", type=int, default=0, help="0 is off")
    parser.add_argument("--top-p", type=float, default=1.0, help="1 is off")
    parser.add_argument("--max-new-tokens", type=int, default=64)
    parser.add_argument("--verification", default="coupled", help="coupled or rejection")


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

    folder = fetch(chosen.model, _tell_progress())
    print(folder)
    return 0


def _tell_progress() -> Callable[[str, float | None], None]:
    """Progress on standard error: one line rewritten on a terminal, one line a stage elsewhere."""
    terminal = sys.stderr.isatty()
    last = ""

    def tell(text: str, fraction: float | None) -> None:
        nonlocal last
        if terminal:
            bar = "" if fraction is None else f" {fraction:4.0%}"
            print(f"\r\x1b[K{text}{bar}", end="", file=sys.stderr, flush=True)
            if fraction == 1.0:
                print(file=sys.stderr)
        elif text.split(":")[0] != last.split(":")[0]:
            print(text, file=sys.stderr, flush=True)
        last = text

    return tell


def _load(chosen: argparse.Namespace) -> Any:
    """The verifier, fetched first where the weights are not here."""
    from mtp.models import catalog
    from mtp.models.fetch import fetch

    if chosen.model in catalog.ENTRIES and not catalog.is_ready(chosen.model):
        fetch(chosen.model, _tell_progress())
    from mtp.models.verifier import load_verifier

    return load_verifier(chosen.model, chosen.dtype, chosen.device, chosen.trust_remote_code)


def _settings(
    chosen: argparse.Namespace, prompt: str, drafter: str, options: dict[str, str]
) -> Any:
    from mtp.records.settings import Settings

    return Settings(
        prompt=prompt,
        drafter=drafter,
        drafter_options=options,
        mode="raw" if chosen.raw else "chat",
        temperature=chosen.temperature,
        top_k=chosen.top_k,
        top_p=chosen.top_p,
        seed=chosen.seed,
        verification=chosen.verification,
        max_new_tokens=chosen.max_new_tokens,
    )


def _pairs(given: Sequence[str]) -> dict[str, str]:
    """K=V arguments as a dictionary."""
    pairs = {}
    for text in given:
        key, sign, value = text.partition("=")
        if not sign or not key:
            raise InputError(f"--option takes NAME=VALUE; {text[:60]!r} is not of that form.")
        pairs[key] = value
    return pairs


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
    settings = _settings(chosen, prompt, chosen.drafter, _pairs(chosen.option))
    check_settings(settings)
    _check_writable(chosen.trace)
    decoding, run = start(_load(chosen), settings)
    for step in decoding:
        if not chosen.json and sys.stderr.isatty():
            print(f"\rstep {step.index + 1}", end="", file=sys.stderr)
    trace = decoding.trace(run)
    if chosen.trace:
        _write(chosen.trace, trace.to_json())
    if chosen.json:
        plain = json.loads(trace.to_json())
        print(json.dumps({**plain["summary"], "text": trace.text}))
        return 0
    summary = trace.summary
    speed = f"{summary.tokens_per_second:.1f}" if summary.tokens_per_second else "–"
    print(trace.text)
    print(
        f"\n{summary.new_tokens} tokens in {summary.verifier_calls} verifier calls: "
        f"{summary.tokens_per_call:.2f} tokens per call, {speed} tokens/s "
        f"({run.model}, {run.dtype}, {run.device}); ended by {trace.stop_reason}.",
        file=sys.stderr,
    )
    return 0


def _check_writable(path: Path | None) -> None:
    """A run is not begun when its file could not be written in the end."""
    if path is not None and not path.resolve().parent.is_dir():
        raise InputError(f"There is no folder {path.parent} to write {path.name} into.")


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise InputError(f"{path} cannot be written: {error.strerror}.") from error


def _bench(chosen: argparse.Namespace) -> int:
    from mtp.bench.decoders import split_decoders
    from mtp.bench.measure import Plan, check_plan, run_plan
    from mtp.bench.prompts import Prompt, first_of_each, read_prompts

    if chosen.held_out:
        from mtp.train.completions import read_completions, split

        prompts = [Prompt(one.prompt) for one in split(list(read_completions(chosen.prompts)))[1]]
    else:
        prompts = read_prompts(chosen.prompts)
    if chosen.per_category is not None:
        prompts = first_of_each(prompts, chosen.per_category)
    if chosen.limit is not None:
        prompts = prompts[: max(0, chosen.limit)]
    if not prompts:
        raise InputError("No prompts are left to measure; --limit must be at least 1.")
    plan = Plan(
        prompts=prompts,
        decoders=split_decoders(chosen.drafters),
        options=_by_decoder(_pairs(chosen.option)),
        base=_settings(chosen, "-", "ar", {}),
        repeats=chosen.repeats,
    )
    check_plan(plan)
    verifier = _load(chosen)

    def report(line: str) -> None:
        print(line, file=sys.stderr, flush=True)

    print(run_plan(verifier, plan, chosen.out, chosen.resume, report))
    return 0


def _by_decoder(pairs: dict[str, str]) -> dict[str, dict[str, str]]:
    options: dict[str, dict[str, str]] = {}
    for key, value in pairs.items():
        decoder, dot, name = key.partition(".")
        if not dot:
            raise InputError(f"--option of bench takes DRAFTER.NAME=VALUE; {key[:60]!r} lacks one.")
        options.setdefault(decoder, {})[name] = value
    return options


def _record(chosen: argparse.Namespace) -> int:
    from mtp.models.catalog import REPOSITORY
    from mtp.run import start

    _check_name(chosen.name)
    settings = _settings(chosen, chosen.prompt, chosen.drafter, _pairs(chosen.option))
    decoding, run = start(_load(chosen), settings)
    for _ in decoding:
        pass
    path = REPOSITORY / "assets" / "traces" / f"{chosen.name}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    _write(path, decoding.trace(run).to_json())
    print(path)
    return 0


def _record_circuits(chosen: argparse.Namespace) -> int:
    from mtp.circuits.view import check_question, explore
    from mtp.models.catalog import REPOSITORY
    from mtp.records.circuit import Question

    questions = []
    for name in chosen.circuits.split(","):
        circuit, dash, window = name.strip().partition("-")
        if not dash or not window.isdecimal():
            raise InputError(f"--circuits takes NAME-WINDOW, such as hmm-8; not {name[:40]!r}.")
        mode = "raw" if chosen.raw else "chat"
        questions.append(
            Question(circuit, int(window), chosen.prompt, chosen.answer, mode, chosen.seed)
        )
        check_question(questions[-1], chosen.model)
    verifier = _load(chosen)
    folder = chosen.out or REPOSITORY / "assets" / "circuits"
    folder.mkdir(parents=True, exist_ok=True)
    for question in questions:
        view = explore(verifier, question)
        assert view is not None  # nobody stops it
        path = folder / f"{question.circuit}-{question.window}.json"
        _write(path, view.to_json() + "\n")
        print(path)
    return 0


def _record_noise(chosen: argparse.Namespace) -> int:
    from mtp.models.catalog import REPOSITORY
    from mtp.ptp.explore import explorer_of, record
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
    verifier = _load(chosen)
    made = record(verifier, question, explorer_of(verifier, question))
    assert made is not None  # nobody stops it
    folder = chosen.out or REPOSITORY / "assets" / "noise"
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{chosen.name}.json"
    _write(path, made.to_json() + "\n")
    print(path)
    return 0


def _check_name(name: str) -> None:
    if not name.replace("-", "").isalnum():
        raise InputError("The name of a recorded run has letters, digits and hyphens only.")


if __name__ == "__main__":
    sys.exit(main())
