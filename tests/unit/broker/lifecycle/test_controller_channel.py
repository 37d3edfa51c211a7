"""The way to the active controller over real sockets: failover, lost answers, nonsense, limits."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from typing import Any

import pytest

from moldau.broker.lifecycle import controller_channel
from moldau.broker.lifecycle.controller_channel import (
    ControllerUnavailable,
    ForwardedClient,
    NetworkControllerChannel,
    OwnController,
)
from moldau.node.quorum_link import LeaderRelay
from moldau.protocol.api_keys import ApiKey
from moldau.protocol.error_responses import error_response
from moldau.protocol.errors import ErrorCode
from moldau.protocol.headers import decode_response
from moldau.protocol.messages.p19_create_topics import (
    CreatableTopic,
    CreatableTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from moldau.protocol.messages.p58_envelope import UNKNOWN_END_OFFSET
from moldau.protocol.messages.p63_broker_heartbeat import (
    BrokerHeartbeatRequest,
    BrokerHeartbeatResponse,
)
from moldau.protocol.messages.p67_allocate_producer_ids import (
    AllocateProducerIdsRequest,
    AllocateProducerIdsResponse,
)
from moldau.protocol.registry import request_class, response_class
from moldau.protocol.schema import Message
from moldau.runtime.leader_link import LeaderAddress
from moldau.runtime.loop_thread import LoopThread
from moldau.server.apis import FORWARDABLE_APIS
from moldau.server.authorizer import Authorizer
from moldau.server.request import Sender
from tests.kit.waiting import until_async
from tests.unit.broker.lifecycle.fake_controller import FakeController

pytestmark = pytest.mark.real

CLIENT = ForwardedClient("10.1.2.3", "client")
OWN = "User:broker"
HOUR_MS = 3_600_000
NOBODY_LISTENS = LeaderAddress(9, "127.0.0.1", 1)
Start = Callable[..., Awaitable[FakeController]]


class Quorum:
    """Who leads, as the test says, and a channel that believes it."""

    def __init__(self) -> None:
        self.leader: LeaderAddress | None = None
        self.channel = NetworkControllerChannel(
            lambda: self.leader, request_timeout_ms=24 * HOUR_MS, retry_backoff_ms=5
        )

    def elect(self, leader: LeaderAddress | None) -> None:
        self.leader = leader
        self.channel.leader_changed()


@pytest.fixture
async def quorum() -> AsyncIterator[Quorum]:
    made = Quorum()
    yield made
    await made.channel.close()
    assert made.channel.waiting_count == 0


@pytest.fixture
async def start() -> AsyncIterator[Start]:
    controllers: list[FakeController] = []

    async def make(node_id: int = 1, answer: Any = None) -> FakeController:
        controller = FakeController(node_id, answer)
        await controller.start()
        controllers.append(controller)
        return controller

    yield make
    for controller in controllers:
        await controller.close()


def topics(name: str = "t") -> CreateTopicsRequest:
    return CreateTopicsRequest(topics=[CreatableTopic(name=name)])


async def test_own_requests_go_directly_and_clients_requests_in_envelopes(
    start: Start, quorum: Quorum
) -> None:
    controller = await start(answer=lambda request: error_response(request, ErrorCode.NONE, ""))
    quorum.elect(controller.address)
    assert await quorum.channel.send(BrokerHeartbeatRequest(), OWN) == BrokerHeartbeatResponse()
    assert controller.forwarded == []
    response, _ = await quorum.channel.forward(topics(), "User:alice", CLIENT)
    assert response.topics[0].name == "t"
    assert controller.forwarded == [("User:alice", "10.1.2.3", "client", 7)]


@pytest.mark.parametrize("api_key", sorted(FORWARDABLE_APIS), ids=lambda key: key.name)
async def test_what_is_forwarded_arrives_in_every_version(
    start: Start, quorum: Quorum, api_key: ApiKey
) -> None:
    kind, answer_kind = request_class(api_key), response_class(api_key)
    controller = await start(answer=lambda _request: answer_kind())
    controller.served[api_key] = (kind.MIN_VERSION, kind.MAX_VERSION)
    quorum.elect(controller.address)
    for version in range(kind.MIN_VERSION, kind.MAX_VERSION + 1):
        client = ForwardedClient("::1", None, version)
        response, _ = await quorum.channel.forward(kind(), "User:alice", client)
        assert type(response) is answer_kind
        assert controller.forwarded[-1] == ("User:alice", "::1", None, version)


@pytest.mark.parametrize("api_key", sorted(FORWARDABLE_APIS), ids=lambda key: key.name)
async def test_bytes_go_on_and_come_back_as_they_are(
    start: Start, quorum: Quorum, api_key: ApiKey
) -> None:
    """A throttle time is the exception: the client's connection pauses for it."""
    kind, answer_kind = request_class(api_key), response_class(api_key)
    answer: Any = answer_kind()
    controller = await start(answer=lambda _request: answer)
    controller.served[api_key] = (kind.MIN_VERSION, kind.MAX_VERSION)
    quorum.elect(controller.address)
    throttled_name = "throttle_time_ms"
    for version in range(kind.MIN_VERSION, kind.MAX_VERSION + 1):
        body = memoryview(kind().to_bytes(version))
        client = ForwardedClient("::1", "c", version, correlation_id=-5)
        pass_on = partial(quorum.channel.forward, kind(), "User:alice", client, body=body)
        response, _ = await pass_on()
        assert controller.forwarded[-1] == ("User:alice", "::1", "c", version)
        assert controller.asked[-1] == kind()
        is_first = answer_kind.spec().fields[0].name == throttled_name
        assert isinstance(response, bytes) == (is_first or not hasattr(answer, throttled_name))
        if isinstance(response, bytes):
            assert decode_response(api_key, version, response) == (-5, answer)
        if hasattr(answer, throttled_name):
            answer.throttle_time_ms = 7
            response, _ = await pass_on()
            assert response == answer
            answer.throttle_time_ms = 0


