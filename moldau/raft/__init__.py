"""The metadata log: a log that the controller quorum replicates (KRaft)."""

from moldau.raft.core.values import SnapshotId
from moldau.raft.core.voters import VoterDescription, VoterEndpoint, VoterSet
from moldau.raft.delivery import Subscription
from moldau.raft.format import check_unformatted, read_bootstrap, write_bootstrap
from moldau.raft.quorum_log import QuorumLog
from moldau.raft.request_handler import RaftRequestHandler
from moldau.raft.values import METADATA_DIRECTORY, MetadataLogError, MetadataLogSettings
