"""Clients that ask coordinators for what no library would: alone, they may hurt only themselves.

Owns: what such a client sends, and the answers that it may get. Must not: use the applications'
connections. Invariants: a session outside the brokers' limits is never taken; no request makes a
coordinator answer with an error that means its own failure.
"""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING, Any

from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages import p08_offset_commit as committing
from moldau.protocol.messages import p11_join_group as joining
from moldau.protocol.messages import p14_sync_group as syncing
from moldau.protocol.messages.consumer_protocol import ConsumerProtocolSubscription, encode_payload
from moldau.protocol.messages.p12_heartbeat import HeartbeatRequest
from moldau.protocol.messages.p22_init_producer_id import InitProducerIdRequest
from moldau.protocol.messages.p24_add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
)
from tests.kit.seeds import Violation
from tests.simulation.transactions.coordinator_link import (
    ELSEWHERE,
    GROUP,
    TRANSACTION,
    CoordinatorLink,
)
from tests.simulation.transactions.group_applications import GroupPlan
from tests.virtual.loop import Process

if TYPE_CHECKING:
    from tests.simulation.transactions.world import TransactionWorld

HOST = "faulty-clients"
SESSION_MS = 3_000
LONGEST_SESSION_MS = 1_800_000
SHORTEST_SESSION_MS = 500
"""As the brokers are configured."""

JUNK = (b"", b"\0", b"\xff\xff", b"\0\x02\0\0\0\x7f", b"\0\x03\xff\xff\xff\xfe")
EXTREME_SESSIONS_MS = (0, -1, -(2**31), 1, LONGEST_SESSION_MS + 1, 2**31 - 1)
TRIES = 40

HOARD = "hoard"
"""What names of ids and groups begin with that are never used again."""

PASSING = ELSEWHERE | {
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.REQUEST_TIMED_OUT,
    ErrorCode.CONCURRENT_TRANSACTIONS,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
}
LAST_EPOCH = 2**15 - 1
WITNESSES = 4
"""So many ids lie in every partition of the log, most likely."""


class FaultyClient:
    """One such client with its own connection to each broker.

    `may_not_fit`: it sends what no batch holds, which transaction coordinators call, as Apache
    Kafka's do, an error of the server.
    """

    may_not_fit = False

    def __init__(self, world: TransactionWorld, random: Random, number: int) -> None:
        self.world = world
        self.random = random
        self.process = Process(world.loop, f"{HOST}#{number}")
        network = world.fabric.port_of(self.process, HOST)
        self.link = CoordinatorLink(
            world.loop, self.process, network, self.random, world.broker_addresses
        )

    def __repr__(self) -> str:
        return self.process.name

    async def ask(
        self, kind: int, key: str, request: Any, api_version: int
    ) -> tuple[ErrorCode, Any]:
        """One question to a coordinator; (REQUEST_TIMED_OUT, None) without an answer."""
        response = await self.link.ask_coordinator(kind, key, request, api_version=api_version)
        if response is None:
            return ErrorCode.REQUEST_TIMED_OUT, None
        return self.judge(ErrorCode.of(getattr(response, "error_code", 0)), kind, key), response

    def judge(self, error: ErrorCode, kind: int, key: str) -> ErrorCode:
        """Do what belongs to an error. Raises Violation."""
        if error is ErrorCode.UNKNOWN_SERVER_ERROR and not self.may_not_fit:
            raise Violation("unexpected-error", f"{self}: {key}")
        if error in ELSEWHERE:
            self.link.forget(kind, key)
        return error

    def added(self, response: Any, name: str) -> ErrorCode:
        """What AddPartitionsToTxn said of the one partition."""
        found = response.results_by_topic_v3_and_below[0].results_by_partition[0]
        return self.judge(ErrorCode.of(found.partition_error_code), TRANSACTION, name)


