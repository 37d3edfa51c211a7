"""The verification of transactions in one partition (KIP-890).

Owns the producers' verification guards. Must not ask a coordinator (`transaction.verification`
does). Invariant: where verification is required, a client's batch begins a transaction in the log
only under a guard that was made before the coordinator was asked; since then this broker has led
without a break, and no marker of the producer has come. Otherwise this would leave a transaction
open for ever:

1. a batch arrives, the coordinator is asked, and says that the partition is in the transaction;
2. before the answer is here the transaction times out, and its abort marker is written;
3. the answer arrives and the batch is appended: no marker will ever come for it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from moldau.protocol.errors import ErrorCode

MAX_GUARDS: Final = 10_000
"""Producers of one partition whose verification is under way or has failed; one more makes the
oldest of them start over."""

NO_SEQUENCE: Final = -1


@dataclass(slots=True, eq=False)
class VerificationGuard:
    """Covers one producer's first batches of a transaction in one partition, while the coordinator
    is asked about them. Requests that wait at the same time share it.

    States: current → void (a marker came, the transaction began, or another broker may have led).
    `term` counts how often another broker may have led.
    """

    producer_id: int
    producer_epoch: int
    lowest_sequence: int
    supports_epoch_bump: bool
    is_current: bool = True
    term: int = 0


NOT_REQUIRED: Final = VerificationGuard(-1, -1, -1, supports_epoch_bump=False)
"""Stands for a guard where `transaction.partition.verification.enable` is off."""


@dataclass(slots=True, eq=False, repr=False)
class VerificationGuards:
    """The guards of one partition, by producer id and epoch, and how many requests wait."""

    waiting: dict[tuple[int, int], int] = field(default_factory=dict)
    """Requests that wait for an answer, under any guards."""
    _guards: dict[int, dict[int, VerificationGuard]] = field(default_factory=dict)
    _count: int = 0
    _term: int = 0

    def __len__(self) -> int:
        return self._count

    def begin_waiting(
        self,
        producer_id: int,
        producer_epoch: int,
        base_sequence: int,
        *,
        supports_epoch_bump: bool,
    ) -> VerificationGuard:
        """Count a request as waiting, until `end_waiting`, under the current guard of its producer;
        the guard is made if there is none.
        """
        key = (producer_id, producer_epoch)
        self.waiting[key] = self.waiting.get(key, 0) + 1
        guard = self._guards.get(producer_id, {}).get(producer_epoch)
        if guard is not None:
            guard.lowest_sequence = min(guard.lowest_sequence, base_sequence)
            return guard
        if self._count >= MAX_GUARDS:
            self._drop(next(iter(next(iter(self._guards.values())).values())))
        guard = VerificationGuard(*key, base_sequence, supports_epoch_bump, term=self._term)
        self._guards.setdefault(producer_id, {})[producer_epoch] = guard
        self._count += 1
        return guard

    def end_waiting(self, guard: VerificationGuard, error: ErrorCode) -> None:
        """A request has its answer; `error` is the coordinator's, or why it cannot answer. If the
        coordinator refuses the transaction, nothing of it counts, not even its sequence, unless
        other requests still wait.
        """
        key = (guard.producer_id, guard.producer_epoch)
        self.waiting[key] -= 1
        if not self.waiting[key]:
            del self.waiting[key]
            is_refused = error is not ErrorCode.NONE and not error.retriable
            if is_refused and guard.is_current:
                self._drop(guard)

    def refusal(self, guard: VerificationGuard) -> ErrorCode:
        """Why nothing may begin a transaction under the guard; NONE while it is current.

        INVALID_TXN_STATE says that the transaction is over, which producers take for final; where
        another broker may have led, only the answer is too old, and the same request may be right:
        NOT_LEADER_OR_FOLLOWER.
        """
        if guard.is_current:
            return ErrorCode.NONE
        if guard.term != self._term:
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        return ErrorCode.INVALID_TXN_STATE

    def drop_up_to(self, producer_id: int, producer_epoch: int) -> None:
        guards = self._guards.get(producer_id)
        if guards is not None:
            for guard in [each for epoch, each in guards.items() if epoch <= producer_epoch]:
                self._drop(guard)

    def void_all(self) -> None:
        """Make all guards void: another broker leads, or may have led in between."""
        self._term += 1
        for guards in list(self._guards.values()):
            for guard in list(guards.values()):
                self._drop(guard)

    def _drop(self, guard: VerificationGuard) -> None:
        guard.is_current = False
        guards = self._guards[guard.producer_id]
        del guards[guard.producer_epoch]
        self._count -= 1
        if not guards:
            del self._guards[guard.producer_id]
