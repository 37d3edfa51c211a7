"""A log without faults, and random transactional clients of it: histories that must be clean.

Owns the clients' interleaving, from a seed alone. Must not: break a promise. Invariant: each call
of a client begins and ends at positions of its own, with others' calls between them, and takes
effect at some position in between; a client may get no answer, in which case its call has taken
effect or not.
"""

from __future__ import annotations

import random
from collections.abc import Generator
from dataclasses import dataclass, field
from typing import Final

from tests.system.transactions.history import (
    History,
    Log,
    OffsetCommit,
    OffsetRead,
    Outcome,
    Placed,
    Poll,
    Seen,
    Send,
    Transaction,
)

LOGS: Final = [Log(f"k{key}", partition) for key in range(2) for partition in range(2)]
OUTPUTS: Final = ("out-a", "out-b")
GROUP: Final = "pipeline"
SHARED_ID: Final = "shared"

#: A client: each `yield` lets others go on.
Client = Generator[None, None, None]


@dataclass(slots=True)
class _Entry:
    """A value, or a marker (None), and the transaction it belongs to."""

    value: str | None
    number: int


@dataclass(slots=True)
class Model:
    """The broker: logs, decided transactions, owners of ids, the group's offsets."""

    entries: dict[Log, list[_Entry]] = field(default_factory=dict)
    decided: dict[int, bool] = field(default_factory=dict)
    owners: dict[str, str] = field(default_factory=dict)
    offsets: dict[Log, int] = field(default_factory=dict)
    pending: dict[int, dict[Log, int]] = field(default_factory=dict)
    open_by_id: dict[str, Transaction] = field(default_factory=dict)

    def append(self, log: Log, value: str, number: int) -> int:
        """A record at the end; its offset."""
        entries = self.entries.setdefault(log, [])
        entries.append(_Entry(value, number))
        return len(entries) - 1

    def decide(self, number: int, is_commit: bool) -> None:
        """Markers at the ends of all logs of the transaction, its offsets in effect."""
        self.decided[number] = is_commit
        for entries in self.entries.values():
            if any(entry.number == number for entry in entries):
                entries.append(_Entry(None, number))
        offsets = self.pending.pop(number, {})
        if is_commit:
            self.offsets.update(offsets)

    def read(self, log: Log, position: int, *, is_committed_only: bool, limit: int) -> list[Seen]:
        """What a consumer gets from there."""
        found: list[Seen] = []
        for offset, entry in enumerate(self.entries.get(log, [])):
            if is_committed_only and entry.number not in self.decided:
                break  # the last stable offset
            is_shown = not is_committed_only or self.decided[entry.number]
            if offset >= position and entry.value is not None and is_shown and len(found) < limit:
                found.append(Seen(offset, entry.value))
        return found


