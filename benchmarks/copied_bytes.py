"""Which system calls moved a server's bytes, as strace saw them.

Owns running strace on a process of ours and adding up what each call returned. Invariant: counts
are the kernel's return values, not the server's own account.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Final

#: Calls by which bytes of a file or to a socket can pass through a process's memory, and sendfile.
CALLS: Final = (
    *("sendfile", "splice", "read", "pread64", "readv", "preadv", "preadv2"),
    *("write", "pwrite64", "writev", "sendto", "sendmsg", "recvfrom", "recvmsg"),
)
ATTACH_DEADLINE_S: Final = 10.0

_LINE: Final = re.compile(r"^\d+\s+(?:<\.\.\. )?(\w+)(?:\(| resumed>).* = (\d+)$")


def is_available() -> bool:
    """Whether strace is here."""
    return shutil.which("strace") is not None


@contextlib.contextmanager
def counted(pid: int, output: Path) -> Iterator[Counter[str]]:
    """Bytes by system call of the process while the block runs; filled in when it ends."""
    found: Counter[str] = Counter()
    tracer = subprocess.Popen(
        [
            *("strace", "-f", "-qq", "-e", f"trace={','.join(CALLS)}", "-e", "signal=none"),
            *("-o", str(output), "-p", str(pid)),
        ],
        stderr=subprocess.PIPE,
    )
    try:
        _wait_attached(pid, tracer)
        yield found
    finally:
        tracer.send_signal(signal.SIGINT)
        tracer.communicate()
    for line in output.read_text(errors="replace").splitlines():
        match = _LINE.match(line)
        if match:
            found[match[1]] += int(match[2])


def _wait_attached(pid: int, tracer: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + ATTACH_DEADLINE_S
    while time.monotonic() < deadline:
        if tracer.poll() is not None:
            assert tracer.stderr is not None, "a pipe"
            raise RuntimeError(f"strace: {tracer.stderr.read().decode().strip()}")
        if all(_tracer_of(pid, thread) == tracer.pid for thread in os.listdir(f"/proc/{pid}/task")):
            return
        time.sleep(0.01)
    raise TimeoutError("strace did not attach")


def _tracer_of(pid: int, thread: str) -> int:
    for line in Path(f"/proc/{pid}/task/{thread}/status").read_text().splitlines():
        if line.startswith("TracerPid:"):
            return int(line.split()[1])
    return 0
