"""Counts unclean elections as the metadata shows them (`kafka.controller:type=ControllerStats`).

Owns: what an unclean election looks like from outside. Must not judge it: configuration allowed it.
Invariant: an election is counted once, when its change is read, and none for what was there before.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from moldau.metadata.image.values import NO_LEADER

if TYPE_CHECKING:
    from moldau.metadata.image import MetadataDelta, MetadataImage, PartitionRegistration
    from moldau.runtime.telemetry.metrics import Meter, Registry

UNCLEAN_ELECTIONS: Final = "kafka.controller:type=ControllerStats,name=UncleanLeaderElectionsPerSec"


class ElectionMeters:
    """A metadata publisher."""

    def __init__(self, registry: Registry) -> None:
        self._unclean: Meter = registry.meter(UNCLEAN_ELECTIONS)
        self._last: MetadataImage | None = None

    def on_metadata_update(self, delta: MetadataDelta, image: MetadataImage) -> None:
        """Look at the partitions that changed."""
        last, self._last = self._last, image
        if last is None:
            return
        for topic_id, topic in delta.topics_delta.changed.items():
            for index, partition in topic.partition_changes.items():
                before = last.topics.partition(topic_id, index)
                if before is not None and is_unclean(before, partition):
                    self._unclean.mark()


def is_unclean(before: PartitionRegistration, now: PartitionRegistration) -> bool:
    """Whether the leader was elected among those who may lack committed records (KIP-966)."""
    return (
        now.leader not in (NO_LEADER, before.leader)
        and now.leader not in before.isr
        and now.leader not in before.elr
    )
