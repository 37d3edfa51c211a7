"""Large requests on the controller's listener: slices, other threads, order and limits."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Generator
from typing import Any

import pytest

from moldau.controller import apis
from moldau.controller.apis import MANY_ELEMENTS, LongWork, has_many_elements
from moldau.metadata import descriptions
from moldau.metadata.descriptions import MAX_DESCRIBED_ENTRIES
from moldau.protocol.envelope import encode_envelope
from moldau.protocol.error_responses import error_codes
from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.p19_create_topics import CreatableTopic, CreateTopicsRequest
from moldau.protocol.messages.p20_delete_topics import DeleteTopicsRequest, DeleteTopicState
from moldau.protocol.messages.p32_describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
)
from moldau.protocol.messages.p43_elect_leaders import ElectLeadersRequest, TopicPartitions
from moldau.protocol.messages.p44_incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from moldau.runtime.slices import SLICE_MS
from tests.kit.envelopes import decode_enveloped_response
from tests.kit.manual_clock import ManualClock
from tests.unit.controller.harness import ControllerBench

pytestmark = pytest.mark.real

TOPIC = 2


@pytest.fixture
async def bench() -> AsyncIterator[ControllerBench]:
    bench = await ControllerBench.start()
    yield bench
    await bench.close()


def topics(*names: str) -> CreateTopicsRequest:
    return CreateTopicsRequest(
        topics=[CreatableTopic(name=name, num_partitions=1, replication_factor=1) for name in names]
    )


def question(*names: str, keys: list[str] | None = None) -> DescribeConfigsRequest:
    return DescribeConfigsRequest(
        resources=[
            DescribeConfigsResource(
                resource_type=TOPIC, resource_name=name, configuration_keys=keys
            )
            for name in names
        ]
    )


# -- DescribeConfigs -------------------------------------------------------------------------------


async def test_topics_that_are_alike_are_described_once(
    bench: ControllerBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    connection = await bench.connect()
    await bench.join(connection)
    await connection.send(topics("a", "b", "c"))
    change = AlterConfigsResource(
        resource_type=TOPIC,
        resource_name="c",
        configs=[AlterableConfig(name="retention.ms", value="7")],
    )
    await connection.send(IncrementalAlterConfigsRequest(resources=[change]))
    described: list[Any] = []
    describe = descriptions.describe_topic_config

    def counting(*arguments: Any) -> Any:
        described.append(arguments[-1])
        return describe(*arguments)

    monkeypatch.setattr(descriptions, "describe_topic_config", counting)
    response = await connection.send(question("a", "b", "a", "c"))
    assert [each.resource_name for each in response.results] == ["a", "b", "a", "c"], (
        "named twice, answered twice, as by Apache Kafka"
    )
    assert len(described) == 2
    first, second, again, changed = response.results
    assert first.configs == second.configs == again.configs
    own = {config.name: config.value for config in changed.configs}
    assert own["retention.ms"] == "7"
    assert len(changed.configs) == len(first.configs)
    response = await connection.send(question("a", "b", keys=["retention.ms", "x"] * 3))
    assert [[each.name for each in result.configs] for result in response.results] == [
        ["retention.ms"]
    ] * 2
    assert described[2:] == [frozenset(("retention.ms", "x"))], "which are looked up, not searched"


async def test_an_answer_has_a_limit(
    bench: ControllerBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    connection = await bench.connect()
    await bench.join(connection)
    await connection.send(topics("a", "b"))
    whole = await connection.send(question("a"))
    count = len(whole.results[0].configs)
    assert count * 10_000 < MAX_DESCRIBED_ENTRIES, "ten thousand topics may be asked for at once"
    monkeypatch.setattr(descriptions, "MAX_DESCRIBED_ENTRIES", 3 * count + 1)
    names = ["a", "b", "a", "a", "b", "none"]
    response = await connection.send(question(*names))
    assert [each.resource_name for each in response.results] == names
    refused = ErrorCode.POLICY_VIOLATION
    assert [each.error_code for each in response.results] == [
        *([ErrorCode.NONE] * 3),
        *([refused] * 2),
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ]
    assert not response.results[3].configs


async def test_an_unknown_name_of_any_length_is_answered(bench: ControllerBench) -> None:
    connection = await bench.connect()
    name = "x" * 32_767
    request = question(name)
    request.resources.append(DescribeConfigsResource(resource_type=4, resource_name=name))
    response = await connection.send(request)
    assert [each.error_code for each in response.results] == [
        ErrorCode.INVALID_TOPIC_EXCEPTION,
        ErrorCode.INVALID_REQUEST,
    ]


# -- slices and threads ----------------------------------------------------------------------------


class BusyClock(ManualClock):
    """Every look at it ends a slice."""

    def monotonic_ms(self) -> float:
        self.stand_still(SLICE_MS)
        return super().monotonic_ms()


async def test_work_in_slices_gives_way_and_returns_its_result() -> None:
    work = LongWork(BusyClock(), asyncio.to_thread)
    done: list[str] = []

    def steps(name: str) -> Generator[None, None, str]:
        for index in range(3):
            done.append(f"{name}{index}")
            yield
        return f"{name} ended"

    results = await asyncio.gather(work.in_slices(steps("a")), work.in_slices(steps("b")))
    assert done == ["a0", "b0", "a1", "b1", "a2", "b2"]
    assert results == ["a ended", "b ended"]


async def test_a_request_does_not_overtake_one_whose_names_are_looked_at(
    bench: ControllerBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    connection = await bench.connect()
    await bench.join(connection)
    monkeypatch.setattr(bench.apis, "work", LongWork(BusyClock(), asyncio.to_thread))
    names = [f"t{index}" for index in range(50)]
    elections = ElectLeadersRequest(
        topic_partitions=[TopicPartitions(topic=names[-1], partitions=[0])]
    )
    created, again, elected, deleted = await asyncio.gather(
        connection.send(topics(*names)),
        connection.send(topics(names[-1])),
        connection.send(elections),
        connection.send(
            DeleteTopicsRequest(topics=[DeleteTopicState(name=names[-1])], timeout_ms=30_000)
        ),
    )
    assert set(error_codes(created)) == {ErrorCode.NONE}
    assert again.topics[0].error_code == ErrorCode.TOPIC_ALREADY_EXISTS
    (result,) = elected.replica_election_results[0].partition_result
    assert result.error_code == ErrorCode.ELECTION_NOT_NEEDED
    assert deleted.responses[0].error_code == ErrorCode.NONE


def test_elements_are_counted_wherever_they_are() -> None:
    half = list(range(MANY_ELEMENTS // 2))
    few = ElectLeadersRequest(topic_partitions=[TopicPartitions(topic="a", partitions=half)])
    assert not has_many_elements(few)
    assert not has_many_elements(ElectLeadersRequest(topic_partitions=None))
    parts = [TopicPartitions(topic=name, partitions=half) for name in "ab"]
    assert has_many_elements(ElectLeadersRequest(topic_partitions=parts))
    last = [TopicPartitions(topic="a"), TopicPartitions(topic="b", partitions=half * 3)]
    assert has_many_elements(ElectLeadersRequest(topic_partitions=last))


async def test_a_large_envelope_is_closed_in_another_thread(
    bench: ControllerBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    connection = await bench.connect()
    await bench.join(connection)
    threads: dict[str, list[threading.Thread]] = {"closed": []}

    def watched(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            threads[name].append(threading.current_thread())
            return function(*arguments, **options)

        return call

    closing = watched("closed", apis.encode_enveloped_response)
    monkeypatch.setattr(apis, "encode_enveloped_response", closing)
    own = threading.current_thread()
    for count, is_large in ((1, False), (5_000, True)):
        request = topics(*(f"a-topic-{index}" for index in range(count)))
        envelope = encode_envelope(
            request,
            api_version=7,
            correlation_id=7,
            client_id="client",
            principal="User:alice",
            client_host="10.1.2.3",
        )
        answer = await connection.send(envelope)
        response: Any = decode_enveloped_response(
            answer, api_key=request.API_KEY, api_version=7, correlation_id=7
        )
        assert len(response.topics) == count
        for name, used in threads.items():
            assert (used.pop() is not own) == is_large, name


async def test_a_large_envelope_that_cannot_be_opened(bench: ControllerBench) -> None:
    connection = await bench.connect()
    envelope = encode_envelope(
        topics(*(f"a-topic-{index}" for index in range(9_000))),
        api_version=7,
        correlation_id=7,
        client_id="client",
        principal="User:alice",
        client_host="10.1.2.3",
    )
    envelope.request_data = bytes(envelope.request_data)[:-6]
    answer = await connection.send(envelope)
    assert answer.error_code == ErrorCode.UNSUPPORTED_VERSION


async def test_a_failure_of_much_is_said_in_another_thread(
    bench: ControllerBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    connection = await bench.connect()
    offloaded: list[int] = []

    async def offload(function: Callable[..., Any], *arguments: Any) -> Any:
        offloaded.append(len(arguments))
        return await asyncio.to_thread(function, *arguments)

    monkeypatch.setattr(bench.apis, "work", LongWork(bench.clock, offload))
    bench.controller.handle_leader_change(2, 2)
    for count in (1, MANY_ELEMENTS + 1):
        partitions = [TopicPartitions(topic="t", partitions=list(range(count)))]
        response = await connection.send(ElectLeadersRequest(topic_partitions=partitions))
        assert response.error_code == ErrorCode.NOT_CONTROLLER
        (answer,) = response.replica_election_results
        assert len(answer.partition_result) == count
    assert len(offloaded) == 1
