"""A metadata log on the simulated disk, and listeners that remember."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any
from uuid import UUID

from moldau.metadata.log import CommittedBatch, LoadedSnapshot
from moldau.protocol.errors import ErrorCode
from moldau.protocol.metadata_records import TopicRecord
from moldau.raft import (
    MetadataLogSettings,
    QuorumLog,
    VoterDescription,
    VoterEndpoint,
    VoterSet,
    write_bootstrap,
)
from moldau.raft.core.messages import PeerRequest, PeerResponse
from moldau.raft.core.values import Destination, ReplicaKey
from moldau.runtime.filesystem import Filesystem
from tests.kit.manual_clock import ManualClock

DIRECTORY = "/data"
LOG_DIRECTORY = "/data/__cluster_metadata-0"
DIRECTORY_ID = UUID(int=0x5F9D)
ENDPOINT = VoterEndpoint("CONTROLLER", "host1", 9093)
SETTINGS = MetadataLogSettings(
    metadata_directory=DIRECTORY,
    local=ReplicaKey(1, DIRECTORY_ID),
    endpoints=(ENDPOINT,),
    segment_bytes=8 * 1024 * 1024,
    segment_index_bytes=4096,
)
VOTERS = VoterSet((VoterDescription(1, DIRECTORY_ID, (ENDPOINT,)),), 1)


def format_directory(filesystem: Filesystem, voters: VoterSet = VOTERS) -> None:
    """As `storage format --standalone` leaves it."""
    write_bootstrap(filesystem, DIRECTORY, [(TopicRecord(name="b"), 0)], voters, now_ms=5)


class NoPeers:
    """The network of a quorum of one: no request is answered."""

    async def request(
        self, destination: Destination, request: PeerRequest, timeout_ms: float
    ) -> PeerResponse | None:
        return None

    async def close(self) -> None:
        """Nothing is under way."""


async def open_log(
    filesystem: Filesystem,
    *,
    on_fatal: Callable[[str], None] | None = None,
    **changes: Any,
) -> QuorumLog:
    """Open; a fatal fault fails the test unless it is expected."""

    def unexpected(message: str) -> None:
        raise AssertionError(message)

    settings = replace(SETTINGS, **changes)
    return await QuorumLog.open(
        filesystem, ManualClock(), settings, on_fatal or unexpected, peers=NoPeers()
    )


def append(log: QuorumLog, *names: str) -> int:
    """Append topics of these names as one batch; the last offset."""
    error, last_offset = log.append(
        [(TopicRecord(name=name), 0) for name in names], leader_epoch=log.state.leader_epoch
    )
    assert error is ErrorCode.NONE
    return last_offset


@dataclass
class Listener:
    """What was delivered: topic names in order, a snapshot's in place of what it stands for."""

    names: list[str] = field(default_factory=list)
    batches: list[CommittedBatch] = field(default_factory=list)
    snapshots: list[LoadedSnapshot] = field(default_factory=list)
    leaders: list[tuple[int, int]] = field(default_factory=list)
    next_offset: int = 0

    def handle_snapshot(self, snapshot: LoadedSnapshot) -> None:
        self.snapshots.append(snapshot)
        self.names = [record.name for record in snapshot.records if isinstance(record, TopicRecord)]
        self.next_offset = snapshot.end_offset

    def handle_commit(self, batch: CommittedBatch) -> None:
        assert batch.base_offset == self.next_offset, "no gap, no repetition"
        self.next_offset = batch.last_offset + 1
        self.batches.append(batch)
        self.names += [record.name for record in batch.records if isinstance(record, TopicRecord)]

    def handle_leader_change(self, leader_id: int, leader_epoch: int) -> None:
        self.leaders.append((leader_id, leader_epoch))


async def settled(log: QuorumLog, listener: Listener) -> None:
    """Wait until everything appended has been delivered."""
    while listener.next_offset < log.log_end_offset:  # noqa: ASYNC110
        await asyncio.sleep(0)


async def snapshot_of(log: QuorumLog, listener: Listener) -> None:
    """Write a snapshot of everything the listener has."""
    last = listener.batches[-1]
    await log.write_snapshot(
        end_offset=last.last_offset + 1,
        leader_epoch=last.leader_epoch,
        last_contained_log_time_ms=last.append_timestamp_ms,
        records=iter([(TopicRecord(name=name), 0) for name in listener.names]),
    )
