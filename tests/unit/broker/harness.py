"""A broker's data path without sockets: requests go in as bytes, responses come out as messages.

The router, the handlers, the replica manager and the logs are the real ones; the connection is not.
Every response is encoded in the request's version and decoded again, so that what a handler says is
also proven to fit the wire.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from uuid import UUID

from moldau.broker.api import broker_routes
from moldau.broker.api.services import BrokerServices
from moldau.broker.coordinator.coordinators import Coordinators, replica_ports
from moldau.broker.coordinator.internal_topics import InternalTopics
from moldau.broker.coordinator.other_brokers import OtherBrokers
from moldau.broker.coordinator.producer_ids import (
    ProducerIds,
    ProducerIdsUnavailable,
)
from moldau.broker.lifecycle.background import Background
from moldau.broker.lifecycle.controller_channel import ControllerUnavailable
from moldau.broker.replica.core.partition_core import FollowerFetch
from moldau.broker.replica.fetch_sessions import FetchSessionCache
from moldau.broker.replica.replica_manager import ReplicaManager
from moldau.broker.replica.replication import ReplicationPorts
from moldau.config import BROKER_KEYS, effective_topic_config
from moldau.metadata.image import MetadataDelta, MetadataImage, Provenance
from moldau.protocol.api_keys import ApiKey
from moldau.protocol.errors import ErrorCode
from moldau.protocol.headers import decode_response
from moldau.protocol.messages.p19_create_topics import CreateTopicsRequest
from moldau.protocol.metadata_records import (
    ConfigRecord,
    PartitionChangeRecord,
    PartitionRecord,
    RegisterBrokerRecord,
    RemoveTopicRecord,
    TopicRecord,
)
from moldau.protocol.metadata_records.nodes import Endpoint
from moldau.protocol.registry import response_class
from moldau.protocol.types import TopicPartition
from moldau.runtime.connector import Connector
from moldau.runtime.files import FileRegion
from moldau.runtime.filesystem import Filesystem, OsFilesystem
from moldau.runtime.network import AsyncioNetwork
from moldau.runtime.telemetry.metrics import Registry
from moldau.runtime.timers import TimerWheel
from moldau.server.authorizer import Authorizer
from moldau.server.request_router import RequestRouter
from moldau.storage.log_config import LogConfig, LogManagerSettings
from moldau.storage.log_directory import open_log_directories
from moldau.storage.log_manager import LogManager
from tests.kit.manual_clock import ManualClock
from tests.kit.waiting import until_async
from tests.storage.storage_fixtures import format_log_directory
from tests.unit.broker.scripted_channel import ScriptedChannel

BROKER_ID = 1
OTHER_BROKER_ID = 2
CLUSTER_ID = "5L6g3nShT-eMCtK--X86sw"
NOT_ANSWERED = object()


def topic_id_of(topic: str) -> UUID:
    """Every topic of a test has its own id."""
    return UUID(int=0xABCD << 64 | sum(ord(letter) << 8 * n for n, letter in enumerate(topic[:7])))


class FakeConnection:
    """The side of a connection that handlers see."""

    def __init__(self) -> None:
        self.listener_name = "PLAINTEXT"
        self.principal = "User:ANONYMOUS"
        self.token_authenticated = False
        self.client_host = "127.0.0.1"
        self.connection_id = "fake"
        self.state: dict[str, Any] = {}
        self.gate = None
        self.is_closed = False
        self.close_reason = ""
        self.throttled_ms = 0.0
        self.held: list[Any] = []
        self.suspended_count = 0
        self._callbacks: list[Callable[[Any], object]] = []

    def on_close(self, callback: Callable[[Any], object]) -> None:
        self._callbacks.append(callback)

    def suspend(self) -> None:
        self.suspended_count += 1

    def proceed(self) -> None:
        self.suspended_count -= 1

    def in_turns(self, work: Any) -> Any:
        return work

    def throttle(self, delay_ms: float) -> None:
        self.throttled_ms = max(self.throttled_ms, delay_ms)

    def hold(self, request: Any) -> None:
        self.held.append(request)

    def close(self, reason: str) -> None:
        if not self.is_closed:
            self.is_closed = True
            self.close_reason = reason
            callbacks, self._callbacks = self._callbacks, []
            for callback in callbacks:
                callback(self)


class FakeRequest:
    """A request as the server hands it over. `response` is set once it was answered."""

    def __init__(
        self, connection: FakeConnection, api_key: int, api_version: int, body: bytes
    ) -> None:
        self.connection = connection
        self.api_key = api_key
        self.api_version = api_version
        self.correlation_id = 7
        self.client_id = "tests"
        self.is_confirmed = True
        self.received_ms = 0.0
        self.size_bytes = len(body)
        self.is_large = False
        self.decoded: Any = None
        self.frame = bytearray(body)
        self.body = memoryview(self.frame)
        self.response: Any = NOT_ANSWERED
        self.is_body_released = False

    @property
    def is_connection_lost(self) -> bool:
        return self.connection.is_closed

    @property
    def is_answered(self) -> bool:
        return self.response is not NOT_ANSWERED

    def respond(self, message: Any, *, api_version: int | None = None) -> None:
        version = self.api_version if api_version is None else api_version
        data = b"".join(read_part(part) for part in message.encode(version))
        self._answer(response_class(ApiKey(self.api_key)).decode(data, version)[0])

    def respond_parts(self, parts: Sequence[bytes]) -> None:
        frame = b"".join(parts)
        assert int.from_bytes(frame[:4], "big") == len(frame) - 4
        correlation_id, message = decode_response(self.api_key, self.api_version, frame[4:])
        assert correlation_id == self.correlation_id
        self._answer(message)

    def respond_nothing(self) -> None:
        self._answer(None)

    def close(self, reason: str) -> None:
        """As the server: it is the answer, there cannot be another."""
        self.connection.close(reason)
        self._answer(None)

    def release_body(self) -> None:
        """As the server: the bytes may be used again from now on, so tests poison them."""
        if not self.is_body_released:
            self.is_body_released = True
            self.frame[:] = b"\xee" * len(self.frame)

    def copy_small_body(self) -> None:
        body = memoryview(bytes(self.body))
        self.release_body()
        self.body = body

    def _answer(self, response: Any) -> None:
        assert self.response is NOT_ANSWERED, "a request is answered once"
        self.response = response
        if self.decoded is not None:
            self.decoded.release()
        self.release_body()


def read_part(part: Any) -> bytes:
    if isinstance(part, FileRegion):
        data = part.read()
        part.release()
        return data
    return bytes(part)


class FakeMetadata:
    """The image, as the loader shows it."""

    def __init__(self) -> None:
        self.image = MetadataImage.EMPTY

    async def wait_until(self, condition: Callable[[MetadataImage], bool]) -> None:
        assert condition(self.image), "tests of this path commit before they ask"


class CountingProducerIds:
    """Blocks of five ids; `is_available` False plays a controller that does not answer."""

    def __init__(self) -> None:
        self.next_start = 1000
        self.is_available = True
        self.call_count = 0
        self.gate: asyncio.Event | None = None
        """Blocks are given when it is set; at once without one."""

    async def allocate_block(self) -> range:
        self.call_count += 1
        await (asyncio.sleep(0) if self.gate is None else self.gate.wait())
        if not self.is_available:
            raise ProducerIdsUnavailable("no controller")
        block = range(self.next_start, self.next_start + 5)
        self.next_start += 5
        return block


class EmptyNetwork(AsyncioNetwork):
    """No broker is reached."""

    def __init__(self) -> None:
        super().__init__()
        self.attempts: list[tuple[str, int]] = []

    async def connect(self, protocol_factory: Any, host: str, port: int, **options: Any) -> Any:
        self.attempts.append((host, port))
        raise ConnectionRefusedError(f"{host}:{port}")


class DataPath:
    """One broker's data path. Use as an async context manager.

    `more_directories` are log directories beside the first one; `before` are the metadata records
    that the broker finds when it starts, `at_start` those after it has registered.
    """

    def __init__(
        self,
        directory: Path | str,
        *,
        filesystem: Filesystem | None = None,
        authorizer: Any = None,
        quotas: Any = None,
        max_sessions: int = 100,
        max_session_partitions: int = 500_000,
        more_directories: Sequence[Path | str] = (),
        before: Sequence[Any] = (),
        at_start: Sequence[Any] = (),
        **broker_config: Any,
    ) -> None:
        self.directory = str(directory)
        self.directories = [self.directory, *map(str, more_directories)]
        self.network = EmptyNetwork()
        self.clock = ManualClock()
        self.connector = Connector(self.network, self.clock)
        self.filesystem = filesystem if filesystem is not None else OsFilesystem()
        self.timers = TimerWheel(self.clock)
        self.registry = Registry(self.clock.monotonic_ms)
        self.node_values: dict[str, Any] = {
            name: key.default_value for name, key in BROKER_KEYS.items()
        }
        for name, value in broker_config.items():
            self.node_values[name.replace("_", ".")] = value
        self.faults: list[BaseException] = []
        self.metadata = FakeMetadata()
        self.random = random.Random(1)
        self.max_sessions = max_sessions
        self.max_session_partitions = max_session_partitions
        self.authorizer = authorizer or Authorizer()
        self.quotas = quotas
        self.connection = FakeConnection()
        self.allocator = CountingProducerIds()
        self.channel = ScriptedChannel()
        self.client_id = "tests"
        self.is_confirmed = True
        self.background = Background(self.clock, self.faults.append)
        self.before = before
        self.at_start = at_start

    async def __aenter__(self) -> DataPath:
        await self._open_logs()
        self._assemble()
        before = MetadataDelta(MetadataImage.EMPTY)
        for record in self.before:
            before.replay(record)
        self.has_every_directory = self.manager.has_every_directory(before.apply(Provenance()))
        self.replay(
            *[
                RegisterBrokerRecord(
                    broker_id=broker_id,
                    broker_epoch=broker_id,
                    end_points=[Endpoint(name="PLAINTEXT", host=f"host-{broker_id}", port=9092)],
                    rack=None,
                    fenced=False,
                )
                for broker_id in (BROKER_ID, OTHER_BROKER_ID)
            ],
            *self.at_start,
        )
        return self

    async def _open_logs(self) -> None:
        for directory in self.directories:
            if not self.filesystem.exists(directory + "/meta.properties"):
                format_log_directory(
                    self.filesystem,
                    directory,
                    cluster_id=CLUSTER_ID,
                    node_id=BROKER_ID,
                    random=self.random,
                )
        self.log_directories = open_log_directories(
            self.filesystem,
            self.directories,
            cluster_id=CLUSTER_ID,
            node_id=BROKER_ID,
            random=self.random,
        )
        self.log_manager = LogManager(
            self.filesystem,
            self.clock,
            self.log_directories,
            LogManagerSettings(),
            topic_config=lambda topic: LogConfig.from_config(
                effective_topic_config(self.node_values, {})
            ),
            random=self.random,
        )
        await self.log_manager.start()

    def _assemble(self) -> None:
        self.manager = ReplicaManager(
            broker_id=BROKER_ID,
            node_values=self.node_values,
            log_manager=self.log_manager,
            clock=self.clock,
            filesystem=self.filesystem,
            timers=self.timers,
            registry=self.registry,
            ports=ReplicationPorts(
                controller=self.channel,
                broker_epoch=lambda: BROKER_ID,
                is_confirmed=lambda: self.is_confirmed,
                listener_name="PLAINTEXT",
                connector=self.connector,
            ),
            on_fault=self.faults.append,
        )
        self.sessions = FetchSessionCache(
            self.clock,
            self.random,
            max_sessions=self.max_sessions,
            max_partitions=self.max_session_partitions,
        )
        self.producer_ids = ProducerIds(
            self.allocator.allocate_block,
            clock=self.clock,
            timers=self.timers,
            start=self.background.start,
        )
        self.coordinators = Coordinators(
            self.node_values,  # type: ignore[arg-type]
            replica_ports(self.manager, self.background, self.timers, self.registry),
            self.manager,
            OtherBrokers(
                lambda: self.metadata.image,
                "PLAINTEXT",
                self.connector,
                self.node_values["request.timeout.ms"],
            ),
            self.background,
            self.producer_ids,
            random=self.random,
        )
        services = BrokerServices(
            node_config=self.node_values,  # type: ignore[arg-type]
            broker_id=BROKER_ID,
            cluster_id=CLUSTER_ID,
            metadata=self.metadata,  # type: ignore[arg-type]
            replica_manager=self.manager,
            log_manager=self.log_manager,
            controller=self.channel,
            coordinators=self.coordinators,
            fetch_sessions=self.sessions,
            producer_ids=self.producer_ids,
            clock=self.clock,
            background=self.background,
            internal_topics=InternalTopics(
                self.node_values, self.channel, self.clock, self.background.start
            ),
            is_confirmed=lambda: self.is_confirmed,
        )
        self.services = services
        self.router = RequestRouter(
            broker_routes(services),
            clock=self.clock,
            authorizer=self.authorizer,
            on_fault=self.faults.append,
            quotas=self.quotas,
        )

    async def __aexit__(self, *exception: object) -> None:
        await self.coordinators.close()
        await self.router.close()
        for sent in self.channel.sent:
            if isinstance(sent.request, CreateTopicsRequest) and not sent.future.done():
                sent.fail(ControllerUnavailable("the test is over"))
        await self.background.close()
        await self.producer_ids.close()
        await self.manager.close()
        await self.log_manager.shutdown()
        self.log_directories.release()
        if isinstance(self.filesystem, OsFilesystem):
            self.filesystem.close()
        if exception[0] is None:
            assert not self.faults, self.faults

    def drop_sessions(self) -> None:
        for session_id in list(self.sessions._sessions):
            self.sessions.end(session_id)

    # -- metadata --------------------------------------------------------------------------------

    def replay(self, *records: Any) -> None:
        """Commit metadata records."""
        image = self.metadata.image
        delta = MetadataDelta(image)
        for record in records:
            delta.replay(record)
        provenance = Provenance(image.provenance.last_contained_offset + len(records), 1, 0)
        self.metadata.image = delta.apply(provenance)
        self.manager.on_metadata_update(delta, self.metadata.image)
        self.coordinators.on_metadata_update(delta, self.metadata.image)

    def create_topic(
        self,
        topic: str,
        partition_count: int = 1,
        *,
        leader: int = BROKER_ID,
        leader_epoch: int = 0,
        replicas: tuple[int, ...] = (BROKER_ID,),
        isr: tuple[int, ...] | None = None,
        topic_id: UUID | None = None,
        **config: str,
    ) -> None:
        """A topic whose partitions have one broker as leader; `config` keys with underscores."""
        identity = topic_id or topic_id_of(topic)
        records: list[Any] = [TopicRecord(name=topic, topic_id=identity)]
        for key, value in config.items():
            records.append(
                ConfigRecord(
                    resource_type=2, resource_name=topic, name=key.replace("_", "."), value=value
                )
            )
        records += [
            PartitionRecord(
                partition_id=index,
                topic_id=identity,
                replicas=list(replicas),
                isr=list(replicas if isr is None else isr),
                leader=leader,
                leader_epoch=leader_epoch,
            )
            for index in range(partition_count)
        ]
        self.replay(*records)

    def configure(self, topic: str, key: str, value: str | None) -> None:
        self.replay(ConfigRecord(resource_type=2, resource_name=topic, name=key, value=value))

    def change_partition(self, topic: str, index: int = 0, **changes: Any) -> None:
        self.replay(
            PartitionChangeRecord(partition_id=index, topic_id=topic_id_of(topic), **changes)
        )

    def delete_topic(self, topic: str) -> None:
        self.replay(RemoveTopicRecord(topic_id=topic_id_of(topic)))

    def partition(self, topic: str, index: int = 0) -> Any:
        partition = self.manager.get(topic, index)
        assert partition is not None
        return partition

    def log(self, topic: str, index: int = 0) -> Any:
        log = self.log_manager.get(TopicPartition(topic, index))
        assert log is not None
        return log

    def follower_has(self, topic: str, replica_id: int, log_end_offset: int) -> None:
        """A follower's fetch says that its log ends there."""
        fetch = FollowerFetch(replica_id, log_end_offset, 0, -1, self.clock.monotonic_ms())
        assert self.partition(topic).follower_fetched(fetch) is ErrorCode.NONE

    # -- requests --------------------------------------------------------------------------------

    def send(
        self, message: Any, api_version: int, connection: FakeConnection | None = None
    ) -> FakeRequest:
        """Hand a request to the router; it may be answered now or later."""
        request = FakeRequest(
            connection or self.connection,
            type(message).API_KEY,
            api_version,
            message.to_bytes(api_version),
        )
        request.client_id = self.client_id
        self.router(request)  # type: ignore[arg-type]
        return request

    async def ask(self, message: Any, api_version: int) -> Any:
        """Send a request and wait for its response; who waited for what it did has had its turn."""
        request = self.send(message, api_version)
        await until_async(lambda: request.is_answered)
        self.manager.complete_ready()
        return request.response
