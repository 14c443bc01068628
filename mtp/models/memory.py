"""The most memory a run used: of the GPU it ran on, or of the process."""

from __future__ import annotations

import resource
import sys
from contextlib import suppress
from pathlib import Path

import torch

_PROCESS = Path("/proc/self")


def forget_peak_memory(device: torch.device) -> None:
    """Starts the count of `peak_memory_mb` anew, where the system can: on CUDA and Linux."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        return
    with suppress(OSError):
        (_PROCESS / "clear_refs").write_text("5", encoding="ascii")  # proc(5): resets VmHWM


def peak_memory_mb(device: torch.device) -> float:
    """The most memory used in MB since `forget_peak_memory`, or so far where that does nothing: of
    the device on CUDA, of the process elsewhere.
    """
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 1e6
    with suppress(OSError, ValueError, StopIteration):
        lines = (_PROCESS / "status").read_text(encoding="ascii", errors="ignore").splitlines()
        return int(next(line for line in lines if line.startswith("VmHWM")).split()[1]) * 1024 / 1e6
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak * (1 if sys.platform == "darwin" else 1024) / 1e6
