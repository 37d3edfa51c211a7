"""The quorum as a state machine: no tasks, sockets, files, clocks or dice (see effects.py)."""

from moldau.raft.core.quorum import QuorumCore
from moldau.raft.core.roles import Role
from moldau.raft.core.voters import VoterHistory

__all__ = ["QuorumCore", "Role", "VoterHistory"]
