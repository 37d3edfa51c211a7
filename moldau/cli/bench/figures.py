"""What the loads have in common: payloads, percentiles, CPU time and memory of processes."""

from __future__ import annotations

import math
import os
import resource
from collections.abc import Sequence
from pathlib import Path


def payload(size_bytes: int) -> bytes:
    """Bytes that do not compress to nothing, the same in every run."""
    pattern = bytes((i * 131 + (i >> 8) * 31) & 0xFF for i in range(min(size_bytes, 65_536)))
    return (pattern * (size_bytes // max(1, len(pattern)) + 1))[:size_bytes]


def percentile(ordered: Sequence[float], percent: float) -> float:
    """The smallest of the sorted values that so large a part does not exceed."""
    return ordered[max(0, math.ceil(percent / 100 * len(ordered)) - 1)]


def percentiles(name: str, values: Sequence[float], percents: Sequence[float]) -> dict[str, float]:
    """Milliseconds by `NAME_pPERCENT_ms`; nothing without values."""
    ordered = sorted(values)
    return {
        f"{name}_p{percent:g}_ms": round(percentile(ordered, percent), 3)
        for percent in percents
        if ordered
    }


def own_cpu_seconds() -> float:
    """User and system time of this process so far."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def process_cpu_seconds(pid: int) -> float:
    """User and system time of a process so far, all its threads. Raises: OSError, also where there
    is no /proc.
    """
    after_name = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2]
    user, system = after_name.split()[11:13]
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


def memory_bytes(key: str, pid: int | str = "self") -> int:
    """VmRSS, or VmHWM (the most so far), of a process; 0 where no /proc says it."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text(encoding="ascii").splitlines()
    except OSError:
        return 0
    return next((int(each.split()[1]) * 1024 for each in lines if each.startswith(key + ":")), 0)
