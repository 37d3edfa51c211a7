"""Loads of groups: very many members in one group, which join, stay and leave.

Owns what a member sends and when, in the classic protocol and in that of KIP-848, over its own
connection; the book of owners; the phases, the clock and the figures. Must not print. Invariants: a
member gives up a partition before it says so, and the book raises when a partition has two owners;
a rebalance is over when all members are in the same round and every partition has its owner.
"""

from __future__ import annotations

import asyncio
import contextlib
import resource
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from moldau.cli.bench.figures import Cost, taken, together
from moldau.cli.bench.plans import GroupsPlan
from moldau.client import Admin, ClientConfig, KeyType, NewTopic
from moldau.client.cluster.metadata_cache import Broker
from moldau.client.errors import KafkaError, error_for
from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages import p11_join_group as join
from moldau.protocol.messages import p14_sync_group as sync
from moldau.protocol.messages import p68_consumer_group_heartbeat as beat
from moldau.protocol.messages.consumer_protocol import (
    ConsumerProtocolAssignment,
    ConsumerProtocolSubscription,
    TopicPartition,
    decode_payload,
    encode_payload,
)
from moldau.protocol.messages.p12_heartbeat import HeartbeatRequest
from moldau.protocol.messages.p13_leave_group import LeaveGroupRequest, MemberIdentity
from moldau.runtime.connection import Connection
from moldau.runtime.network import AsyncioNetwork

SESSION_TIMEOUT_MS: Final = 45_000
REBALANCE_TIMEOUT_MS: Final = 300_000
"""Defaults of Kafka's consumers."""

ANSWER_TIMEOUT_MS: Final = REBALANCE_TIMEOUT_MS + 30_000
PROTOCOL_TYPE: Final = "consumer"
PROTOCOL_NAME: Final = "range"
PROTOCOL_VERSION: Final = 1
LEAVE_EPOCH: Final = -1
JOIN_EPOCH: Final = 0

JOIN_AGAIN: Final = frozenset((ErrorCode.REBALANCE_IN_PROGRESS, ErrorCode.ILLEGAL_GENERATION))
ANOTHER_ID: Final = frozenset((ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_MEMBER_EPOCH))
CONNECTS_AT_ONCE: Final = 50
SPARE_DESCRIPTORS: Final = 100
SETTLE_LIMIT_S: Final = 300.0


@dataclass(slots=True)
class GroupBook:
    """The owner of each partition, in one group.

    `round` is a generation or a member epoch. Settled: every live member is in the same round, all
    partitions are owned, and no member owns two more than another. The last is needed because the
    coordinator may assign later than it lets join (KIP-1263): until then the first has everything.
    The heartbeat interval is the classic protocol's; with KIP-848 the broker says.
    """

    topic: str
    topic_id: uuid.UUID
    partition_count: int
    heartbeat_interval_s: float
    rounds: dict[int, int] = field(default_factory=dict)
    heartbeat_count: int = 0
    _owners: dict[int, int] = field(default_factory=dict)
    _owned: dict[int, frozenset[int]] = field(default_factory=dict)
    _all_owned: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def owned_count(self) -> int:
        return len(self._owners)

    def own(self, member: int, partitions: Iterable[int], round_number: int) -> None:
        """A member says what it owns from now on. Raises: KafkaError, when another one does."""
        before, now = self._owned.get(member, frozenset()), frozenset(partitions)
        for partition in before - now:
            del self._owners[partition]
        for partition in now - before:
            owner = self._owners.setdefault(partition, member)
            if owner != member:
                raise KafkaError(f"partition {partition} is owned by {owner} and {member}")
        self._owned[member] = now
        self.rounds[member] = round_number
        self._look()

    def leave(self, member: int) -> None:
        self.own(member, (), -1)
        del self.rounds[member], self._owned[member]
        self._look()

    async def settled_after(self, round_number: int, member_count: int) -> None:
        """Wait for a later round that all of so many members share."""
        while not self._is_settled(round_number, member_count):
            self._all_owned.clear()
            await self._all_owned.wait()

    def _is_settled(self, round_number: int, member_count: int) -> bool:
        if len(self.rounds) != member_count or self.owned_count != self.partition_count:
            return False
        shared, sizes = set(self.rounds.values()), [len(each) for each in self._owned.values()]
        return len(shared) == 1 and min(shared) > round_number and max(sizes) - min(sizes) <= 1

    def _look(self) -> None:
        if self.owned_count == self.partition_count:
            self._all_owned.set()


