"""This node's metadata log for its console: who has led the quorum, and record by record.

Owns the pieces in which it is read, each a short look on the quorum's loop and the rest beside it.
Must not decide who may read it, nor what is secret in it (`metadata_rows` does). Invariants: only
what is committed is shown; one answer reads a bounded part of the log.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, TypeVar
from uuid import UUID

from moldau.console.settings import MetadataUnknown
from moldau.metadata.image import MetadataImage
from moldau.node.http.metadata_rows import Row, rows_of
from moldau.node.quorum_node import QuorumNode
from moldau.protocol.messages.quorum_records import LeaderChangeMessage
from moldau.protocol.records import ControlRecordType
from moldau.raft import MetadataLogError, QuorumLog
from moldau.raft.batch_codec import DecodedBatch
from moldau.runtime.files import FileRegion
from moldau.runtime.filesystem import Filesystem
from moldau.runtime.loop_thread import LoopBusy

MAX_ELECTIONS: Final = 100
"""The newest ones are shown."""
MAX_READS: Final = 8
"""Parts of the log that are read for one answer; the next one goes on."""

T = TypeVar("T")


@dataclass(eq=False)
class NodeMetadataLog:
    """The log of a node that runs. Belongs to the HTTP loop.

    Args:
        image: the newest metadata, which has the names of topics.
    """

    quorum: Callable[[], QuorumNode | None]
    image: Callable[[], MetadataImage]
    _history: LogHistory = field(default_factory=lambda: LogHistory())

    async def elections(self) -> list[dict[str, Any]]:
        """The newest leaders whose epochs begin in the log. Raises: MetadataUnknown"""
        return await self._asked(self._history.elections)

    async def records(self, from_offset: int | None, limit: int) -> dict[str, Any]:
        """Some committed records in order. Raises: MetadataUnknown"""
        image = self.image()
        reading = partial(
            records_of, from_offset=from_offset, limit=limit, name_of=partial(_name_of, image)
        )
        return await self._asked(reading)

    async def _asked(
        self, work: Callable[[QuorumLog, Filesystem], Coroutine[object, None, T]]
    ) -> T:
        quorum = self.quorum()
        if quorum is None:
            raise MetadataUnknown("the node is starting or stopping")
        try:
            return await quorum.with_log(work)
        except (LoopBusy, MetadataLogError, OSError) as error:
            raise MetadataUnknown(str(error)) from None


def _name_of(image: MetadataImage, topic_id: UUID) -> str | None:
    topic = image.topics.topics_by_id.get(topic_id)
    return None if topic is None else topic.name


@dataclass(eq=False)
class LogHistory:
    """What committed epochs began with, which never changes. Belongs to the quorum's loop."""

    _elections: dict[int, Row] = field(default_factory=dict)

    async def elections(self, log: QuorumLog, filesystem: Filesystem) -> list[Row]:
        """The newest leaders whose epochs begin in the log. Raises: MetadataLogError"""
        high_watermark = log.high_watermark
        entries = [
            entry
            for entry in log.files.log.leader_epoch_cache.entries
            if entry.start_offset < high_watermark
        ][-MAX_ELECTIONS:]
        found: dict[int, Row] = {}
        for entry in entries:
            known = self._elections.get(entry.leader_epoch)
            if known is None and entry.start_offset >= log.files.log_start_offset:
                region = log.files.start_read(entry.start_offset, high_watermark, max_bytes=1)
                reading = partial(log.files.finish_read, region, entry.start_offset)
                known = _election(await filesystem.offload(reading))
            if known is not None:
                found[entry.leader_epoch] = known
        self._elections = found
        return [*found.values()]


def _election(batches: list[DecodedBatch]) -> Row | None:
    """Who says in the first batch that it leads; None where the epoch began before the log does."""
    for batch in batches[:1]:
        for kind, value in batch.control_records:
            if kind == ControlRecordType.LEADER_CHANGE:
                (version,) = struct.unpack_from(">h", value)
                message, _ = LeaderChangeMessage.decode(value, version)
                return {
                    "epoch": batch.header.partition_leader_epoch,
                    "leader_id": message.leader_id,
                    "at_ms": batch.header.max_timestamp_ms,
                }
    return None


async def records_of(
    log: QuorumLog,
    filesystem: Filesystem,
    *,
    from_offset: int | None,
    limit: int,
    name_of: Callable[[UUID], str | None],
) -> Row:
    """Some committed records in order, and where the next ones begin; on the quorum's loop.

    Args:
        from_offset: where the log begins behind it, from there; None for the newest ones.

    Raises:
        MetadataLogError
    """
    start, end = log.files.log_start_offset, log.high_watermark
    offset = max(start, end - limit if from_offset is None else from_offset)
    rows: list[Row] = []
    for _ in range(MAX_READS):
        if offset >= end or len(rows) == limit:
            break
        region = log.files.start_read(offset, end)
        reading = partial(_rows, region, offset, limit - len(rows), name_of)
        found = await filesystem.offload(reading)
        if not found:
            raise MetadataLogError(f"nothing at offset {offset}")
        rows += found
        offset = rows[-1]["offset"] + 1
    return {
        "records": rows,
        "next": offset if offset < end else None,
        "start_offset": start,
        "end_offset": end,
    }


def _rows(
    region: FileRegion | bytes, offset: int, limit: int, name_of: Callable[[UUID], str | None]
) -> list[Row]:
    if isinstance(region, bytes):
        return rows_of(region, offset, limit, name_of)
    try:
        data = region.read()
    finally:
        region.release()
    return rows_of(data, offset, limit, name_of)
