"""Names of models, and what the catalog says about each."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from mtp.errors import ModelError
from mtp.models import catalog


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    folder = tmp_path / "cache"
    monkeypatch.setenv("DRAFTSCOPE_CACHE", str(folder))
    return folder


def whole(cache: Path, size: int = 7) -> Path:
    folder = cache / "models" / "smollm2"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(bytes(size))
    source = {"sha256": catalog.SMOLLM2.sha256, "bytes": size}
    (folder / "source.json").write_text(json.dumps(source))
    return folder


def test_cache_folder(tmp_path, monkeypatch):
    assert catalog.cache_folder() == tmp_path / "cache"
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("DRAFTSCOPE_CACHE", "~/here")
    assert catalog.cache_folder() == tmp_path / "here"
    monkeypatch.delenv("DRAFTSCOPE_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert catalog.cache_folder() == tmp_path / "xdg" / "draftscope"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert catalog.cache_folder() == tmp_path / ".cache" / "draftscope"


def test_folder_of(cache, tmp_path):
    assert catalog.folder_of("smollm2") == cache / "models" / "smollm2"
    assert catalog.folder_of("byte") == catalog.REPOSITORY / "assets" / "weights" / "byte"
    assert catalog.folder_of(str(tmp_path)) == tmp_path
    assert catalog.folder_of("HuggingFaceTB/SmolLM2-135M-Instruct") is None


@pytest.mark.parametrize(
    "name",
    [
        *("", " ", "nonsense", "./gone", "/gone/too", "a/b/c", "a/..", "a--b/c", "~nobody-here/x"),
        *("a\0b", "\ud800", "x" * 200_000, "<script>", "owner/-name", "owner/name\n"),
    ],
)
def test_unknown_name(name):
    with pytest.raises(ModelError) as told:
        catalog.folder_of(name)
    text = str(told.value)
    assert "smollm2" in text and "local folder" in text and "owner/name" in text
    assert len(text) < 300 and text.isprintable()
    text.encode()


def test_ready_only_when_whole(cache):
    assert not catalog.is_ready("smollm2")
    folder = whole(cache)
    assert catalog.is_ready("smollm2")
    (folder / "model.safetensors").write_bytes(bytes(6))
    assert not catalog.is_ready("smollm2")


@pytest.mark.parametrize("note", ["", "[]", "{}", '{"sha256": "0", "bytes": 7}', "null", "\ud800"])
def test_not_ready_with_a_broken_note(cache, note):
    folder = whole(cache)
    (folder / "source.json").write_bytes(note.encode("utf-8", "surrogatepass"))
    assert not catalog.is_ready("smollm2")


def test_other_names_are_ready_when_their_weights_are_here(tmp_path):
    assert not catalog.is_ready(str(tmp_path))
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "model.safetensors").write_bytes(b"")
    assert catalog.is_ready(str(tmp_path))
    assert not catalog.is_ready("nobody/has-this-model-here")
    with pytest.raises(ModelError):
        catalog.is_ready("nonsense")


def test_weight_files(tmp_path):
    assert catalog.weight_files(tmp_path) == []
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"x": "b.safetensors", "y": "a.safetensors"}}))
    assert catalog.weight_files(tmp_path) == []
    for name in "ab":
        (tmp_path / f"{name}.safetensors").write_bytes(b"")
    assert [file.name for file in catalog.weight_files(tmp_path)] == [
        "a.safetensors",
        "b.safetensors",
    ]
    index.write_text("{")
    assert catalog.weight_files(tmp_path) == []


def test_listing(cache):
    rows = {row.name: row for row in catalog.listing()}
    assert list(rows) == list(catalog.ENTRIES)
    smollm2 = rows["smollm2"]
    assert smollm2.available and not smollm2.ready
    assert "mtp fetch smollm2" in smollm2.state and "93 MB" in smollm2.state
    whole(cache)
    assert {row.name: row.state for row in catalog.listing()}["smollm2"] == "ready"
    byte_is_here = (catalog.REPOSITORY / "assets" / "weights" / "byte").is_dir()
    assert rows["byte"].available == rows["byte"].ready == byte_is_here


def test_embedded_model_counts_only_when_its_folder_is_there(tmp_path, monkeypatch):
    monkeypatch.setattr(catalog, "REPOSITORY", tmp_path)
    assert not catalog.is_available(catalog.BYTE)
    with pytest.raises(ModelError) as told:
        catalog.folder_of("nonsense")
    assert "byte" not in str(told.value)
    folder = tmp_path / "assets" / "weights" / "byte"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(bytes(5))
    assert catalog.is_ready("byte")
    assert {row.name: row for row in catalog.listing()}["byte"].size == 5


def test_the_catalog_and_fetching_start_without_torch():
    code = (
        "import sys; from mtp.models import catalog, fetch; catalog.listing();"
        "catalog.is_ready('nobody/nothing');"
        "sys.exit('torch' in sys.modules or 'transformers' in sys.modules)"
    )
    command = [sys.executable, "-c", code]
    assert subprocess.run(command, cwd=catalog.REPOSITORY, check=False).returncode == 0
