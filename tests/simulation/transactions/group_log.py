"""What coordinators have committed to `__consumer_offsets`: offsets, generations, assignments.

Owns: the committed offsets of every group with their history, what is pending in transactions, and
who is assigned what. Must not: use the production state machines. Invariants: a generation or epoch
never goes back, and gives no partition to two members; of a consumer group's members no two ever
own the same partition, revocation included; an offset of one topic goes back only if a client asked
for it; after an offset of a topic that was created again comes none of the topic before it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from math import inf
from typing import Any, NamedTuple
from uuid import UUID

from moldau.protocol.coordinator_records import CONSUMER_OFFSETS
from moldau.protocol.messages.consumer_protocol import ConsumerProtocolAssignment
from moldau.protocol.records import Record
from moldau.protocol.types import ZERO_UUID
from tests.kit.seeds import Violation

OFFSET, GROUP, EPOCH, MEMBER, TARGET_EPOCH, TARGET, CURRENT = 1, 2, 3, 5, 6, 7, 8

OffsetKey = tuple[str, str, int]
"""Group, topic, partition."""


class Commit(NamedTuple):
    """A committed offset. `place`: where its record lies in the log; `since`: virtual seconds;
    `timestamp_ms`: when it was committed by the wall clock of its coordinator; `topic_id`: zero
    where the record does not say it, as in a transaction.
    """

    offset: int
    metadata: str
    place: int
    since: float
    timestamp_ms: int
    topic_id: UUID = ZERO_UUID


class Author(NamedTuple):
    """Who sent a commit. `epoch`: the generation, or the member epoch, that it was sent with."""

    member_id: str
    epoch: int
    instance_id: str | None = None


@dataclass(slots=True)
class Patience:
    """How long a coordinator waits for a member before it gives the member's partitions to others:
    `session_s` from the last time that it heard of it, and `rebalance_s`, heard or not, from when
    it asked for something back. `heard_at`: when the member sent the last heartbeat (or join) that
    was answered well; `asked_at`: the earliest time at which it may have been asked.
    """

    session_s: float
    rebalance_s: float
    heard_at: float = 0.0
    asked_at: float = inf

    @property
    def ends_at(self) -> float:
        return min(self.heard_at + self.session_s, self.asked_at + self.rebalance_s)


@dataclass(frozen=True, slots=True)
class Ownership:
    """Who reads a partition for its group. `patience`: its coordinator's, which changes whenever
    the member is heard. `instance_id`: of a static member; `is_classic`: whether it speaks the
    classic protocol; `topic_id`: of the topic, of which a member of the classic protocol knows only
    the name.
    """

    member: str
    patience: Patience
    instance_id: str | None = None
    is_classic: bool = False
    topic_id: UUID | None = None


class GroupLog:
    """All partitions of the topic together."""

    def __init__(
        self,
        now: Callable[[], float],
        topic_id_of: Callable[[str], Any],
        readers: Mapping[OffsetKey, Any] | None = None,
    ) -> None:
        self._now = now
        self._readers = readers
        self.topic_id_of = topic_id_of
        self.commits: dict[OffsetKey, list[Commit]] = {}
        self.asked_again: dict[OffsetKey, set[int]] = {}
        """Offsets that were sent to be committed and not answered: they may arrive at any time."""
        self.may_go_back: set[str] = set()
        """Groups with a producer whose late requests nothing distinguishes from new ones (version
        1).
        """
        self.by_name: dict[str, set[str]] = {}
        """The names by consumer group: its classic members, those of before included."""
        self.generations: dict[str, int] = {}
        self.targets: dict[str, dict[str, frozenset[tuple[Any, int]]]] = {}
        self.current: dict[str, dict[str, frozenset[tuple[Any, int]]]] = {}
        self.member_epochs: dict[str, dict[str, int]] = {}
        """The epochs of consumer groups' members, as the log says."""
        self.classic_members: dict[str, frozenset[str]] = {}
        """The members of classic groups, as the log says."""
        self.heard_until: dict[tuple[str, str], float] = {}
        """The times by group and member id: when the coordinator may put a classic member out that
        it has just answered that all is well; virtual seconds. Static ones may lose their place at
        any time.
        """
        self.authors: dict[str, Author] = {}
        """The authors by the metadata of their commits."""
        self.instances: dict[str, dict[str, str]] = {}
        """The members by group and instance id: whose the id is, as the log says."""
        self.instance_ids: dict[str, dict[str, str]] = {}
        """The instance id that a member has, by consumer group and member."""
        self.owners: dict[str, dict[tuple[str, int], str]] = {}
        """Which member of a classic group has each partition, as the log says."""
        self.left: set[tuple[str, str]] = set()
        """Groups and classic members that have asked to leave: the log may say it later, or never
        when a full disk refused the record.
        """
        self.replaced_in: dict[str, int] = {}
        """The generations by classic group: the last generation in which a process took a static
        member's place.
        """
        self.seen_at: dict[str, float] = {}
        """When the newest record of an existing group came."""
        self.removed: dict[OffsetKey, list[tuple[Commit, float]]] = {}
        """What was committed once, and is not there any more, with the time until which it was."""
        self.removed_at: dict[OffsetKey, int] = {}
        """Where the newest tombstone of an offset lies."""
        self.forgotten: dict[str, None] = {}
        """Groups that have lost offsets while they had no use for them."""
        self._topic_ids: dict[OffsetKey, list[UUID]] = {}
        """The topics of the name of which offsets were committed, in their order."""
        self.ended: dict[str, bool] = {}
        """Whether the newest record of a group that a coordinator has written, committed or not,
        ends the group."""
        self.begun_at: dict[str, float] = {}
        """When a coordinator has written the first record of a group that was not there."""
        self.written_as: dict[str, int] = {}
        """The kind (GROUP or EPOCH) of a group's newest such record that is no end."""
        self.unreadable: set[str] = set()
        """Groups that a classic member has asked to join that says what cannot be read."""
        self.authors_checked = 0
        self.wents_back = 0

    def last(self, key: OffsetKey) -> Commit | None:
        """What is committed now."""
        commits = self.commits.get(key)
        return commits[-1] if commits else None

    def removed_since(self, key: OffsetKey, since: float) -> list[Commit]:
        """What was still committed at some time since then, and has been removed."""
        return [each for each, until in self.removed.get(key, ()) if until >= since]

    def tellable(
        self, key: OffsetKey, asked_at: float, topic_id: UUID | None, *, is_leader: bool
    ) -> list[tuple[int, str]]:
        """Offsets, and their metadata, that a coordinator may say are committed: any that was at
        some time since it was asked, for the answer may have waited, or be on its way still. One
        that does not know that it is none any more may say what was replaced before.
        """
        commits, removed = self.commits.get(key, []), self.removed_since(key, asked_at)
        if topic_id is not None:
            mark = str(topic_id)
            commits = [each for each in commits if topic_mark(each.metadata) == mark]
            removed = [each for each in removed if topic_mark(each.metadata) == mark]
        found = [(each.offset, each.metadata) for each in removed]
        if not commits or not is_leader or commits[0].since >= asked_at:
            found.append((-1, ""))
        for number, each in enumerate(commits):
            is_replaced = number + 1 < len(commits) and commits[number + 1].since < asked_at
            if not is_leader or not is_replaced:
                found.append((each.offset, each.metadata))
        return found

    def member_ids(self, group: str) -> frozenset[str]:
        """Who is in a group, of either protocol."""
        classic = self.classic_members.get(group, frozenset())
        return classic.union(self.member_epochs.get(group, ()))

    def is_classic(self, group: str) -> bool:
        """Whether the members of a group are those of a classic one."""
        return bool(self.classic_members.get(group))

    def wrote(self, records: Iterable[Record]) -> None:
        """Records as a coordinator writes them, whether they will be committed or not."""
        for record in records:
            key: Any = CONSUMER_OFFSETS.decode_key(record.key or b"")
            if key.API_KEY not in (GROUP, EPOCH):
                continue
            group = key.group if key.API_KEY == GROUP else key.group_id
            is_end = record.value is None
            if self.ended.get(group, True) and not is_end:
                self.begun_at[group] = self._now()
            self.ended[group] = is_end
            if not is_end:
                self.written_as[group] = key.API_KEY

    def may_come_late(self, request: Any, names: Mapping[UUID, str]) -> None:
        """An OffsetCommit arrives at any time, or has arrived already."""
        for topic, partition in partitions_of(request, names):
            key = (request.group_id, topic, partition.partition_index)
            self.asked_again.setdefault(key, set()).add(partition.committed_offset)

    def was_absent(self, group: str, since: float) -> bool:
        """Whether a coordinator has had no such group at some time since then: it had ended, or had
        not begun.
        """
        return self.ended.get(group, True) or self.begun_at[group] >= since

    def may_stay_classic(self, group: str) -> bool:
        """Whether the group is classic, and perhaps in the hands of a member that cannot be read.
        It becomes no consumer group then, and its coordinator knows none of its name.
        """
        return group in self.unreadable and self.written_as.get(group) == GROUP

    def check_authors(self, records: Iterable[Record]) -> None:
        """Offsets as they come to lie in the log, of transactions too: the client that commits is a
        member then, of the generation that is in force, or (KIP-848) still has what it commits.
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
            self._check_instance(key, author)
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
            is_mine = (self.topic_id_of(key.topic), key.partition) in mine
            if author.epoch < known and not is_mine and topic_mark(value.metadata) is None:
                raise Violation(
                    "stale-member-committed", f"{key}: {author}, in epoch {known} it has {mine}"
                )

    def _check_instance(self, key: Any, author: Author) -> None:
        """A static member that another one has replaced commits nothing any more."""
        if author.instance_id is None:
            return
        holder = self.instances.get(key.group, {}).get(author.instance_id)
        if holder is not None and holder != author.member_id:
            raise Violation("replaced-member-committed", f"{key}: {author}, it is {holder}")

    def feed(self, placed: Iterable[tuple[int, Record]]) -> None:
        """Records that are in force from now on, with their offsets: not of a transaction, or of
        one that was committed.
        """
        changed: dict[str, None] = {}
        changed_members: set[str] = set()
        for place, record in placed:
            key: Any = CONSUMER_OFFSETS.decode_key(record.key or b"")
            value: Any = None
            if record.value is not None:
                value = CONSUMER_OFFSETS.decode_value(key, record.value)[0]
            self._take(key, value, place)
            if key.API_KEY in (MEMBER, TARGET, TARGET_EPOCH, CURRENT):
                changed[key.group_id] = None
            if key.API_KEY in (GROUP, EPOCH, CURRENT):
                changed_members.add(key.group if key.API_KEY == GROUP else key.group_id)
        for group in changed:
            self._check_disjoint(group, self.targets.get(group, {}), "assigned-twice")
            self._check_disjoint(group, self.current.get(group, {}), "two-owners")
            self._check_instances(group)
        if changed_members:
            self._check_heard(changed_members)

    def _check_heard(self, groups: set[str]) -> None:
        """A member that is heard is put out of no group."""
        for (group, member_id), until in list(self.heard_until.items()):
            if group in groups and member_id not in self.member_ids(group):
                if self._now() < until:
                    raise Violation(
                        "expelled-though-heard",
                        f"{group}: {member_id} has until {until * 1000:.3f}",
                    )
                del self.heard_until[(group, member_id)]

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
                self._end(key.group_id)
            else:
                self.seen_at[key.group_id] = self._now()
                self._advance(key.group_id, value.epoch)
        elif kind == MEMBER:
            self._instance(key.group_id, key.member_id, value)
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
            self._remove(key, commits, place)
            return
        if self.removed_at.get(key, -1) > place:
            return  # a transaction's, which the tombstone took as well
        if commits and commits[-1].place > place:
            return  # an older one whose transaction took longer
        is_first = self._is_first_of_topic(key, value)
        if commits and commits[-1].offset > value.offset and not is_first:
            is_lawful = value.offset in self.asked_again.get(key, ()) or key[0] in self.may_go_back
            by_name = any(self._was_taken_by_name(key, each) for each in (commits[-1], value))
            if not is_lawful and not by_name:
                raise Violation("offset-went-back", f"{key}: {value} after {commits[-1]}")
            self.wents_back += 1
        timestamp_ms = value.commit_timestamp
        commits.append(
            Commit(value.offset, value.metadata, place, self._now(), timestamp_ms, value.topic_id)
        )

    def _was_taken_by_name(self, key: OffsetKey, commit: Any) -> bool:
        """Whether a classic member of a consumer group committed it that has the partition of the
        topic before. It knows topics by their names, and goes on with the new one until it hears of
        the rebalance, while another member has got it: as in Apache Kafka.
        """
        author = self.authors.get(commit.metadata)
        group, _topic, index = key
        if author is None or author.member_id not in self.by_name.get(group, ()):
            return False
        mine = self.current.get(group, {}).get(author.member_id, ())
        return (commit.topic_id, index) not in mine

    def _is_first_of_topic(self, key: OffsetKey, value: Any) -> bool:
        """Whether this is the first offset of a topic that was created again: its offsets begin
        again, and may replace those of the topic before it, whose tombstones the coordinator cannot
        always write in time. A coordinator that knows the new topic takes no offset of the old one.
        """
        if value.topic_id == ZERO_UUID:
            return False
        known = self._topic_ids.setdefault(key, [])
        if value.topic_id in known:
            if value.topic_id != known[-1]:
                raise Violation("offset-of-a-topic-before", f"{key}: {value}, topics {known}")
            return False
        known.append(value.topic_id)
        return len(known) > 1

    def _remove(self, key: OffsetKey, commits: list[Commit], place: int) -> None:
        """Offsets go because a client asked, in time, or with their topic; never from under a
        member that has the partition.
        """
        mark = topic_mark(commits[-1].metadata) if commits else ""
        is_in_use = mark in (None, str(self.topic_id_of(key[1]))) and self._is_owned(*key)
        if is_in_use:
            raise Violation("living-group-lost-offset", f"{key}: {commits[-1]}")
        self.removed_at[key] = place
        self.forgotten[key[0]] = None
        ends = [*(each.since for each in commits[1:]), self._now()]
        self.removed.setdefault(key, []).extend(zip(commits, ends, strict=False))
        commits.clear()

    def was_removed(self, key: OffsetKey, offset: int, metadata: str) -> bool:
        """Whether that was committed once, and a tombstone has taken it."""
        removed = [commit for commit, _until in self.removed.get(key, ())]
        return any((each.offset, each.metadata) == (offset, metadata) for each in removed)

    def _is_owned(self, group: str, topic: str, index: int) -> bool:
        if group in self.member_epochs:
            place = (self.topic_id_of(topic), index)
            return any(place in mine for mine in self.current.get(group, {}).values())
        owner = self.owners.get(group, {}).get((topic, index))
        if owner is None or (group, owner) in self.left:
            return False
        # The record without its members may have found no room: as with Apache Kafka, the group is
        # empty all the same for its coordinator, until another one loads the log.
        if self._readers is None:
            return True
        reader = self._readers.get((group, topic, index))
        return reader is not None and self._now() < reader.patience.ends_at

    def _end(self, group: str) -> None:
        """Nothing but offsets is left of a group."""
        for known in (self.seen_at, self.instances, self.instance_ids, self.owners):
            known.pop(group, None)  # type: ignore[attr-defined]
        self.replaced_in.pop(group, None)

    def _instance(self, group: str, member_id: str, value: Any) -> None:
        if value is not None and value.classic_member_metadata is not None:
            self.by_name.setdefault(group, set()).add(member_id)
        instances = self.instances.setdefault(group, {})
        before = self.instance_ids.setdefault(group, {}).pop(member_id, None)
        if value is not None and value.instance_id is not None:
            self.instance_ids[group][member_id] = value.instance_id
            instances[value.instance_id] = member_id
        elif before is not None and instances.get(before) == member_id:
            del instances[before]

    def _check_instances(self, group: str) -> None:
        """No two members of a group have one instance id."""
        epochs = self.member_epochs.get(group, {})
        there = [
            instance_id
            for member_id, instance_id in self.instance_ids.get(group, {}).items()
            if epochs.get(member_id, -1) >= 0
        ]
        if len(there) != len(set(there)):
            raise Violation("static-id-twice", f"{group}: {self.instance_ids[group]}, {epochs}")

    def _generation(self, group: str, value: Any) -> None:
        if value is None:
            self.generations.pop(group, None)
            self.classic_members.pop(group, None)
            self._end(group)
            return
        self.seen_at[group] = self._now()
        before = self.owners.get(group, {}).keys()
        is_replaced = self._classic_instances(group, value)
        self.classic_members[group] = frozenset(each.member_id for each in value.members)
        self._advance(group, value.generation)
        owners: dict[tuple[str, int], str] = {}
        for member in value.members:
            for partition in assigned(member.assignment):
                other = owners.setdefault(partition, member.member_id)
                if other != member.member_id:
                    raise Violation("assigned-twice", f"{group}: {partition} in {value}")
        self.owners[group] = owners
        if is_replaced:
            self.replaced_in[group] = value.generation
            if owners.keys() != before:
                raise Violation("replaced-member-lost-assignment", f"{group}: {before}, {value}")

    def _classic_instances(self, group: str, value: Any) -> bool:
        """Whether a process has taken a static member's place without a rebalance (KIP-345)."""
        instances: dict[str, str] = {}
        for member in value.members:
            if member.group_instance_id is None:
                continue
            other = instances.setdefault(member.group_instance_id, member.member_id)
            if other != member.member_id:
                raise Violation("static-id-twice", f"{group}: {value}")
        known, self.instances[group] = self.instances.get(group, {}), instances
        is_in_force = self.is_classic(group) and self.generations.get(group) == value.generation
        return is_in_force and any(
            known.get(each, holder) != holder for each, holder in instances.items()
        )

    def is_left_over(self, group: str, place: tuple[str, int]) -> bool:
        """Whether the generation in force gives a partition to no member, and a process has taken a
        static member's place in it. Its predecessor may have been the one that was to give the
        partition up and to join again. The successor gets the predecessor's assignment and begins
        no rebalance (KIP-345), so that the partition has no owner until another rebalance, in
        Apache Kafka, too.
        """
        return (
            self.is_classic(group)
            and self.replaced_in.get(group) == self.generations.get(group)
            and place not in self.owners[group]
        )

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


def partitions_of(message: Any, names: Mapping[UUID, str]) -> list[tuple[str, Any]]:
    """Those of an OffsetCommit or its answer, each with its topic's name."""
    return [
        (topic.name or names[topic.topic_id], partition)
        for topic in message.topics
        for partition in topic.partitions
    ]


def marked(metadata: str, topic_id: Any) -> str:
    """Metadata that say of which topic their offset is."""
    return f"{metadata}@{topic_id}"


def commit_number(metadata: str) -> int:
    """Which of its process's commits has these metadata, counted in the order of the calls."""
    return int(metadata.partition("@")[0].rpartition(":")[2])


def topic_mark(metadata: str) -> str | None:
    """The id of the topic that an offset is of, when its metadata say so."""
    return metadata.rpartition("@")[2] if "@" in metadata else None


def assigned(assignment: bytes) -> list[tuple[str, int]]:
    """The partitions in a classic member's assignment."""
    if not assignment:
        return []
    version = int.from_bytes(assignment[:2], "big", signed=True)
    decoded: Any = ConsumerProtocolAssignment.decode(bytes(assignment), version, 2)[0]
    return [
        (topic.topic, index) for topic in decoded.assigned_partitions for index in topic.partitions
    ]
