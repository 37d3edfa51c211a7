"""What must have come about in a run before an injected bug, or a faulty client, can show.

Owns the counting, in a history that is still growing. Must not: judge; what is counted here has
happened whether or not a bug made something of it. Invariant: a count never goes back.
"""

from __future__ import annotations

from collections.abc import Iterator

from tests.system.transactions.history import NEVER, History, Log, Outcome, Poll, Transaction
from tests.system.transactions.workload import TAIL_OF_EVERYTHING


def aborted_ones_read(history: History, reader: str = TAIL_OF_EVERYTHING, but: str = "") -> int:
    """Aborted transactions of which this reader has got a record. `but`: of others than this."""
    read = {value for poll in _polls(history, reader) for value in _values(poll)}
    return sum(
        transaction.outcome is Outcome.ABORTED and _has_one_of(transaction, read)
        for transaction in _ended(history)
        if not (but and transaction.process.startswith(f"{but}."))
    )


def early_ones_read(history: History) -> int:
    """Committed transactions of which a record was read before their commit was asked for."""
    first: dict[str, int] = {}
    for poll in _polls(history, TAIL_OF_EVERYTHING):
        for value in _values(poll):
            first.setdefault(value, poll.ended)
    return sum(
        transaction.outcome is Outcome.COMMITTED
        and any(
            first.get(send.value, NEVER) < transaction.commit_began for send in transaction.sends
        )
        for transaction in _ended(history)
    )


def committed_across(history: History, partition: int) -> int:
    """Committed transactions with records in partitions of this number and in others."""
    return sum(
        transaction.outcome is Outcome.COMMITTED
        and {True, False} <= {send.log.partition == partition for send in transaction.sends}
        for transaction in _ended(history)
    )


def committed_offsets(history: History) -> int:
    """Committed transactions that have moved a group's offsets."""
    return sum(
        transaction.outcome is Outcome.COMMITTED and bool(transaction.commits)
        for transaction in _ended(history)
    )


def partitions_that_came_back(history: History) -> int:
    """Times a member has moved a group's offset of a partition, then another, and it once more."""
    ended = sorted(_ended(history), key=lambda each: each.offsets_began)
    last: dict[tuple[str, Log], str] = {}
    had: set[tuple[str, Log, str]] = set()
    count = 0
    for transaction in ended:
        if transaction.offsets_ended == NEVER:
            continue
        member = transaction.process
        for commit in transaction.commits:
            place = (commit.group, commit.log)
            count += last.get(place) != member and (*place, member) in had
            last[place] = member
            had.add((*place, member))
    return count


def _ended(history: History) -> Iterator[Transaction]:
    return (each for each in list(history.transactions) if each.ended < NEVER)


def _has_one_of(transaction: Transaction, values: set[str]) -> bool:
    return any(send.value in values for send in transaction.sends)


def _polls(history: History, reader: str) -> Iterator[Poll]:
    for consumer in list(history.consumers):
        if consumer.name == reader:
            yield from consumer.polls()


def _values(poll: Poll) -> Iterator[str]:
    return (record.value for records in poll.records.values() for record in records)
