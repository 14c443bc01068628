"""The queue to the model, stop flags, and the store of runs that browsers look at."""

from __future__ import annotations

import importlib
import logging
import os
import threading
import uuid
from collections import OrderedDict
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import ModuleType
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from mtp.errors import DraftscopeError
from mtp.records.trace import Run, Step, Trace
from viz.texts import text

if TYPE_CHECKING:
    from mtp.models.verifier import Verifier
    from mtp.records.settings import Settings

log = logging.getLogger("draftscope")
WARM_AFTER = 4.0  # seconds after a page was asked for
MOST_KEPT = 64  # for browsers to look at

T = TypeVar("T")


_importing = threading.RLock()


def imported(name: str) -> ModuleType:
    """A module that brings torch along. The worker and the server's threads import one at a time:
    where modules need each other, two threads at once meet half of one.
    """
    with _importing:
        return importlib.import_module(name)


@dataclass
class Job:
    """A piece of work for the model, from waiting to done."""

    owner: str
    message: str = ""
    fraction: float | None = None
    stopping: threading.Event = field(default_factory=threading.Event)
    future: Future[Any] | None = None

    def stop(self) -> None:
        """Asks the job to end within a step; one still waiting never starts."""
        self.stopping.set()
        if self.future is not None:
            self.future.cancel()

    @property
    def stopped(self) -> bool:
        """Whether it was asked to end."""
        return self.stopping.is_set()

    @property
    def done(self) -> bool:
        """Whether it has ended, well or not."""
        return self.future is not None and self.future.done()

    def failure(self) -> str | None:
        """The sentence for a job that failed; None for one that did not."""
        if self.future is None or not self.future.done() or self.future.cancelled():
            return None
        error = self.future.exception()
        if error is None or (self.stopped and isinstance(error, DraftscopeError)):
            return None  # what a stop interrupts, such as a download, is no failure
        if isinstance(error, DraftscopeError):
            return str(error)
        log.error("a job failed", exc_info=error)
        if isinstance(error, MemoryError) or "out of memory" in str(error).lower():
            return text("error.memory")
        return text("error.inside", what=f"{type(error).__name__}: {str(error)[:160]}")

    def tell(self, message: str, fraction: float | None = None) -> None:
        """What the job is doing, for the status line."""
        self.message, self.fraction = message, fraction


class Desk:
    """One worker that owns the model: jobs run one at a time, in the order they came."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix="model")
        self._line: list[Job] = []
        self._lock = threading.Lock()
        self._loaded: tuple[tuple[str, str], Verifier] | None = None
        self._warm: set[str] = set()

    def submit(self, work: Callable[[Job], Any], owner: str) -> Job:
        """Puts work in the line. It gets its job, to tell its progress and see the stop flag.

        `owner` names the browser tab, so that leaving it or pressing stop ends its jobs.
        """
        job = Job(owner=owner)
        with self._lock:
            self._line = [other for other in self._line if not other.done] + [job]
        job.future = self._pool.submit(work, job)
        return job

    def place(self, job: Job) -> int:
        """How many unfinished jobs are before this one."""
        with self._lock:
            ahead = self._line[: self._line.index(job)] if job in self._line else []
        return sum(not other.done for other in ahead)

    def stop_all(self, owner: str) -> None:
        """Stops every unfinished job of a browser tab."""
        with self._lock:
            mine = [job for job in self._line if job.owner == owner and not job.done]
        for job in mine:
            job.stop()

    def describe(self, job: Job) -> str:
        """The status line's sentence for a job."""
        ahead = self.place(job)
        if ahead:
            return text("status.waiting", ahead=ahead)
        return job.message or text("status.starting")

    def verifier(self, name: str, dtype: str | None, job: Job) -> Verifier:
        """The loaded model, fetched and loaded first where needed. Only the worker calls this.

        One model is held at a time: another takes its place.
        """
        imported("mtp.run")
        from mtp.models.load import best_device, preferred_dtype

        precision = dtype or str(preferred_dtype(best_device(), name)).removeprefix("torch.")
        if self._loaded is not None and self._loaded[0] == (name, precision):
            return self._loaded[1]
        from mtp.models import catalog
        from mtp.models.fetch import fetch

        if name in catalog.ENTRIES and not catalog.is_ready(name):
            fetch(name, job.tell, lambda: job.stopped)
        job.tell(text("status.loading", model=name))
        from mtp.models.verifier import load_verifier

        self._loaded = None
        verifier = load_verifier(name, precision)
        self._loaded = ((name, precision), verifier)
        return verifier

    def warm_up(self, module: str = "mtp.run") -> None:
        """Has the worker import what runs need, soon: not while a page is being drawn."""
        if module in self._warm:
            return
        self._warm.add(module)
        timer = threading.Timer(WARM_AFTER, lambda: self._pool.submit(imported, module))
        timer.daemon = True
        timer.start()

    def loaded(self) -> str:
        """The held model in words; empty while there is none."""
        if self._loaded is None:
            return ""
        verifier = self._loaded[1]
        return text(
            "status.loaded", model=verifier.name, dtype=verifier.dtype, device=verifier.device
        )


