"""What the metadata log hands out, and how its parts are called.

Owns: committed batches, loaded snapshots, snapshot ids, faults. Must not: read or write anything.
Invariant: immutable; they cross threads.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from moldau.protocol.schema import Message

METADATA_TOPIC: Final = "__cluster_metadata"
METADATA_DIRECTORY: Final = "__cluster_metadata-0"


class MetadataLogError(Exception):
    """The metadata log cannot be used as it is; one line that says what is wrong and where."""


class QuorumStopped(Exception):
    """The replica takes no requests any more: it is closed, or has failed."""


@dataclass(frozen=True, slots=True)
class CommittedBatch:
    """A committed batch of metadata records; a control batch has none, so that offsets stay
    gapless.
    """

    base_offset: int
    last_offset: int
    leader_epoch: int
    append_timestamp_ms: int
    size_bytes: int
    records: tuple[Message, ...]


@dataclass(frozen=True, slots=True)
class LoadedSnapshot:
    """A snapshot's records, without its control records."""

    end_offset: int
    leader_epoch: int
    last_contained_log_time_ms: int
    size_bytes: int
    records: tuple[Message, ...]
