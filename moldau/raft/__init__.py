"""The metadata log: a log that the controller quorum replicates (KRaft)."""

from moldau.raft.core.values import SnapshotId
from moldau.raft.core.voters import LATEST_KRAFT_VERSION, VoterDescription, VoterEndpoint, VoterSet
from moldau.raft.delivery import Subscription
from moldau.raft.format import check_unformatted, read_bootstrap, write_bootstrap
from moldau.raft.peers import ConnectionPeers, NoPeers, PeerNetwork
from moldau.raft.quorum_log import QuorumLog, QuorumStatus
from moldau.raft.request_handler import RAFT_APIS, RaftRequestHandler
from moldau.raft.values import (
    METADATA_DIRECTORY,
    METADATA_TOPIC,
    MetadataLogError,
    MetadataLogSettings,
    QuorumStopped,
)

__all__ = [
    "LATEST_KRAFT_VERSION",
    "METADATA_DIRECTORY",
    "METADATA_TOPIC",
    "RAFT_APIS",
    "ConnectionPeers",
    "MetadataLogError",
    "MetadataLogSettings",
    "NoPeers",
    "PeerNetwork",
    "QuorumLog",
    "QuorumStatus",
    "QuorumStopped",
    "RaftRequestHandler",
    "SnapshotId",
    "Subscription",
    "VoterDescription",
    "VoterEndpoint",
    "VoterSet",
    "check_unformatted",
    "read_bootstrap",
    "write_bootstrap",
]
