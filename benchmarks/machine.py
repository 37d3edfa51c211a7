"""The machine and the processes on it, as /proc and git tell.

Linux only; how CPU time and memory of a process are read is in `moldau.cli.bench.figures`.
"""

from __future__ import annotations

import os
import platform
import subprocess
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from moldau.cli.bench.figures import memory_bytes

ROOT: Final = Path(__file__).resolve().parent.parent


def resident_bytes(pid: int) -> int:
    """Memory of a process that is in RAM, shared libraries and mapped files included."""
    return _status_bytes(pid, "VmRSS")


def anonymous_bytes(pid: int) -> int:
    """The part of `resident_bytes` that belongs to no file."""
    return _status_bytes(pid, "RssAnon")


def _status_bytes(pid: int, key: str) -> int:
    found = memory_bytes(key, pid)
    assert found, f"/proc/{pid}/status has no {key}"
    return found


def describe() -> list[tuple[str, str]]:
    """What a reader needs to know about where the figures come from."""
    total_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return [
        ("processor", f"{_processor()}, {os.cpu_count()} cores"),
        ("memory", f"{total_bytes / 2**30:.0f} GiB"),
        ("system", f"{platform.system()} {platform.release().split('-')[0]}"),
        ("Python", f"{platform.python_version()}, uvloop {_version('uvloop')}"),
        ("commit", _commit()),
        ("date", time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime())),
        ("load before", " ".join(f"{load:.2f}" for load in os.getloadavg())),
    ]


def _processor() -> str:
    for line in _lines("/proc/cpuinfo"):
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def _lines(path: str) -> Iterable[str]:
    try:
        return Path(path).read_text().splitlines()
    except OSError:
        return ()


def _version(distribution: str) -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(distribution)
    except PackageNotFoundError:
        return "absent"


def _commit() -> str:
    found = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True
    )
    changed = subprocess.run(
        ["git", "status", "--porcelain", "--", "moldau", "benchmarks"],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    name = found.stdout.strip() or "unknown"
    return f"{name} with uncommitted changes" if changed.stdout.strip() else name