class FaultyMember(FaultyClient):
    """A member of the classic protocol. What a group reads of it is its first protocol; what its
    others say cannot be read.
    """

    def __init__(
        self, world: TransactionWorld, random: Random, number: int, plan: GroupPlan
    ) -> None:
        super().__init__(world, random, number)
        self.plan = plan
        self.member_id = ""
        self.generation = -1
        self.protocols = self._unreadable()

    def _unreadable(self) -> list[joining.JoinGroupRequestProtocol]:
        """The group's own protocols are not the first, and only the first can be read."""
        good = encode_payload(ConsumerProtocolSubscription(topics=self.world.input_topics), 2)
        names = ["range", "cooperative-sticky"]
        if self.random.random() < 0.3:
            names.append(self.random.choice(names))  # twice
        unreadable = [(name, self.random.choice(JUNK)) for name in names]
        return [
            joining.JoinGroupRequestProtocol(name=name, metadata=metadata)
            for name, metadata in [("roundrobin", good), *unreadable]
        ]

    async def stay(self, duration_ms: float) -> None:
        """Join, and stay so long."""
        loop = self.world.loop
        until = loop.time() + duration_ms / 1000
        while loop.time() < until:
            if self.generation < 0:
                await self._join(SESSION_MS)
            else:
                await self._beat()
            await loop.elapse(300.0)
        # It is gone without a word.

    async def ask_for_ever(self) -> None:
        """Join with a session that is not allowed. Raises Violation when it is taken."""
        session_ms = self.random.choice(EXTREME_SESSIONS_MS)
        for _ in range(TRIES):
            error = await self._join(session_ms)
            if error in (ErrorCode.NONE, ErrorCode.MEMBER_ID_REQUIRED):
                raise Violation(
                    "session-without-end", f"{self.plan.name} takes {session_ms} ms: {error.name}"
                )
            if error is ErrorCode.INVALID_SESSION_TIMEOUT:
                self.world.counts["sessions_refused"] += 1
                return
            await self.link.pause()

    async def _join(self, session_ms: int) -> ErrorCode:
        request = joining.JoinGroupRequest(
            group_id=self.plan.name,
            session_timeout_ms=session_ms,
            rebalance_timeout_ms=self.random.choice((2_000, 2_000, 0, -1)),
            member_id=self.member_id,
            protocol_type="consumer",
            protocols=self.protocols,
        )
        self.world.data.group_log.unreadable.add(self.plan.name)
        error, response = await self.ask(GROUP, self.plan.name, request, 9)
        if response is None:
            return error
        self.member_id = response.member_id
        if error is ErrorCode.NONE:
            self.world.counts["faulty_members"] += 1
            self.generation = response.generation_id
            await self._sync(response)
        elif error is not ErrorCode.MEMBER_ID_REQUIRED:
            self.member_id = ""
        return error

    async def _sync(self, joined: Any) -> None:
        """As a leader it assigns nothing to any member."""
        request = syncing.SyncGroupRequest(
            group_id=self.plan.name,
            generation_id=self.generation,
            member_id=self.member_id,
            protocol_type="consumer",
            protocol_name=joined.protocol_name,
        )
        if (await self.ask(GROUP, self.plan.name, request, 5))[0] is not ErrorCode.NONE:
            self.generation = -1

    async def _beat(self) -> None:
        request = HeartbeatRequest(
            group_id=self.plan.name, generation_id=self.generation, member_id=self.member_id
        )
        if (await self.ask(GROUP, self.plan.name, request, 4))[0] is not ErrorCode.NONE:
            self.generation = -1


class Flooder(FaultyClient):
    """Commits offsets of its own group faster than they are replicated."""

    async def flood(self, group: str, topic: str, duration_ms: float) -> None:
        """For so long, or until the faults stop."""
        until = self.world.loop.time() + duration_ms / 1000
        for _ in range(self.world.max_waiting_count):
            self.process.spawn(self._commit(group, topic, until))

    async def _commit(self, group: str, topic: str, until: float) -> None:
        request = committing.OffsetCommitRequest(
            group_id=group,
            generation_id_or_member_epoch=-1,
            topics=[
                committing.OffsetCommitRequestTopic(
                    name=topic, partitions=[committing.OffsetCommitRequestPartition()]
                )
            ],
        )
        while self.world.loop.time() < until and self.world.members_may_go:
            _error, response = await self.ask(GROUP, group, request, 9)
            error = ErrorCode.REQUEST_TIMED_OUT
            if response is not None:
                found = response.topics[0].partitions[0]
                error = self.judge(ErrorCode.of(found.error_code), GROUP, group)
            self.world.counts["floods"] += error is ErrorCode.NONE
            if error is not ErrorCode.NONE:
                self.world.counts[f"flood {error.name}"] += 1
                await self.world.loop.elapse(self.random.uniform(20.0, 40.0))


