"""What the metadata log is told at its start, and how it fails."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final
from uuid import UUID

from moldau.protocol.types import METADATA_TOPIC_NAME
from moldau.raft.core.settings import QuorumSettings
from moldau.raft.core.values import Destination, ReplicaKey
from moldau.raft.core.voters import VoterEndpoint, VoterSet
from moldau.storage.log_config import LogConfig

METADATA_DIRECTORY: Final = f"{METADATA_TOPIC_NAME}-0"


class MetadataLogError(Exception):
    """The metadata log cannot be used as it is; one line that says what is wrong and where."""


class QuorumStopped(Exception):
    """The replica takes no requests any more: it is closed, or has failed."""


NO_VOTERS: Final = VoterSet()


@dataclass(frozen=True, slots=True)
class MetadataLogSettings:
    """Where the log is, how much of it is kept, and the quorum's timings (milliseconds).

    `endpoints` are this controller's own, `is_controller` is false on a broker, which never votes.
    `static_voters` are those of `controller.quorum.voters`, at level 0 and without directory ids;
    empty in a quorum whose voters are in its log. `bootstrap_servers` are asked for the leader.
    `retention_bytes` and `retention_ms` bound old snapshots and the log below the latest one
    (`metadata.max.retention.*`); -1 means without limit.
    """

    metadata_directory: str
    node_id: int
    directory_id: UUID
    endpoints: tuple[VoterEndpoint, ...]
    is_controller: bool = True
    static_voters: VoterSet = NO_VOTERS
    bootstrap_servers: tuple[Destination, ...] = ()
    election_timeout_ms: int = 1_000
    election_backoff_max_ms: int = 1_000
    fetch_timeout_ms: int = 2_000
    request_timeout_ms: int = 2_000
    retry_backoff_ms: int = 20
    fetch_max_bytes: int = 1024 * 1024
    fetch_snapshot_max_bytes: int = 1024 * 1024
    segment_bytes: int = 1024**3
    segment_ms: int = 7 * 24 * 3600 * 1000
    segment_index_bytes: int = 10 * 1024**2
    retention_bytes: int = 100 * 1024**2
    retention_ms: int = 7 * 24 * 3600 * 1000

    @property
    def local(self) -> ReplicaKey:
        return ReplicaKey(self.node_id, self.directory_id)

    def log_config(self) -> LogConfig:
        """How its log lies on the disk."""
        return LogConfig(
            segment_bytes=self.segment_bytes,
            segment_ms=self.segment_ms,
            segment_index_bytes=self.segment_index_bytes,
            retention_ms=-1,
            file_delete_delay_ms=0,
        )

    def quorum_settings(self) -> QuorumSettings:
        return QuorumSettings(
            local=self.local,
            endpoints=self.endpoints,
            is_controller=self.is_controller,
            bootstrap_servers=self.bootstrap_servers,
            election_timeout_ms=self.election_timeout_ms,
            election_backoff_max_ms=self.election_backoff_max_ms,
            fetch_timeout_ms=self.fetch_timeout_ms,
            request_timeout_ms=self.request_timeout_ms,
            retry_backoff_ms=self.retry_backoff_ms,
            fetch_max_bytes=self.fetch_max_bytes,
            fetch_snapshot_max_bytes=self.fetch_snapshot_max_bytes,
        )
