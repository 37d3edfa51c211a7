"""The state machine finds bugs: each that is injected into the core it must report."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from moldau.client.producer.core.accumulator import Accumulator
from moldau.client.producer.core.batch import Outcome, ProducerBatch
from moldau.client.producer.core.queues import PartitionQueue
from moldau.client.producer.core.results import Results
from moldau.client.producer.core.transaction_states import ProducerIdAndEpoch
from moldau.protocol.errors import ErrorCode
from tests.kit.injected_bugs import Inject, Patch
from tests.unit.client.producer.core.test_state_machine import AccumulatorMachine


def two_at_once_without_numbers(patch: Patch) -> None:
    original = PartitionQueue.may_start_another

    def patched(self: PartitionQueue, *, max_outstanding: int) -> bool:
        return original(self, max_outstanding=max(max_outstanding, 2))

    patch.setattr(PartitionQueue, "may_start_another", patched)


def retry_behind_newer_batches(patch: Patch) -> None:
    """A batch that comes back goes to the end of the line, with new numbers."""
    original = Results._may_retry

    def patched(
        self: Results, queue: PartitionQueue, batch: ProducerBatch, code: ErrorCode
    ) -> bool:
        retried = original(self, queue, batch, code)
        if retried and queue.waiting and not queue.is_broken:
            queue.give_up(batch)
            queue.waiting.append(batch)
        return retried

    patch.setattr(Results, "_may_retry", patched)


def numbers_of_lost_batches_used_again(patch: Patch) -> None:
    def patched(self: PartitionQueue, batch: ProducerBatch) -> None:
        self.outstanding.remove(batch)
        if batch.is_numbered and batch.end_sequence == self.next_sequence:
            self.next_sequence = batch.base_sequence

    patch.setattr(PartitionQueue, "give_up", patched)


def any_loss_starts_new_numbers(patch: Patch) -> None:
    """A lost answer is treated as a refused number: the batch may be there twice."""
    original = Results._may_retry

    def patched(
        self: Results, queue: PartitionQueue, batch: ProducerBatch, code: ErrorCode
    ) -> bool:
        if code is ErrorCode.NETWORK_EXCEPTION and batch.is_numbered:
            queue.sequence_refused()
        return original(self, queue, batch, code)

    patch.setattr(Results, "_may_retry", patched)


def new_epoch_under_batches_on_the_wire(patch: Patch) -> None:
    def patched(self: Accumulator, queue: PartitionQueue) -> bool:
        identity = self.identity
        if identity is not None and queue.pair != identity.producer and queue.outstanding:
            outstanding, queue.outstanding = queue.outstanding, []
            queue.adopt(identity.producer)
            queue.outstanding = outstanding
        return queue.may_start_another(max_outstanding=1 if identity is None else 5)

    patch.setattr(Accumulator, "_may_start", patched)


def split_in_wrong_order(patch: Patch) -> None:
    original = PartitionQueue.replace_outstanding

    def patched(self: PartitionQueue, batch: ProducerBatch, parts: list[ProducerBatch]) -> None:
        original(self, batch, parts[::-1])

    patch.setattr(PartitionQueue, "replace_outstanding", patched)


def split_forgets_who_waits(patch: Patch) -> None:
    def patched(self: Outcome, parts: Any) -> None:
        self._parts = parts
        self._waiters = self._waiters[:-1]
        waiters, self._waiters = self._waiters, []
        for index, waiter in waiters:
            self.when_done(index, waiter)

    patch.setattr(Outcome, "replace", patched)


def expired_on_the_wire_gives_memory_back(patch: Patch) -> None:
    original = Results._finish

    def patched(
        self: Results, queue: PartitionQueue, batch: ProducerBatch, error: Exception
    ) -> None:
        original(self, queue, batch, error)
        if batch.is_on_wire:
            self._accumulator.free_bytes += batch.reserved_bytes

    patch.setattr(Results, "_finish", patched)


def expired_on_the_wire_lets_the_next_go(patch: Patch) -> None:
    original = PartitionQueue.may_start_another

    def patched(self: PartitionQueue, *, max_outstanding: int) -> bool:
        overdue = sum(batch.is_done for batch in self.outstanding)
        return original(self, max_outstanding=max_outstanding + overdue)

    patch.setattr(PartitionQueue, "may_start_another", patched)


def numbers_counted_by_batch(patch: Patch) -> None:
    def patched(self: PartitionQueue, batch: ProducerBatch) -> None:
        batch.number(self.pair, self.next_sequence)
        self.next_sequence += 1

    patch.setattr(PartitionQueue, "number", patched)


def old_header_after_renumbering(patch: Patch) -> None:
    original = ProducerBatch.prepare

    def patched(self: ProducerBatch, *, is_transactional: bool) -> None:
        if not self.is_written:
            original(self, is_transactional=is_transactional)

    patch.setattr(ProducerBatch, "prepare", patched)


def waits_for_an_epoch_that_nobody_asks_for(patch: Patch) -> None:
    def patched(self: Accumulator, queue: PartitionQueue) -> None:
        pair: ProducerIdAndEpoch | None = None if self.identity is None else self.identity.producer
        if pair is not None and pair != queue.pair and not queue.outstanding:
            queue.adopt(pair)

    patch.setattr(Accumulator, "_renew_numbers", patched)


ALL = ("plain", "idempotent", "transactional")
BUGS: list[tuple[Inject, tuple[str, ...]]] = [
    (two_at_once_without_numbers, ALL),
    (retry_behind_newer_batches, ALL),
    (numbers_of_lost_batches_used_again, ("idempotent",)),
    (any_loss_starts_new_numbers, ALL),
    (new_epoch_under_batches_on_the_wire, ALL),
    (split_in_wrong_order, ("plain",)),
    (split_forgets_who_waits, ALL),
    (expired_on_the_wire_gives_memory_back, ALL),
    (expired_on_the_wire_lets_the_next_go, ALL),
    (numbers_counted_by_batch, ALL),
    (old_header_after_renumbering, ("idempotent",)),
    (waits_for_an_epoch_that_nobody_asks_for, ALL),
]


@pytest.mark.parametrize(("inject", "modes"), BUGS, ids=[inject.__name__ for inject, _ in BUGS])
def test_an_injected_bug_is_found(
    inject: Inject, modes: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    inject(monkeypatch)
    monkeypatch.setattr(AccumulatorMachine, "modes", modes)
    with pytest.raises((AssertionError, BaseExceptionGroup)):
        run_state_machine_as_test(
            AccumulatorMachine,
            settings=settings(
                # One example in 200 finds the rarest bug, and what examples are drawn changes with
                # any constant of the repository.
                max_examples=3_000,
                stateful_step_count=50,
                deadline=None,
                derandomize=True,
                database=None,
                phases=[Phase.generate],
                report_multiple_bugs=False,
                suppress_health_check=list(HealthCheck),
            ),
        )
