"""The byte model as it ships: safetensors, tokenizer, and a card that says how it was made."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import torch
from transformers import AutoModelForCausalLM, LlamaForCausalLM

from mtp.circuits.marks import write_words
from mtp.decode import software
from mtp.train.byte_data import Documents
from mtp.train.byte_eval import held_out_bits
from mtp.train.byte_tokenizer import END_ID, build_tokenizer
from mtp.train.completions import HELD_OUT
from mtp.train.run_folder import as_options, thinned

CURVE_LINES = 12  # of the curve in card.md; card.json has all


def write_model(out: Path, model: LlamaForCausalLM, context: int) -> None:
    """Writes model and tokenizer for the Auto classes: weights stored as bfloat16, half the size,
    with a config that has them loaded as float32."""
    out.mkdir(parents=True, exist_ok=True)
    cast(torch.nn.Module, model).to(torch.bfloat16)
    model.save_pretrained(out)
    config = json.loads((out / "config.json").read_text())
    config["dtype"] = "float32"
    (out / "config.json").write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")
    build_tokenizer(context).save_pretrained(out)


def write_card(
    out: Path,
    *,
    data: Sequence[Mapping[str, Any]],
    training: Documents,
    held_out: Documents,
    settings: Mapping[str, Any],
    progress: Mapping[str, Any],
    curve: Sequence[Mapping[str, Any]],
) -> None:
    """Measures the model as written in `out` and writes card.json and card.md beside it; also
    words.txt, the words of the training text. data: where that comes from, as `source_of` tells."""
    write_words(out, (_text(training, number) for number in range(len(training))))
    model = AutoModelForCausalLM.from_pretrained(out, dtype=torch.float32)
    bits = held_out_bits(model.eval(), held_out, settings["context"])
    card = {
        "model": "byte",
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "weights_sha256": _sha256(out / "model.safetensors"),
        "command": _command(data, settings),
        "data": list(data),
        "training_documents": len(training),
        "training_bytes": len(training.tokens),
        "held_out_documents": len(held_out),
        "held_out_share": HELD_OUT,
        "settings": dict(settings),
        "steps": progress["step"],
        "seconds": round(progress["seconds"], 1),
        "bytes_seen": progress["bytes_seen"],
        "epochs": round(progress["bytes_seen"] / len(training.tokens), 3),
        "held_out": {
            "answer_bits_per_byte": round(bits.answers, 4),
            "prompt_bits_per_byte": round(bits.prompts, 4),
            "answer_entropy": round(bits.entropy, 4),
            "answer_entropy_temperature_0.7": round(bits.entropy_07, 4),
            "answer_bytes": bits.answer_bytes,
        },
        "software": software(),
        "curve": [dict(line) for line in curve],
    }
    (out / "card.json").write_text(json.dumps(card) + "\n")
    (out / "card.md").write_text(_markdown(card))


def _text(documents: Documents, number: int) -> str:
    """A document's text; a space where a turn is marked, so that words do not run together."""
    tokens = documents.document(number).tolist()
    raw = bytes(token if token < END_ID else ord(" ") for token in tokens)
    return raw.decode("utf-8", errors="ignore")


def _command(data: Sequence[Mapping[str, Any]], settings: Mapping[str, Any]) -> str:
    options = as_options(settings, ("weight_decay",))
    files = " ".join(source["file"] for source in data)
    return f"python -m mtp train byte-lm --data {files} --folder RUN {options}"


def _markdown(card: Mapping[str, Any]) -> str:
    held = card["held_out"]
    lines = thinned(card["curve"], CURVE_LINES)
    sources = "\n".join(f"- `{source['file']}`" for source in card["data"])
    table = "\n".join(
        f"| {line['step']} | {line['bytes_seen'] / 1e6:.2f} | {line['training_bits']:.3f} "
        f"| {line['held_out_bits']:.3f} |"
        for line in lines
    )
    return f"""# byte

A Llama-shaped causal language model over bytes, {card["parameters"] / 1e6:.2f}M parameters: a
token is a byte, its id the byte's value; marks of turns have ids from 256 on. Trained by this
project on completions that a larger model sampled, so it writes like that model and knows less.
Weights are stored as bfloat16 and meant to run as float32.

## Held out

Measured on {card["held_out_documents"]} documents, {held["answer_bytes"]} bytes of answers, the
last {100 * card["held_out_share"]:.0f}% of each file, each document up to
{card["settings"]["context"]} bytes, with the weights of this folder.

| | bits per byte |
|---|---|
| cross-entropy, answers given prompts | {held["answer_bits_per_byte"]:.4f} |
| cross-entropy, prompts | {held["prompt_bits_per_byte"]:.4f} |
| the model's own entropy in answers, temperature 1 | {held["answer_entropy"]:.4f} |
| the same, temperature 0.7 | {held["answer_entropy_temperature_0.7"]:.4f} |

## Training

{card["steps"]} steps, {card["seconds"] / 60:.0f} minutes, {card["bytes_seen"] / 1e6:.1f}M bytes
seen, {card["epochs"]:.2f} epochs of {card["training_bytes"] / 1e6:.2f}M bytes in
{card["training_documents"]} documents:

{sources}

Made with

```
{card["command"]}
```

The loss curve, in bits per byte (training: mean since the line before, prompts included; held
out: answers of a part of the held-out documents):

| step | M bytes seen | training | held out |
|---|---|---|---|
{table}
"""


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
