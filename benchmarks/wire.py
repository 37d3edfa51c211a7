"""A blocking Kafka connection for preparing a benchmark, and the frames its loads send.

Owns: asking a node for topics, producer ids and offsets; encoding one produce or fetch frame whose
changing fields are then patched in place, and taking the answers to produce frames. Must not take
part in what is timed, beyond these.
Invariant: a patched frame is what a client would have encoded; the CRC covers the sequence.
"""

from __future__ import annotations

import socket
import ssl
import struct
import time
from collections.abc import Callable, Collection, Sequence
from typing import Any, Final, Self

from crc32c import crc32c

from moldau.cli.bench.figures import payload, produce_request
from moldau.protocol.headers import decode_response, encode_request
from moldau.protocol.messages.p01_fetch import FetchPartition, FetchRequest, FetchTopic
from moldau.protocol.messages.p03_metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponsePartition,
)
from moldau.protocol.messages.p08_offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from moldau.protocol.messages.p19_create_topics import CreateTopicsRequest
from moldau.protocol.messages.p20_delete_topics import DeleteTopicsRequest
from moldau.protocol.messages.p22_init_producer_id import InitProducerIdRequest
from moldau.protocol.records import BATCH_HEADER_SIZE, Record, encode_batch

PRODUCE_VERSION: Final = 11
FETCH_VERSION: Final = 12
CREATE_TOPICS_VERSION: Final = 5
COMMIT_VERSION: Final = 8
CLIENT_ID: Final = "bench"
ANSWER_DEADLINE_S: Final = 60.0
READY_DEADLINE_S: Final = 60.0
RETRY_PAUSE_S: Final = 0.002

CREATED: Final = (0, 36)
"""Answers to CreateTopics that is asked again: the topic exists when an earlier try succeeded."""

MAY_PASS: Final = frozenset((3, 6, 7, 19, 20))
"""Errors of a produce: unknown partition, not the leader, timed out, not enough replicas."""

_CRC_AT: Final = 17
_CRC_FROM: Final = 21
_SEQUENCE_AT: Final = 53
_INT32: Final = struct.Struct(">i")
_UINT32: Final = struct.Struct(">I")
_INT64: Final = struct.Struct(">q")
_ERROR_AND_OFFSET: Final = struct.Struct(">hq")
SEQUENCE_LIMIT: Final = 2**31
RECEIVE_BYTES: Final = 64 * 1024
_OVERHEAD_BYTES: Final = 7
"""Lengths, deltas and attributes of a record without key and headers, at least."""


def request_frame(
    message: Any, api_version: int, *, correlation_id: int = 0, client_id: str = CLIENT_ID
) -> bytes:
    """A request as a client sends it; it never holds parts of a file."""
    parts = encode_request(
        message, api_version=api_version, correlation_id=correlation_id, client_id=client_id
    )
    return b"".join(part for part in parts if isinstance(part, bytes | bytearray | memoryview))


def until_accepted(ask: Callable[[], Any], accepted: Collection[int] = (0,)) -> Any:
    """Ask until the answer's error code is one of `accepted`; that answer. Raises: TimeoutError"""
    deadline = time.monotonic() + READY_DEADLINE_S
    while (answer := ask()).error_code not in accepted:
        if time.monotonic() > deadline:
            raise TimeoutError(f"not accepted: error {answer.error_code}")
        time.sleep(RETRY_PAUSE_S)
    return answer


