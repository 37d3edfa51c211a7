"""Random draws that all kinds of steps have in common, and who plays in a sequence."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random
from typing import Any, Final

from tests.interop.differential.groups.sequences import Group, TopicId

STRANGER: Final = "stranger"
"""A member id that no group has."""

ACTORS: Final = 4
"""Clients of a sequence; one more than groups may have members."""

IDS_SINCE: Final = 10
"""The version of OffsetCommit and OffsetFetch that names topics by id."""


@dataclass
class Cast:
    """Who plays in a sequence.

    Attributes:
        instances: the static members' instance ids.
        pattern: the one regular expression that members subscribe to.
        is_alone: whether there is one member, so that it may subscribe to nothing: where others
            subscribe to something, Apache Kafka may still count all subscriptions as equal.
        protocol_type: of classic members; of another type than "consumer", a group keeps it.
        is_owning: whether classic members claim to own partitions.
        is_uniform: whether members ask for the uniform assignor, whose choices are its own.
    """

    group: Group = field(default_factory=Group)
    unknown_group: Group = field(default_factory=lambda: Group("unknown"))
    instances: dict[int, str] = field(default_factory=dict)
    pattern: str = "al.*"
    protocol_type: str = "consumer"
    is_uniform: bool = False
    is_alone: bool = False
    is_owning: bool = False

    def instance_of(self, actor: int) -> str:
        """The instance id of a static member, or the one it would have."""
        return self.instances.get(actor, f"i{actor}")


def chosen(dice: Random, *options: tuple[int, Any]) -> Any:
    """One of the values, with their weights."""
    return dice.choices([value for _, value in options], [weight for weight, _ in options])[0]


def from_versions(dice: Random, first: int, last: int) -> int:
    """A version, the newest one half of the time."""
    return last if dice.random() < 0.5 else dice.randint(first, last)


def other_than(dice: Random, actor: int) -> int:
    """Another client."""
    return dice.choice([each for each in range(ACTORS) if each != actor])


def topic_word(name: str, api_version: int) -> dict[str, Any]:
    """A topic as OffsetCommit and OffsetFetch name it in that version."""
    return {"name": name} if api_version < IDS_SINCE else {"topic_id": TopicId(name)}
