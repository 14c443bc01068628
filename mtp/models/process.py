"""Running another program while its lines are followed, ended when a person stops it."""

import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from mtp.models.trouble import FetchStoppedError

# A sentence, and the fraction of its stage that is done (None: not known).
Progress = Callable[[str, float | None], None]
Stop = Callable[[], bool]

POLL_SECONDS = 0.2
GRACE_SECONDS = 5.0  # between asking a process to end and ending it


def silent(_text: str, _fraction: float | None) -> None:
    """The progress that tells nobody."""


def run(
    command: Sequence[str],
    environment: dict[str, str],
    show: Callable[[Sequence[str]], None],
    stop: Stop,
    cwd: Path | None = None,
) -> tuple[int, list[str]]:
    """Runs a process to its end and returns its exit status (negative: the signal) and its lines.

    `show` gets the lines so far every POLL_SECONDS, and `stop` is asked. Raises FetchStoppedError
    when stopped, the process having ended, and OSError for a program that cannot be started.
    """
    process = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,  # stays open: its end tells the process that this one is gone
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        encoding="utf-8",
        errors="replace",
        env=environment | {"PYTHONIOENCODING": "utf-8"},
        cwd=cwd,
    )
    output = process.stdout
    assert output is not None
    lines: list[str] = []

    def read() -> None:
        for line in output:
            lines.append(line)

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    try:
        while process.poll() is None:
            if stop():
                raise FetchStoppedError("Stopped.")
            show(tuple(lines))
            time.sleep(POLL_SECONDS)
    finally:
        if process.poll() is None:
            process.terminate()
            try:
                process.wait(GRACE_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        reader.join(GRACE_SECONDS)
        for stream in (process.stdin, process.stdout):
            if stream is not None:
                stream.close()
    return process.returncode, lines
