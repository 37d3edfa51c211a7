"""What one request may cost the others: the longest step of a loop for the largest of every API.

One node, a broker and a controller, on `benchmarks.loop_probe`. Each request has about 1 MB, with
one array of the schema filled as far as that goes, or with texts of 32 KB, and goes to the broker's
listener and to the controller's, where it is served. The figure is processor time of the loop's
thread between two moments at which others had their turn; the least of three attempts where the
first one is over the limit.
"""

from __future__ import annotations

import contextlib
import json
import socket
import sys
import time
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from benchmarks.figures import Effort, Report, Spread, Table, at_most
from benchmarks.largest_requests import (
    KNOWN_TOPICS,
    OVERRIDES,
    PRODUCER_ID,
    WIDE_PARTITIONS,
    Largest,
    Names,
    known_topic,
    largest_requests,
)
from benchmarks.loop_probe import DATA, QUORUM
from benchmarks.nodes import HOST, BrokerNode, free_ports, temporary_directory
from benchmarks.wire import Wire, read_answer, request_frame, until_accepted
from moldau.protocol.api_keys import ApiKey, api_name
from moldau.protocol.error_responses import error_codes
from moldau.protocol.errors import ErrorCode
from moldau.protocol.headers import decode_response
from moldau.protocol.messages.p03_metadata import MetadataRequest
from moldau.protocol.messages.p08_offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from moldau.protocol.messages.p10_find_coordinator import FindCoordinatorRequest
from moldau.protocol.messages.p18_api_versions import ApiVersionsRequest
from moldau.protocol.messages.p19_create_topics import CreatableTopic, CreateTopicsRequest
from moldau.protocol.messages.p22_init_producer_id import InitProducerIdRequest
from moldau.protocol.registry import request_class
from moldau.server.apis import BROKER_APIS, CONTROLLER_APIS

SIZE_BYTES: Final = 1_000_000
LIMIT_MS: Final = 50.0
ATTEMPTS: Final = 3
"""What is over the limit is asked again, so often in all, and the least counts: a roll of a segment
may fall into a request's time, and another process that takes the caches.
"""

PATIENCE_S: Final = 120.0
SETTLED_S: Final = 0.25
"""What a request of `SIZE_BYTES` leads to after its answer has begun by then; smaller ones are
given less, in proportion.
"""

LAST: Final = (
    *(ApiKey.END_TXN, ApiKey.WRITE_TXN_MARKERS),
    *(ApiKey.DELETE_TOPICS, ApiKey.DELETE_RECORDS),
)
"""They take away what the others are asked about."""

NODE_SETTINGS: Final = {
    "offsets.topic.num.partitions": "3",
    "transaction.state.log.num.partitions": "3",
    "group.initial.rebalance.delay.ms": "0",
}


class Cost(NamedTuple):
    """One request: what it held, and what came back."""

    api: str
    listener: str
    what: str
    size_bytes: int
    data_ms: float
    quorum_ms: float
    answer: str
    held: str

    @property
    def longest_ms(self) -> float:
        """On either loop."""
        return max(self.data_ms, self.quorum_ms)


class ProbedNode(BrokerNode):
    """A node whose loops are timed."""

    name = "Moldau"

    def __init__(self, directory: Path, settings: dict[str, str]) -> None:
        super().__init__(directory, settings)
        (self._probe_port,) = free_ports(1)
        listeners = (line for line in self._config.read_text().splitlines() if "voters" in line)
        self.controller_port = int(next(listeners).rpartition(":")[2])

    def command(self) -> Sequence[str]:
        return [
            *(sys.executable, "-m", "benchmarks.loop_probe", str(self._probe_port)),
            *(str(self._config), "--format-if-needed"),
        ]

    def longest_steps(self) -> dict[str, tuple[float, str]]:
        """Of each loop since the last call."""
        with socket.create_connection((HOST, self._probe_port), timeout=PATIENCE_S) as connection:
            text = b"".join(iter(lambda: connection.recv(1 << 16), b""))
        steps: dict[str, tuple[float, str]] = json.loads(text)
        return steps


def run(effort: Effort) -> Report:
    """Every API once."""
    size_bytes = effort.count(SIZE_BYTES, least=1000)
    costs = list(measure(size_bytes))
    report = Report("The cost of one request")
    table = Table(
        ("API", "listener", "what is large", "KB", "data loop ms", "quorum loop ms", "answer"),
        "The largest request of each kind; the longest step of each loop, processor time:",
    )
    for cost in costs:
        table.add(
            cost.api,
            cost.listener,
            cost.what,
            f"{cost.size_bytes / 1000:,.0f}",
            _marked(cost.data_ms),
            _marked(cost.quorum_ms),
            cost.answer,
        )
    report.tables.append(table)
    worst = max(costs, key=lambda cost: cost.longest_ms)
    report.targets.append(
        at_most(
            f"longest step for one request of {size_bytes / 1e6:g} MB ≤ {LIMIT_MS:g} ms "
            f"({worst.api}, {worst.what})",
            Spread.of([worst.longest_ms]),
            LIMIT_MS,
        )
    )
    return report


