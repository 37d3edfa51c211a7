"""Lets the ledger watch production logs and partitions while a seed runs.

Owns: what is wrapped around the methods of `Log`, `LogManager` and `Partition`, and taking it off
again. Must not: change what they do, or check anything.
Invariant: the ledger hears of a change after it has happened, before any process can act on it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from moldau.broker.replica.partition import Partition
from moldau.protocol.errors import ErrorCode
from moldau.protocol.types import ZERO_UUID
from moldau.storage.log import Log
from moldau.storage.log_manager import LogManager
from tests.simulation.cluster.disk import NodeDisk
from tests.simulation.replication.mirror import Batch, batches_in, read_mirror

METADATA = "__cluster_metadata"


def _broker_of(log: Any) -> Any:
    """The simulated broker whose log this is, None for a metadata log or a dead process."""
    disk = log.filesystem
    if not isinstance(disk, NodeDisk) or disk.crashed or log.topic_partition.topic == METADATA:
        return None
    return disk.owner


def _appended(records: Any, result: Any) -> list[Batch]:
    if result.error is not ErrorCode.NONE or result.is_duplicate or result.base_offset < 0:
        return []
    return [batch for batch in batches_in(records) if batch.last_offset <= result.last_offset]


def _append_as_leader(original: Callable[..., Any]) -> Callable[..., Any]:
    def append_as_leader(log: Any, batches: Any, *, leader_epoch: int, **options: Any) -> Any:
        result = original(log, batches, leader_epoch=leader_epoch, **options)
        broker = _broker_of(log)
        if broker is not None:
            broker.wrote(log, leader_epoch, _appended(batches.data, result), batches.data)
        return result

    return append_as_leader


def _append_as_follower(original: Callable[..., Any]) -> Callable[..., Any]:
    def append_as_follower(log: Any, records: Any, *, leader_epoch: int) -> Any:
        result = original(log, records, leader_epoch=leader_epoch)
        broker = _broker_of(log)
        if broker is not None:
            broker.replicated(log, _appended(records, result))
        return result

    return append_as_follower


def _truncate_to(original: Callable[..., Any]) -> Callable[..., Any]:
    def truncate_to(log: Any, offset: int) -> Any:
        result = original(log, offset)
        broker = _broker_of(log)
        if broker is not None and result:
            broker.truncated(log, log.log_end_offset)
        return result

    return truncate_to


def _truncate_fully(original: Callable[..., Any]) -> Callable[..., Any]:
    def truncate_fully_and_start_at(log: Any, offset: int) -> None:
        original(log, offset)
        broker = _broker_of(log)
        if broker is not None:
            broker.truncated(log, 0)

    return truncate_fully_and_start_at


def _update_high_watermark(original: Callable[..., Any]) -> Callable[..., Any]:
    def update_high_watermark(log: Any, offset: int) -> None:
        original(log, offset)
        broker = _broker_of(log)
        if broker is not None:
            broker.high_watermark_set(log)

    return update_high_watermark


def _moves_start(original: Callable[..., Any], *, is_asked: bool) -> Callable[..., Any]:
    def moves_start(log: Any, argument: int) -> Any:
        before = log.log_start_offset
        broker = _broker_of(log)
        try:
            return original(log, argument)
        finally:
            # Also of a process that dies here: some segments may be gone already.
            if broker is not None and log.log_start_offset != before:
                broker.start_moved(log, is_asked=is_asked)

    return moves_start


def _take_offline(original: Callable[..., Any]) -> Callable[..., Any]:
    def take_offline(log: Any, reason: str, **options: Any) -> None:
        was_offline = log.offline
        original(log, reason, **options)
        broker = _broker_of(log)
        if broker is not None and not was_offline:
            broker.log_failed(log, reason)

    return take_offline


def _open(original: Any) -> Any:
    def open_log(cls: Any, filesystem: Any, *arguments: Any, **options: Any) -> Any:
        log = original.__func__(cls, filesystem, *arguments, **options)
        broker = _broker_of(log)
        # Whose process died before it wrote partition.metadata has a log of no topic yet.
        if broker is not None and not log.offline and log.topic_id != ZERO_UUID:
            broker.opened(log, read_mirror(log))
        return log

    return classmethod(open_log)


def _write_topic_id(original: Callable[..., Any]) -> Callable[..., Any]:
    def write_topic_id(manager: Any, log: Any, topic_id: Any) -> None:
        original(manager, log, topic_id)
        broker = _broker_of(log)
        if broker is not None:
            broker.opened(log, read_mirror(log))

    return write_topic_id


def _put_aside(original: Callable[..., Any]) -> Callable[..., Any]:
    def put_aside(manager: Any, topic_partition: Any, suffix: str) -> Any:
        log = manager.get(topic_partition)
        result = original(manager, topic_partition, suffix)
        if log is not None:
            broker = _broker_of(log)
            if broker is not None:
                broker.removed(log)
        return result

    return put_aside


def _apply_state(original: Callable[..., Any]) -> Callable[..., Any]:
    def apply_state(partition: Any, state: Any) -> Any:
        result = original(partition, state)
        log = partition.log
        if log is not None and not log.offline:
            broker = _broker_of(log)
            if broker is not None:
                broker.state_applied(partition)
        return result

    return apply_state


@contextmanager
def taps() -> Iterator[None]:
    """The taps are in force while the block runs: what happens in simulated brokers reaches their
    ledger.
    """
    replaced: list[tuple[Any, str, Any]] = []

    def put(owner: Any, name: str, make: Callable[[Any], Any]) -> None:
        original = owner.__dict__[name]
        replaced.append((owner, name, original))
        setattr(owner, name, make(original))

    put(Log, "append_as_leader", _append_as_leader)
    put(Log, "append_as_follower", _append_as_follower)
    put(Log, "truncate_to", _truncate_to)
    put(Log, "truncate_fully_and_start_at", _truncate_fully)
    put(Log, "update_high_watermark", _update_high_watermark)
    put(Log, "delete_records", lambda each: _moves_start(each, is_asked=False))
    put(Log, "advance_log_start_offset", lambda each: _moves_start(each, is_asked=False))
    put(Log, "apply_retention", lambda each: _moves_start(each, is_asked=True))
    put(Log, "take_offline", _take_offline)
    put(Log, "open", _open)
    put(LogManager, "_put_aside", _put_aside)
    put(LogManager, "_write_topic_id", _write_topic_id)
    put(Partition, "apply_state", _apply_state)
    try:
        yield
    finally:
        for owner, name, original in reversed(replaced):
            setattr(owner, name, original)
