"""The queue to the model and the store of what browsers look at."""

from __future__ import annotations

import threading
import time
from types import SimpleNamespace

import pytest
import torch

from mtp.errors import InputError, ModelError
from mtp.records.settings import Settings
from viz.runs import Desk, Job, Kept, LiveRun, decode_into, leaving_a_processor


def wait(job: Job) -> None:
    limit = time.monotonic() + 10
    while not job.done:
        assert time.monotonic() < limit
        time.sleep(0.005)


def test_jobs_run_one_at_a_time_in_the_order_they_came() -> None:
    desk, order, gate = Desk(), [], threading.Event()
    running: list[int] = []

    def work(number: int):  # type: ignore[no-untyped-def]
        def run(job: Job) -> None:
            running.append(number)
            assert len(running) == 1
            if number == 0:
                gate.wait(10)
            order.append(number)
            running.remove(number)

        return run

    jobs = [desk.submit(work(number), "tab") for number in range(4)]
    assert [desk.place(job) for job in jobs] == [0, 1, 2, 3]
    assert "3 before you" in desk.describe(jobs[3])
    gate.set()
    for job in jobs:
        wait(job)
    assert order == [0, 1, 2, 3]
    assert all(job.failure() is None for job in jobs)


def test_stopping_a_tab_ends_its_jobs_and_no_others() -> None:
    desk, gate = Desk(), threading.Event()
    ran: list[str] = []

    def first(job: Job) -> None:
        while not job.stopped:
            time.sleep(0.005)
        ran.append("first")

    mine = desk.submit(first, "mine")
    waiting = desk.submit(lambda job: ran.append("waiting"), "mine")
    other = desk.submit(lambda job: ran.append("other"), "other")
    desk.stop_all("mine")
    gate.set()
    for job in (mine, waiting, other):
        wait(job)
    assert ran == ["first", "other"]


def test_failures_become_sentences() -> None:
    desk = Desk()

    def wrong(job: Job) -> None:
        raise InputError("The temperature is −1; it can be from 0.")

    def broken(job: Job) -> None:
        raise KeyError("x")

    told, inside = desk.submit(wrong, "tab"), desk.submit(broken, "tab")
    wait(told)
    wait(inside)
    assert told.failure() == "The temperature is −1; it can be from 0."
    assert "KeyError" in (inside.failure() or "")
    after = desk.submit(lambda job: None, "tab")  # the worker lives on
    wait(after)
    assert after.failure() is None


def test_tabs_share_one_loaded_model(monkeypatch: pytest.MonkeyPatch) -> None:
    loads: list[tuple[str, str]] = []

    def load(name: str, dtype: str) -> SimpleNamespace:
        loads.append((name, dtype))
        return SimpleNamespace(name=name, dtype=dtype, device="cpu")

    monkeypatch.setattr("mtp.models.verifier.load_verifier", load)
    desk, found = Desk(), []
    for tab in ("one", "other", "one"):
        wait(desk.submit(lambda job: found.append(desk.verifier("byte", None, job)), tab))
    assert loads == [("byte", "float32")]
    assert found[0] is found[1] is found[2]
    wait(desk.submit(lambda job: found.append(desk.verifier("byte", "float64", job)), "one"))
    assert loads[1:] == [("byte", "float64")]


def test_a_model_that_cannot_be_fetched_leaves_the_desk_usable(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fetch(*asked: object) -> None:
        raise ModelError("There is no network; connect and run again.")

    monkeypatch.setattr("mtp.models.catalog.is_ready", lambda name: False)
    monkeypatch.setattr("mtp.models.fetch.fetch", fetch)
    desk = Desk()
    job = desk.submit(lambda job: desk.verifier("smollm2", None, job), "tab")
    wait(job)
    assert job.failure() == "There is no network; connect and run again."
    ran: list[str] = []
    wait(desk.submit(lambda job: ran.append("next"), "tab"))
    assert ran == ["next"]


def test_a_run_is_stopped_within_a_step() -> None:
    desk, live = Desk(), LiveRun("r")
    settings = Settings("Write a long story.", "ar", max_new_tokens=400)
    job = decode_into(live, desk, "tab", "byte", None, settings)
    limit = time.monotonic() + 120
    while len(live.steps) < 3 and not job.done:
        assert time.monotonic() < limit
        time.sleep(0.001)
    seen = len(live.steps)
    desk.stop_all("tab")
    wait(job)
    assert job.failure() is None and live.state == "stopped"
    assert seen <= len(live.steps) <= seen + 2  # the step that ran, and one begun meanwhile


def test_the_store_drops_the_oldest() -> None:
    kept: Kept[int] = Kept(most=3)
    names = [kept.add(number) for number in range(5)]
    assert [kept.get(name) for name in names] == [None, None, 2, 3, 4]
    assert len(set(names)) == 5
    kept.pin("recorded", 9)
    for number in range(5):
        kept.add(number)
    assert kept.get("recorded") == 9


@pytest.mark.parametrize("key", [None, 3, "", "nothing", {"a": 1}])
def test_forged_names_find_nothing(key: object) -> None:
    assert Kept[int]().get(key) is None


@pytest.mark.parametrize(
    ("processors", "threads", "left"), [(2, 2, 1), (1, 1, 1), (8, 4, 4), (4, 4, 3)]
)
def test_a_run_leaves_a_processor_to_the_page(
    processors: int, threads: int, left: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: processors)
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(threads)
        with pytest.raises(InputError), leaving_a_processor():
            assert torch.get_num_threads() == left
            raise InputError("a run that fails")
        assert torch.get_num_threads() == threads
    finally:
        torch.set_num_threads(before)