async def test_bytes_of_a_version_that_the_controller_does_not_know_are_not_sent(
    start: Start, quorum: Quorum
) -> None:
    controller = await start()
    controller.served[ApiKey.CREATE_TOPICS] = (2, 5)
    quorum.elect(controller.address)
    response, _ = await quorum.channel.forward(
        topics(),
        "User:alice",
        CLIENT._replace(api_version=7),
        body=memoryview(topics().to_bytes(7)),
    )
    assert controller.forwarded == [("User:alice", "10.1.2.3", "client", 5)]
    assert isinstance(response, CreateTopicsResponse)
    assert response.topics[0].name == "t"


@pytest.mark.parametrize("end_offset", [UNKNOWN_END_OFFSET, 0, 2**62])
async def test_how_far_the_controller_has_committed_comes_along(
    start: Start, quorum: Quorum, end_offset: int
) -> None:
    """UNKNOWN_END_OFFSET is what an Envelope without the field, Apache Kafka's, says."""
    controller = await start()
    controller.committed_end_offset = end_offset
    quorum.elect(controller.address)
    answer = await quorum.channel.forward(topics(), "User:alice", CLIENT)
    assert answer.committed_end_offset == end_offset


async def test_an_older_controller_gets_a_version_it_knows(start: Start, quorum: Quorum) -> None:
    controller = await start()
    controller.served[ApiKey.CREATE_TOPICS] = (2, 5)
    quorum.elect(controller.address)
    await quorum.channel.forward(topics(), "User:alice", CLIENT)
    await quorum.channel.forward(topics(), "User:alice", CLIENT._replace(api_version=7))
    assert [version for *_, version in controller.forwarded] == [5, 5]
    del controller.served[ApiKey.CREATE_TOPICS]
    other = await start(2)
    del other.served[ApiKey.CREATE_TOPICS]
    quorum.elect(other.address)
    with pytest.raises(ControllerUnavailable) as failure:
        await quorum.channel.forward(topics(), "User:alice", CLIENT)
    assert failure.value.error is ErrorCode.UNSUPPORTED_VERSION