def single_record(value: bytes, key: bytes | None = None) -> bytearray:
    """A batch of one record, of now."""
    return encode_batch([Record(0, time.time_ns() // 1_000_000, key, value)])


def commit_request(group_id: str, topic: str) -> OffsetCommitRequest:
    """A commit of one offset, by no member."""
    offset = OffsetCommitRequestPartition(partition_index=0, committed_offset=1)
    topics = [OffsetCommitRequestTopic(name=topic, partitions=[offset])]
    return OffsetCommitRequest(group_id=group_id, topics=topics)


def commit_frame(group_id: str, topic: str) -> bytes:
    """The same as a client sends it."""
    return request_frame(commit_request(group_id, topic), COMMIT_VERSION)


def connected(host: str, port: int, *, trust_path: str = "") -> socket.socket:
    """A blocking connection, by TLS if there is a file of authorities to trust."""
    if trust_path:
        return connected_by(tls_context(trust_path), host, port)
    found = socket.create_connection((host, port), timeout=ANSWER_DEADLINE_S)
    found.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return found


def connected_by(
    context: ssl.SSLContext, host: str, port: int, session: ssl.SSLSession | None = None
) -> ssl.SSLSocket:
    """A blocking connection by TLS, resumed if there is a session."""
    return context.wrap_socket(connected(host, port), server_hostname=host, session=session)


def tls_context(trust_path: str) -> ssl.SSLContext:
    """What clients of the nodes offer: TLS 1.3 alone, with OpenSSL's order of suites."""
    context = ssl.create_default_context(cafile=trust_path)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    return context


class Wire:
    """One blocking connection that asks one thing at a time."""

    def __init__(self, host: str, port: int, *, trust_path: str = "") -> None:
        self.socket = connected(host, port, trust_path=trust_path)
        self._correlation_id = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def ask(self, message: Any, api_version: int) -> Any:
        """Send a request, return its response message. Raises OSError."""
        self._correlation_id += 1
        frame = request_frame(message, api_version, correlation_id=self._correlation_id)
        _, response = decode_response(message.API_KEY, api_version, self.exchange(frame))
        return response

    def exchange(self, frame: bytes | bytearray) -> bytearray:
        """Send an encoded request, return its response without its size prefix."""
        self.socket.sendall(frame)
        return self.receive()

    def receive(self) -> bytearray:
        """The next response, without its size prefix."""
        return read_answer(self.socket)

    def create_topic(
        self,
        name: str,
        partition_count: int = 1,
        config: dict[str, str] | None = None,
        *,
        replication_factor: int = 1,
        replicas: Sequence[int] = (),
    ) -> None:
        """Create a topic and wait until every partition has a leader.

        `replicas` puts every partition on these brokers, the first of which leads.
        """
        request = create_topic_request(
            name,
            partition_count,
            config,
            replication_factor=replication_factor,
            replicas=replicas,
        )
        response = self.ask(request, CREATE_TOPICS_VERSION)
        error = response.topics[0].error_code
        assert error == 0, f"creating {name}: error {error}"
        self.wait_for_leaders(name, partition_count)

    def wait_for_leaders(self, name: str, partition_count: int) -> None:
        """Return when metadata shows a leader for each of so many partitions."""
        deadline = time.monotonic() + READY_DEADLINE_S
        while time.monotonic() < deadline:
            partitions = self.partitions(name)
            if len(partitions) == partition_count and all(
                partition.leader_id >= 0 for partition in partitions
            ):
                return
            time.sleep(RETRY_PAUSE_S)
        raise TimeoutError(f"{name} has no leaders")

    def partitions(self, name: str) -> list[MetadataResponsePartition]:
        """What the node knows of a topic's partitions, by index; none while it is unknown."""
        request = MetadataRequest(
            topics=[MetadataRequestTopic(name=name)], allow_auto_topic_creation=False
        )
        found: list[MetadataResponsePartition] = self.ask(request, 8).topics[0].partitions
        return sorted(found, key=lambda partition: partition.partition_index)

    def delete_topic(self, name: str) -> None:
        """Delete a topic; its files go when the node gets to it."""
        response = self.ask(DeleteTopicsRequest(topic_names=[name], timeout_ms=30_000), 4)
        error = response.responses[0].error_code
        assert error == 0, f"deleting {name}: error {error}"

    def produce_one_each(self, topic: str, indexes: Sequence[int], value: bytes) -> None:
        """One acks=all record into each partition this node leads; again while it may not lead yet.

        Metadata may tell of a leader before that leader has taken its partitions.
        """
        missing = list(indexes)
        batch = single_record(value)
        deadline = time.monotonic() + READY_DEADLINE_S
        while missing:
            request = produce_request(topic, dict.fromkeys(missing, batch))
            answers = self.ask(request, PRODUCE_VERSION).responses[0].partition_responses
            errors = {answer.error_code for answer in answers} - {0}
            assert errors <= MAY_PASS, f"produce to {topic}: errors {errors}"
            if time.monotonic() > deadline:
                raise TimeoutError(f"produce to {topic}: still errors {errors}")
            missing = [answer.index for answer in answers if answer.error_code]

    def producer_id(self) -> tuple[int, int]:
        """A new producer id and its epoch; waits while the coordinator starts."""
        request = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=60_000)
        response = until_accepted(lambda: self.ask(request, 4))
        return response.producer_id, response.producer_epoch


def read_answer(connection: socket.socket) -> bytearray:
    """The next response on a blocking connection, without its size prefix."""
    (size_bytes,) = _INT32.unpack(_read(connection, 4))
    return _read(connection, size_bytes)


def _read(connection: socket.socket, size_bytes: int) -> bytearray:
    buffer = bytearray(size_bytes)
    view = memoryview(buffer)
    filled = 0
    while filled < size_bytes:
        count = connection.recv_into(view[filled:])
        if count == 0:
            raise ConnectionError("the node closed the connection")
        filled += count
    return buffer


def create_topic_request(
    name: str,
    partition_count: int,
    config: dict[str, str] | None = None,
    *,
    replication_factor: int = 1,
    replicas: Sequence[int] = (),
) -> CreateTopicsRequest:
    """One topic, with one replica of each partition unless the caller says otherwise."""
    # The processes of loads, which create nothing, begin sooner without the client.
    from moldau.client.admin.topics import NewTopic, create_topics_request

    placed = dict.fromkeys(range(partition_count if replicas else 0), replicas)
    topic = NewTopic(name, partition_count, replication_factor, config or {}, placed)
    return create_topics_request([topic])


class ProduceFrame:
    """An encoded Produce request of one uncompressed batch, sent over and over."""

    def __init__(
        self,
        topic: str,
        *,
        record_bytes: int,
        batch_bytes: int,
        partition_index: int = 0,
        producer_id: int = -1,
        producer_epoch: int = -1,
        acks: int = -1,
        client_id: str = CLIENT_ID,
    ) -> None:
        """The smallest batch of equal records that has at least `batch_bytes`."""
        value = payload(record_bytes)
        wanted_bytes = batch_bytes - BATCH_HEADER_SIZE
        self.record_count = max(1, -(-wanted_bytes // (record_bytes + _OVERHEAD_BYTES)))
        is_idempotent = producer_id >= 0
        now_ms = time.time_ns() // 1_000_000
        batch = bytes(
            encode_batch(
                [Record(index, now_ms, None, value) for index in range(self.record_count)],
                producer_id=producer_id,
                producer_epoch=producer_epoch,
                base_sequence=0 if is_idempotent else -1,
            )
        )
        self.batch_bytes = len(batch)
        self.is_idempotent = is_idempotent
        request = produce_request(topic, {partition_index: batch}, acks=acks)
        self.frame = bytearray(request_frame(request, PRODUCE_VERSION, client_id=client_id))
        self._batch_at = self.frame.index(batch)
        # size, correlation id, tags, topic count, name, partition count, index come before
        self.error_at = 4 + 4 + 1 + 1 + 1 + len(topic) + 1 + 4
        self._covered = memoryview(self.frame)[
            self._batch_at + _CRC_FROM : self._batch_at + len(batch)
        ]
        self._sequence = 0

    def advance(self, correlation_id: int) -> None:
        """Make it the next request of its producer."""
        frame = self.frame
        _INT32.pack_into(frame, 8, correlation_id)
        if self.is_idempotent:
            at = self._batch_at
            _INT32.pack_into(frame, at + _SEQUENCE_AT, self._sequence)
            _UINT32.pack_into(frame, at + _CRC_AT, crc32c(self._covered))
            self._sequence = (self._sequence + self.record_count) % SEQUENCE_LIMIT


class ProduceAnswers:
    """Takes the answers to a connection's frames off it, which have to be without an error."""

    def __init__(self, connection: socket.socket, frame: ProduceFrame) -> None:
        self._socket, self._error_at = connection, frame.error_at
        self._buffer = bytearray(RECEIVE_BYTES)
        self._filled = 0

    def take(self) -> list[int]:
        """Wait for bytes; the base offsets of the answers that are whole with them, if any."""
        buffer = self._buffer
        with memoryview(buffer) as view:
            count = self._socket.recv_into(view[self._filled :])
        if count == 0:
            raise ConnectionError("the server closed the connection")
        filled, start = self._filled + count, 0
        offsets = []
        while filled - start >= 4:
            (size,) = _INT32.unpack_from(buffer, start)
            if filled - start < 4 + size:
                break
            error, base_offset = _ERROR_AND_OFFSET.unpack_from(buffer, start + self._error_at)
            assert error == 0, f"produce answered error {error}"
            offsets.append(base_offset)
            start += 4 + size
        buffer[: filled - start] = buffer[start:filled]
        self._filled = filled - start
        return offsets


class FetchFrame:
    """An encoded sessionless Fetch request of one partition."""

    _MARK: Final = 0x7A5B_3C1D_0E2F_4A6B

    def __init__(
        self,
        topic: str,
        *,
        max_bytes: int,
        max_wait_ms: int = 500,
        partition: int = 0,
        current_leader_epoch: int = -1,
    ) -> None:
        request = FetchRequest(
            replica_id=-1,
            max_wait_ms=max_wait_ms,
            min_bytes=1,
            max_bytes=max(max_bytes, 50 * 2**20),
            session_id=0,
            session_epoch=-1,
            topics=[
                FetchTopic(
                    topic=topic,
                    partitions=[
                        FetchPartition(
                            partition=partition,
                            current_leader_epoch=current_leader_epoch,
                            fetch_offset=self._MARK,
                            partition_max_bytes=max_bytes,
                        )
                    ],
                )
            ],
        )
        self.frame = bytearray(request_frame(request, FETCH_VERSION))
        self._offset_at = self.frame.index(_INT64.pack(self._MARK))

    def ask_for(self, fetch_offset: int, correlation_id: int) -> None:
        """Set where to read."""
        _INT32.pack_into(self.frame, 8, correlation_id)
        _INT64.pack_into(self.frame, self._offset_at, fetch_offset)
