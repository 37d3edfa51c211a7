"""What coordinators have committed to `__consumer_offsets`: offsets, generations, assignments.

Owns: the committed offsets of every group with their history, what is pending in transactions, and
who is assigned what. Must not: use the production state machines. Invariants: a generation or epoch
never goes back, and gives no partition to two members; of a consumer group's members no two ever
own the same partition, revocation included; an offset goes back only if somebody asked for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from moldau.protocol.coordinator_records import CONSUMER_OFFSETS
from moldau.protocol.messages.consumer_protocol_assignment import ConsumerProtocolAssignment
from moldau.protocol.records import Record
from tests.simulation.scheduler import Violation

OFFSET, GROUP, EPOCH, TARGET_EPOCH, TARGET, CURRENT = 1, 2, 3, 6, 7, 8

OffsetKey = tuple[str, str, int]
"""Group, topic, partition."""


class Commit(NamedTuple):
    """A committed offset. `place`: where its record lies in the log; `since`: virtual seconds."""

    offset: int
    metadata: str
    place: int
    since: float


class Author(NamedTuple):
    """Who sent a commit. `epoch`: the generation, or the member epoch, that it was sent with."""

    member_id: str
    epoch: int


class GroupLog:
    """All partitions of the topic together."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self.commits: dict[OffsetKey, list[Commit]] = {}
        self.asked_again: dict[OffsetKey, set[int]] = {}
        """Offsets that were sent to be committed and not answered: they may arrive at any time."""
        self.may_go_back: set[str] = set()
        """Groups with a producer whose late requests nothing tells from new ones (version 1)."""
        self.generations: dict[str, int] = {}
        self.targets: dict[str, dict[str, frozenset[tuple[Any, int]]]] = {}
        self.current: dict[str, dict[str, frozenset[tuple[Any, int]]]] = {}
        self.member_epochs: dict[str, dict[str, int]] = {}
        """Of consumer groups, as the log says."""
        self.classic_members: dict[str, frozenset[str]] = {}
        """Of classic groups, as the log says."""
        self.authors: dict[str, Author] = {}
        """By the metadata of their commits."""
        self.authors_checked = 0
        self.wents_back = 0

    def last(self, key: OffsetKey) -> Commit | None:
        """What is committed now."""
        commits = self.commits.get(key)
        return commits[-1] if commits else None

    def member_ids(self, group: str) -> frozenset[str]:
        """Who is in a group, of either protocol."""
        classic = self.classic_members.get(group, frozenset())
        return classic.union(self.member_epochs.get(group, ()))

    def is_classic(self, group: str) -> bool:
        """Whether the members of a group are those of a classic one."""
        return bool(self.classic_members.get(group))

    def check_authors(self, records: Iterable[Record], topic_id_of: Callable[[str], Any]) -> None:
        """Offsets as they come to lie in the log, of transactions too: whoever commits is a member
        then, of the generation that is in force, or (KIP-848) still has what it commits.
        """
        for record in records:
            key: Any = CONSUMER_OFFSETS.decode_key(record.key or b"")
            if key.API_KEY != OFFSET or record.value is None:
                continue
            value: Any = CONSUMER_OFFSETS.decode_value(key, record.value)[0]
            author = self.authors.get(value.metadata)
            if author is None:
                continue
            self.authors_checked += 1
            members = self.member_epochs.get(key.group)
            if members is None:
                generation = self.generations.get(key.group, author.epoch)
                if author.epoch < generation:
                    raise Violation(
                        "stale-generation-committed", f"{key}: {author} in generation {generation}"
                    )
                continue
            known = members.get(author.member_id)
            if known is None or author.epoch > known:
                raise Violation("committed-by-no-member", f"{key}: {author}, members {members}")
            mine = self.current[key.group][author.member_id]
            if author.epoch < known and (topic_id_of(key.topic), key.partition) not in mine:
                raise Violation(
                    "stale-member-committed", f"{key}: {author}, in epoch {known} it has {mine}"
                )

    def feed(self, placed: Iterable[tuple[int, Record]]) -> None:
        """Records that are in force from now on, with their offsets: not of a transaction, or of
        one that was committed.
        """
        changed: dict[str, None] = {}
        for place, record in placed:
            key: Any = CONSUMER_OFFSETS.decode_key(record.key or b"")
            value: Any = None
            if record.value is not None:
                value = CONSUMER_OFFSETS.decode_value(key, record.value)[0]
            self._take(key, value, place)
            if key.API_KEY in (TARGET, TARGET_EPOCH, CURRENT):
                changed[key.group_id] = None
        for group in changed:
            self._check_disjoint(group, self.targets.get(group, {}), "assigned-twice")
            self._check_disjoint(group, self.current.get(group, {}), "two-owners")

    def _take(self, key: Any, value: Any, place: int) -> None:
        kind = key.API_KEY
        if kind == OFFSET:
            self._commit((key.group, key.topic, key.partition), value, place)
        elif kind == GROUP:
            self._generation(key.group, value)
        elif kind == EPOCH:
            if value is None:
                for known in (self.generations, self.targets, self.current, self.member_epochs):
                    known.pop(key.group_id, None)
            else:
                self._advance(key.group_id, value.epoch)
        elif kind == TARGET:
            members = self.targets.setdefault(key.group_id, {})
            self._assign(members, key.member_id, value, "topic_partitions")
        elif kind == CURRENT:
            members = self.current.setdefault(key.group_id, {})
            names = ("assigned_partitions", "partitions_pending_revocation")
            self._assign(members, key.member_id, value, *names)
            epochs = self.member_epochs.setdefault(key.group_id, {})
            if value is None:
                epochs.pop(key.member_id, None)
            else:
                epochs[key.member_id] = value.member_epoch

    def _commit(self, key: OffsetKey, value: Any, place: int) -> None:
        commits = self.commits.setdefault(key, [])
        if value is None:
            commits.clear()
            return
        if commits and commits[-1].place > place:
            return  # an older one whose transaction took longer
        if commits and commits[-1].offset > value.offset:
            if value.offset not in self.asked_again.get(key, ()) and key[0] not in self.may_go_back:
                raise Violation("offset-went-back", f"{key}: {value} after {commits[-1]}")
            self.wents_back += 1
        commits.append(Commit(value.offset, value.metadata, place, self._now()))

    def _generation(self, group: str, value: Any) -> None:
        if value is None:
            self.generations.pop(group, None)
            self.classic_members.pop(group, None)
            return
        self.classic_members[group] = frozenset(each.member_id for each in value.members)
        self._advance(group, value.generation)
        owners: dict[tuple[str, int], str] = {}
        for member in value.members:
            for partition in assigned(member.assignment):
                other = owners.setdefault(partition, member.member_id)
                if other != member.member_id:
                    raise Violation("assigned-twice", f"{group}: {partition} in {value}")

    def _advance(self, group: str, generation: int) -> None:
        if generation < self.generations.get(group, generation):
            known = self.generations[group]
            raise Violation("generation-back", f"{group}: {generation} after {known}")
        self.generations[group] = generation

    def _assign(self, members: dict[str, Any], member_id: str, value: Any, *names: str) -> None:
        if value is None:
            members.pop(member_id, None)
            return
        members[member_id] = frozenset(
            (topic.topic_id, index)
            for name in names
            for topic in getattr(value, name)
            for index in topic.partitions
        )

    def _check_disjoint(self, group: str, members: dict[str, Any], what: str) -> None:
        total = sum(len(each) for each in members.values())
        if total != len(frozenset().union(*members.values())):
            raise Violation(what, f"{group}: {members}")


def assigned(assignment: bytes) -> list[tuple[str, int]]:
    """The partitions in a classic member's assignment."""
    if not assignment:
        return []
    version = int.from_bytes(assignment[:2], "big", signed=True)
    decoded: Any = ConsumerProtocolAssignment.decode(bytes(assignment), version, 2)[0]
    return [
        (topic.topic, index) for topic in decoded.assigned_partitions for index in topic.partitions
    ]
