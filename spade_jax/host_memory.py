"""Memory of this process on the host, as the kernel counts it."""

from __future__ import annotations

import resource
import sys
from pathlib import Path

STATUS = Path("/proc/self/status")  # of Linux


def resident() -> int | None:
    """Bytes this process has in memory now; None where the kernel does not say."""
    return _read("VmRSS")


def peak() -> int:
    """Most bytes this process has had in memory."""
    most = _read("VmHWM")
    if most is not None:
        return most
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def _read(field: str) -> int | None:
    if not STATUS.exists():
        return None
    return int(STATUS.read_text().partition(f"{field}:")[2].split()[0]) * 1024
