"""One DeleteRecords request from the leader's own deletion until the followers have followed.

Owns the response under construction and the partitions that are waited for. Must not delete.
Invariant: the response leaves exactly once, when no partition is waited for or the time is up.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

from moldau.broker.replica.purgatory import DelayedOperation
from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages import p21_delete_records as p21

if TYPE_CHECKING:
    from moldau.broker.replica.partition import Partition
    from moldau.broker.replica.replica_manager import ReplicaManager
    from moldau.server.request import RequestContext

NO_LOW_WATERMARK: Final = -1


class _Wait(NamedTuple):
    """A partition whose low watermark has to reach `required_offset`."""

    required_offset: int
    slot: p21.DeleteRecordsPartitionResult


@dataclass(slots=True, eq=False, repr=False)
class DelayedDeleteRecords(DelayedOperation):
    """States: filled by `wait_for` → `start` → answered. The response has a slot for every
    partition, waited for or not.
    """

    _manager: ReplicaManager
    _context: RequestContext
    _response: p21.DeleteRecordsResponse
    _waits: dict[Partition, list[_Wait]] = field(default_factory=dict, init=False)

    def wait_for(
        self, partition: Partition, required_offset: int, slot: p21.DeleteRecordsPartitionResult
    ) -> None:
        """Answer for `slot` once no live replica begins before `required_offset`."""
        if not self._settle(partition, _Wait(required_offset, slot)):
            self._waits.setdefault(partition, []).append(_Wait(required_offset, slot))

    def start(self, timeout_ms: int) -> None:
        if self._waits and timeout_ms > 0:
            for partition in self._waits:
                partition.low_watermark_waits[self._partition_changed] = None
            purgatory = self._manager.delete_records_purgatory
            if purgatory.add_request(self, self._context, timeout_ms):
                return
        self.on_timeout()

    def _partition_changed(self, partition: Partition) -> None:
        """The low watermark may have moved, or another broker leads now."""
        waits = self._waits.get(partition)
        if waits is None:
            return
        waits[:] = [wait for wait in waits if not self._settle(partition, wait)]
        if not waits:
            del self._waits[partition]
            partition.low_watermark_waits.pop(self._partition_changed, None)
            if not self._waits:
                self._answer()

    def on_timeout(self) -> None:
        """The records are deleted here, and perhaps not at every follower."""
        for waits in self._waits.values():
            for wait in waits:
                wait.slot.error_code = ErrorCode.REQUEST_TIMED_OUT
                wait.slot.low_watermark = NO_LOW_WATERMARK
        self._answer()

    def on_dropped(self) -> None:
        """The records stay deleted; the client that asked has gone."""
        self._let_go()
        self._context.respond_nothing()

    def _settle(self, partition: Partition, wait: _Wait) -> bool:
        low_watermark = partition.low_watermark
        if not partition.is_leader:
            wait.slot.error_code = ErrorCode.NOT_LEADER_OR_FOLLOWER
        elif partition.log is None or partition.log.offline:
            wait.slot.error_code = partition.unusable_error
        elif low_watermark >= wait.required_offset:
            wait.slot.low_watermark = low_watermark
        else:
            return False
        return True

    def _answer(self) -> None:
        self._manager.delete_records_purgatory.remove_request(self, self._context)
        self._let_go()
        self._context.respond(self._response)

    def _let_go(self) -> None:
        for partition in self._waits:
            partition.low_watermark_waits.pop(self._partition_changed, None)
        self._waits.clear()