class Run:
    """One history, made by clients that take turns at random."""

    def __init__(self, seed: int, *, rounds: int = 12) -> None:
        self.history = History()
        self._model = Model()
        self._dice = random.Random(seed)
        self._rounds = rounds

    def make(self) -> History:
        """The history of all clients, and its end."""
        clients = [
            *(self._writer(f"w{number}") for number in range(3)),
            *(self._shared(f"s{number}") for number in range(2)),
            self._pipeline(),
            self._reader("reader", is_committed_only=True),
            self._reader("peeping reader", is_committed_only=False),
            self._watcher(),
        ]
        while clients:
            client = self._dice.choice(clients)
            if next(client, self) is self:
                clients.remove(client)
        self._finish()
        return self.history

    # -- transactions ----------------------------------------------------------------------------

    def _send(self, transaction: Transaction, log: Log, source: tuple[Log, int] | None) -> Client:
        value = self.history.value_of(transaction)
        send = Send(log, value, self.history.now(), source=source)
        transaction.sends.append(send)
        yield
        offset = self._model.append(log, value, transaction.number)
        yield
        if self._dice.random() < 0.95:
            send.offset = offset
        send.ended = self.history.now()

    def _end(self, transaction: Transaction) -> Client:
        model, number = self._model, transaction.number
        if self._dice.random() < 0.3:
            yield
            model.decide(number, False)
            transaction.ended = self.history.now()
            return
        transaction.commit_began = self.history.now()
        yield
        is_told = self._dice.random() < 0.8
        is_commit = is_told or self._dice.random() < 0.5
        model.decide(number, is_commit)
        yield
        transaction.ended = self.history.now()
        transaction.outcome = Outcome.COMMITTED if is_told else Outcome.UNKNOWN

    def _writer(self, name: str) -> Client:
        for _ in range(self._rounds):
            transaction = self.history.transaction(name, name)
            for _ in range(self._dice.randint(1, 4)):
                yield from self._send(transaction, self._dice.choice(LOGS), None)
            yield from self._end(transaction)

    def _shared(self, name: str) -> Client:
        """Two of them take one id from each other; who has lost it gets nothing done."""
        model = self._model
        for life in range(self._rounds):
            process = f"{name}.{life}"
            with self.history.opening(SHARED_ID, process):
                yield
                before = model.open_by_id.pop(SHARED_ID, None)
                if before is not None and before.number not in model.decided:
                    model.decide(before.number, False)
                model.owners[SHARED_ID] = process
            transaction = self.history.transaction(process, SHARED_ID)
            if model.owners[SHARED_ID] == process:
                model.open_by_id[SHARED_ID] = transaction
            for _ in range(self._dice.randint(1, 3)):
                yield
                if model.owners[SHARED_ID] == process:
                    log = self._dice.choice(LOGS)
                    send = Send(log, self.history.value_of(transaction), self.history.now())
                    transaction.sends.append(send)
                    send.offset = model.append(log, send.value, transaction.number)
                    send.ended = self.history.now()
            yield
            transaction.commit_began = self.history.now()
            yield
            if model.owners[SHARED_ID] == process:
                model.decide(transaction.number, True)
                transaction.outcome = Outcome.COMMITTED
            else:
                transaction.outcome = Outcome.UNKNOWN  # fenced while it asked
            transaction.ended = self.history.now()

    def _pipeline(self) -> Client:
        """Consumes all logs in a group, transforms, commits offsets; dies now and then."""
        model = self._model
        for life in range(self._rounds * 8):
            name = f"pipe{life}"
            consumer = self.history.consumer(name, is_committed_only=True)
            positions = {log: model.offsets.get(log, 0) for log in LOGS}
            consumer.steps.append(Placed(self.history.now(), dict(positions)))
            for _ in range(self._dice.randint(1, 4)):
                transaction = self.history.transaction(name, GROUP)
                began = self.history.now()
                yield
                taken = self._take(positions, limit=4)
                ended = self.history.now()
                if not taken:
                    break
                consumer.steps.append(Poll(began, ended, taken, transaction.number))
                for log, records in taken.items():
                    first, positions[log] = positions[log], records[-1].offset + 1
                    transaction.commits.append(OffsetCommit(GROUP, log, first, positions[log]))
                    for output in OUTPUTS:
                        for record in records:
                            target = Log(output, record.offset % 2)
                            yield from self._send(transaction, target, (log, record.offset))
                model.pending[transaction.number] = {
                    each.log: each.next_offset for each in transaction.commits
                }
                yield from self._end(transaction)
                if transaction.outcome is not Outcome.COMMITTED:
                    break  # another life goes on from the committed offsets

    def _take(self, positions: dict[Log, int], *, limit: int) -> dict[Log, list[Seen]]:
        found = {
            log: self._model.read(log, position, is_committed_only=True, limit=limit)
            for log, position in positions.items()
        }
        return {log: records for log, records in found.items() if records}

    # -- readers ---------------------------------------------------------------------------------

    def _reader(self, name: str, *, is_committed_only: bool) -> Client:
        consumer = self.history.consumer(name, is_committed_only=is_committed_only)
        positions: dict[Log, int] = dict.fromkeys(LOGS, 0)
        consumer.steps.append(Placed(self.history.now(), dict(positions)))
        for _ in range(self._rounds * 3):
            began = self.history.now()
            yield
            log = self._dice.choice(LOGS)
            found = self._model.read(
                log, positions[log], is_committed_only=is_committed_only, limit=5
            )
            yield
            if found:
                positions[log] = found[-1].offset + 1
                consumer.steps.append(Poll(began, self.history.now(), {log: found}))
            if self._dice.random() < 0.05:
                positions[log] = 0
                consumer.steps.append(Placed(self.history.now(), {log: 0}))

    def _watcher(self) -> Client:
        for _ in range(self._rounds * 2):
            log, began = self._dice.choice(LOGS), self.history.now()
            yield
            offset = self._model.offsets.get(log)
            yield
            self.history.offset_reads.append(
                OffsetRead(GROUP, log, offset, began, self.history.now())
            )

    def _finish(self) -> None:
        model, final = self._model, self.history.final
        for transaction in self.history.transactions:
            if transaction.number not in model.decided:
                model.decide(transaction.number, False)
        for log, entries in model.entries.items():
            final.records[log] = model.read(log, 0, is_committed_only=True, limit=len(entries))
            final.ends[log] = len(entries)
        final.pipelines[GROUP] = OUTPUTS
        for log in LOGS:
            position = self.history.now()
            offset = model.offsets.get(log)
            self.history.offset_reads.append(
                OffsetRead(GROUP, log, offset, position, self.history.now())
            )
