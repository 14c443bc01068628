"""Measuring decoders on prompts, alternated within one process, resumable."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from mtp.bench.decoders import Decoder, parse_decoder
from mtp.bench.outside import ASSISTED, OUTSIDE, generate_outside
from mtp.bench.prompts import Prompt
from mtp.drafters.build import make_drafter, weights_of
from mtp.drafters.draft_model import load_draft_model
from mtp.drafters.options import settle_options
from mtp.errors import InputError
from mtp.models.catalog import bits_per_byte
from mtp.models.memory import forget_peak_memory, peak_memory_mb
from mtp.models.verifier import Verifier
from mtp.records.bench import BenchRow, as_text, tabulate
from mtp.records.settings import Settings
from mtp.records.trace import DrafterWeights
from mtp.run import start
from mtp.sampling import Sampling
from mtp.verify import VERIFICATIONS

ROWS = "rows.jsonl"
PLAN = "plan.json"
_ROW = TypeAdapter(BenchRow)


@dataclass(frozen=True)
class Plan:
    """What to measure. `base` holds the sampling settings; its prompt and drafter are replaced.

    A decoder is a name, or a name with options in brackets; `options` adds to those.
    """

    prompts: Sequence[Prompt]
    decoders: Sequence[str]
    options: Mapping[str, Mapping[str, Any]]
    base: Settings
    repeats: int = 1

    def decoder(self, label: str) -> tuple[Decoder, dict[str, Any]]:
        """A decoder and all its options. Raises InputError as `parse_decoder` does."""
        parsed = parse_decoder(label)
        return parsed, {**self.options.get(label, {}), **parsed.options}


def check_plan(plan: Plan) -> None:
    """Raises InputError for an unknown decoder or option before anything is run."""
    if not plan.decoders:
        raise InputError("No decoder is named; name at least one, such as ar,pld,hf.")
    if len(set(plan.decoders)) < len(plan.decoders):
        raise InputError("A decoder is named twice; each is measured once a turn.")
    for label in plan.decoders:
        decoder, given = plan.decoder(label)
        if decoder.name in OUTSIDE and decoder.verification is not None:
            raise InputError(f"{decoder.name} verifies in its own way; it has no verification.")
        if decoder.verification not in (None, *VERIFICATIONS):
            raise InputError(
                f"The verification of {label[:60]} can be {' or '.join(VERIFICATIONS)}."
            )
        if decoder.name == ASSISTED:
            _assisted_options(given)
        elif decoder.name not in OUTSIDE:
            settle_options(decoder.name, given)
        elif given:
            raise InputError(f"{decoder.name} has no options.")
    for label in plan.options:
        if label not in plan.decoders:
            raise InputError(f"Options are given for {label!r}, which is not measured.")
    if plan.repeats < 1:
        raise InputError(f"Repeats is {plan.repeats}; it must be at least 1.")


def _assisted_options(given: Mapping[str, Any]) -> dict[str, Any]:
    """`hf-assisted` takes the options of `draft-model`."""
    if not given.get("model"):
        raise InputError(
            f"{ASSISTED} needs a draft model of the same vocabulary: --option {ASSISTED}.model=NAME"
        )
    return settle_options("draft-model", given)


def measure(verifier: Verifier, plan: Plan, done: Sequence[BenchRow] = ()) -> Iterator[BenchRow]:
    """One row a run. On each prompt the decoders take turns, in an order that rotates, so that a
    slow minute of the machine does not fall on one of them. Rows in `done` are not measured again.
    """
    have = {(row.prompt_index, row.decoder, row.repeat) for row in done}
    if plan.prompts and not done:
        _warm_up(verifier, plan)
    for index, prompt in enumerate(plan.prompts):
        for repeat in range(plan.repeats):
            turn = (index + repeat) % len(plan.decoders)
            for decoder in [*plan.decoders[turn:], *plan.decoders[:turn]]:
                if (index, decoder, repeat) not in have:
                    yield _measure_one(verifier, plan, decoder, prompt, index, repeat)


def _warm_up(verifier: Verifier, plan: Plan) -> None:
    """First calls allocate and tune; they are not measured."""
    short = dataclasses.replace(plan.base, max_new_tokens=min(8, plan.base.max_new_tokens))
    warm = dataclasses.replace(plan, base=short)
    for decoder in plan.decoders:
        _measure_one(verifier, warm, decoder, plan.prompts[0], 0, 0)


def _measure_one(
    verifier: Verifier, plan: Plan, label: str, prompt: Prompt, index: int, repeat: int
) -> BenchRow:
    decoder, given = plan.decoder(label)
    settings = dataclasses.replace(plan.base, prompt=prompt.text)
    if decoder.name in OUTSIDE:
        return _measure_outside(verifier, settings, decoder, given, prompt, index, repeat)
    settings = dataclasses.replace(
        settings,
        drafter=decoder.name,
        drafter_options=given,
        verification=decoder.verification or settings.verification,
    )
    decoding, run = start(verifier, settings, brief=True)
    for _ in decoding:
        pass
    trace = decoding.trace(run)
    summary = trace.summary
    return BenchRow(
        prompt_index=index,
        category=prompt.category,
        decoder=label,
        repeat=repeat,
        prompt_tokens=len(run.prompt_tokens),
        new_tokens=summary.new_tokens,
        verifier_calls=summary.verifier_calls,
        accepted=round(summary.accepted_per_call * summary.verifier_calls),
        drafted=summary.drafted,
        rows=sum(step.rows for step in trace.steps),
        seconds=summary.seconds,
        seconds_prefill=summary.seconds_prefill,
        seconds_draft=sum(step.seconds.draft for step in trace.steps),
        seconds_verify=sum(step.seconds.verify for step in trace.steps),
        tokens_per_second=summary.tokens_per_second,
        peak_memory_mb=summary.peak_memory_mb,
        text=trace.text,
        ids=tuple(decoding.output_ids),
        seconds_forward=(
            decoding.seconds_forward if verifier.backbone.device.type == "cpu" else None
        ),
    )


def _measure_outside(
    verifier: Verifier,
    settings: Settings,
    decoder: Decoder,
    given: Mapping[str, Any],
    prompt: Prompt,
    index: int,
    repeat: int,
) -> BenchRow:
    assistant = None
    if decoder.name == ASSISTED:
        options = _assisted_options(given)
        assistant = load_draft_model(options["model"], verifier).backbone.model
        if assistant.generation_config is not None:
            assistant.generation_config.num_assistant_tokens = options["length"]
            assistant.generation_config.num_assistant_tokens_schedule = "constant"
    forget_peak_memory(verifier.backbone.device)
    out = generate_outside(decoder.name, verifier, settings, assistant)
    plain = decoder.name == "hf"
    tokenizer = verifier.vocabulary.tokenizer
    return BenchRow(
        prompt_index=index,
        category=prompt.category,
        decoder=decoder.label,
        repeat=repeat,
        prompt_tokens=len(verifier.vocabulary.encode(settings.prompt, settings.mode)),
        new_tokens=len(out.ids),
        # Plain generate runs one forward a token, the first in its prefill; how many the others
        # run is not told.
        verifier_calls=len(out.ids) if plain else None,
        accepted=0 if plain else None,
        drafted=0 if plain else None,
        rows=len(out.ids) if plain else None,
        seconds=out.seconds_rest,
        seconds_prefill=out.seconds_first,
        seconds_draft=None,
        seconds_verify=None,
        tokens_per_second=out.rest / out.seconds_rest if out.rest else None,
        peak_memory_mb=peak_memory_mb(verifier.backbone.device),
        text=str(tokenizer.decode(list(out.ids), skip_special_tokens=True)),
        ids=out.ids,
    )


def run_plan(
    verifier: Verifier,
    plan: Plan,
    folder: Path,
    resume: bool,
    report: Callable[[str], None],
) -> str:
    """Measures the plan into `folder`: rows.jsonl as it goes, then table.json and table.txt.

    Returns the table as text. Raises InputError where the folder holds another plan's rows.
    """
    check_plan(plan)
    folder.mkdir(parents=True, exist_ok=True)
    described = describe(plan, verifier)
    done = _earlier_rows(folder, described, resume)
    (folder / PLAN).write_text(json.dumps(described, indent=1), encoding="utf-8")
    rows = list(done)
    total = len(plan.prompts) * len(plan.decoders) * plan.repeats
    with (folder / ROWS).open("a", encoding="utf-8") as file:
        for row in measure(verifier, plan, done):
            rows.append(row)
            file.write(_ROW.dump_json(row).decode() + "\n")
            file.flush()
            speed = f"{row.tokens_per_second:.1f} tokens/s" if row.tokens_per_second else "–"
            report(f"{len(rows)}/{total} {row.decoder} on prompt {row.prompt_index + 1}: {speed}")
    table = tabulate(rows, plan.decoders)
    plain = {"plan": described, "rows": [dataclasses.asdict(row) for row in table]}
    (folder / "table.json").write_text(json.dumps(plain, indent=1), encoding="utf-8")
    text = as_text(table)
    if described["bits_per_byte"] is not None:
        text += f"\n\n{verifier.name}: {described['bits_per_byte']:.3f} bits a byte, held out"
    text += _told(described["drafter_weights"])
    (folder / "table.txt").write_text(text + "\n", encoding="utf-8")
    return text


def _told(weights: Mapping[str, Sequence[Mapping[str, str]]]) -> str:
    """A line for each trained drafter's weights that were measured, behind a table."""
    found = {one["folder"]: one["sha256"] for many in weights.values() for one in many}
    lines = [f"{folder}: weights of SHA-256 {sha256[:12]}…" for folder, sha256 in found.items()]
    return "\n\n" + "\n".join(lines) if lines else ""


