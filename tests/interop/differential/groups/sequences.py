"""Sequences of group requests, written without any server's own names.

Owns: steps, and the references in their fields that are put into words when a step is sent: a
member's id, its epoch, what it was assigned, a topic's id. Must not: send anything. Invariant: a
sequence and a player's memory of earlier answers determine every byte of a request.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final
from uuid import UUID

from moldau.protocol.api_keys import ApiKey
from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.consumer_protocol import ConsumerProtocolAssignment
from moldau.protocol.registry import request_class
from moldau.protocol.schema import Message
from tests.interop.differential.asking import build

TOPICS: Final = {"alpha": 3, "alpine": 1, "beta": 2}
"""The topics of a comparison, with their partitions."""

_LONG_RUN: Final = re.compile(r"(\w)\1{20,}")

UNKNOWN_TOPIC_ID: Final = UUID(int=77)


@dataclass
class Actor:
    """A client as it remembers itself.

    Attributes:
        member_id: the newest id an answer gave it; empty before.
        generation: its generation, or its member epoch.
        assigned: the partitions of its last assignment by a ConsumerGroupHeartbeat.
        members: whom it leads, by its last JoinGroup; empty for others.
    """

    member_id: str = ""
    generation: int = 0
    assigned: list[dict[str, Any]] = field(default_factory=list)
    members: list[str] = field(default_factory=list)
    protocol_type: str | None = None
    protocol_name: str | None = None


@dataclass
class Memory:
    """What the clients of one sequence learned from one cluster.

    Attributes:
        prefix: makes the names of groups unlike those of all other sequences.
        names: member ids that the cluster made, and the words both clusters' have in common.
    """

    prefix: str
    topic_ids: Mapping[str, UUID]
    actors: dict[int, Actor] = field(default_factory=dict)
    names: dict[str, str] = field(default_factory=dict)

    def actor(self, number: int) -> Actor:
        """The client of that number."""
        return self.actors.setdefault(number, Actor())


class Reference:
    """Stands in a step's fields for what only a cluster's earlier answers tell."""

    def resolve(self, memory: Memory) -> Any:
        """The value for the cluster that `memory` is about."""
        raise NotImplementedError


@dataclass(frozen=True, repr=False)
class Group(Reference):
    """A group of this sequence."""

    word: str = "g"

    def __repr__(self) -> str:
        return f"<{self.word}>"

    def resolve(self, memory: Memory) -> str:
        return f"{memory.prefix}-{self.word}"


@dataclass(frozen=True, repr=False)
class MemberId(Reference):
    """The id of a client, or `otherwise` as long as it has none."""

    actor: int
    otherwise: str = ""

    def __repr__(self) -> str:
        return f"<id {self.actor}>"

    def resolve(self, memory: Memory) -> str:
        return memory.actor(self.actor).member_id or self.otherwise


@dataclass(frozen=True, repr=False)
class Generation(Reference):
    """A client's generation or member epoch, moved by `by`."""

    actor: int
    by: int = 0

    def __repr__(self) -> str:
        return f"<generation {self.actor}{self.by:+}>"

    def resolve(self, memory: Memory) -> int:
        return memory.actor(self.actor).generation + self.by


@dataclass(frozen=True, repr=False)
class Assigned(Reference):
    """The partitions that a client was assigned by a ConsumerGroupHeartbeat, the first `most`."""

    actor: int
    most: int = 100

    def __repr__(self) -> str:
        return f"<assigned {self.actor}>"

    def resolve(self, memory: Memory) -> list[dict[str, Any]]:
        return memory.actor(self.actor).assigned[: self.most]


@dataclass(frozen=True, repr=False)
class TopicId(Reference):
    """The id of a topic; of one that is not there an id that no topic has."""

    name: str

    def __repr__(self) -> str:
        return f"<{self.name}>"

    def resolve(self, memory: Memory) -> UUID:
        return memory.topic_ids.get(self.name, UNKNOWN_TOPIC_ID)


@dataclass(frozen=True, repr=False)
class ProtocolName(Reference):
    """The protocol a client's last JoinGroup named."""

    actor: int

    def __repr__(self) -> str:
        return f"<protocol {self.actor}>"

    def resolve(self, memory: Memory) -> str | None:
        return memory.actor(self.actor).protocol_name


