"""Says when the quorum's voter with this node's id is another directory (KIP-853).

Owns one warning. Must not: act on it: a wiped disk that waits to be added is in the same state.
Invariant: said once for each directory that has the vote instead of this one.
"""

from __future__ import annotations

import logging
import uuid

from moldau.metadata.log import CommittedBatch, LoadedSnapshot
from moldau.protocol.types import ZERO_UUID, uuid_to_base64
from moldau.raft import QuorumLog, VoterSet

logger = logging.getLogger("moldau.controller")


class VoterIdentity:
    """A listener of the metadata log."""

    def __init__(self, log: QuorumLog) -> None:
        self._log = log
        self._told = ZERO_UUID
        self._seen = VoterSet()

    def handle_snapshot(self, snapshot: LoadedSnapshot) -> None:
        """It may name voters."""
        self._check()

    def handle_commit(self, batch: CommittedBatch) -> None:
        """Voters may have been learned since the last one."""
        self._check()

    def handle_leader_change(self, leader_id: int, leader_epoch: int) -> None:
        """Voters may have been learned with it."""
        self._check()

    def _check(self) -> None:
        voters = self._log.voters
        if voters is self._seen:
            return
        self._seen = voters
        voter = voters.with_id(self._log.node_id)
        found: uuid.UUID = ZERO_UUID if voter is None else voter.directory_id
        if found in (self._log.directory_id, ZERO_UUID, self._told):
            return
        self._told = found
        logger.warning(
            "node.id=%d votes with another directory, %s, and this one, %s, only observes: either "
            "that process is a double, or its disk was replaced and "
            "`moldau quorum remove-controller` and `add-controller` give the vote to this one",
            self._log.node_id,
            uuid_to_base64(found),
            uuid_to_base64(self._log.directory_id),
        )
