"""What page Noise asks the model: whose question it is, contexts read, answers in their turn."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import gradio as gr

from mtp.errors import InputError
from mtp.records.noise import NoiseRecord
from viz.noise_shown import Asked, Shown, asked_from, file_of, look_at, sweep_at
from viz.runs import Desk, Job, Kept, imported
from viz.texts import text

if TYPE_CHECKING:
    from mtp.models.verifier import Verifier
    from mtp.ptp.explore import NoiseExplorer

MOST_READ = 4  # contexts that stay read; each holds a cache and its drafters
WAIT = 600.0  # seconds for an answer; the first may fetch and load the model

Ask = Callable[[], tuple["NoiseExplorer", Job]]
"""Gives the context on the loaded model and the job that waits. Raises `_UnansweredError`."""
Answer = Callable[[Shown, Asked, Ask], dict[str, Any] | None]
"""The answer to a question; None where it was stopped on the way."""


class _UnansweredError(Exception):
    """What is kept does not answer a question: the model must, and was not asked, or stopped."""


class Explorers:
    """Contexts that the loaded model has read, by name, the newest few. They go when the desk lets
    the model go. Only the worker uses them.
    """

    def __init__(self) -> None:
        self._read: WeakKeyDictionary[Verifier, OrderedDict[str, NoiseExplorer]] = (
            WeakKeyDictionary()
        )

    def keep(self, key: str, verifier: Verifier, explorer: NoiseExplorer) -> None:
        """Keeps a context that was just read."""
        read = self._read.setdefault(verifier, OrderedDict())
        read[key] = explorer
        while len(read) > MOST_READ:
            read.popitem(last=False)

    def of(self, key: str, record: NoiseRecord, verifier: Verifier, job: Job) -> NoiseExplorer:
        """The record's context on this model, read where it is not yet.

        Raises InputError where the model or its drafters are others than the record's.
        """
        read = self._read.get(verifier)
        if read is not None and key in read:
            return read[key]
        if verifier.weights_sha256 != record.weights_sha256:
            raise InputError(text("noise.error.weights", model=record.model))
        from mtp.ptp.question import explorer_of, facts_of

        job.tell(text("status.prefill"))
        explorer = explorer_of(verifier, record.question, lambda: job.stopped)
        if facts_of(explorer) != record.drafters:
            raise InputError(text("noise.error.drafters", model=record.model))
        if not job.stopped:
            self.keep(key, verifier, explorer)
        return explorer


class Questions:
    """Questions of browser tabs about contexts, answered from what is kept or by the model."""

    def __init__(self, desk: Desk, kept: Kept[Shown]) -> None:
        self.desk = desk
        self.kept = kept
        self.explorers = Explorers()
        self._jobs: dict[str, Job] = {}

    def job_of(self, owner: str) -> Job | None:
        """The newest question of a tab that the model has not answered yet."""
        return self._jobs.get(owner)

    async def look(self, asked: object, owner: str) -> dict[str, Any]:
        """Everything for one setting of the noise, asked for as [the context's name, question]."""

        def answer(shown: Shown, asked: Asked, ask: Ask) -> dict[str, Any]:
            view = shown.view(asked.noise)
            if view is None:
                explorer, _ = ask()
                view = explorer.view(asked.noise)
                shown.keep(view)
            return look_at(shown.record, view, asked)

        return await self._answer(asked, answer, owner)

    async def sweep(self, asked: object, owner: str) -> dict[str, Any]:
        """One place's noise swept, asked for as [the context's name, question]."""

        def answer(shown: Shown, asked: Asked, ask: Ask) -> dict[str, Any]:
            if not asked.drafter:
                return {}
            sweep = shown.sweep(asked)
            if sweep is None:
                explorer, _ = ask()
                sweep = explorer.sweep(asked.drafter, asked.noise, asked.place)
            return sweep_at(shown.record, sweep, asked)

        return await self._answer(asked, answer, owner)

    async def file(self, asked: object, owner: str) -> dict[str, Any]:
        """The context with the noise as it is set, with sweeps of all its places, as a file; asked
        for as [the context's name, question].
        """

        def answer(shown: Shown, asked: Asked, ask: Ask) -> dict[str, Any] | None:
            record, view = shown.record, shown.view(asked.noise)
            if view is record.view and record.whole:
                return file_of(record)
            explorer, job = ask()
            from mtp.ptp.question import with_view

            if view is None:
                view = explorer.view(asked.noise)

            def tell(done: float) -> None:
                job.tell(text("noise.saving"), done)

            made = with_view(record, explorer, view, tell, lambda: job.stopped)
            return None if made is None else file_of(made)

        return await self._answer(asked, answer, owner)

    def _explorer(self, key: str, shown: Shown, job: Job) -> NoiseExplorer:
        """The context on the loaded model; on the way the job tells what it waits for. Raises
        `_UnansweredError` where it was stopped.
        """
        job.tell(text("status.importing"))
        imported("mtp.ptp.question")
        record = shown.record
        verifier = self.desk.verifier(record.model, record.dtype, job)
        explorer = self.explorers.of(key, record, verifier, job)
        if job.stopped:
            raise _UnansweredError
        return explorer

    async def _answer(self, asked: object, answer: Answer, owner: str) -> dict[str, Any]:
        """The answer from what is kept, or where it is not there from the model, in its turn and
        for this tab. Errors are sentences.
        """
        key = _key(asked)
        shown = self.kept.get(key)
        if shown is None:
            return {"error": text("noise.error.gone")}
        assert isinstance(asked, list)
        try:
            question = asked_from(asked[1], shown.record)
        except InputError as error:
            return {"error": str(error)}

        def by_the_model(job: Job) -> dict[str, Any] | None:
            try:
                return answer(shown, question, lambda: (self._explorer(key, shown, job), job))
            except _UnansweredError:
                return None

        try:
            return await asyncio.to_thread(answer, shown, question, _unasked) or {}
        except _UnansweredError:
            job = self.desk.submit(by_the_model, owner)
        self._jobs[owner] = job
        try:
            await _over(job)
        finally:
            if self._jobs.get(owner) is job:
                del self._jobs[owner]
        return _outcome(job)


def _unasked() -> tuple[NoiseExplorer, Job]:
    raise _UnansweredError


async def _over(job: Job) -> None:
    """Waits until a job is done, or for so long."""
    assert job.future is not None
    over = asyncio.wrap_future(job.future)
    done, _ = await asyncio.wait([over], timeout=WAIT)
    if done and not over.cancelled():
        over.exception()  # has been seen; `_outcome` says it


def _outcome(job: Job) -> dict[str, Any]:
    """What a job answers; a sentence where it failed, was stopped or takes too long."""
    if not job.done:
        job.stop()
        return {"error": text("noise.error.busy", minutes=f"{WAIT / 60:.0f}")}
    failure = job.failure()
    if failure is not None:
        return {"error": failure}
    assert job.future is not None
    # A stop may have cancelled it, or interrupted it with an error of its own.
    ended = not job.future.cancelled() and job.future.exception() is None
    result = job.future.result() if ended else None
    return {"error": text("noise.error.stopped")} if result is None else result


def _key(asked: object) -> str:
    """The context's name in what a page asks; empty where there is none."""
    whole = isinstance(asked, list) and len(asked) == 2 and isinstance(asked[0], str)
    return str(asked[0]) if whole else ""  # type: ignore[index]


async def tab_of(request: gr.Request) -> str:
    """The browser tab that calls a server function: Gradio hands over the bare request, whose body
    names the tab as it does for events.
    """
    body = await request.json()
    return str(body["session_hash"])