def read_rows(folder: Path) -> list[BenchRow]:
    """The rows of a measurement. Raises InputError where they cannot be read."""
    try:
        lines = (folder / ROWS).read_text(encoding="utf-8").splitlines()
        return [_ROW.validate_json(line) for line in lines]
    except (OSError, ValueError, ValidationError) as error:
        raise InputError(
            f"The measurement in {folder} cannot be read; use another folder."
        ) from error


def read_plan(folder: Path) -> dict[str, Any]:
    """What the measurement in a folder was of. Raises InputError where there is none."""
    try:
        plan = json.loads((folder / PLAN).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"{folder} holds no measurement of `bench` that can be read.") from error
    if not isinstance(plan, dict):
        raise InputError(f"{folder} holds no measurement of `bench` that can be read.")
    return plan


def describe(plan: Plan, verifier: Verifier) -> dict[str, Any]:
    """The plan as plain data: what must be the same for rows to be comparable."""
    base = plan.base
    return {
        "model": verifier.name,
        "weights_sha256": verifier.weights_sha256,
        "bits_per_byte": bits_per_byte(verifier.name),
        "dtype": verifier.dtype,
        "device": verifier.device,
        "decoders": list(plan.decoders),
        "options": {name: dict(options) for name, options in plan.options.items()},
        "drafter_weights": {
            label: [dataclasses.asdict(one) for one in found]
            for label in plan.decoders
            if (found := _weights_of(verifier, plan, label))
        },
        "prompts": [prompt.text for prompt in plan.prompts],
        "repeats": plan.repeats,
        "mode": base.mode,
        "temperature": base.temperature,
        "top_k": base.top_k,
        "top_p": base.top_p,
        "seed": base.seed,
        "verification": base.verification,
        "max_new_tokens": base.max_new_tokens,
    }


def _weights_of(verifier: Verifier, plan: Plan, label: str) -> tuple[DrafterWeights, ...]:
    """The trained weights a decoder drafts with; which they are depends on the options, on the
    temperature and on what ships.
    """
    decoder, given = plan.decoder(label)
    if decoder.name == ASSISTED:
        decoder = dataclasses.replace(decoder, name="draft-model")
    elif decoder.name in OUTSIDE:
        return ()
    base = plan.base
    sampling = Sampling(base.temperature, base.top_k, base.top_p)
    return weights_of(make_drafter(decoder.name, given, verifier, sampling))


def _earlier_rows(folder: Path, described: dict[str, Any], resume: bool) -> list[BenchRow]:
    path = folder / ROWS
    if not path.exists() or not path.stat().st_size:
        return []
    if not resume:
        raise InputError(
            f"{folder} already holds a measurement. Give --resume to go on with it, or another "
            "folder."
        )
    earlier, rows = {"drafter_weights": {}, **read_plan(folder)}, read_rows(folder)
    if earlier != described:
        changed = [key for key in described if earlier.get(key) != described[key]]
        raise InputError(
            f"The measurement in {folder} was made with other settings ({', '.join(changed)}); "
            "use another folder."
        )
    return rows
