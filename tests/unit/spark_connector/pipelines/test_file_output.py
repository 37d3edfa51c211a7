"""Spark's file sink passes over no batch but the query's own, whichever checkpoint is put there."""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace

import pytest

from moldau.spark_connector.pipelines.output_claims import (
    NONE,
    CheckpointState,
    Mismatch,
    OutputState,
    last_batch,
    mismatch_of,
)

OURS, THEIRS = "ours", "theirs"


def test_the_last_batch_of_a_log() -> None:
    assert last_batch([]) == NONE
    assert last_batch(["0", "10", "9.compact", ".11.crc", ".12.tmp", "11.tmp", "x", "²"]) == 10
    assert last_batch(["19.compact", "8"]) == 19


def checkpoint(planned: int, committed: int, *runs: str) -> CheckpointState:
    return CheckpointState(OURS, planned, committed, runs)


@pytest.mark.parametrize(
    ("state", "output", "mismatch"),
    [
        (checkpoint(-1, -1), OutputState(), None),
        (checkpoint(-1, -1), OutputState(0), Mismatch.OUTPUT_AHEAD),
        (checkpoint(-1, -1), OutputState(9, THEIRS, "x"), Mismatch.FOREIGN),
        (checkpoint(3, 3, "a"), OutputState(3, OURS, "a"), None),
        (checkpoint(3, 3), OutputState(3), None),
        # Killed between the output's log and the checkpoint's.
        (checkpoint(4, 3, "a"), OutputState(4, OURS, "a"), None),
        (checkpoint(4, 3), OutputState(4), None),
        # The same, but another copy of the checkpoint has been started since.
        (checkpoint(4, 3, "a"), OutputState(4, OURS, "b"), Mismatch.OUTPUT_AHEAD),
        # Planned, but the output's batch may be of any query.
        (checkpoint(0, -1), OutputState(0), Mismatch.OUTPUT_AHEAD),
        (checkpoint(4, 3, "a"), OutputState(4, THEIRS, "a"), Mismatch.FOREIGN),
        # Older than the output.
        (checkpoint(3, 3, "a"), OutputState(4, OURS, "a"), Mismatch.OUTPUT_AHEAD),
        (checkpoint(4, 3, "a"), OutputState(5, OURS, "a"), Mismatch.OUTPUT_AHEAD),
        # The output was removed, or is another one: nothing is passed over.
        (checkpoint(3, 3, "a"), OutputState(), None),
        (checkpoint(3, 2, "a"), OutputState(1, OURS, "x"), None),
    ],
)
def test_the_rule(state: CheckpointState, output: OutputState, mismatch: Mismatch | None) -> None:
    for is_alone in (False, True):
        assert mismatch_of(state, output, is_alone=is_alone) is mismatch


def test_a_claim_without_a_batch_binds_only_where_others_cannot_be_excluded() -> None:
    claimed = OutputState(NONE, THEIRS, "x")
    assert mismatch_of(checkpoint(-1, -1), claimed, is_alone=True) is None
    assert mismatch_of(checkpoint(-1, -1), claimed, is_alone=False) is Mismatch.FOREIGN


@dataclass
class Checkpoint:
    """A checkpoint's directory: batch by batch what was planned, and how much is committed."""

    query_id: str
    planned: list[str] = field(default_factory=list)
    committed: int = NONE
    runs: tuple[str, ...] = ()


@dataclass
class Output:
    """The file sink: by batch the plan that was written; which runs have claimed it."""

    batches: list[str] = field(default_factory=list)
    state: OutputState = field(default_factory=OutputState)


def run(found: Checkpoint, output: Output, name: str, dice: random.Random) -> bool:
    """One run as Spark does it, killed at a random place; False when it was refused."""
    output.state = replace(output.state, last_batch=len(output.batches) - 1)
    state = CheckpointState(found.query_id, len(found.planned) - 1, found.committed, found.runs)
    if mismatch_of(state, output.state, is_alone=True) is not None:
        return False
    known = tuple(each for each in found.runs if each == output.state.run)
    found.runs = (*known, name)
    if dice.random() < 0.1:
        return True
    output.state = replace(output.state, writer_id=found.query_id, run=name)
    batch = state.next_batch
    for step in range(dice.randrange(10)):
        if batch == len(found.planned):
            found.planned.append(f"{name} {batch}")
        elif step % 3 == 1:
            if batch >= len(output.batches):
                assert batch == len(output.batches)
                output.batches.append(found.planned[batch])
            # What Spark passes over has to be this very batch.
            assert output.batches[batch] == found.planned[batch]
        elif step % 3 == 2:
            found.committed = batch
            batch += 1
    return True


@pytest.mark.parametrize("first_seed", range(0, 400, 100))
@pytest.mark.promise("parquet-one-checkpoint")
def test_no_batch_is_passed_over(first_seed: int) -> None:
    for seed in range(first_seed, first_seed + 100):
        print("seed", seed)
        check_no_batch_is_passed_over(seed)


def check_no_batch_is_passed_over(seed: int) -> None:
    dice = random.Random(seed)
    output = Output()
    kept = [Checkpoint("first")]
    done = 0
    for turn in range(40):
        found = dice.choice(kept)
        choice = dice.random()
        if choice < 0.15:
            kept.append(replace(found, planned=list(found.planned)))
        elif choice < 0.2:
            kept.append(Checkpoint(f"query {turn}"))
        else:
            done += run(found, output, f"run {turn}", dice)
    assert done, "the newest checkpoint may always go on"
