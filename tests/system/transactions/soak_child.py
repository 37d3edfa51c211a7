"""A soak, or a run with an injected bug, as a process that an assertion of librdkafka may end.

In 1.5 % of runs librdkafka ends its process with its own assertion about transactional
requests that it has counted wrongly. That says nothing about the brokers: the run is repeated, once
and for exactly that assertion.

Owns the child, and what it leaves behind when it dies: nodes, network namespaces, mounts. Must not:
judge what a run found. Invariant: nothing of a run is left when `run_soak` returns.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from tests.system.quorum.hosts import NETNS_DIRECTORY

LIBRDKAFKA_ASSERTION: Final = "rk->rk_eos.txn_req_cnt > 0"
ROOT: Final = Path(__file__).resolve().parents[3]
STOP_S: Final = 60.0


class Run(NamedTuple):
    """One run: the child's status, negative for a signal, and all it wrote."""

    status: int
    output: str


def died_of_librdkafka(run: Run) -> bool:
    """Whether the run ended by that one assertion, and by nothing else."""
    return run.status == -signal.SIGABRT and LIBRDKAFKA_ASSERTION in run.output


def run_soak(arguments: Sequence[str], directory: Path, say: Callable[[str], None]) -> Run:
    """`python -m tests.system.transactions.soak`, repeated once if it died of librdkafka.

    Args:
        directory: for what the run writes.
        say: gets each line of the output as it comes.
    """
    command = [sys.executable, "-m", "tests.system.transactions.soak", *arguments]
    return repeated_once(lambda: run_child(command, directory, say), say)


def repeated_once(run: Callable[[], Run], say: Callable[[str], None]) -> Run:
    """The run, or the one after it if it died of librdkafka."""
    first = run()
    if not died_of_librdkafka(first):
        return first
    say(f"librdkafka ended the process: {LIBRDKAFKA_ASSERTION}; the run is repeated once")
    return run()


def run_child(command: Sequence[str], directory: Path, say: Callable[[str], None]) -> Run:
    """Run a command to its end, whatever ends it, and clear up behind it."""
    directory.mkdir(parents=True, exist_ok=True)
    child = subprocess.Popen(
        command,
        cwd=ROOT,
        env={**os.environ, "TMPDIR": str(directory), "PYTHONUNBUFFERED": "1"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
    )
    lines: list[str] = []

    def read() -> None:
        assert child.stdout is not None, "a pipe"
        with child.stdout:
            for line in child.stdout:
                say(line.rstrip("\n"))
                lines.append(line)

    reader = threading.Thread(target=read, name="output of the soak")
    reader.start()
    try:
        status = child.wait()
    finally:
        _end(child)
        # The nodes of a child that died hold its output open.
        _clear_up(child.pid, directory)
        reader.join()
    return Run(status, "".join(lines))


def _end(child: subprocess.Popen[str]) -> None:
    """SIGTERM first: the soak then ends its nodes by itself."""
    child.terminate()
    try:
        child.wait(STOP_S)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()


def _clear_up(child_id: int, directory: Path) -> None:
    # No such group: the child ended its nodes itself.
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child_id, signal.SIGKILL)
    for line in Path("/proc/mounts").read_text(encoding="utf-8").splitlines():
        path = line.split()[1]
        if path.startswith(f"{directory}/"):
            subprocess.run(["umount", "-l", path], check=False, capture_output=True)
    namespaces = Path(NETNS_DIRECTORY)
    for path in namespaces.glob(f"moldau-{child_id}-*") if namespaces.is_dir() else ():
        subprocess.run(["ip", "netns", "del", path.name], check=False, capture_output=True)


def main() -> int:
    """The command of `make long`; the soak's exit status."""
    with tempfile.TemporaryDirectory(prefix="moldau-soak-", ignore_cleanup_errors=True) as made:
        return run_soak(sys.argv[1:], Path(made), lambda line: print(line, flush=True)).status


if __name__ == "__main__":
    sys.exit(main())
