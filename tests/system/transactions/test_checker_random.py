"""Random histories without faults are clean, and the anomalies put into them are found."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Final

import pytest

from tests.kit.dice import drawn_seed
from tests.system.transactions.checker import check
from tests.system.transactions.history import (
    History,
    OffsetRead,
    Outcome,
    Poll,
    Seen,
)
from tests.system.transactions.model import LOGS, Run

ABORTED, COMMITTED = Outcome.ABORTED, Outcome.COMMITTED
CLEAN_RUNS: Final = 60
PLANT_RUNS: Final = 6


def test_random_histories_without_faults_are_clean():
    base = drawn_seed()
    seen: dict[str, int] = {}
    for seed in range(base, base + CLEAN_RUNS):
        history = Run(seed).make()
        findings = check(history)
        assert findings.is_clean, f"seed {seed}: {findings.details(history)}"
        for name, count in findings.counts.items():
            seen[name] = seen.get(name, 0) + count
    print(seen)
    assert all(seen.values()), "none of it was in vain"


def _final_of(history: History, dice: random.Random, least: int = 1) -> list[Seen]:
    logs = [log for log in LOGS if len(history.final.records.get(log, [])) >= least]
    return history.final.records[dice.choice(logs)]


def _lose(history: History, dice: random.Random) -> None:
    records = _final_of(history, dice)
    records.pop(dice.randrange(len(records)))


def _double(history: History, dice: random.Random) -> None:
    records = _final_of(history, dice)
    records.append(Seen(records[-1].offset + 1, dice.choice(records).value))


def _swap(history: History, dice: random.Random) -> None:
    records = _final_of(history, dice, 2)
    one, other = dice.sample(range(len(records)), 2)
    first, second = records[one], records[other]
    records[one], records[other] = (
        first._replace(value=second.value),
        second._replace(value=first.value),
    )


def _show_aborted(history: History, dice: random.Random) -> None:
    aborted = [
        send
        for transaction in history.transactions
        if transaction.outcome is ABORTED
        for send in transaction.sends
        if send.offset is not None
    ]
    send = dice.choice(aborted)
    assert send.offset is not None
    history.final.records[send.log].append(Seen(send.offset, send.value))


def _show_early(history: History, dice: random.Random) -> None:
    committed = [each for each in history.transactions if each.outcome is COMMITTED and each.sends]
    send = dice.choice(committed).sends[0]
    reader = history.consumer("too early", is_committed_only=True)
    offset = {s.value: s.offset for s in history.final.records[send.log]}[send.value]
    reader.steps.append(Poll(1, send.began, {send.log: [Seen(offset, send.value)]}))


def _go_back(history: History, dice: random.Random) -> None:
    reads = [read for read in history.offset_reads if read.offset]
    read = dice.choice(reads)
    history.offset_reads.append(OffsetRead(read.group, read.log, 0, history.now(), history.now()))


def _poll_twice(history: History, dice: random.Random) -> None:
    [reader] = [each for each in history.consumers if each.name == "reader"]
    number = dice.choice([n for n, step in enumerate(reader.steps) if isinstance(step, Poll)])
    reader.steps.insert(number, reader.steps[number])


def _leave_out(history: History, dice: random.Random) -> None:
    """Leave out one between two records that were polled together."""
    steps = [poll for consumer in history.consumers for poll in consumer.polls()]
    several = [seen for poll in steps for seen in poll.records.values() if len(seen) > 2]
    dice.choice(several).pop(1)


def _forget_offsets(history: History, dice: random.Random) -> None:
    """The group's committed transaction counts as aborted, its outputs too; offsets stay."""
    committed = [
        each for each in history.transactions if each.commits and each.outcome is COMMITTED
    ]
    transaction = dice.choice(committed)
    transaction.commits.clear()


ANOMALIES: Final = [
    (_lose, "lost-write"),
    (_double, "duplicate"),
    (_swap, "inconsistent-offset"),
    (_show_aborted, "aborted-read"),
    (_show_early, "precommitted-read"),
    (_go_back, "offset-went-back"),
    (_poll_twice, "nonmonotonic-poll"),
    (_leave_out, "skipped"),
    (_forget_offsets, "unprocessed"),
]


@pytest.mark.parametrize(("put", "kind"), ANOMALIES, ids=[put.__name__[1:] for put, _ in ANOMALIES])
def test_an_anomaly_in_a_random_history_is_found(
    put: Callable[[History, random.Random], None], kind: str
):
    base = drawn_seed()
    for seed in range(base, base + PLANT_RUNS):
        history = Run(seed).make()
        put(history, random.Random(seed))
        found = check(history)
        assert kind in found.kinds(), f"seed {seed}: {found.summary()}"
        assert found.details(history)