def measure(size_bytes: int, only: Sequence[str] = ()) -> Iterator[Cost]:
    """Ask everything, or the APIs of these names."""
    settled_s = SETTLED_S * min(size_bytes / SIZE_BYTES, 1.0)
    with temporary_directory() as directory, ProbedNode(directory, NODE_SETTINGS) as node:
        with node.connect() as wire:
            topic_ids = _prepare(wire)
        names = (
            Names("known names", known_topic, lambda i: topic_ids[i % len(topic_ids)]),
            Names("unknown names", lambda i: f"none-{i}", lambda i: uuid.UUID(int=i)),
        )
        for listener, port, versions in (
            ("broker", node.port, {k: v.max_version for k, v in BROKER_APIS.items()}),
            (
                "controller",
                node.controller_port,
                {k: v.max_version for k, v in CONTROLLER_APIS.items()},
            ),
        ):
            for api_key in sorted(versions, key=lambda key: (key in LAST, key)):
                api = api_name(api_key)
                if only and api not in only:
                    continue
                overrides = OVERRIDES.get(api, {})
                for largest in largest_requests(
                    request_class(api_key), versions[api_key], size_bytes, names, overrides
                ):
                    yield min(
                        _costs(node, port, listener, versions[api_key], largest, settled_s),
                        key=lambda cost: cost.longest_ms,
                    )


def _prepare(wire: Wire) -> list[uuid.UUID]:
    """Topics, coordinators, and what else requests ask for; the ids of known topics, in order."""
    topics = [
        CreatableTopic(name=known_topic(index), num_partitions=1, replication_factor=1)
        for index in range(KNOWN_TOPICS)
    ]
    topics[0].num_partitions = WIDE_PARTITIONS
    response = wire.ask(CreateTopicsRequest(topics=topics, timeout_ms=60_000), 7)
    assert not any(topic.error_code for topic in response.topics), response
    wire.wait_for_leaders(known_topic(0), WIDE_PARTITIONS)
    for key_type, key in ((0, "group"), (1, "n-1")):
        request = FindCoordinatorRequest(key_type=key_type, coordinator_keys=[key])
        until_accepted(lambda asked=request: wire.ask(asked, 6).coordinators[0])
    _begin_work(wire)
    found = wire.ask(MetadataRequest(topics=None), 12).topics
    ids = {topic.name: topic.topic_id for topic in found}
    return [ids[known_topic(index)] for index in range(KNOWN_TOPICS)]


def _begin_work(wire: Wire) -> None:
    """A group with offsets and a transactional id, as soon as their coordinators are loaded."""
    offsets = [
        OffsetCommitRequestPartition(partition_index=index, committed_offset=1)
        for index in range(WIDE_PARTITIONS)
    ]
    commit = OffsetCommitRequest(
        group_id="group",
        topics=[OffsetCommitRequestTopic(name=known_topic(0), partitions=offsets)],
    )
    begin = InitProducerIdRequest(transactional_id="n-0", transaction_timeout_ms=60_000)
    until_accepted(lambda: wire.ask(commit, 8).topics[0].partitions[0])
    found = until_accepted(lambda: wire.ask(begin, 4))
    assert found.producer_id == PRODUCER_ID, found


def _costs(
    node: ProbedNode,
    port: int,
    listener: str,
    api_version: int,
    largest: Largest,
    settled_s: float,
) -> Iterator[Cost]:
    """What the request costs, again while that is over the limit."""
    for _ in range(ATTEMPTS):
        cost = _cost(node, port, listener, api_version, largest, settled_s)
        yield cost
        if cost.longest_ms <= LIMIT_MS:
            return


def _cost(
    node: ProbedNode,
    port: int,
    listener: str,
    api_version: int,
    largest: Largest,
    settled_s: float,
) -> Cost:
    message = largest.message
    frame = request_frame(message, api_version, correlation_id=1, client_id="costs")
    _settle(node, settled_s)
    node.longest_steps()
    answer = _answer(port, frame, message.API_KEY, api_version)
    _settle(node, settled_s)
    steps = node.longest_steps()
    data, quorum = steps.get(DATA, (0.0, "")), steps.get(QUORUM, (0.0, ""))
    return Cost(
        api_name(message.API_KEY),
        listener,
        largest.what,
        len(frame),
        data[0],
        quorum[0],
        answer,
        max(data, quorum)[1],
    )


def _settle(node: ProbedNode, settled_s: float) -> None:
    """Let what is under way end: both listeners answer a small question, twice."""
    for _ in range(2):
        for port in (node.port, node.controller_port):
            with contextlib.suppress(OSError), Wire(HOST, port) as wire:
                wire.ask(
                    ApiVersionsRequest(client_software_name="a", client_software_version="1"), 3
                )
        time.sleep(settled_s)


def _answer(port: int, frame: bytes, api_key: int, api_version: int) -> str:
    try:
        with socket.create_connection((HOST, port), timeout=PATIENCE_S) as connection:
            connection.sendall(frame)
            body = read_answer(connection)
    except TimeoutError:
        return f"none in {PATIENCE_S:g} s"
    except OSError:
        return "closed"
    _, response = decode_response(api_key, api_version, body)
    codes = sorted(set(_codes(response)))
    text = ", ".join(ErrorCode.of(code).name for code in codes[:3])
    return f"{text} ({len(body) / 1000:,.0f} KB)"


def _codes(response: Any) -> Iterator[int]:
    yield from (int(code) for code in error_codes(response))


def _marked(elapsed_ms: float) -> str:
    text = f"{elapsed_ms:,.1f}"
    return f"**{text}**" if elapsed_ms > LIMIT_MS else text


if __name__ == "__main__":
    for each in measure(SIZE_BYTES, sys.argv[1:]):
        print(
            f"{each.data_ms:9.1f} {each.quorum_ms:9.1f}  {each.listener:10} {each.api:28}"
            f" {each.size_bytes:8}  {each.what:50} {each.answer}",
            flush=True,
        )
        if each.longest_ms > LIMIT_MS:
            print(f"{'':20} {each.held}", flush=True)
