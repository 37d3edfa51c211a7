"""What becomes of batches: acknowledged, sent again, split, failed, expired.

Owns the meaning of error codes for batches without or with sequence numbers (KIP-98, KIP-360).
Must not pick what is sent next, that is the queue's business. Invariant: a batch that comes back
from the wire is confirmed, given up, split or left to be sent again, and never anything else.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from moldau.client.producer.core.accumulator import Accumulator
from moldau.client.producer.core.batch import ProducerBatch
from moldau.client.producer.core.partition_queue import PartitionQueue
from moldau.protocol.errors import ErrorCode

_E = ErrorCode

SEQUENCE_ERRORS: Final = frozenset(
    {_E.OUT_OF_ORDER_SEQUENCE_NUMBER, _E.UNKNOWN_PRODUCER_ID, _E.INVALID_PRODUCER_EPOCH}
)
"""The broker knows another next number, another producer epoch or nothing at all."""

NEVER_WRITTEN: Final = SEQUENCE_ERRORS | {
    _E.MESSAGE_TOO_LARGE,
    _E.RECORD_LIST_TOO_LARGE,
    _E.CORRUPT_MESSAGE,
    _E.INVALID_RECORD,
    _E.INVALID_TIMESTAMP,
    _E.INVALID_REQUIRED_ACKS,
    _E.INVALID_TOPIC_EXCEPTION,
    _E.TOPIC_AUTHORIZATION_FAILED,
    _E.CLUSTER_AUTHORIZATION_FAILED,
    _E.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    _E.NOT_ENOUGH_REPLICAS,
    _E.UNKNOWN_TOPIC_OR_PARTITION,
    _E.UNKNOWN_TOPIC_ID,
    _E.UNSUPPORTED_COMPRESSION_TYPE,
    _E.UNSUPPORTED_FOR_MESSAGE_FORMAT,
    _E.UNSUPPORTED_VERSION,
    _E.PRODUCER_FENCED,
    _E.INVALID_TXN_STATE,
    _E.POLICY_VIOLATION,
}
"""Refused before the append. Everything else may come after it: a leader that loses its place while
it waits for the other replicas says NOT_LEADER_OR_FOLLOWER of a batch that is in its log."""


class Results:
    """Applies answers, losses, deadlines and decisions to the batches of an accumulator."""

    def __init__(self, accumulator: Accumulator) -> None:
        self._accumulator = accumulator
        self._settings = accumulator.settings

    # -- from the wire ---------------------------------------------------------------------------

    def acknowledged(
        self, batch: ProducerBatch, *, base_offset: int = -1, log_append_time_ms: int = -1
    ) -> None:
        """The batch is where `acks` wants it to be; -1 where nobody said the offset."""
        accumulator = self._accumulator
        assert batch.is_on_wire
        batch.is_on_wire = False
        accumulator.queue_of(batch).confirm(batch)
        if not batch.is_done:
            batch.finish(base_offset=base_offset, log_append_time_ms=log_append_time_ms)
            accumulator.finished.append(batch)
        self._forget(batch)

    def refused(
        self,
        batch: ProducerBatch,
        code: ErrorCode,
        message: str | None,
        now_ms: float,
        *,
        record_errors: Mapping[int, str | None] | None = None,
    ) -> None:
        """A broker answered with an error, or (NETWORK_EXCEPTION, REQUEST_TIMED_OUT) none did.

        `record_errors`: which records were the reason, by index (KIP-467).
        """
        accumulator = self._accumulator
        queue = accumulator.queue_of(batch)
        assert batch.is_on_wire
        if code is _E.DUPLICATE_SEQUENCE_NUMBER and batch.is_numbered:
            # It came twice, the first time successfully; the log has forgotten at which offset.
            self.acknowledged(batch)
            return
        batch.is_on_wire = False
        batch.attempt_count += 1
        batch.last_code = code
        if code not in NEVER_WRITTEN and not queue.is_broken:
            batch.may_be_written = True
        if batch.is_done:
            # Its time was over while it was on the wire.
            queue.give_up(batch)
            self._forget(batch)
        elif code is _E.MESSAGE_TOO_LARGE and batch.record_count > 1 and _may_be_split(batch):
            self._split(queue, batch)
        elif self._may_retry(queue, batch, code):
            batch.not_before_ms = now_ms + self._settings.backoff_ms(batch.attempt_count)
        else:
            error = accumulator.errors.refused(code, message, batch.topic, batch.partition)
            if record_errors:
                named = dict(record_errors)
                errors = accumulator.errors
                batch.error_of = lambda index: errors.record_refused(
                    error, index in named, named.get(index)
                )
            self._fail(queue, batch, error)

    def _may_retry(self, queue: PartitionQueue, batch: ProducerBatch, code: ErrorCode) -> bool:
        identity = self._accumulator.identity
        if batch.attempt_count > self._settings.retries:
            return False
        if identity is None or code not in SEQUENCE_ERRORS or not batch.is_numbered:
            return code.retriable
        if queue.outstanding[0] is not batch and code is _E.OUT_OF_ORDER_SEQUENCE_NUMBER:
            # Something before it was not written yet, and will be sent again before it.
            return True
        if identity.transactional_id is not None:
            return False
        queue.sequence_refused()
        return True

    def _split(self, queue: PartitionQueue, batch: ProducerBatch) -> None:
        """Too large for the broker: the same records in smaller batches, in its place."""
        settings = self._settings
        self._accumulator.topics[batch.topic].too_large()
        target = batch.uncompressed_section_bytes() // 2
        if not batch.is_split_part:
            target = min(target, settings.batch_size_bytes)
        parts = batch.split(target, settings.codec, settings.compression_level)
        queue.replace_outstanding(batch, parts)
        self._accumulator.replace(batch, parts)

    # -- without the wire ------------------------------------------------------------------------

    def expire(self, now_ms: float) -> None:
        """Fail what has not been acknowledged within `delivery.timeout.ms`. What is on the wire
        meanwhile keeps its place, and its memory, until it comes back.
        """
        accumulator = self._accumulator
        before_ms = now_ms - self._settings.delivery_timeout_ms
        for queue in accumulator.active_queues():
            for batch in [*queue.outstanding, *queue.waiting]:
                if batch.created_ms <= before_ms and not batch.is_done and not batch.is_replaced:
                    self._expire_one(queue, batch)
            filling = queue.filling
            if filling is not None and filling.created_ms <= before_ms:
                accumulator.close_batch(queue)
                self._expire_one(queue, filling)

    def _expire_one(self, queue: PartitionQueue, batch: ProducerBatch) -> None:
        count = batch.record_count or (batch.buffer.record_count if batch.buffer else 0)
        error = self._accumulator.errors.expired(
            batch.topic, batch.partition, count, batch.last_code
        )
        self._fail(queue, batch, error)

    def fail_waiting(self, error: Exception) -> None:
        """Fail everything that is not on the wire, because the other side decided so."""
        accumulator = self._accumulator
        for queue in accumulator.active_queues():
            if queue.filling is not None:
                accumulator.close_batch(queue)
            for batch in [*queue.outstanding, *queue.waiting]:
                if not batch.is_on_wire and not batch.is_done:
                    self._finish(queue, batch, error)

    def fail_all(self, error: Exception) -> None:
        """Fail everything, also what is on the wire: the producer ends."""
        self.fail_waiting(error)
        for queue in self._accumulator.active_queues():
            for batch in list(queue.outstanding):
                if not batch.is_done:
                    self._finish(queue, batch, error)

    def fail_node(self, node_id: int, error: Exception) -> None:
        """Fail what is for a node that will never take it (it refuses us, for instance)."""
        for queue in self._accumulator.active_queues():
            if queue.leader_id != node_id:
                continue
            if queue.filling is not None:
                self._accumulator.close_batch(queue)
            for batch in [*queue.outstanding, *queue.waiting]:
                if not batch.is_on_wire and not batch.is_done:
                    self._fail(queue, batch, error)

    def _fail(self, queue: PartitionQueue, batch: ProducerBatch, error: Exception) -> None:
        may_be_written = batch.may_be_written or batch.is_on_wire
        self._finish(queue, batch, error)
        identity = self._accumulator.identity
        if identity is not None:
            # Last, since it may call `fail_waiting`.
            identity.batch_failed(
                batch.topic, batch.partition, error, may_be_written=may_be_written
            )

    def _finish(self, queue: PartitionQueue, batch: ProducerBatch, error: Exception) -> None:
        batch.finish(error=error)
        self._accumulator.finished.append(batch)
        if batch.is_on_wire:
            self._accumulator.incomplete.pop(batch, None)
            self._accumulator.forget_part(batch)
            return
        if batch in queue.outstanding:
            queue.give_up(batch)
        else:
            queue.waiting.remove(batch)
        self._forget(batch)

    def _forget(self, batch: ProducerBatch) -> None:
        accumulator = self._accumulator
        accumulator.forget_part(batch)
        accumulator.release(batch, batch.reserved_bytes)
        batch.reserved_bytes = 0
        batch.release()


def _may_be_split(batch: ProducerBatch) -> bool:
    """Whether the log would recognise what it may have of a batch already. It knows batches by
    their first and last number:
        1. the batch is written, and its acknowledgement lost
        2. it comes again and is too large by now, for the limit was lowered
        3. its parts have other numbers than the batch in the log: they are out of order, and
           would be written again under a new epoch
    """
    return not (batch.is_numbered and batch.may_be_written)
