"""The runs of `injected_bugs`, each in its own process: librdkafka may end it (see
`soak_child.py`).
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

import pytest

from tests.kit import Verdict
from tests.system.transactions import injected_bugs
from tests.system.transactions.soak_child import repeated_once, run_child

RUNS: Final = (
    "test_honest_clients_of_an_honest_broker",
    "test_every_faulty_client_is_found",
    *(f"test_a_broker_with_a_bug_is_found[{bug}]" for bug in injected_bugs.BUGS),
)
SLOW_RUNS: Final = ("test_an_upgrade_that_forgets_what_is_read_is_found",)

#: A run may be repeated once, and has its own limit.
pytestmark = [pytest.mark.system, pytest.mark.timeout(2 * injected_bugs.LIMIT_S + 60)]


@pytest.mark.parametrize(
    "run", [*RUNS, *(pytest.param(run, marks=pytest.mark.long) for run in SLOW_RUNS)]
)
def test_what_is_wrong_is_found_and_nothing_else(run: str, tmp_path: Path):
    # The output is not captured: what librdkafka says when it ends the process is read from it.
    command = [sys.executable, "-m", "pytest", "-q", "--no-header", "-s", "-n0"]
    command += ["-p", "no:cacheprovider", f"{injected_bugs.__file__}::{run}"]
    ended = repeated_once(lambda: run_child(command, tmp_path, print), print)
    if ended.status != 0:
        error = Verdict if f"{Verdict.__name__}: " in ended.output else AssertionError
        raise error(f"status {ended.status}\n{ended.output}")


def test_none_is_left_out():
    there = {name for name in vars(injected_bugs) if name.startswith("test_")}
    assert there == {run.partition("[")[0] for run in (*RUNS, *SLOW_RUNS)}
