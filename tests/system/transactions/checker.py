"""Decides whether what transactional clients saw is what exactly-once promises.

Owns the verdict and nothing else: it knows no client, no cluster and no clock; it is given a
History. Must not: guess; an outcome that the client could not know is taken from what is visible,
and what even that does not tell is allowed either way. Invariant: a finding names a promise that
was broken in any interleaving that fits the history.

Circular flow of information among committed transactions (Jepsen's G1c over reads) needs no search:
in a circle one transaction reads what no producer has asked to commit yet, which is a precommitted
read.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

from tests.system.transactions.check_groups import check_groups
from tests.system.transactions.check_members import check_members
from tests.system.transactions.check_polls import check_polls
from tests.system.transactions.findings import Findings
from tests.system.transactions.history import (
    NEVER,
    ConsumerHistory,
    History,
    Log,
    Outcome,
    Seen,
    Send,
    Transaction,
)
from tests.system.transactions.known import Known

FINAL_READER = "the last reader"


def check(history: History) -> Findings:
    """All anomalies of a history (`findings.KINDS`)."""
    findings = Findings()
    known = Known(history)
    _collect(history, known, findings)
    known.resolve()
    for transaction in history.transactions:
        _check_transaction(known, findings, transaction)
    _check_vanished(known, findings)
    _check_order_of_sends(history, known, findings)
    _check_owners(history, known, findings)
    for consumer in history.consumers:
        check_polls(consumer, known, findings)
    check_groups(history, known, findings)
    check_members(history, findings)
    _count(history, known, findings)
    return findings


# -- what is where -------------------------------------------------------------------------------


@dataclass(slots=True)
class _Reading:
    who: str
    is_committed_only: bool
    ended: int
    log: Log
    seen: list[Seen]


def _readings(history: History) -> Iterator[_Reading]:
    for consumer in history.consumers:
        for poll in consumer.polls():
            for log, seen in poll.records.items():
                yield _Reading(consumer.name, consumer.is_committed_only, poll.ended, log, seen)
    for log, seen in history.final.records.items():
        yield _Reading(FINAL_READER, True, NEVER, log, seen)


def _collect(history: History, known: Known, findings: Findings) -> None:
    """One value per offset, one offset per value, and no value that was not sent there."""
    for reading in _readings(history):
        for record in reading.seen:
            owner = known.sent.get(record.value)
            if owner is None or owner[1].log != reading.log:
                findings.add(
                    "invented",
                    f"{record.value!r} at {reading.log} offset {record.offset}, {reading.who}",
                    place=(reading.log, record.offset),
                )
                continue
            _place(known, findings, reading.log, record, reading.who)
            if reading.is_committed_only:
                _check_when(known, findings, reading, record, owner[0])
    for transaction in history.transactions:
        for send in transaction.sends:
            if send.offset is not None:
                record = Seen(send.offset, send.value)
                _place(known, findings, send.log, record, "the acknowledgement")


def _place(known: Known, findings: Findings, log: Log, record: Seen, who: str) -> None:
    offset, value = record
    there = known.values.setdefault(log, {}).setdefault(offset, value)
    if there != value:
        findings.add(
            "inconsistent-offset",
            f"{log} offset {offset} is {there} and, by {who}, {value}",
            about=(known.sent[there][0], known.sent[value][0]),
            place=(log, offset),
            case=(log, offset, there, value),
        )
    first = known.offsets.setdefault(value, offset)
    if first != offset:
        findings.add(
            "duplicate",
            f"{value} is at {log} offset {first} and, by {who}, at {offset}",
            about=(known.sent[value][0],),
            place=(log, offset),
            case=(value, first, offset),
        )


def _check_when(
    known: Known, findings: Findings, reading: _Reading, record: Seen, owner: Transaction
) -> None:
    known.visible[record.value] = reading.who
    if reading.ended < owner.commit_began < NEVER and owner.outcome is not Outcome.ABORTED:
        findings.add(
            "precommitted-read",
            f"{reading.who} got {record.value} at {reading.log} offset {record.offset} at position "
            f"{reading.ended}; {owner} was asked to commit at {owner.commit_began}",
            about=(owner,),
            place=(reading.log, record.offset),
            case=record.value,
        )


# -- transactions --------------------------------------------------------------------------------


def _check_transaction(known: Known, findings: Findings, transaction: Transaction) -> None:
    seen = [send for send in transaction.sends if send.value in known.visible]
    if transaction.outcome is Outcome.ABORTED:
        for send in seen:
            findings.add(
                "aborted-read",
                f"{known.visible[send.value]} got {send.value} of {transaction} in {send.log}",
                about=(transaction,),
            )
        return
    missing = [send for send in transaction.sends if known.is_missing(send)]
    if not missing or not known.is_committed(transaction):
        return
    if transaction.outcome is Outcome.COMMITTED:
        for send in missing:
            findings.add(
                "lost-write",
                f"{send.value} in {send.log} (told offset {send.offset}) of {transaction}",
                about=(transaction,),
                case=send.value,
            )
    seen = [send for send in seen if send not in missing]
    if seen:
        findings.add(
            "torn-transaction",
            f"{transaction}: {_names(seen)} can be seen, {_names(missing)} cannot",
            about=(transaction,),
        )


def _names(sends: list[Send]) -> str:
    return ", ".join(f"{send.value} in {send.log}" for send in sends[:4])


def _check_vanished(known: Known, findings: Findings) -> None:
    for value, who in known.visible.items():
        transaction, send = known.sent[value]
        if transaction.outcome is not Outcome.ABORTED and known.has_vanished(send):
            findings.add(
                "lost-write",
                f"{value} in {send.log} offset {known.offsets[value]}, which {who} saw",
                about=(transaction,),
                case=value,
            )


# -- order ---------------------------------------------------------------------------------------


def _check_order_of_sends(history: History, known: Known, findings: Findings) -> None:
    """A producer's records lie in the order in which they were sent; so do any two of which one was
    sent after the other had been acknowledged.
    """
    last: dict[tuple[str, Log], tuple[int, Send, Transaction]] = {}
    by_log: dict[Log, list[tuple[Send, int]]] = defaultdict(list)
    for transaction in sorted(history.transactions, key=lambda each: each.began):
        for send in transaction.sends:
            offset = send.offset if send.offset is not None else known.offsets.get(send.value)
            if offset is None:
                continue
            by_log[send.log].append((send, offset))
            key = (transaction.process, send.log)
            before = last.get(key)
            if before is not None and offset < before[0]:
                is_internal = before[2] is transaction
                findings.add(
                    "internal-nonmonotonic-send" if is_internal else "nonmonotonic-send",
                    f"{send.value} is at {send.log} offset {offset}, {before[1].value}, sent "
                    f"before it, at {before[0]}",
                    about=(before[2], transaction),
                )
            else:
                last[key] = (offset, send, transaction)
    for log, placed in by_log.items():
        _check_real_time(log, placed, known, findings)


def _check_real_time(
    log: Log, placed: list[tuple[Send, int]], known: Known, findings: Findings
) -> None:
    events = [(send.began, False, send, offset) for send, offset in placed]
    events += [(send.ended, True, send, offset) for send, offset in placed if send.ended < NEVER]
    events.sort(key=lambda event: (event[0], event[1]))
    highest: tuple[int, Send] | None = None
    for _, is_acknowledgement, send, offset in events:
        if is_acknowledgement:
            if highest is None or offset > highest[0]:
                highest = (offset, send)
        elif highest is not None and offset < highest[0]:
            other = highest[1]
            findings.add(
                "nonmonotonic-send",
                f"{send.value} is at {log} offset {offset}; {other.value} was acknowledged at "
                f"{highest[0]} before it was sent",
                about=(known.sent[other.value][0], known.sent[send.value][0]),
                case=("real-time", send.value),
            )


def _check_owners(history: History, known: Known, findings: Findings) -> None:
    """Who has been replaced as the owner of a transactional id writes and commits nothing more."""
    by_id: dict[str, list[tuple[int, int, str]]] = defaultdict(list)
    for opened in history.opened:
        by_id[opened.transactional_id].append((opened.began, opened.ended, opened.process))
    for transaction in history.transactions:
        owners = by_id[transaction.transactional_id]
        own = [ended for _, ended, process in owners if process == transaction.process]
        if not own:
            continue
        replaced = min(
            (
                ended
                for began, ended, process in owners
                if process != transaction.process and began > max(own)
            ),
            default=NEVER,
        )
        if known.is_committed(transaction) and NEVER > transaction.commit_began > replaced:
            findings.add(
                "zombie",
                f"{transaction} was asked to commit at {transaction.commit_began}, after its id "
                f"had a new owner at {replaced}",
                about=(transaction,),
            )
        for send in transaction.sends:
            if send.began > replaced and send.ended < NEVER:
                findings.add(
                    "zombie",
                    f"{send.value} was sent at {send.began} and acknowledged, after "
                    f"{transaction.transactional_id} had a new owner at {replaced}",
                    about=(transaction,),
                )


def _count(history: History, known: Known, findings: Findings) -> None:
    outcomes = [transaction.outcome for transaction in history.transactions]
    polled = {
        seen.value
        for consumer in history.consumers
        for poll in _committed_polls(consumer)
        for records in poll
        for seen in records
    }
    findings.counts = {
        "transactions": len(outcomes),
        "committed": outcomes.count(Outcome.COMMITTED),
        "aborted": outcomes.count(Outcome.ABORTED),
        "unknown": outcomes.count(Outcome.UNKNOWN),
        "sends": len(known.sent),
        "visible": len(known.visible),
        "polled": len(polled),
        "offset commits": sum(len(each.commits) for each in history.transactions),
        "offset reads": len(history.offset_reads),
    }


def _committed_polls(consumer: ConsumerHistory) -> Iterator[list[list[Seen]]]:
    if consumer.is_committed_only:
        for poll in consumer.polls():
            yield list(poll.records.values())
