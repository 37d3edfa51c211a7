"""Outcomes of batches: acknowledged, sent again, split, failed, expired.

Owns the meaning of error codes for batches without or with sequence numbers (KIP-98, KIP-360),
whether one is sent again (`retries`, `delivery.timeout.ms`), and the exceptions of failed records.
Must not pick what is sent next, which the queues do. Invariant: a batch that comes back from the
wire is confirmed, given up, split or left to be sent again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from moldau.client.errors import DeliveryTimeout, InvalidRecord, KafkaError, error_for
from moldau.client.producer.core.accumulator import Accumulator
from moldau.client.producer.core.batch import ProducerBatch
from moldau.client.producer.core.queues import PartitionQueue
from moldau.protocol.errors import ErrorCode

_E = ErrorCode

SEQUENCE_ERRORS: Final = frozenset(
    {_E.OUT_OF_ORDER_SEQUENCE_NUMBER, _E.UNKNOWN_PRODUCER_ID, _E.INVALID_PRODUCER_EPOCH}
)
"""The broker expects another number or producer epoch, or does not know the producer."""

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
"""Refused before the append. All other codes may come after it: a leader that loses its leadership
while it waits for the other replicas answers NOT_LEADER_OR_FOLLOWER for a batch in its log."""


class Results:
    """Applies answers, losses, deadlines and decisions to the batches of an accumulator."""

    def __init__(self, accumulator: Accumulator) -> None:
        self._accumulator = accumulator
        self._config = accumulator.config
        #: What keeps requests waiting, in words, for the errors.
        self.trouble: Callable[[], str] = str

    # -- from the wire ---------------------------------------------------------------------------

    def acknowledged(
        self, batch: ProducerBatch, *, base_offset: int = -1, log_append_time_ms: int = -1
    ) -> None:
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
        """Apply a broker's error, or the loss of its answer (NETWORK_EXCEPTION, REQUEST_TIMED_OUT).
        `record_errors` are the records that were the reason, by index (KIP-467).
        """
        accumulator = self._accumulator
        queue = accumulator.queue_of(batch)
        assert batch.is_on_wire
        if code is _E.DUPLICATE_SEQUENCE_NUMBER and batch.is_numbered:
            # The broker got it twice, first successfully; the log has forgotten its offset.
            self.acknowledged(batch)
            return
        batch.is_on_wire = False
        batch.attempt_count += 1
        batch.last_code = code
        if code not in NEVER_WRITTEN and not queue.is_broken:
            batch.may_be_written = True
        if batch.is_done:
            # It expired while it was on the wire.
            queue.give_up(batch)
            self._forget(batch)
        elif code is _E.MESSAGE_TOO_LARGE and batch.record_count > 1 and _may_be_split(batch):
            self._split(queue, batch)
        elif self._may_retry(queue, batch, code):
            batch.not_before_ms = now_ms + accumulator.backoff_ms(batch.attempt_count)
        else:
            error = error_for(code, message, f"a record for {batch.topic}-{batch.partition}")
            if record_errors:
                named = dict(record_errors)
                batch.error_of = lambda index: _record_error(
                    error, index in named, named.get(index)
                )
            self._fail(queue, batch, error)

    def _may_retry(self, queue: PartitionQueue, batch: ProducerBatch, code: ErrorCode) -> bool:
        identity = self._accumulator.identity
        if batch.attempt_count > self._config.retries:
            return False
        if identity is None or code not in SEQUENCE_ERRORS or not batch.is_numbered:
            return code.retriable
        if queue.outstanding[0] is not batch and code is _E.OUT_OF_ORDER_SEQUENCE_NUMBER:
            # A batch before it was not written yet, and is sent again before it.
            return True
        if identity.transactional_id is not None:
            return False
        queue.sequence_refused()
        return True

    def _split(self, queue: PartitionQueue, batch: ProducerBatch) -> None:
        config = self._config
        self._accumulator.topics[batch.topic].too_large()
        target = batch.uncompressed_section_bytes() // 2
        if not batch.is_split_part:
            target = min(target, config.batch_size)
        parts = batch.split(target, config.codec, config.compression_level)
        queue.replace_outstanding(batch, parts)
        self._accumulator.replace(batch, parts)

    # -- without the wire ------------------------------------------------------------------------

    def expire(self, now_ms: float) -> None:
        """Fail the batches that are not acknowledged within `delivery.timeout.ms`. One that is on
        the wire keeps its place and its memory until it comes back.
        """
        accumulator = self._accumulator
        # Added as `expiry_ms` adds: a difference may be rounded the other way, and then the sender
        # would look again and again at a batch that is due and never expires.
        timeout_ms = self._config.delivery_timeout_ms
        for queue in accumulator.active_queues():
            for batch in [*queue.outstanding, *queue.waiting]:
                is_due = batch.created_ms + timeout_ms <= now_ms
                if is_due and not batch.is_done and not batch.is_replaced:
                    self._expire_one(queue, batch)
            filling = queue.filling
            if filling is not None and filling.created_ms + timeout_ms <= now_ms:
                accumulator.close_batch(queue)
                self._expire_one(queue, filling)

    def _expire_one(self, queue: PartitionQueue, batch: ProducerBatch) -> None:
        count = batch.record_count or (batch.buffer.record_count if batch.buffer else 0)
        last, identity = batch.last_code, self._accumulator.identity
        reason = "no broker has answered about them"
        if last is not None:
            reason = f"the last attempt ended with {last.name}"
        elif identity is not None and not identity.producer.is_known:
            reason = (
                "no broker has given the producer an id (enable.idempotence), without which it "
                "sends nothing; brokers get ids from the active controller"
            )
        error = DeliveryTimeout(
            f"{count} records for {batch.topic}-{batch.partition} were not acknowledged within "
            f"delivery.timeout.ms={self._config.delivery_timeout_ms}: {reason}"
            + (f" ({trouble})" if (trouble := self.trouble()) else "")
        )
        self._fail(queue, batch, error)

    def fail_waiting(self, error: Exception) -> None:
        """Fail every batch that is not on the wire, by a decision of the transaction."""
        accumulator = self._accumulator
        for queue in accumulator.active_queues():
            if queue.filling is not None:
                accumulator.close_batch(queue)
            for batch in [*queue.outstanding, *queue.waiting]:
                if not batch.is_on_wire and not batch.is_done:
                    self._finish(queue, batch, error)

    def fail_all(self, error: Exception) -> None:
        """Fail every batch, also those on the wire: the producer ends."""
        self.fail_waiting(error)
        for queue in self._accumulator.active_queues():
            for batch in list(queue.outstanding):
                if not batch.is_done:
                    self._finish(queue, batch, error)

    def fail_node(self, node_id: int, error: Exception) -> None:
        """Fail the batches for a node that will never take them, since it refuses this client."""
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
    """Whether the log would recognise the parts of a batch that it may have already. It knows
    batches by their first and last number:
        1. the batch is written, and its acknowledgement lost
        2. it is sent again and is too large, since the limit was lowered
        3. its parts have other numbers than the batch in the log: they are out of order, and
           would be written again under a new epoch
    """
    return not (batch.is_numbered and batch.may_be_written)


def _record_error(error: KafkaError, is_named: bool, message: str | None) -> InvalidRecord:
    """The error of a record that the broker names as the reason, or of another one (KIP-467)."""
    if not is_named:
        return InvalidRecord(
            f"not written, since other records of its batch are invalid: {error}", code=error.code
        )
    return InvalidRecord(f"the broker refuses the record: {message or error}", code=error.code)
