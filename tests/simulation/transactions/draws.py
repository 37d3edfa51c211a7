"""Which upheavals a seed has: what administrators and outside coordinators do to living clients.

Owns: the choice, from its own random, so that the rest of a seed stays what it was. Must not:
act (`upheavals` does). Invariant: a fault that is asked for by name brings what it needs.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from random import Random

PASSING = "passing"
"""The topic that is deleted and created again."""

VISITORS = "visitors"
"""The group that reads it, and is deleted itself."""

FAULTS_OF_TWO_PHASE = ("kill_coordinator_of_prepared",)
FAULTS_OF_LEVELS = ("change_transaction_level", "change_group_level")
FAULTS_OF_TOPICS = ("recreate_topic", "grow_topic")
FAULTS_OF_GROUPS = ("delete_group", "delete_offsets", "empty_group", "outlive_offsets")
FAULTS_OF_RIVALS = ("race_for_id",)

SHARE = 0.25


@dataclass(frozen=True, slots=True)
class Draws:
    """What is drawn.

    Attributes:
        two_phase: an application whose transactions an outside coordinator decides (KIP-939).
        levels: feature levels go down and up again.
        topics: a topic is deleted and created again, topics get more partitions.
        groups: groups and offsets are deleted, offsets are kept for a minute.
        rivals: two processes want to be the same static member.
    """

    two_phase: bool = False
    levels: bool = False
    topics: bool = False
    groups: bool = False
    rivals: bool = False

    @classmethod
    def of_seed(cls, seed: str, faults: Collection[str] = ()) -> Draws:
        """The seed's; those that `faults` need when some are asked for."""
        if faults:
            return cls(
                two_phase=not set(FAULTS_OF_TWO_PHASE).isdisjoint(faults),
                levels=not set(FAULTS_OF_LEVELS).isdisjoint(faults),
                topics=not set(FAULTS_OF_TOPICS).isdisjoint(faults),
                groups=not set(FAULTS_OF_GROUPS).isdisjoint(faults),
                rivals=not set(FAULTS_OF_RIVALS).isdisjoint(faults),
            )
        random = Random(f"draws {seed}")
        return cls(*(random.random() < SHARE for _ in range(5)))

    @property
    def has_visitors(self) -> bool:
        """Whether there is a topic and a group that come and go."""
        return self.topics or self.groups