class Member(ABC):
    """One member: joins, and stays until `leave`. States: made → `run` → `leave`."""

    def __init__(self, number: int, group_id: str, connection: Connection, book: GroupBook) -> None:
        self._number = number
        self._group_id = group_id
        self._connection = connection
        self._book = book
        self._leaving = asyncio.Event()

    @abstractmethod
    async def run(self) -> None:
        """Join, and stay until `leave`; join again when asked to. Raises: KafkaError"""

    @abstractmethod
    async def leave(self) -> None:
        """Leave the group in order."""


class ClassicMember(Member):
    """A member of the classic protocol, eager."""

    _member_id = ""
    _generation_id = -1

    async def run(self) -> None:
        while not self._leaving.is_set():
            if not await self._join_and_sync():
                continue
            while await _pause(self._leaving, self._book.heartbeat_interval_s):
                response = await self._connection.send(
                    HeartbeatRequest(
                        group_id=self._group_id,
                        generation_id=self._generation_id,
                        member_id=self._member_id,
                    )
                )
                self._book.heartbeat_count += 1
                if self._checked(response.error_code, "heartbeat") != ErrorCode.NONE:
                    break

    async def leave(self) -> None:
        self._leaving.set()
        self._book.leave(self._number)
        members = [MemberIdentity(member_id=self._member_id)]
        response = await self._connection.send(
            LeaveGroupRequest(group_id=self._group_id, members=members)
        )
        _check(response.error_code, "leave", ())

    async def _join_and_sync(self) -> bool:
        """Join the group and fetch the assignment; whether this member is in a generation now."""
        self._book.own(self._number, (), -1)
        subscription = ConsumerProtocolSubscription(topics=[self._book.topic])
        protocol = join.JoinGroupRequestProtocol(
            name=PROTOCOL_NAME, metadata=encode_payload(subscription, PROTOCOL_VERSION)
        )
        response = await self._connection.send(
            join.JoinGroupRequest(
                group_id=self._group_id,
                session_timeout_ms=SESSION_TIMEOUT_MS,
                rebalance_timeout_ms=REBALANCE_TIMEOUT_MS,
                member_id=self._member_id,
                protocol_type=PROTOCOL_TYPE,
                protocols=[protocol],
            ),
            timeout_ms=ANSWER_TIMEOUT_MS,
        )
        if response.error_code == ErrorCode.MEMBER_ID_REQUIRED:
            self._member_id = response.member_id
            return False
        if self._checked(response.error_code, "join") != ErrorCode.NONE:
            return False
        self._member_id, self._generation_id = response.member_id, response.generation_id
        assignments = []
        if response.leader == self._member_id:
            assignments = self._assignments([each.member_id for each in response.members])
        answer = await self._connection.send(
            sync.SyncGroupRequest(
                group_id=self._group_id,
                generation_id=self._generation_id,
                member_id=self._member_id,
                protocol_type=PROTOCOL_TYPE,
                protocol_name=PROTOCOL_NAME,
                assignments=assignments,
            ),
            timeout_ms=ANSWER_TIMEOUT_MS,
        )
        if self._checked(answer.error_code, "sync") != ErrorCode.NONE:
            return False
        if not self._leaving.is_set():
            self._book.own(self._number, _assigned(answer.assignment), self._generation_id)
        return True

    def _assignments(self, member_ids: Sequence[str]) -> list[sync.SyncGroupRequestAssignment]:
        """Assignments as the range assignor makes them: neighbouring partitions together."""
        count = self._book.partition_count
        each, more = divmod(count, len(member_ids))
        assignments, first = [], 0
        for index, member_id in enumerate(sorted(member_ids)):
            end = first + each + (index < more)
            run = TopicPartition(topic=self._book.topic, partitions=list(range(first, end)))
            assignment = ConsumerProtocolAssignment(assigned_partitions=[run])
            data = encode_payload(assignment, PROTOCOL_VERSION)
            assignments.append(
                sync.SyncGroupRequestAssignment(member_id=member_id, assignment=data)
            )
            first = end
        return assignments

    def _checked(self, error_code: int, what: str) -> int:
        if error_code == ErrorCode.UNKNOWN_MEMBER_ID:
            self._member_id = ""
        return _check(error_code, what, JOIN_AGAIN | ANOTHER_ID)


