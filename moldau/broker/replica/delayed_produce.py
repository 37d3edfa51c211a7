"""One produce request from its first append until it is answered.

Owns the response under construction and the count of what it still waits for: a transaction's
coordinator, appends behind a recompression, flushes, the high watermark (acks=all). Must not decide
what is appended. Invariants: the response leaves exactly once, when nothing is outstanding or the
time is up; while only the high watermark is awaited, the request's bytes have been given back.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

from moldau.broker.replica.fetch_read import NO_OFFSET
from moldau.broker.replica.leader_hints import LeaderHints
from moldau.broker.replica.partition import ACKS_ALL, ProduceWait
from moldau.broker.replica.purgatory import DelayedOperation
from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages import p00_produce as p00

if TYPE_CHECKING:
    from moldau.broker.replica.partition import Partition
    from moldau.broker.replica.replica_manager import ReplicaManager
    from moldau.broker.replica.verification_guards import VerificationGuard
    from moldau.server.request import RequestContext
    from moldau.storage.append import AppendResult, RecordBatches


TOLD_BY_THE_LEADER: Final = frozenset(
    {
        ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
        ErrorCode.UNKNOWN_PRODUCER_ID,
        ErrorCode.INVALID_TXN_STATE,
    }
)
"""What ends a producer or its transaction because of what the log lacks. A broker that stood still
while another one led in its place lacks all that was written there (docs/adr/0015).
"""

MAY_BE_DEPOSED: Final = "another broker may lead by now; this one waits for the controllers' word"


class ProduceOperation(DelayedOperation):
    """States: appending (until `start_waiting`) -> waiting -> answered."""

    __slots__ = (
        "_commit_waits",
        "_has_failed",
        "_is_linked",
        "_is_started",
        "_outstanding_count",
        "_queued_count",
        "_timeout_ms",
        "context",
        "hints",
        "manager",
        "required_acks",
        "topics",
    )

    def __init__(
        self, manager: ReplicaManager, context: RequestContext, required_acks: int
    ) -> None:
        super().__init__()
        self.manager = manager
        self.context = context
        self.required_acks = required_acks
        self.hints = LeaderHints(manager, context.listener_name)
        self.topics: list[p00.TopicProduceResponse] = []
        self._commit_waits: dict[ProduceWait, None] | None = None
        self._outstanding_count = 0
        self._queued_count = 0
        self._timeout_ms = 0
        self._has_failed = False
        self._is_linked = False
        self._is_started = False

    def fail(
        self, slot: p00.PartitionProduceResponse, error: ErrorCode, message: str | None
    ) -> None:
        self._has_failed = True
        slot.error_code = error
        slot.error_message = message
        self.manager.topic_stats.all_topics.failed_produce_requests.count += 1

    def appended(
        self, partition: Partition, slot: p00.PartitionProduceResponse, result: AppendResult
    ) -> None:
        """Take over the outcome of an append, and wait for what `required_acks` requires."""
        stats = partition.stats
        total = self.manager.topic_stats.all_topics
        stats.produce_requests.count += 1
        total.produce_requests.count += 1
        slot.log_start_offset = result.log_start_offset
        if result.error is not ErrorCode.NONE:
            stats.failed_produce_requests.count += 1
            if result.error in TOLD_BY_THE_LEADER and not self.manager.is_confirmed():
                self.fail(slot, ErrorCode.NOT_LEADER_OR_FOLLOWER, MAY_BE_DEPOSED)
            else:
                self.fail(slot, result.error, result.error_message)
            self.manager.topic_stats.keyless_records.count += result.keyless_count
            if result.record_errors:
                slot.record_errors = [
                    p00.BatchIndexAndErrorMessage(
                        batch_index=batch_index, batch_index_error_message=message
                    )
                    for batch_index, message in result.record_errors
                ]
            return
        slot.base_offset = result.base_offset
        slot.log_append_time_ms = result.log_append_time_ms
        if not result.is_duplicate:
            size_bytes = result.size_bytes
            record_count = result.record_count
            stats.bytes_in.count += size_bytes
            stats.messages_in.count += record_count
            total.bytes_in.count += size_bytes
            total.messages_in.count += record_count
        log = partition.log
        assert log is not None, "records were appended to a log"
        if log.config.flush_messages <= log.log_end_offset - log.recovery_point:
            if partition.deferred.wait_for_flush(partial(self._flushed, slot)):
                self._outstanding_count += 1
            else:
                self.fail(slot, ErrorCode.REQUEST_TIMED_OUT, "too many appends wait for a flush")
        if self.required_acks == ACKS_ALL:
            self._wait_for_commit(partition, slot, result.last_offset + 1)

    def append(
        self,
        partition: Partition,
        batches: RecordBatches,
        slot: p00.PartitionProduceResponse,
        guard: VerificationGuard | None = None,
    ) -> None:
        """Append a batch, now or in turn behind a recompression; a transactional one under the
        guard with which its transaction was verified.
        """
        if not partition.must_queue(batches):
            result = partition.append(batches, self.required_acks, guard=guard)
            self.appended(partition, slot, result)
            return
        accepted = partition.deferred.enqueue(
            batches,
            self.required_acks,
            partial(self._queued_append_done, partition, slot),
            guard=guard,
        )
        if accepted:
            self.hold()
        else:
            self.fail(slot, ErrorCode.REQUEST_TIMED_OUT, "too many appends wait for recompression")

    def hold(self) -> None:
        """Count a batch that waits for something before its append; its bytes must stay."""
        self._outstanding_count += 1
        self._queued_count += 1

    def held_is_decided(self) -> None:
        """A batch that `hold` counted has been appended or refused, or waits for something else."""
        self._queued_count -= 1
        self._settle()
        if self._is_started and not self._queued_count and self._outstanding_count:
            self._wait_or_expire()

    def _queued_append_done(
        self, partition: Partition, slot: p00.PartitionProduceResponse, result: AppendResult
    ) -> None:
        self.appended(partition, slot, result)
        self.held_is_decided()
        self.manager.complete_ready()

    def _flushed(self, slot: p00.PartitionProduceResponse, error: ErrorCode) -> None:
        if error is not ErrorCode.NONE and not self.is_ended:
            self.fail(slot, error, "the log could not be flushed")
        self._settle()

    def _wait_for_commit(
        self, partition: Partition, slot: p00.PartitionProduceResponse, required_offset: int
    ) -> None:
        wait = ProduceWait(self, partition, required_offset, slot)
        error = partition.wait_for_commit(wait)
        if error is None:
            if self._commit_waits is None:
                self._commit_waits = {}
            self._commit_waits[wait] = None
            self._outstanding_count += 1
        elif error is not ErrorCode.NONE:
            self.fail(slot, error, None)

    def commit_decided(self, wait: ProduceWait, error: ErrorCode) -> None:
        """A partition's high watermark passed the batch, or will not while this waits."""
        assert self._commit_waits is not None
        del self._commit_waits[wait]
        if error is not ErrorCode.NONE:
            self.fail(wait.slot, error, None)
        self._settle()

    def start_waiting(self, timeout_ms: int) -> None:
        self._timeout_ms = max(0, timeout_ms)
        self._is_started = True
        if not self._outstanding_count:
            self._answer()
        elif not self._queued_count:
            self._wait_or_expire()

    def on_timeout(self) -> None:
        """Not committed in the client's time: it gets an error and does not know more (KIP-1)."""
        self._give_up_waits(ErrorCode.REQUEST_TIMED_OUT)
        if self._outstanding_count:
            # A flush cannot be cancelled; its end answers the request.
            self.is_ended = False
            return
        self._answer()

    def on_dropped(self) -> None:
        """The records stay; the client that asked has gone."""
        self._give_up_waits(None)
        self.context.respond_nothing()

    def _wait_or_expire(self) -> None:
        """The bytes are in the logs: wait in the purgatory, within the client's time."""
        if self.is_ended or self.timer is not None:
            return
        purgatory = self.manager.produce_purgatory
        self._is_linked = purgatory.add_request(self, self.context, self._timeout_ms)
        if not self._is_linked:
            self._give_up_waits(ErrorCode.REQUEST_TIMED_OUT)
            if not self._outstanding_count:
                self._answer()

    def _settle(self) -> None:
        self._outstanding_count -= 1
        if self._is_started and not self._outstanding_count and not self.is_ended:
            self._answer()

    def _give_up_waits(self, error: ErrorCode | None) -> None:
        waits, self._commit_waits = self._commit_waits or {}, None
        for wait in waits:
            wait.partition.produce_waits.pop(wait, None)
            self._outstanding_count -= 1
            if error is not None:
                self.fail(wait.slot, error, None)
                wait.slot.base_offset = NO_OFFSET

    def _answer(self) -> None:
        context = self.context
        manager = self.manager
        if self._is_linked:
            manager.produce_purgatory.remove_request(self, context)
        self.is_ended = True
        if context.quotas is not None:
            context.throttle(
                context.quotas.record_produce(
                    context.principal, context.client_id, context.request.size_bytes
                )
            )
        if self.required_acks == 0:
            if self._has_failed:
                context.close("a produce request with acks=0 failed")
            else:
                context.respond_nothing()
            return
        response = p00.ProduceResponse(responses=self.topics)
        endpoints = self.hints.endpoints(p00.NodeEndpoint)
        if endpoints:
            response.node_endpoints = endpoints
        context.respond(response)
