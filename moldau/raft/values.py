"""Settings of the metadata log (`metadata.log.segment.*`, `metadata.max.*`), and how it fails."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from moldau.config.settings import of_key
from moldau.protocol.types import METADATA_TOPIC_NAME
from moldau.raft.core.settings import QuorumSettings
from moldau.raft.core.voters import VoterSet
from moldau.storage.log_config import LogConfig

METADATA_DIRECTORY: Final = f"{METADATA_TOPIC_NAME}-0"


class MetadataLogError(Exception):
    """The metadata log cannot be used as it is; one line that says what is wrong and where."""


class QuorumStopped(Exception):
    """The replica takes no requests any more: it is closed, or has failed."""


NO_VOTERS: Final = VoterSet()


@dataclass(frozen=True, slots=True, kw_only=True)
class MetadataLogSettings(QuorumSettings):
    """The quorum's settings, and where the log is and how much of it is kept.

    `static_voters` are those of `controller.quorum.voters`, at level 0 and without directory ids;
    empty in a quorum whose voters are in its log. `retention_bytes` and `retention_ms` bound old
    snapshots and the log below the latest one; -1 means without limit.
    """

    metadata_directory: str
    static_voters: VoterSet = NO_VOTERS
    segment_bytes: int = of_key("metadata.log.segment.bytes")
    segment_ms: int = of_key("metadata.log.segment.ms")
    segment_index_bytes: int = 10 * 1024**2
    retention_bytes: int = of_key("metadata.max.retention.bytes")
    retention_ms: int = of_key("metadata.max.retention.ms")

    def log_config(self) -> LogConfig:
        """How its log lies on the disk."""
        return LogConfig(
            segment_bytes=self.segment_bytes,
            segment_ms=self.segment_ms,
            segment_index_bytes=self.segment_index_bytes,
            retention_ms=-1,
            file_delete_delay_ms=0,
        )