@dataclass(frozen=True, repr=False)
class Assignments(Reference):
    """What a leader hands out: the partitions of a topic in turn, or the same `raw` bytes to each;
    nothing where the client does not lead.
    """

    actor: int
    topic: str = "alpha"
    raw: bytes | None = None

    def __repr__(self) -> str:
        return f"<assignments by {self.actor}>"

    def resolve(self, memory: Memory) -> list[dict[str, Any]]:
        members = memory.actor(self.actor).members
        ordered = sorted(members, key=lambda each: memory.names.get(each, each))
        return [
            {"member_id": member, "assignment": self._for(place, len(ordered))}
            for place, member in enumerate(ordered)
        ]

    def _for(self, place: int, count: int) -> bytes:
        if self.raw is not None:
            return self.raw
        mine = [each for each in range(TOPICS[self.topic]) if each % count == place]
        topics = [{"topic": self.topic, "partitions": mine}] if mine else []
        message = build(ConsumerProtocolAssignment, assigned_partitions=topics)
        return b"\0\0" + b"".join(bytes(part) for part in message.encode(0))


@dataclass(frozen=True)
class Step:
    """One request.

    Args:
        actor: the client that sends it.
        label: its kind, by which the list of differences names it.
        fields: as `build` takes them, with references.
    """

    actor: int
    api_key: ApiKey
    api_version: int
    label: str
    fields: dict[str, Any]

    @property
    def api(self) -> str:
        """The API's name."""
        return request_class(self.api_key).__name__.removesuffix("Request")

    @property
    def may_wait(self) -> bool:
        """Whether the answer may wait for requests of other members."""
        return self.api_key in (ApiKey.JOIN_GROUP, ApiKey.SYNC_GROUP)

    def request(self, memory: Memory) -> Message:
        """The request to the cluster that `memory` is about."""
        return build(request_class(self.api_key), **_resolved(self.fields, memory))

    def __str__(self) -> str:
        shown = ", ".join(f"{name}={value!r}" for name, value in self.fields.items())
        shown = _LONG_RUN.sub(r"\1...\1", shown)
        return f"client {self.actor}: {self.api} v{self.api_version} ({self.label}) {shown}"


@dataclass(frozen=True)
class Sequence:
    """Requests in their order.

    Args:
        name: says which one it is, and how to run it again.
    """

    name: str
    steps: tuple[Step, ...]


def learn(memory: Memory, number: int, step: Step, answer: Any) -> None:
    """Remember what the answer to step `number` gives the client that sent it."""
    actor = memory.actor(step.actor)
    error = ErrorCode(getattr(answer, "error_code", 0))
    if step.api_key is ApiKey.JOIN_GROUP:
        if error in (ErrorCode.NONE, ErrorCode.MEMBER_ID_REQUIRED) and answer.member_id:
            _name(memory, number, answer.member_id)
            actor.member_id = answer.member_id
        if error is ErrorCode.NONE:
            actor.generation = answer.generation_id
            actor.members = [each.member_id for each in answer.members]
            actor.protocol_type = answer.protocol_type
            actor.protocol_name = answer.protocol_name
    elif step.api_key is ApiKey.CONSUMER_GROUP_HEARTBEAT and error is ErrorCode.NONE:
        _name(memory, number, answer.member_id)
        actor.member_id = answer.member_id or actor.member_id
        actor.generation = answer.member_epoch
        if answer.assignment is not None:
            places = list(memory.topic_ids.values())
            actor.assigned = [
                {"topic_id": each.topic_id, "partitions": sorted(each.partitions)}
                for each in sorted(
                    answer.assignment.topic_partitions, key=lambda each: places.index(each.topic_id)
                )
            ]


def _name(memory: Memory, number: int, member_id: str | None) -> None:
    if member_id is not None and len(member_id) > LONGEST_OWN_ID:
        memory.names.setdefault(member_id, f"the member of step {number}")


LONGEST_OWN_ID: Final = 16
"""Ids that clients choose are shorter than any that a cluster makes."""


def _resolved(value: Any, memory: Memory) -> Any:
    if isinstance(value, Reference):
        return value.resolve(memory)
    if isinstance(value, dict):
        return {name: _resolved(each, memory) for name, each in value.items()}
    if isinstance(value, list):
        return [_resolved(each, memory) for each in value]
    return value
