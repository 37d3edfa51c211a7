"""A run that librdkafka ends is repeated once; any other end is the run's own."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.kit.waiting import until
from tests.system.transactions.soak_child import (
    LIBRDKAFKA_ASSERTION,
    Run,
    died_of_librdkafka,
    repeated_once,
    run_child,
)

ASSERTION = (
    "python: rdkafka_txnmgr.c:1186: rd_kafka_txn_curr_api_reply_error: "
    f"Assertion `{LIBRDKAFKA_ASSERTION}' failed."
)
DEAD = Run(-signal.SIGABRT, f"seed 4711\n{ASSERTION}\n")
GOOD = Run(0, "exactly once\n")


@pytest.mark.parametrize(
    ("run", "is_repeated"),
    [
        (DEAD, True),
        (GOOD, False),
        (Run(1, f"lost-write\n{ASSERTION}\n"), False),
        (Run(0, ASSERTION), False),
        (Run(-signal.SIGSEGV, ASSERTION), False),
        (Run(-signal.SIGABRT, "Assertion `rk->rk_eos.txn_req_cnt == 0' failed."), False),
        (Run(-signal.SIGABRT, ""), False),
        (Run(128 + signal.SIGABRT, ASSERTION), False),
    ],
)
def test_only_that_assertion_is_repeated(run: Run, is_repeated: bool) -> None:
    assert died_of_librdkafka(run) is is_repeated
    runs = [GOOD, run]
    assert repeated_once(runs.pop, lambda _: None) == (GOOD if is_repeated else run)
    assert len(runs) == (0 if is_repeated else 1)


def test_it_is_repeated_once() -> None:
    runs = [GOOD, DEAD, DEAD]
    said: list[str] = []
    assert repeated_once(runs.pop, said.append) == DEAD
    assert runs == [GOOD]
    assert len(said) == 1
    assert LIBRDKAFKA_ASSERTION in said[0]


#: Starts its own node, writes what librdkafka writes, and dies of it in its first life.
CHILD = """
import os, subprocess, sys
from pathlib import Path

first_life = Path(sys.argv[1])
print("seed 4711")
node = subprocess.Popen(["sleep", "600"])
Path(sys.argv[1] + ".node").write_text(str(node.pid))
if not first_life.exists():
    first_life.touch()
    sys.stderr.write(sys.argv[2] + chr(10))
    os.abort()
node.kill()
print("exactly once")
"""


def test_a_child_that_dies_leaves_no_node_and_is_run_again(tmp_path: Path) -> None:
    alive = tmp_path / "alive"
    said: list[str] = []
    nodes: list[int] = []

    def run() -> Run:
        command = [sys.executable, "-c", CHILD, str(alive), ASSERTION]
        found = run_child(command, tmp_path / "run", said.append)
        nodes.append(int(Path(f"{alive}.node").read_text()))
        return found

    assert repeated_once(run, said.append) == Run(0, "seed 4711\nexactly once\n")
    assert said.count("seed 4711") == 2
    assert ASSERTION in said
    for node in nodes:
        until(lambda node=node: not is_alive(node), what=f"the end of node {node}")


def is_alive(process_id: int) -> bool:
    state = subprocess.run(
        ["ps", "-o", "stat=", "-p", str(process_id)], capture_output=True, text=True
    ).stdout.strip()
    return bool(state) and not state.startswith("Z")
