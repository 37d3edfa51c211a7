"""The metadata log: a quorum's replicated log, for now with a single voter."""

from moldau.raft.core.values import SnapshotId
from moldau.raft.core.voters import LATEST_KRAFT_VERSION, VoterDescription, VoterEndpoint, VoterSet
from moldau.raft.format import check_unformatted, read_bootstrap, write_bootstrap
from moldau.raft.single_voter_log import MetadataLogSettings, SingleVoterLog
from moldau.raft.subscription import LogListener, Subscription
from moldau.raft.values import (
    METADATA_DIRECTORY,
    METADATA_TOPIC,
    CommittedBatch,
    LoadedSnapshot,
    MetadataLogError,
)

__all__ = [
    "LATEST_KRAFT_VERSION",
    "METADATA_DIRECTORY",
    "METADATA_TOPIC",
    "CommittedBatch",
    "LoadedSnapshot",
    "LogListener",
    "MetadataLogError",
    "MetadataLogSettings",
    "SingleVoterLog",
    "SnapshotId",
    "Subscription",
    "VoterDescription",
    "VoterEndpoint",
    "VoterSet",
    "check_unformatted",
    "read_bootstrap",
    "write_bootstrap",
]