@dataclass
class LiveRun:
    """A run a browser looks at: recorded, opened from a file, or being decoded now."""

    label: str
    state: str = "live"
    """live, own, stopped, recorded or opened: what the player says beside the run."""
    recorded: str | None = None
    """The name of a recorded run that ships with Draftscope."""
    run: Run | None = None
    steps: list[Step] = field(default_factory=list)
    trace: Trace | None = None


class Kept(Generic[T]):
    """Things browsers look at, by a name that cannot be guessed; the oldest are dropped."""

    def __init__(self, most: int = MOST_KEPT) -> None:
        self._kept: OrderedDict[str, T] = OrderedDict()
        self._pinned: dict[str, T] = {}
        self._most = most
        self._lock = threading.Lock()

    def add(self, thing: T) -> str:
        """Keeps a thing; returns its name."""
        key = uuid.uuid4().hex
        with self._lock:
            self._kept[key] = thing
            while len(self._kept) > self._most:
                self._kept.popitem(last=False)
        return key

    def pin(self, key: str, thing: T) -> None:
        """Keeps a thing for good, under a name of its own."""
        self._pinned[key] = thing

    def pinned(self, key: str, make: Callable[[], T]) -> T:
        """The thing pinned under this name, made where it is not there yet."""
        if key not in self._pinned:
            self.pin(key, make())
        return self._pinned[key]

    def get(self, key: object) -> T | None:
        """The thing of that name; None for one that is gone or never was."""
        if not isinstance(key, str):
            return None
        return self._pinned.get(key) or self._kept.get(key)


Store = Kept[LiveRun]


@contextmanager
def leaving_a_processor() -> Iterator[None]:
    """While entered, torch leaves one processor to the page that draws a run as it goes. With all
    of them its threads wait for each other whenever the browser takes one: on two, that doubles the
    time of a run.
    """
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(max(1, min(before, (os.cpu_count() or 1) - 1)))
    try:
        yield
    finally:
        torch.set_num_threads(before)


def decode_into(
    live: LiveRun, desk: Desk, owner: str, name: str, dtype: str | None, settings: Settings
) -> Job:
    """Puts a run in the line; its steps appear in `live` as they happen."""

    def work(job: Job) -> None:
        job.tell(text("status.importing"))
        imported("mtp.run")
        from mtp.run import check_settings, start

        check_settings(settings)
        verifier = desk.verifier(name, dtype, job)
        if job.stopped:
            return
        job.tell(text("status.prefill"))
        decoding, run = start(verifier, settings, lambda: job.stopped)
        live.run = run
        with leaving_a_processor():
            for step in decoding:
                live.steps.append(step)
                tokens = len(decoding.output_ids)
                job.tell(
                    text("status.decoding", tokens=tokens, steps=len(live.steps)),
                    tokens / settings.max_new_tokens,
                )
        live.trace = decoding.trace(run)
        live.state = "stopped" if live.trace.stop_reason == "stopped" else "own"

    return desk.submit(work, owner)
