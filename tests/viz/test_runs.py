"""The queue to the model and the store of what browsers look at."""

from __future__ import annotations

import threading
import time

import pytest

from mtp.errors import InputError
from viz.runs import Desk, Job, Kept


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