@pytest.mark.parametrize("client", [None, CLIENT])
async def test_not_controller_is_tried_again_at_the_next_leader(
    start: Start, quorum: Quorum, client: ForwardedClient | None
) -> None:
    old, new = await start(1), await start(2)
    old.not_controller()
    quorum.elect(old.address)
    channel = quorum.channel
    asked: asyncio.Future[Any]
    if client is None:
        asked = asyncio.ensure_future(channel.send(topics(), OWN))
    else:
        asked = asyncio.ensure_future(channel.forward(topics(), OWN, client))
    await until_async(lambda: len(old.asked) >= 2, "it asks again and again")
    quorum.elect(new.address)
    response = await asyncio.wait_for(asked, 10)
    if client is not None:
        response = response.response
    assert response.topics[0].error_code == ErrorCode.NONE
    assert len(new.asked) == 1


async def test_a_request_waits_until_a_controller_leads(start: Start, quorum: Quorum) -> None:
    controller = await start()
    asked = asyncio.ensure_future(quorum.channel.send(topics(), OWN))
    await until_async(lambda: quorum.channel.waiting_count == 1, "it waits")
    quorum.elect(controller.address)
    assert (await asyncio.wait_for(asked, 10)).topics[0].error_code == ErrorCode.NONE


async def test_a_request_without_a_reachable_controller_times_out(quorum: Quorum) -> None:
    with pytest.raises(ControllerUnavailable, match="no controller is known to lead") as failure:
        await quorum.channel.send(topics(), OWN, timeout_ms=20)
    assert failure.value.error is ErrorCode.REQUEST_TIMED_OUT
    quorum.elect(NOBODY_LISTENS)
    with pytest.raises(ControllerUnavailable, match=r"node 9 at 127\.0\.0\.1:1"):
        await quorum.channel.send(topics(), OWN, timeout_ms=20)


async def test_a_lost_answer_is_asked_for_again(start: Start, quorum: Quorum) -> None:
    """The controller did it, the connection broke: the second time it exists already (as Kafka)."""
    created: set[str] = set()

    def create(request: Message) -> Message:
        assert isinstance(request, CreateTopicsRequest)
        name = request.topics[0].name
        error = ErrorCode.TOPIC_ALREADY_EXISTS if name in created else ErrorCode.NONE
        controller.mode = "close" if name not in created else "answer"
        created.add(name)
        return CreateTopicsResponse(topics=[CreatableTopicResult(name=name, error_code=error)])

    controller = await start(answer=create)
    quorum.elect(controller.address)
    response, _ = await quorum.channel.forward(topics(), "User:alice", CLIENT)
    assert response.topics[0].error_code == ErrorCode.TOPIC_ALREADY_EXISTS
    assert len(controller.asked) == 2


async def test_a_connection_that_swallows_an_answer_is_given_up_after_its_time(
    start: Start,
) -> None:
    """However long the broker would wait for the answer: else its start ends with it."""
    controller = await start(answer=lambda _request: None)
    channel = NetworkControllerChannel(
        lambda: controller.address, request_timeout_ms=20, retry_backoff_ms=5
    )
    asked = asyncio.ensure_future(
        channel.send(BrokerHeartbeatRequest(), OWN, timeout_ms=24 * HOUR_MS)
    )
    await asyncio.wait_for(controller.arrived.wait(), 10)
    controller.answer = lambda request: error_response(request, ErrorCode.NONE, "")
    assert await asyncio.wait_for(asked, 10) == BrokerHeartbeatResponse()
    await channel.close()