class ConsumerMember(Member):
    """A member of the protocol of KIP-848."""

    def __init__(self, number: int, group_id: str, connection: Connection, book: GroupBook) -> None:
        super().__init__(number, group_id, connection, book)
        self._member_id = str(uuid.uuid4())
        self._member_epoch = JOIN_EPOCH
        self._owned: frozenset[int] = frozenset()
        self._told: frozenset[int] | None = None

    async def run(self) -> None:
        while not self._leaving.is_set():
            response = await self._heartbeat()
            if self._leaving.is_set():
                return
            if _check(response.error_code, "heartbeat", ANOTHER_ID) != ErrorCode.NONE:
                self._member_epoch, self._owned, self._told = JOIN_EPOCH, frozenset(), None
                self._book.own(self._number, (), JOIN_EPOCH)
                continue
            self._member_epoch = response.member_epoch
            if response.assignment is not None:
                self._owned = frozenset(
                    index
                    for topic in response.assignment.topic_partitions
                    for index in topic.partitions
                )
            self._book.own(self._number, self._owned, self._member_epoch)
            # A change is sent at once, otherwise the heartbeat waits for its interval.
            if self._owned == self._told:
                await _pause(self._leaving, response.heartbeat_interval_ms / 1000)

    async def leave(self) -> None:
        self._leaving.set()
        self._book.leave(self._number)
        self._member_epoch = LEAVE_EPOCH
        response = await self._connection.send(
            beat.ConsumerGroupHeartbeatRequest(
                group_id=self._group_id, member_id=self._member_id, member_epoch=LEAVE_EPOCH
            )
        )
        _check(response.error_code, "leave", ())

    async def _heartbeat(self) -> beat.ConsumerGroupHeartbeatResponse:
        """Send everything when joining, then only what has changed."""
        is_joining = self._member_epoch == JOIN_EPOCH
        has_changed = self._owned != self._told
        self._told = self._owned
        self._book.heartbeat_count += 1
        owned = [beat.TopicPartitions(topic_id=self._book.topic_id, partitions=sorted(self._owned))]
        return await self._connection.send(
            beat.ConsumerGroupHeartbeatRequest(
                group_id=self._group_id,
                member_id=self._member_id,
                member_epoch=self._member_epoch,
                rebalance_timeout_ms=REBALANCE_TIMEOUT_MS if is_joining else -1,
                subscribed_topic_names=[self._book.topic] if is_joining else None,
                topic_partitions=(owned if self._owned else [])
                if is_joining or has_changed
                else None,
            ),
            timeout_ms=ANSWER_TIMEOUT_MS,
        )


#: By the name of the protocol, as `group.protocol` has it.
MEMBER_KINDS: Final[Mapping[str, Callable[[int, str, Connection, GroupBook], Member]]] = {
    "classic": ClassicMember,
    "consumer": ConsumerMember,
}


def _assigned(assignment: bytes) -> list[int]:
    if not assignment:
        return []
    message = decode_payload(ConsumerProtocolAssignment, assignment)
    return [index for topic in message.assigned_partitions for index in topic.partitions]


def _check(error_code: int, what: str, expected: Collection[int]) -> int:
    """The code, when the member can go on after it. Raises: KafkaError"""
    if error_code != ErrorCode.NONE and error_code not in expected:
        raise error_for(error_code, None, what)
    return error_code


async def _pause(leaving: asyncio.Event, seconds: float) -> bool:
    """Wait; whether to go on. Returns early when the member shall leave."""
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(leaving.wait(), seconds)
    return not leaving.is_set()


@dataclass(slots=True)
class Phase:
    """What one phase took of this process, and of the coordinator's where its id is given."""

    name: str
    cost: Cost
    pid: int | None
    heartbeat_count: int

    def document(self) -> dict[str, object]:
        server = None if self.pid is None else round(self.cost.cpu_seconds(self.pid), 3)
        return {
            "name": self.name,
            "seconds": round(self.cost.seconds, 3),
            "server_cpu_seconds": server,
            "client_cpu_seconds": round(self.cost.own_cpu_seconds, 3),
            "heartbeat_count": self.heartbeat_count,
        }


