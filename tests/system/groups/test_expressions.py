"""One client's regular expressions hold nothing up: the members of others are served at the same
time.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any, NamedTuple

import pytest

from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.p10_find_coordinator import FindCoordinatorRequest
from moldau.protocol.messages.p11_join_group import JoinGroupRequest, JoinGroupRequestProtocol
from moldau.protocol.messages.p12_heartbeat import HeartbeatRequest
from moldau.protocol.messages.p14_sync_group import SyncGroupRequest, SyncGroupRequestAssignment
from moldau.protocol.messages.p19_create_topics import CreatableTopic, CreateTopicsRequest
from moldau.protocol.messages.p22_init_producer_id import InitProducerIdRequest
from moldau.protocol.messages.p66_list_transactions import ListTransactionsRequest
from moldau.protocol.messages.p68_consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from moldau.runtime.connection import Connection
from moldau.testing import Cluster
from tests.interop.raw.probe import connected, topic_metadata
from tests.kit.waiting import until_async

pytestmark = pytest.mark.system

SESSION_MS = 30_000
CONFIG = {
    "offsets.topic.num.partitions": "1",
    "transaction.state.log.num.partitions": "1",
    "group.initial.rebalance.delay.ms": "0",
}
COUNT = 120
LONG_NAMES = [f"{'x' * 240}-{number}" for number in range(COUNT)]
MATCHED = "y"
EXPENSIVE = "(x*){0,250}y"
"""Within the limits, and more than a millisecond for each long name; it matches one name."""
REFUSED = "((.?){0,30}){0,30}" * 3
LEAST_SERVED = COUNT // 10
"""Requests of the neighbour while COUNT names are matched: three if nothing gives way."""


class Neighbour(NamedTuple):
    """A member of another group that sends heartbeats again and again."""

    connection: Connection
    beat: HeartbeatRequest

    async def served_while(self, asked: asyncio.Future[Any]) -> int:
        """How many of its heartbeats are answered, all of them well, before the others' answer."""
        count = 0
        while not asked.done():
            assert (await self.connection.send(self.beat)).error_code == ErrorCode.NONE
            count += 1
        return count


@pytest.fixture(scope="module")
def bootstrap() -> Any:
    with Cluster(config=CONFIG) as cluster:
        yield cluster.bootstrap_server


@pytest.fixture
async def clients(bootstrap: str) -> AsyncIterator[tuple[Connection, Connection]]:
    """The client with the expressions, and its neighbour."""
    async with AsyncExitStack() as stack:
        one, other = [await stack.enter_async_context(connected(bootstrap)) for _ in range(2)]
        await until_async(lambda: are_there(other), what="coordinators")
        # Once it is remembered its client need not rest for its compilation any more.
        await one.send(ListTransactionsRequest(transactional_id_pattern=EXPENSIVE), api_version=2)
        yield one, other


async def are_there(connection: Connection) -> bool:
    """Whether there are both kinds of coordinators."""
    for key_type in (0, 1):
        asked = FindCoordinatorRequest(key_type=key_type, coordinator_keys=["team"])
        (found,) = (await connection.send(asked, api_version=4)).coordinators
        if found.error_code:
            return False
    return True


async def join(connection: Connection, group_id: str) -> Neighbour:
    """Become the only member of a classic group."""
    request = JoinGroupRequest(
        group_id=group_id,
        session_timeout_ms=SESSION_MS,
        rebalance_timeout_ms=60_000,
        protocol_type="consumer",
        protocols=[JoinGroupRequestProtocol(name="range", metadata=b"")],
    )
    request.member_id = (await connection.send(request, api_version=5)).member_id
    joined = await connection.send(request, api_version=5)
    assert joined.error_code == ErrorCode.NONE
    sync = SyncGroupRequest(
        group_id=group_id,
        generation_id=joined.generation_id,
        member_id=joined.member_id,
        assignments=[SyncGroupRequestAssignment(member_id=joined.member_id, assignment=b"all")],
    )
    assert (await connection.send(sync, api_version=3)).assignment == b"all"
    beat = HeartbeatRequest(
        group_id=group_id, generation_id=joined.generation_id, member_id=joined.member_id
    )
    return Neighbour(connection, beat)


def by_expression(expression: str) -> ConsumerGroupHeartbeatRequest:
    return ConsumerGroupHeartbeatRequest(
        group_id="matching",
        member_id="m",
        member_epoch=0,
        rebalance_timeout_ms=60_000,
        subscribed_topic_names=[],
        subscribed_topic_regex=expression,
        topic_partitions=[],
    )


async def until_matched(connection: Connection) -> int:
    """Join by an expression; how many topics the member is given once they are found."""
    answer: Any = await connection.send(by_expression(EXPENSIVE), api_version=1)
    while not (answer.assignment and answer.assignment.topic_partitions):
        assert answer.error_code == ErrorCode.NONE
        beat = ConsumerGroupHeartbeatRequest(
            group_id="matching", member_id="m", member_epoch=answer.member_epoch
        )
        answer = await connection.send(beat, api_version=1)
    return len(answer.assignment.topic_partitions)


async def test_topics_are_matched_beside_the_members_of_others(
    clients: tuple[Connection, Connection],
) -> None:
    connection, other = clients
    topics = [
        CreatableTopic(name=name, num_partitions=1, replication_factor=1)
        for name in (*LONG_NAMES, MATCHED)
    ]
    await connection.send(CreateTopicsRequest(topics=topics), api_version=5)
    await topic_metadata(connection, MATCHED)
    refused: Any = await connection.send(by_expression(REFUSED), api_version=1)
    assert refused.error_code == ErrorCode.INVALID_REGULAR_EXPRESSION
    neighbour = await join(other, "beside-topics")
    asked = asyncio.ensure_future(until_matched(connection))
    served_count = await neighbour.served_while(asked)
    assert await asked == 1
    print(f"{served_count} heartbeats were answered meanwhile")
    assert served_count >= LEAST_SERVED


async def test_transactional_ids_are_matched_beside_the_members_of_others(
    clients: tuple[Connection, Connection],
) -> None:
    connection, other = clients

    async def opened(transactional_id: str) -> bool:
        request = InitProducerIdRequest(
            transactional_id=transactional_id, transaction_timeout_ms=60_000
        )
        answer: Any = await connection.send(request)
        return bool(answer.error_code == ErrorCode.NONE)

    for name in (MATCHED, *LONG_NAMES):
        await until_async(lambda name=name: opened(name), what=f"the owner of {name}")
    refused: Any = await connection.send(
        ListTransactionsRequest(transactional_id_pattern=REFUSED), api_version=2
    )
    assert refused.error_code == ErrorCode.INVALID_REGULAR_EXPRESSION
    request = ListTransactionsRequest(transactional_id_pattern=EXPENSIVE)
    neighbour = await join(other, "beside-transactions")
    asked = asyncio.ensure_future(connection.send(request, api_version=2))
    served_count = await neighbour.served_while(asked)
    answer: Any = await asked
    assert [each.transactional_id for each in answer.transaction_states] == [MATCHED]
    print(f"{served_count} heartbeats were answered meanwhile")
    assert served_count >= LEAST_SERVED