async def test_a_controller_that_dies_is_waited_for(start: Start, quorum: Quorum) -> None:
    old = await start(1, answer=lambda _request: None)
    quorum.elect(old.address)
    asked = asyncio.ensure_future(quorum.channel.forward(topics(), "User:alice", CLIENT))
    await asyncio.wait_for(old.arrived.wait(), 10)
    await old.close()
    new = await start(2)
    quorum.elect(new.address)
    assert (await asyncio.wait_for(asked, 10)).response.topics[0].error_code == ErrorCode.NONE


async def test_a_silent_old_leader_is_left_as_soon_as_there_is_a_new_one(
    start: Start, quorum: Quorum
) -> None:
    """It stands still (SIGSTOP): nothing is lost, no answer comes, and no caller waits for it."""
    old, new = await start(1, answer=lambda _request: None), await start(2)
    quorum.elect(old.address)
    asked = [
        asyncio.ensure_future(quorum.channel.send(request, OWN))
        for request in (topics("a"), topics("b"), AllocateProducerIdsRequest())
    ]
    await until_async(lambda: len(old.asked) == 3, "all are with the old leader")
    quorum.elect(None)
    quorum.elect(new.address)
    for response in await asyncio.wait_for(asyncio.gather(*asked), 10):
        assert type(response) in (CreateTopicsResponse, AllocateProducerIdsResponse)
    await until_async(
        lambda: old.connection_count == 0, "the old leader's connections are given up"
    )


async def test_a_request_that_was_answered_with_garbage_goes_to_the_next_controller(
    start: Start, quorum: Quorum
) -> None:
    bad, good = await start(1), await start(2)
    bad.mode = "garbage"
    quorum.elect(bad.address)
    asked = asyncio.ensure_future(quorum.channel.forward(topics(), "User:alice", CLIENT))
    await until_async(lambda: len(bad.asked) >= 2, "it tries again")
    quorum.elect(good.address)
    assert (await asyncio.wait_for(asked, 10)).response.topics[0].error_code == ErrorCode.NONE


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (ErrorCode.CLUSTER_AUTHORIZATION_FAILED, ErrorCode.UNKNOWN_SERVER_ERROR),
        (ErrorCode.PRINCIPAL_DESERIALIZATION_FAILURE, ErrorCode.UNKNOWN_SERVER_ERROR),
        (ErrorCode.UNSUPPORTED_VERSION, ErrorCode.UNSUPPORTED_VERSION),
    ],
)
async def test_an_envelope_that_is_refused_is_not_sent_again(
    start: Start, quorum: Quorum, error: ErrorCode, told: ErrorCode
) -> None:
    controller = await start()
    controller.envelope_error = error
    quorum.elect(controller.address)
    with pytest.raises(ControllerUnavailable, match=error.name) as failure:
        await quorum.channel.forward(topics(), "User:alice", CLIENT)
    assert failure.value.error is told
    assert len(controller.asked) == 1