class GroupLoad:
    """One group in one protocol. Use `await GroupLoad.measure(…)`."""

    def __init__(self, plan: GroupsPlan, book: GroupBook, group_id: str) -> None:
        self._plan = plan
        self._book = book
        self._group_id = group_id
        self._members: list[Member] = []
        self._connections: list[Connection] = []
        self.phases: list[Phase] = []

    @classmethod
    async def measure(cls, config: ClientConfig, plan: GroupsPlan) -> list[Phase]:
        """Run all phases on their own topic, in their own group. Raises: KafkaError, OSError"""
        _have_descriptors(plan.members)
        topic = group_id = f"bench-groups-{uuid.uuid4().hex[:12]}"
        new_topic = NewTopic(topic, plan.partitions, plan.replication_factor)
        async with Admin(config=config) as admin:
            ids = await admin.create_topics([new_topic])
            try:
                # Waits until the coordinator has loaded; the group is not there yet.
                await admin.describe_groups([group_id])
                found = (await admin.find_coordinators(KeyType.GROUP, [group_id]))[group_id]
                if isinstance(found, KafkaError):
                    raise found
                book = GroupBook(topic, ids[topic], plan.partitions, plan.heartbeat_ms / 1000)
                load = cls(plan, book, group_id)
                try:
                    await load._connect(config, found)
                    await load._run()
                finally:
                    for connection in load._connections:
                        connection.close()
                await admin.delete_groups([group_id])
            finally:
                await admin.delete_topics([topic])
        return load.phases

    async def _connect(self, config: ClientConfig, broker: Broker) -> None:
        """A connection for every member, one more for the one that comes later."""
        network, places = AsyncioNetwork(), asyncio.Semaphore(CONNECTS_AT_ONCE)

        async def connect() -> None:
            async with places:
                connection = await Connection.connect(
                    *(network, broker.host, broker.port),
                    client_id=config.client_id,
                    request_timeout_ms=config.request_timeout_ms,
                )
                self._connections.append(connection)

        await asyncio.gather(*(connect() for _ in range(self._plan.members + 1)))
        kind = MEMBER_KINDS[self._plan.protocol]
        self._members = [
            kind(number, self._group_id, connection, self._book)
            for number, connection in enumerate(self._connections)
        ]

    async def _run(self) -> None:
        *first, late = self._members
        count = len(first)
        async with together() as group:
            with self._phase("all join"):
                for member in first:
                    group.create_task(member.run())
                await self._settled(-1, count)
            with self._phase("all stay"):
                await asyncio.sleep(self._plan.idle_seconds)
            with self._phase("one joins"):
                group.create_task(late.run())
                await self._settled(max(self._book.rounds.values()), count + 1)
            with self._phase("one leaves"):
                before = max(self._book.rounds.values())
                await first[0].leave()
                await self._settled(before, count)
            # Not a figure: a group that is deleted afterwards has to be empty.
            await asyncio.gather(*(member.leave() for member in self._members[1:]))

    async def _settled(self, round_number: int, member_count: int) -> None:
        try:
            async with asyncio.timeout(SETTLE_LIMIT_S):
                await self._book.settled_after(round_number, member_count)
        except TimeoutError:
            raise KafkaError(
                f"{self._group_id}: not settled in {SETTLE_LIMIT_S:.0f} s: "
                f"{len(self._book.rounds)} members, {self._book.owned_count} partitions owned"
            ) from None

    @contextlib.contextmanager
    def _phase(self, name: str) -> Iterator[None]:
        pid, heartbeats = self._plan.pid, self._book.heartbeat_count
        with taken(*([] if pid is None else [pid])) as cost:
            yield
        self.phases.append(Phase(name, cost, pid, self._book.heartbeat_count - heartbeats))


def _have_descriptors(member_count: int) -> None:
    """Raise the limit of open files to what the members need. Raises: KafkaError"""
    needed = member_count + SPARE_DESCRIPTORS
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < needed:
        if hard != resource.RLIM_INFINITY and hard < needed:
            raise KafkaError(f"{member_count} members need {needed} open files, {hard} may be")
        resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))
