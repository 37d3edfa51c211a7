"""One request: how it is answered, what it keeps, what its context asks and measures."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import pytest

from moldau.protocol.access_control import Operation, ResourceType
from moldau.protocol.api_keys import ApiKey
from moldau.protocol.errors import LocalProtocolError
from moldau.protocol.headers import RequestHeader
from moldau.protocol.messages.p00_produce import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from moldau.protocol.messages.p03_metadata import (
    MetadataResponse,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from moldau.protocol.messages.p17_sasl_handshake import SaslHandshakeResponse
from moldau.runtime.files import FileRegion
from moldau.runtime.telemetry.metrics import Registry
from moldau.server.authorizer import Authorizer
from moldau.server.quotas.request_time import Stopwatch, TimedWork, timed_steps
from moldau.server.request import (
    AT_ONCE_BYTES,
    COPIED_BODY_BYTES,
    FREED_AT_ONCE,
    LARGE_BODY_BYTES,
    LARGE_ELEMENT_COUNT,
    LARGE_PART_COUNT,
    REQUEST_METRICS,
    Request,
    RequestContext,
    RequestMetrics,
    arrays_of,
    is_large_message,
)
from tests.kit.manual_clock import ManualClock


class Connection:
    """Remembers what its requests do."""

    client_host = "10.0.0.9"
    listener_name = "OUTSIDE"
    principal = "User:alice"
    token_authenticated = True

    def __init__(self) -> None:
        self.is_closed = False
        self.answered: list[Request] = []
        self.released = 0
        self.throttled: list[float] = []
        self.held: list[Request] = []
        self.closed: list[str] = []
        self.work: list[Any] = []
        self.offloaded: list[str] = []

    async def offload(self, function: Callable[..., Any], *args: Any) -> Any:
        self.offloaded.append(function.__name__)
        return function(*args)

    def on_response(self, request: Request) -> None:
        self.answered.append(request)

    def release_frame(self, frame: memoryview) -> None:
        self.released += 1

    def throttle(self, delay_ms: float) -> None:
        self.throttled.append(delay_ms)

    def hold(self, request: Request) -> None:
        self.held.append(request)

    def start(self, work: Any) -> None:
        self.work.append(work)

    def close(self, reason: str) -> None:
        self.closed.append(reason)
        self.is_closed = True


def request_of(
    connection: Connection | None = None,
    body: bytes = b"body",
    api_key: int = ApiKey.METADATA,
    version: int = 12,
) -> Request:
    frame = memoryview(bytearray(b"head" + body))
    header = RequestHeader(api_key=api_key, api_version=version, correlation_id=7, client_id="me")
    made = connection if connection is not None else Connection()
    return Request(made, header, 4, frame, 100.0)  # type: ignore[arg-type]


def run(work: Any) -> None:
    """Work that waits for nothing."""
    with pytest.raises(StopIteration):
        work.send(None)


# -- the request ----------------------------------------------------------------------------------


def test_what_a_request_is() -> None:
    request = request_of()
    assert (request.api_key, request.api_version, request.correlation_id) == (3, 12, 7)
    assert (request.client_id, bytes(request.body), request.size_bytes) == ("me", b"body", 8)
    assert (request.received_ms, request.handled_ms) == (100.0, 100.0)
    assert (request.is_answered, request.is_done, request.is_connection_lost) == (False,) * 3


@pytest.mark.parametrize(("more", "is_large"), [(0, False), (1, True)])
def test_a_request_is_large_by_its_bytes(more: int, is_large: bool) -> None:
    assert request_of(body=bytes(AT_ONCE_BYTES - 4 + more)).is_large is is_large


@pytest.mark.parametrize(
    ("count", "size_bytes", "is_large"),
    [(LARGE_PART_COUNT, 1_000, True), (LARGE_PART_COUNT - 1, 1_000, False), (1_000, 2, False)],
)
def test_a_produce_request_is_large_by_its_parts(
    count: int, size_bytes: int, is_large: bool
) -> None:
    records = bytes(size_bytes)
    partitions = [PartitionProduceData(index=n, records=records) for n in range(count)]
    message = ProduceRequest(topic_data=[TopicProduceData(name="t", partition_data=partitions)])
    body = message.to_bytes(3)
    assert (len(body) > AT_ONCE_BYTES) is (size_bytes > 2)
    assert request_of(body=body, api_key=ApiKey.PRODUCE, version=3).is_large is is_large


def test_an_answer_is_given_once_and_its_parts_are_taken_once() -> None:
    connection = Connection()
    request = request_of(connection)
    request.respond_parts([b"one", b"two"])
    assert (connection.answered, request.is_answered, request.is_done) == ([request], True, True)
    with pytest.raises(AssertionError, match="answered once"):
        request.respond_parts([b"again"])
    assert list(request.take_parts()) == [b"one", b"two"]
    assert list(request.take_parts()) == []
    connection.is_closed = True
    request.respond_parts([b"nothing reads it"])


@pytest.mark.parametrize(("size", "released"), [(COPIED_BODY_BYTES, 1), (COPIED_BODY_BYTES + 1, 0)])
def test_a_small_body_is_copied_and_its_frame_given_back(size: int, released: int) -> None:
    connection = Connection()
    request = request_of(connection, body=b"b" * size)
    request.copy_small_body()
    request.copy_small_body()
    assert (bytes(request.body), connection.released) == (b"b" * size, released)
    request.discard()
    assert connection.released == 1


def test_a_frame_is_given_back_once() -> None:
    connection = Connection()
    request = request_of(connection)
    request.release_body()
    request.release_body()
    assert connection.released == 1
    with pytest.raises(ValueError, match="released"):
        bytes(request.body)
    request.discard()
    assert connection.released == 1


class File:
    name = "0.log"
    holders = 0

    def acquire(self) -> None:
        self.holders += 1

    def release(self) -> None:
        self.holders -= 1


def test_an_answer_that_is_not_sent_holds_no_file() -> None:
    connection, file = Connection(), File()
    request = request_of(connection)
    region = FileRegion(file, 0, 10)  # type: ignore[arg-type]
    request.respond_parts([b"head", region])
    assert file.holders == 1
    request.discard()
    assert (file.holders, connection.released, list(request.take_parts())) == (0, 1, [])


def test_a_request_that_breaks_the_protocol_closes_its_connection() -> None:
    connection = Connection()
    request = request_of(connection)
    request.close("nonsense")
    assert (connection.closed, connection.released) == (["nonsense"], 1)
    assert request.is_answered
    assert request.is_connection_lost


@pytest.mark.parametrize("ends", ["an answer", "the end of its connection"])
def test_what_a_large_request_takes_is_given_back_once_it_has_an_answer(ends: str) -> None:
    class Decoded:
        released = 0

        def release(self) -> None:
            self.released += 1

    request, decoded = request_of(), Decoded()
    request.decoded = decoded  # type: ignore[assignment]
    if ends == "an answer":
        request.respond_parts([b"x"])
    else:
        request.close("the test ends it")
    assert (decoded.released, request.decoded) == (1, None)
    request.close("again")
    assert decoded.released == 1


def test_a_small_answer_is_encoded_at_once_in_the_version_asked_for() -> None:
    connection = Connection()
    request = request_of(connection)
    request.respond(MetadataResponse(cluster_id="c"), api_version=9)
    encoded = b"".join(bytes(each) for each in request.take_parts())
    other = request_of()
    other.respond(MetadataResponse(cluster_id="c"))
    assert MetadataResponse.decode(memoryview(encoded)[9:], 9)[0].cluster_id == "c", (
        "after the size, the correlation id and the tags of the header"
    )
    assert encoded != b"".join(bytes(each) for each in other.take_parts())
    assert not connection.work


def topics(count: int) -> list[MetadataResponseTopic]:
    return [MetadataResponseTopic(name=f"t-{number}") for number in range(count)]


def partitions(count: int) -> list[MetadataResponsePartition]:
    return [MetadataResponsePartition(partition_index=number) for number in range(count)]


@pytest.mark.parametrize("more", [0, 1])
def test_an_answer_is_large_by_an_array_at_any_depth(more: int) -> None:
    count = LARGE_ELEMENT_COUNT + more
    is_large = bool(more)
    assert is_large_message(MetadataResponse(topics=topics(count))) is is_large
    deep = MetadataResponse(topics=[MetadataResponseTopic(partitions=partitions(count))])
    assert is_large_message(deep) is is_large
    second = MetadataResponse(
        topics=[*topics(1), MetadataResponseTopic(partitions=partitions(count))]
    )
    assert not is_large_message(second), "only the first of the elements is looked at"
    deeper = [MetadataResponsePartition(replica_nodes=list(range(count)))]
    assert (
        is_large_message(MetadataResponse(topics=[MetadataResponseTopic(partitions=deeper)]))
        is is_large
    )
    assert not is_large_message(MetadataResponse())


def test_the_arrays_of_a_message_are_known_once() -> None:
    names = arrays_of(MetadataResponse)
    assert set(names) == {"brokers", "topics"}
    assert arrays_of(MetadataResponse) is names


@pytest.mark.parametrize(
    ("size_bytes", "api_key", "is_beside"),
    [
        (LARGE_BODY_BYTES, ApiKey.METADATA, False),
        (LARGE_BODY_BYTES + 1, ApiKey.METADATA, True),
        (LARGE_BODY_BYTES + 1, ApiKey.PRODUCE, False),
    ],
)
def test_the_answer_to_a_large_request_is_encoded_beside_the_loop(
    size_bytes: int, api_key: int, is_beside: bool
) -> None:
    connection = Connection()
    request = request_of(connection, bytes(size_bytes - 4), api_key)
    request.respond(MetadataResponse(cluster_id="c"))
    assert len(connection.work) == is_beside
    assert request.is_answered
    assert request.is_done is not is_beside
    for work in connection.work:
        run(work)
    assert request.is_done
    assert connection.offloaded == ["_encoded_and_freed"] * is_beside


def test_a_large_answer_that_cannot_be_encoded_closes_the_connection() -> None:
    connection = Connection()
    request = request_of(connection)
    wrong = MetadataResponse(topics=topics(LARGE_ELEMENT_COUNT + 1))
    wrong.topics[0].name = "x" * 40_000
    request.api_version = 5
    request.respond(wrong)
    with pytest.raises(LocalProtocolError):
        connection.work[0].send(None)
    assert connection.closed == ["an answer failed inside the node"]


class Counted(str):
    """The name of a topic. Counts those that are gone."""

    __slots__ = ()
    gone = 0

    def __del__(self) -> None:
        Counted.gone += 1


@pytest.mark.parametrize("holds", ["nothing", "the list", "an element"])
def test_a_large_answer_is_taken_apart_unless_others_hold_it(holds: str) -> None:
    Counted.gone = 0
    count = 2 * FREED_AT_ONCE + LARGE_ELEMENT_COUNT
    connection = Connection()
    request = request_of(connection)
    inner = partitions(3)
    elements: list[Any] = [
        MetadataResponseTopic(name=Counted(f"t-{number}")) for number in range(count)
    ]
    elements[5].partitions = inner
    kept: list[Any] = {"nothing": [], "the list": [elements], "an element": [elements[5]]}[holds]
    request.respond(MetadataResponse(topics=elements))
    del elements
    run(connection.work.pop())
    gc.collect()
    expected = {"nothing": count, "the list": 0, "an element": count - 1}[holds]
    assert Counted.gone == expected
    if holds == "the list":
        assert [each.name for each in kept[0][:2]] == ["t-0", "t-1"]
        assert kept[0][5].partitions is inner
    if holds == "an element":
        assert kept[0].partitions is inner
    assert len(inner) == 3


# -- the context ----------------------------------------------------------------------------------


class Quotas:
    """Asks for a pause of 30 ms, and remembers for what."""

    def __init__(self) -> None:
        self.recorded: list[tuple[str, str | None, float]] = []

    def record_request(self, principal: str, client_id: str | None, elapsed_ms: float) -> int:
        self.recorded.append((principal, client_id, elapsed_ms))
        return 30


def context_of(
    connection: Connection | None = None, quotas: Quotas | None = None
) -> RequestContext:
    return RequestContext(request_of(connection), Authorizer(), quotas)  # type: ignore[arg-type]


def test_a_context_knows_whose_request_it_is() -> None:
    context = context_of()
    assert (context.api_key, context.api_version, context.client_id) == (3, 12, "me")
    assert (context.principal, context.client_host) == ("User:alice", "10.0.0.9")
    assert (context.listener_name, context.token_authenticated) == ("OUTSIDE", True)
    assert (context.received_ms, context.timeout_ms, context.throttle_time_ms) == (100.0, None, 0)
    assert not context.is_answered


def test_the_longest_pause_is_answered_and_kept() -> None:
    connection = Connection()
    context = context_of(connection)
    context.throttle(50)
    context.throttle(20)
    answer = MetadataResponse(throttle_time_ms=10)
    context.respond(answer)
    assert answer.throttle_time_ms == 50
    assert connection.throttled == [50]
    assert context.is_answered


def test_the_pause_of_another_node_s_answer_is_kept_too() -> None:
    connection = Connection()
    context = context_of(connection)
    answer = MetadataResponse(throttle_time_ms=10)
    context.respond(answer)
    assert (answer.throttle_time_ms, connection.throttled) == (10, [10])


def test_an_answer_without_a_pause_throttles_nothing() -> None:
    connection = Connection()
    answer = MetadataResponse()
    context_of(connection).respond(answer)
    assert (answer.throttle_time_ms, connection.throttled) == (0, [])
    connection = Connection()
    context = RequestContext(
        request_of(connection, api_key=ApiKey.SASL_HANDSHAKE, version=1),  # type: ignore[arg-type]
        Authorizer(),
    )
    context.respond(SaslHandshakeResponse())
    assert connection.throttled == [], "an answer that has no such field asks for none"
    context = RequestContext(
        request_of(connection, api_key=ApiKey.SASL_HANDSHAKE, version=1),  # type: ignore[arg-type]
        Authorizer(),
    )
    context.throttle(5)
    context.respond(SaslHandshakeResponse())
    assert connection.throttled == [5]


def test_a_pause_may_begin_before_the_answer() -> None:
    connection = Connection()
    context = context_of(connection)
    context.throttle_at_once(0)
    assert connection.throttled == []
    context.throttle_at_once(40)
    assert (connection.throttled, context.throttle_time_ms) == ([40], 40)


def test_no_answer_is_throttled_as_well() -> None:
    connection = Connection()
    context_of(connection).respond_nothing()
    context = context_of(connection)
    context.throttle(9)
    context.respond_nothing()
    assert connection.throttled == [9]
    assert [list(each.take_parts()) for each in connection.answered] == [[], []]
    with pytest.raises(AssertionError, match="answered once"):
        context.respond_nothing()
    with pytest.raises(AssertionError, match="answered once"):
        context.respond(MetadataResponse())


def test_a_request_that_waits_gives_its_bytes_back() -> None:
    connection = Connection()
    context = context_of(connection)
    context.hold_if_waiting()
    assert (connection.held, connection.released) == ([context.request], 1)
    answered = context_of(connection)
    answered.respond(MetadataResponse())
    answered.hold_if_waiting()
    assert (connection.held, connection.released) == ([context.request], 1)


def test_the_time_of_a_request_is_counted_once() -> None:
    clock, quotas, connection = ManualClock(), Quotas(), Connection()
    context = context_of(connection, quotas)
    assert context.record_request_time() == 0
    context.stopwatch = Stopwatch(clock)
    context.stopwatch.start()
    clock.advance(7)
    answer = MetadataResponse()
    context.respond(answer)
    assert quotas.recorded == [("User:alice", "me", 7.0)]
    assert (answer.throttle_time_ms, connection.throttled) == (30, [30])
    assert context.record_request_time() == 0
    exempt = context_of(connection, quotas)
    exempt.stopwatch = Stopwatch(clock)
    exempt.exempt_from_request_quota()
    exempt.respond(MetadataResponse())
    alone = context_of()
    alone.stopwatch = Stopwatch(clock)
    alone.respond(MetadataResponse())
    assert len(quotas.recorded) == 1


def test_an_answer_that_fails_leaves_no_connection_waiting() -> None:
    connection = Connection()
    context = context_of(connection)
    wrong = MetadataResponse(cluster_id="x" * 40_000)
    context.api_version = context.request.api_version = 5
    with pytest.raises(LocalProtocolError):
        context.respond(wrong)
    assert connection.closed == ["an answer failed inside the node"]
    fine = Connection()
    context_of(fine).respond(MetadataResponse())
    assert fine.closed == []


class Asked(Authorizer):
    """Allows what the test says, and remembers the questions."""

    def __init__(self, *allowed: Operation) -> None:
        self.allowed = allowed
        self.asked: list[tuple[Any, ...]] = []

    def authorize(self, *question: Any) -> bool:  # type: ignore[override]
        self.asked.append(question)
        return question[2] in self.allowed

    def authorize_by_resource_type(self, *question: Any) -> bool:  # type: ignore[override]
        self.asked.append(question)
        return question[2] in self.allowed


def test_questions_are_asked_for_the_client() -> None:
    authorizer = Asked(Operation.READ, Operation.DESCRIBE)
    context = RequestContext(request_of(), authorizer)
    who = ("User:alice", "10.0.0.9")
    assert context.authorized_topic(Operation.READ, "t")
    assert not context.authorized_cluster(Operation.ALTER)
    assert context.authorized_by_resource_type(Operation.READ, ResourceType.GROUP)
    assert authorizer.asked == [
        (*who, Operation.READ, ResourceType.TOPIC, "t"),
        (*who, Operation.ALTER, ResourceType.CLUSTER, "kafka-cluster"),
        (*who, Operation.READ, ResourceType.GROUP),
    ]
    assert context.authorized_topic_operations("t") == 1 << 3 | 1 << 8
    assert context.authorized_cluster_operations() == 1 << 8
    authorizer.allowed = (Operation.ALTER,)
    assert context.authorized_cluster_operations() == 0


# -- figures --------------------------------------------------------------------------------------


def test_requests_are_counted_by_their_name() -> None:
    registry = Registry(lambda: 0.0)
    metrics = RequestMetrics(registry)
    for local_ms, total_ms in ((1.0, 5.0), (2.0, 7.0)):
        metrics.request_completed(request_of(body=b"12"), 100, local_ms, total_ms)
    metrics.request_completed(request_of(api_key=ApiKey.FETCH), 1, 0.0, 0.0)
    found = {
        each.name.removeprefix(REQUEST_METRICS): each.instrument
        for each in registry.collect()
        if "Metadata" in str(each)
    }
    counters = {
        name: found[name].value for name in ("RequestsPerSec", "RequestBytes", "ResponseBytes")
    }
    assert counters == {"RequestsPerSec": 2, "RequestBytes": 12, "ResponseBytes": 200}
    assert (found["LocalTimeMs"].total, found["TotalTimeMs"].total) == (3.0, 12.0)


def test_only_a_request_s_own_steps_take_its_time() -> None:
    clock = ManualClock()
    watch = Stopwatch(clock)
    assert watch.elapsed_ms() == 0

    def steps() -> Any:
        for cost in (1, 2):
            clock.advance(cost)
            yield

    made = timed_steps(watch, steps())
    seen = 0
    for _ in made:
        clock.advance(100)
        seen += 1
    assert (seen, watch.elapsed_ms()) == (2, 3)
    watch.start()
    clock.advance(5)
    assert watch.elapsed_ms() == 8
    watch.stop()
    clock.advance(100)
    assert watch.elapsed_ms() == 8


def test_work_for_a_request_takes_its_time_step_by_step() -> None:
    clock = ManualClock()
    watch = Stopwatch(clock)
    ended: list[str] = []

    class Pause:
        def __await__(self) -> Any:
            yield

    async def work() -> str:
        try:
            clock.advance(1)
            await Pause()
            clock.advance(2)
            await Pause()
        except KeyError:
            clock.advance(4)
            await Pause()
        finally:
            ended.append("closed")
        return "result"

    made = TimedWork(work(), watch)
    made.send(None)
    clock.advance(100)
    made.send(None)
    clock.advance(100)
    made.throw(KeyError("told"))
    clock.advance(100)
    assert watch.elapsed_ms() == 7
    made.close()
    assert ended == ["closed"]

    async def waits() -> str:
        return await TimedWork(work(), watch)

    waiting = waits()
    for _ in range(2):
        waiting.send(None)
    with pytest.raises(StopIteration) as end:
        waiting.send(None)
    assert end.value.value == "result"
