"""Time and memory of what a benchmark does in its process."""

import contextlib
import time
from pathlib import Path

import torch

MIB = 2.0**20
_STATUS, _CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")


def seconds_now(device: str | torch.device) -> float:
    """Return a time in seconds: of the clock on a GPU, of this process's CPU time elsewhere.

    CPU time is what a busy machine falsifies least.
    """
    if torch.device(device).type == "cuda":
        torch.cuda.synchronize()
        return time.perf_counter()
    return time.process_time()


def start_peak(device: str) -> None:
    """Forget the highest memory so far."""
    if torch.device(device).type == "cuda":
        torch.cuda.reset_peak_memory_stats()
        return
    # Not allowed everywhere; then the peak is that since the process began.
    with contextlib.suppress(OSError):
        _CLEAR.write_text("5")


def peak_mib(device: str) -> float:
    """Return the highest memory since `start_peak`: allocated on the GPU, or resident, in MiB."""
    if torch.device(device).type == "cuda":
        return float(torch.cuda.max_memory_allocated()) / MIB
    return _status("VmHWM")


def memory_mib(device: str) -> float:
    """Return the memory that is held now, in MiB."""
    if torch.device(device).type == "cuda":
        return float(torch.cuda.memory_allocated()) / MIB
    return _status("VmRSS")


def _status(name: str) -> float:
    (line,) = [line for line in _STATUS.read_text().splitlines() if line.startswith(f"{name}:")]
    return int(line.split()[1]) / 1024