class Hoarder(FaultyClient):
    """Makes transactional ids and groups with long names, and never comes back to them."""

    may_not_fit = True

    def name(self, number: int, size_bytes: int) -> str:
        """One that is long, perhaps longer in bytes than in characters."""
        letter = self.random.choice("xé語")
        size = size_bytes // len(letter.encode())
        return f"{HOARD}-{self.process.name}-{number}-{letter * size}"

    async def hoard_ids(self, count: int, size_bytes: int) -> None:
        """InitProducerId of so many ids."""
        for number in range(count):
            name = self.name(number, size_bytes)
            request = InitProducerIdRequest(
                transactional_id=name,
                transaction_timeout_ms=1_000,
                producer_id=-1,
                producer_epoch=-1,
            )
            await self._insist(TRANSACTION, name, request, 5)

    async def hoard_offsets(
        self, count: int, size_bytes: int, places: list[tuple[str, int]]
    ) -> None:
        """Offsets of so many groups, to be kept for a second."""
        for number in range(count):
            name = self.name(number, size_bytes)
            request = committing.OffsetCommitRequest(
                group_id=name,
                generation_id_or_member_epoch=-1,
                retention_time_ms=1_000,
                topics=[
                    committing.OffsetCommitRequestTopic(
                        name=topic,
                        partitions=[committing.OffsetCommitRequestPartition(partition_index=index)],
                    )
                    for topic, index in places
                ],
            )
            await self._insist(GROUP, name, request, 4)

    async def fill_to_the_brim(self, topic: str) -> None:
        """A transaction whose record has just room in a batch: its end may have none. It is left
        open, and so is a short one beside it, which is to be aborted in its time.
        """
        fits, too_long = 0, self.world.max_message_bytes
        number, brimful = 0, ""
        while too_long - fits > 4:
            number += 1
            size = (fits + too_long) // 2
            name = f"{self.process.name}-{number}".ljust(size, "x")
            if await self._begin(name, topic):
                fits, brimful = size, name
            else:
                too_long = size
        for place in range(WITNESSES):
            name = f"{HOARD}-{self.process.name}-{place}"
            if brimful and await self._begin(name, topic):
                self.world.counts["filled_to_the_brim"] += 1

    async def begin_and_go(self, name: str, topic: str) -> None:
        """A transaction that is to be aborted in its time."""
        if await self._begin(name, topic, timeout_ms=2_000):
            self.world.counts["abandoned"] += 1

    async def _begin(self, name: str, topic: str, timeout_ms: int = 1_000) -> bool:
        request = InitProducerIdRequest(
            transactional_id=name,
            transaction_timeout_ms=timeout_ms,
            producer_id=-1,
            producer_epoch=-1,
        )
        error, made = await self._insist(TRANSACTION, name, request, 5)
        if error is not ErrorCode.NONE:
            return False
        adding = _added(name, made.producer_id, made.producer_epoch, topic)
        for _ in range(TRIES):
            _error, response = await self.ask(TRANSACTION, name, adding, 3)
            if response is not None:
                error = self.added(response, name)
                if error not in PASSING:
                    return error is ErrorCode.NONE
            await self.link.pause()
        return False

    async def _insist(
        self, kind: int, key: str, request: Any, api_version: int
    ) -> tuple[ErrorCode, Any]:
        for _ in range(TRIES):
            error, response = await self.ask(kind, key, request, api_version)
            if response is not None and error not in PASSING:
                return error, response
            await self.link.pause()
        return ErrorCode.REQUEST_TIMED_OUT, None


class Impostor(FaultyClient):
    """Claims to be of an epoch that only markers have."""

    async def claim(self, topic: str, duration_ms: float) -> None:
        """AddPartitionsToTxn for each id that a coordinator has fenced with the last epoch.

        Raises Violation when one lets it in.
        """
        until = self.world.loop.time() + duration_ms / 1000
        while self.world.loop.time() < until:
            for name, known in sorted(self.world.data.transaction_log.last.items()):
                if known.producer_epoch == LAST_EPOCH:
                    await self._claim_one(name, known.producer_id, topic)
            await self.world.loop.elapse(50.0)

    async def _claim_one(self, name: str, producer_id: int, topic: str) -> None:
        request = _added(name, producer_id, LAST_EPOCH, topic)
        _error, response = await self.ask(TRANSACTION, name, request, 3)
        if response is None:
            return
        error = self.added(response, name)
        if error is ErrorCode.NONE:
            raise Violation("epoch-of-markers-taken", f"{name}: {producer_id}")
        self.world.counts[f"impostor {error.name}"] += 1


def _added(name: str, producer_id: int, producer_epoch: int, topic: str) -> Any:
    return AddPartitionsToTxnRequest(
        v3_and_below_transactional_id=name,
        v3_and_below_producer_id=producer_id,
        v3_and_below_producer_epoch=producer_epoch,
        v3_and_below_topics=[AddPartitionsToTxnTopic(name=topic, partitions=[0])],
    )
