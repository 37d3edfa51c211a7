"""Reports to the operator a partition that elected a replica which had not been in sync.

Owns: whether it was reported. Must not: hold elections (`controller.core.elections` does).
Invariant: one line of the log for an election, until the controller knows that the leader has
recovered.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

from moldau.broker.replica.core.in_sync_set import RECOVERING
from moldau.broker.replica.core.partition_core import NO_LEADER

if TYPE_CHECKING:
    from moldau.broker.replica.core.partition_core import PartitionCore
    from moldau.protocol.types import TopicPartition
    from moldau.storage.log import Log

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class UncleanElectionNotice:
    """The notice about one partition."""

    _is_told: bool = False

    def look(self, topic_partition: TopicPartition, core: PartitionCore, log: Log) -> None:
        """Acknowledged records may be gone: the operator must not find that out by accident. None
        is where the last leader is elected again.
        """
        if core.leader_recovery_state != RECOVERING:
            self._is_told = False
        elif not core.is_leader:
            # While there is no leader, this broker may be on its way back as the one it was.
            self._is_told &= core.leader_id == NO_LEADER
        elif not self._is_told:
            self._is_told = True
            logger.error(
                "%s: UNCLEAN LEADER ELECTION: broker %d, leader in epoch %d, may lack records; its "
                "log ends at %d (high watermark known here: %d), and what earlier leaders "
                "acknowledged from there on, if anything, is LOST",
                topic_partition,
                core.local_broker_id,
                core.leader_epoch,
                log.log_end_offset,
                core.high_watermark,
            )
