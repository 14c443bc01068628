"""Converting in a process of its own: stopped, given what is no GGUF, out of disk space."""

import dataclasses
import hashlib
import time

from mtp.models.trouble import FetchStoppedError
from tests.mtp.models.packaged import NO_PIP, Log, fails


def test_stopped_while_converting(packaged, cache, index):
    gguf = packaged.keep(cache)
    log = Log("Converting")
    error = fails(packaged.entry, FetchStoppedError, log=log, pip=NO_PIP)
    assert "kept" in str(error) and gguf.read_bytes() == packaged.gguf
    assert time.monotonic() - log.stopped < 3


def test_a_file_that_is_no_gguf(packaged, cache):
    entry = dataclasses.replace(packaged.entry, sha256=hashlib.sha256(b"no GGUF").hexdigest())
    path = cache / "downloads" / "tiny" / f"{entry.sha256}.gguf"
    path.parent.mkdir(parents=True)
    path.write_bytes(b"no GGUF")
    assert "could not be converted" in str(fails(entry, pip=NO_PIP))


def test_disk_full_while_converting(packaged, cache, small_disk):
    disk = small_disk(len(packaged.gguf) * 3 // 2)
    gguf = packaged.keep(disk)
    error = fails(packaged.roomy(), pip=NO_PIP)
    assert "disk filled up" in str(error) and "download is kept" in str(error)
    assert gguf.exists()
