"""One request to two clusters: ours and Apache Kafka's, in one version, over a plain socket.

Owns the two connections. Must not judge the answers.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final
from uuid import UUID

from moldau.protocol.errors import ErrorCode, LocalProtocolError
from moldau.protocol.headers import decode_response, encode_request
from moldau.protocol.messages.p03_metadata import MetadataRequest
from moldau.protocol.messages.p32_describe_configs import DescribeConfigsRequest
from moldau.protocol.messages.p44_incremental_alter_configs import IncrementalAlterConfigsRequest
from moldau.protocol.schema import Message
from moldau.protocol.structs import ArrayType, Struct, StructType
from tests.interop.raw.wire import read_exactly
from tests.kit.waiting import until

ANSWER_TIMEOUT_S: Final = 30.0
CLIENT_ID: Final = "differential"
LENGTH_BYTES: Final = 4
BROKER_RESOURCE: Final = 4
BARRIER_KEY: Final = "max.connections.per.ip"
"""A cluster-wide key whose value counts the changes: a broker that shows it has seen the rest.
With a key of the cleaner Apache Kafka would start the cleaner's threads again each time.
"""

FIRST_BARRIER: Final = 20_000
BARRIER_VERSIONS: Final = (1, 4)  # of IncrementalAlterConfigs and DescribeConfigs
IDS_VERSION: Final = 12
"""The version of Metadata that has the ids of topics."""


class Closed:
    """The answer of a node that closed the connection instead."""

    def __repr__(self) -> str:
        return "the connection was closed"


CLOSED: Final = Closed()


@dataclass
class Node:
    """The only node of a cluster.

    Args:
        name: for people.
        bootstrap: its `host:port`.
        aliases: what is this node's own (a port, a directory, an id) and the word for it that
            both nodes' answers then have in common.
    """

    name: str
    bootstrap: str
    aliases: dict[str, str] = field(default_factory=dict)
    topic_ids: dict[str, UUID] = field(default_factory=dict)
    _socket: socket.socket | None = None
    _correlation_id: int = 0
    _barrier: int = FIRST_BARRIER

    def ask(self, request: Message, api_version: int) -> Message | Closed:
        """The answer, which must be of that version and nothing else."""
        self.send(request, api_version)
        return self.receive(request, api_version)

    def send(self, request: Message, api_version: int) -> None:
        """Send a request; its answer is taken with `receive`."""
        if self._socket is None:
            host, _, port = self.bootstrap.rpartition(":")
            self._socket = socket.create_connection((host, int(port)), ANSWER_TIMEOUT_S)
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._correlation_id += 1
        parts = encode_request(
            request,
            api_version=api_version,
            correlation_id=self._correlation_id,
            client_id=CLIENT_ID,
        )
        with contextlib.suppress(ConnectionError):
            self._socket.sendall(b"".join(parts))

    def receive(self, request: Message, api_version: int) -> Message | Closed:
        """The answer to the request sent last."""
        assert self._socket is not None, "a request was sent"
        try:
            head = self._socket.recv(LENGTH_BYTES, socket.MSG_WAITALL)
        except ConnectionError:
            head = b""
        except TimeoutError:
            raise AssertionError(f"{self.name} does not answer {request!r}"[:500]) from None
        if not head:
            self.close()
            return CLOSED
        data = read_exactly(self._socket, int.from_bytes(head))
        correlation_id, answer = decode_response(int(request.API_KEY), api_version, data)
        assert correlation_id == self._correlation_id
        return answer

    def close(self) -> None:
        """Drop the connection; the next question makes another one."""
        opened, self._socket = self._socket, None
        if opened is not None:
            with contextlib.suppress(OSError):
                opened.close()

    def learn_topic_ids(self) -> None:
        """Ask for the ids of all topics."""
        answer: Any = self.ask(MetadataRequest(topics=None), IDS_VERSION)
        self.topic_ids.update({topic.name: topic.topic_id for topic in answer.topics})

    def settle(self) -> None:
        """Wait until this broker shows what was changed before."""
        self._barrier += 1
        value = str(self._barrier)
        change = build(
            IncrementalAlterConfigsRequest,
            resources=[
                {
                    "resource_type": BROKER_RESOURCE,
                    "resource_name": "",
                    "configs": [{"name": BARRIER_KEY, "config_operation": 0, "value": value}],
                }
            ],
        )
        answer: Any = self.ask(change, BARRIER_VERSIONS[0])
        assert answer.responses[0].error_code == ErrorCode.NONE, (self.name, answer)
        question = build(
            DescribeConfigsRequest,
            resources=[
                {
                    "resource_type": BROKER_RESOURCE,
                    "resource_name": "1",
                    "configuration_keys": [BARRIER_KEY],
                }
            ],
        )

        def shown() -> bool:
            told: Any = self.ask(question, BARRIER_VERSIONS[1])
            return bool(told.results[0].configs[0].value == value)

        until(shown, what=f"{self.name} shows the last change")
        self.learn_topic_ids()


@dataclass
class Ground:
    """What a case needs to know to make its request: the version, and one node's own names."""

    api_version: int
    node: Node

    def topic_id(self, topic: str) -> UUID:
        """The topic's id on this node."""
        return self.node.topic_ids[topic]


@dataclass(frozen=True)
class Pair:
    """Our cluster and Apache Kafka's."""

    ours: Node
    kafka: Node

    @property
    def nodes(self) -> tuple[Node, Node]:
        """Ours first."""
        return self.ours, self.kafka

    def ask_both(
        self, make: Callable[[Ground], Message], api_version: int
    ) -> tuple[Message | Closed, Message | Closed] | None:
        """Both answers to the same request, None when that version cannot say it."""
        requests = [make(Ground(api_version, node)) for node in self.nodes]
        try:
            for request in requests:
                request.encode(api_version)
        except LocalProtocolError:
            return None
        for node, request in zip(self.nodes, requests, strict=True):
            node.send(request, api_version)
        ours, kafka = (
            node.receive(request, api_version)
            for node, request in zip(self.nodes, requests, strict=True)
        )
        return ours, kafka

    def settle(self) -> None:
        """Wait until both brokers show what was changed before."""
        for node in self.nodes:
            node.settle()

    def close(self) -> None:
        """Drop both connections."""
        for node in self.nodes:
            node.close()


def build(cls: type[Struct], **values: Any) -> Any:
    """A message from dictionaries and lists, named as its fields are."""
    types = {spec.name: spec.type for spec in cls.spec().fields}
    return cls(**{name: _built(types[name], value) for name, value in values.items()})


def _built(kind: Any, value: Any) -> Any:
    if isinstance(kind, ArrayType) and value is not None:
        return [_built(kind.element, each) for each in value]
    if isinstance(kind, StructType) and isinstance(value, Mapping):
        return build(kind.struct, **value)
    return value
