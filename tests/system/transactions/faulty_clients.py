"""Faulty clients: each does something else than it claims, in one way, and that is an anomaly.

Owns the faults. Must not: have one that no checker could find. Invariant: a faulty client does what
it claims but for its fault, so that a finding comes from nothing else.
"""

from __future__ import annotations

import dataclasses
import threading
import time
from collections import Counter
from collections.abc import Sequence
from typing import Final

from confluent_kafka import Consumer

from tests.system.transactions.history import History, Log, OffsetCommit, Send
from tests.system.transactions.senders import Sender

READ_DEADLINE_S: Final = 5.0
TICK_S: Final = 0.02


class Honest:
    """Passes everything on; each kind changes one thing, and is counted."""

    def __init__(self, sender: Sender, history: History, told: Counter[str]) -> None:
        self.sender = sender
        self.history = history
        self._told = told

    def claim_falsely(self) -> None:
        """Count one."""
        self._told[type(self).__name__] += 1

    def open(self) -> None:
        self.sender.open()

    def begin(self) -> None:
        self.sender.begin()

    def send(self, send: Send) -> None:
        self.sender.send(send)

    def send_offsets(self, commits: Sequence[OffsetCommit], consumer: Consumer) -> None:
        self.sender.send_offsets(commits, consumer)

    def commit(self) -> None:
        self.sender.commit()

    def abort(self) -> None:
        self.sender.abort()

    def close(self) -> None:
        self.sender.close()


class AbortsCommits(Honest):
    """Says that it has committed what it has aborted."""

    def commit(self) -> None:
        self.sender.abort()
        self.claim_falsely()


class CommitsAborts(Honest):
    """Says that it has aborted what it has committed."""

    def abort(self) -> None:
        self.sender.commit()
        self.claim_falsely()


class SendsTwice(Honest):
    """Sends one value in two records."""

    def send(self, send: Send) -> None:
        self.sender.send(dataclasses.replace(send))
        self.sender.send(send)
        self.claim_falsely()


class SendsHalf(Honest):
    """Claims every second record of a transaction without sending it."""

    def __init__(self, sender: Sender, history: History, told: Counter[str]) -> None:
        super().__init__(sender, history, told)
        self._count = 0

    def begin(self) -> None:
        self._count = 0
        super().begin()

    def send(self, send: Send) -> None:
        self._count += 1
        if self._count % 2:
            super().send(send)
        else:
            self.claim_falsely()


class CommitsEarly(Honest):
    """Commits after every record, waits until another member has read it, and says that it
    begins.
    """

    def send(self, send: Send) -> None:
        super().send(send)
        self.sender.commit()
        self.sender.begin()
        end = time.monotonic() + READ_DEADLINE_S
        never = threading.Event()
        while time.monotonic() < end and not self._is_read(send):
            never.wait(TICK_S)
        self.claim_falsely()

    def _is_read(self, send: Send) -> bool:
        return any(
            record.value == send.value
            for consumer in self.history.consumers
            if consumer.is_committed_only
            for poll in list(consumer.polls())[-20:]
            for record in poll.records.get(send.log, ())
        )


class SwapsOffsets(Honest):
    """Mistakes the offset of a record for that of the one it sent there before."""

    def __init__(self, sender: Sender, history: History, told: Counter[str]) -> None:
        super().__init__(sender, history, told)
        self._sends: list[Send] = []

    def send(self, send: Send) -> None:
        super().send(send)
        self._sends.append(send)

    def commit(self) -> None:
        super().commit()
        before: dict[Log, Send] = {}
        for send in self._sends:
            other = before.pop(send.log, None)
            if other is None:
                before[send.log] = send
            elif None not in (send.offset, other.offset):
                send.offset, other.offset = other.offset, send.offset
                self.claim_falsely()
        self._sends = list(before.values())


class CommitsTooLittle(Honest):
    """Commits offsets before what it has consumed."""

    def send_offsets(self, commits: Sequence[OffsetCommit], consumer: Consumer) -> None:
        moved = [dataclasses.replace(each, next_offset=each.first or 0) for each in commits]
        super().send_offsets(moved, consumer)
        self.claim_falsely()


def conceal_revocations(history: History) -> None:
    """All members claim to have kept, for the rest of their lives, what they were ever given."""
    for consumer in history.consumers:
        given: set[Log] = set()
        for placed in consumer.placements():
            if placed.owns is False or given.issuperset(placed.positions):
                placed.owns = None
            elif placed.owns:
                given.update(placed.positions)
