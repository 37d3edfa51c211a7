"""What every simulator has to pass in `make test`.

Owns: the checks that are the same for all of them. Must not: know what a simulator promises.
"""

from __future__ import annotations

import contextlib
import io
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace

import pytest

from tests.kit.injected_bugs import InjectedBug
from tests.kit.seeds import Choice, Simulation, Statistics

_SOUND: set[tuple[str, str, Choice]] = set()
"""Runs of this process that broke no promise: a seed's run is always the same."""


def bugs_of_the_gate(simulation: Simulation) -> Sequence[object]:
    """For `parametrize`."""
    return [
        pytest.param(bug, id=bug.name)
        for bug in simulation.bugs.values()
        if bug.first_seed is not None
    ]


def check_seeds(simulation: Simulation, seeds: Sequence[int]) -> Statistics:
    """None of the seeds breaks a promise: the same ones on every machine."""
    total = Statistics()
    for outcome in simulation.outcomes(seeds):
        total.add(outcome)
        assert outcome.failure is None, simulation.describe_failure(outcome)
    print(total)
    return total


def check_determinism(simulation: Simulation, seed: str, other: str) -> None:
    """A seed is the same run in every process, whatever the hash seed; another one is not."""
    here = simulation.run_seed(seed).digest
    for hash_seed in ("0", "1234"):
        ended = subprocess.run(
            [sys.executable, "-m", simulation.module, "--seed", seed, "--quiet"],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
            check=False,
        )
        assert here in ended.stdout, ended.stderr
    assert simulation.run_seed(other).digest != here


def check_bug(simulation: Simulation, bug: InjectedBug, *, by_a_check: bool = False) -> None:
    """The injected bug is found, and the same seed is a good one without it.

    Args:
        by_a_check: an exception that the bug leads to in the product does not count.
    """
    assert bug.first_seed is not None
    choice = Choice(simulation.bug_controllers, bug.faults, bug.name)
    _total, failed = simulation.run_seeds(bug.first_seed, choice, seeds=simulation.bug_seeds)
    what = f"{simulation.bug_seeds} seeds from {bug.first_seed} on find no {bug.name}"
    assert failed is not None, f"{what}: {bug.breaks}"
    print(f"{bug.name}: seed {failed.seed}, {failed.failure}")
    if by_a_check:
        assert (failed.failure or "").startswith("Violation"), "a check finds it, not an exception"
    check_sound(simulation, failed.seed, replace(choice, bug=bug.is_found_beside))


def check_sound(simulation: Simulation, seed: str, choice: Choice) -> None:
    """The seed is a good one; run once for all bugs that are found by it under the same faults."""
    run = (simulation.module, seed, choice)
    if run not in _SOUND:
        assert simulation.run_seed(seed, choice).failure is None
        _SOUND.add(run)


def check_replay(simulation: Simulation, choice: Choice) -> None:
    """The command that a failing seed is printed with runs it again, to the same failure."""
    _total, failed = simulation.run_seeds(1, choice, seeds=simulation.bug_seeds)
    assert failed is not None
    command = simulation.replay_command(failed.seed, choice)
    assert command in simulation.describe_failure(failed, choice)
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        assert simulation.main([*command.split()[3:], "--quiet"]) == 1
    assert f"seed {failed.seed}: {failed.failure}" in said.getvalue()


def check_undone(simulation: Simulation, seed: str) -> None:
    """Each injected bug leaves the product as it was."""
    before = simulation.run_seed(seed)
    for bug in simulation.bugs.values():
        with bug.injected():
            pass
    assert before.failure is None
    assert simulation.run_seed(seed).digest == before.digest