async def test_one_that_gives_up_does_not_disturb_the_others(
    start: Start, quorum: Quorum, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client's short limit must not cost the connection that others wait on."""
    loop = asyncio.get_running_loop()
    real_time_s = loop.time
    held: list[Message] = []
    controller = await start(answer=lambda request: held.append(request))
    quorum.elect(controller.address)
    patient = asyncio.ensure_future(
        quorum.channel.forward(topics("a"), OWN, CLIENT, timeout_ms=2 * HOUR_MS)
    )
    await until_async(lambda: len(held) == 1, "the patient one is there")
    other = asyncio.ensure_future(
        quorum.channel.forward(topics("b"), OWN, CLIENT, timeout_ms=HOUR_MS)
    )
    await until_async(lambda: len(held) == 2, "the one that will give up is there too")
    monkeypatch.setattr(loop, "time", lambda: real_time_s() + HOUR_MS / 1000)
    with pytest.raises(ControllerUnavailable):
        await other
    assert not patient.done()
    assert controller.connection_count == 1
    assert [request.topics[0].name for request in held] == ["a", "b"]  # type: ignore[attr-defined]
    await controller.close()
    patient.cancel()


async def test_heartbeats_do_not_wait_behind_clients(start: Start, quorum: Quorum) -> None:
    def answer(request: Message) -> Message | None:
        return BrokerHeartbeatResponse() if isinstance(request, BrokerHeartbeatRequest) else None

    controller = await start(answer=answer)
    quorum.elect(controller.address)
    slow = asyncio.ensure_future(quorum.channel.forward(topics(), OWN, CLIENT))
    await asyncio.wait_for(controller.arrived.wait(), 10)
    assert await asyncio.wait_for(quorum.channel.send(BrokerHeartbeatRequest(), OWN), 10)
    assert not slow.done()
    slow.cancel()


async def test_waiting_requests_are_bounded(
    start: Start, quorum: Quorum, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(controller_channel, "MAX_WAITING_REQUESTS", 2)
    waiting = [asyncio.ensure_future(quorum.channel.send(topics(), OWN)) for _ in range(2)]
    await until_async(lambda: quorum.channel.waiting_count == 2, "both wait")
    with pytest.raises(ControllerUnavailable, match="2 requests wait already"):
        await quorum.channel.send(topics(), OWN)
    controller = await start()
    quorum.elect(controller.address)
    assert len(await asyncio.wait_for(asyncio.gather(*waiting), 10)) == 2


async def test_closing_answers_waiting_callers(quorum: Quorum) -> None:
    asked = asyncio.ensure_future(quorum.channel.send(topics(), OWN))
    await until_async(lambda: quorum.channel.waiting_count == 1, "it waits")
    await quorum.channel.close()
    with pytest.raises(ControllerUnavailable):
        await asyncio.wait_for(asked, 10)


class InProcess:
    """The controller of the broker's own process."""

    def __init__(self) -> None:
        self.is_active = True
        self.asked: list[tuple[Message, str, ForwardedClient]] = []

    async def answer(self, sender: Sender, request: Message) -> Message:
        client = ForwardedClient(sender.client_host, sender.client_id, sender.api_version)
        self.asked.append((request, sender.principal, client))
        error = ErrorCode.NONE if self.is_active else ErrorCode.NOT_CONTROLLER
        return error_response(request, error, "")


async def test_the_router_takes_the_short_way_while_its_own_node_leads(start: Start) -> None:
    remote = await start(2)
    relay = LeaderRelay(asyncio.get_running_loop())
    own = InProcess()
    thread = LoopThread("controller")
    thread.start()
    of_this_process = OwnController(1, thread, own.answer, lambda: 12, Authorizer())
    router = NetworkControllerChannel(relay.leader, own=of_this_process, retry_backoff_ms=5)
    relay.on_change = router.leader_changed
    own_address = LeaderAddress(1, "127.0.0.1", 1)
    # As the quorum's thread reports it.
    await asyncio.to_thread(relay.publish, own_address)
    client = CLIENT._replace(api_version=5)
    response, end_offset = await router.forward(topics(), "User:alice", client)
    assert end_offset == 12
    assert response.topics[0].error_code == ErrorCode.NONE
    assert own.asked == [(topics(), "User:alice", client)]
    assert await router.send(topics(), OWN)
    assert own.asked.pop() == (topics(), OWN, ForwardedClient("127.0.0.1"))
    own.is_active = False
    asked = asyncio.ensure_future(router.forward(topics(), "User:alice", CLIENT))
    await until_async(lambda: len(own.asked) >= 3, "it asks its own node again")
    await asyncio.to_thread(relay.publish, None)
    await asyncio.to_thread(relay.publish, remote.address)
    assert (await asyncio.wait_for(asked, 10)).response.topics[0].error_code == ErrorCode.NONE
    assert len(remote.asked) == 1
    assert relay.leader() == remote.address
    await router.close()
    await thread.stop()
