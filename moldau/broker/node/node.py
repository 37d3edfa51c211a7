"""The composition root: one node from its configuration to its last flush.

Owns the order in which the parts start and stop, and nothing of what they do. It is the only module
that joins raft, metadata.controller, controller_server and broker. Invariant: clients are answered
only after the metadata log has been read, every log is recovered and the controller has unfenced
this broker; a stop flushes everything and says so in the clean-shutdown marker, or does not say so.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import random
import secrets
import socket
import uuid
from collections.abc import Callable
from typing import Final

from moldau.broker.authorizer import AllowAllAuthorizer
from moldau.broker.controller_channel import ControllerUnavailable
from moldau.broker.faults import FaultHandler
from moldau.broker.fetch_sessions import FetchSessionCache
from moldau.broker.http.server import HttpListener
from moldau.broker.lifecycle import (
    BrokerDescription,
    BrokerLifecycle,
    BrokerState,
    RegistrationRefused,
)
from moldau.broker.metadata_loader import MetadataLoader
from moldau.broker.node.dynamic_settings import DynamicSettings
from moldau.broker.node.formatting import (
    FormatError,
    FormatPlan,
    format_storage,
    random_cluster_id,
)
from moldau.broker.node.quorum_link import (
    INTERNAL_PRINCIPAL,
    InProcessControllerChannel,
    ProducerIdBlocks,
    follow_metadata,
)
from moldau.broker.node.settings import fetch_session_limit, http_address, server_limits
from moldau.broker.node.start_gate import StartGate
from moldau.broker.producer_ids import ProducerIds
from moldau.broker.replica_manager import ReplicaManager
from moldau.broker.request_metrics import RequestMetrics
from moldau.broker.request_router import RequestRouter
from moldau.broker.services import BrokerServices
from moldau.config import (
    ConfigError,
    Endpoint,
    NodeConfig,
    effective_broker_config,
    effective_topic_config,
)
from moldau.controller_server import QuorumNode
from moldau.metadata.features import SUPPORTED_FEATURES
from moldau.metadata.image import ConfigResourceType
from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.p19_create_topics import CreatableTopic, CreateTopicsRequest
from moldau.protocol.messages.p62_broker_registration import Feature, Listener
from moldau.protocol.types import ZERO_UUID
from moldau.raft import MetadataLogError
from moldau.runtime.clock import SystemClock
from moldau.runtime.filesystem import OsFilesystem
from moldau.runtime.loop_health import LoopLagMonitor, freeze_garbage_collector
from moldau.runtime.request import Request
from moldau.runtime.server import ListenerSpec, Server
from moldau.runtime.telemetry import Registry, enhance, load_renderer
from moldau.storage.checkpoints import UNKNOWN_BROKER_EPOCH
from moldau.storage.log_config import LogConfig
from moldau.storage.log_directory import (
    METADATA_PARTITION,
    LogDirectories,
    LogDirectory,
    LogDirectoryError,
    open_log_directories,
)
from moldau.storage.log_manager import LogManager
from moldau.storage.manager_settings import LogManagerSettings
from moldau.storage.meta_properties import META_PROPERTIES

logger = logging.getLogger("moldau.node")

CONTROLLED_SHUTDOWN_MS: Final = 5_000
SERVER_CLOSE_MS: Final = 2_000
HTTP_PATIENCE_S: Final = 1.0


class NodeStartError(Exception):
    """The node cannot start as it is configured; one line that says why."""


class Node:
    """One combined node. States: made → `start` → serving → `stop`.

    Args:
        config: checked configuration with the roles broker and controller.
        on_fatal: told once, from any thread, when the node must not go on.
    """

    def __init__(self, config: NodeConfig, *, on_fatal: Callable[[str], None]) -> None:
        self._config = config
        self._on_fault = FaultHandler(on_fatal)
        self._on_fatal = on_fatal
        self._random = random.Random(secrets.randbits(128))
        self._filesystem = OsFilesystem()
        self._clock = SystemClock()
        self._registry = Registry(self._clock.monotonic_ms)
        self._metadata = MetadataLoader(config.node_id)
        self._directories: LogDirectories | None = None
        self._quorum: QuorumNode | None = None
        self._channel: InProcessControllerChannel | None = None
        self._log_manager: LogManager | None = None
        self._server: Server | None = None
        self._router: RequestRouter | None = None
        self._replica_manager: ReplicaManager | None = None
        self._lifecycle: BrokerLifecycle | None = None
        self._services: BrokerServices | None = None
        self._http: HttpListener | None = None
        self._lag = LoopLagMonitor(
            self._clock, self._registry.histogram("kafka.server:type=DataLoop,name=LagMs")
        )
        self._previous_broker_epoch = UNKNOWN_BROKER_EPOCH
        self._background: set[asyncio.Task[None]] = set()

    # -- start -----------------------------------------------------------------------------------

    async def start(self, *, format_if_needed: bool = False) -> None:
        """Bring everything up; returns when clients are answered.

        Raises:
            NodeStartError: configuration, directories, addresses or metadata do not allow it.
        """
        asyncio.get_running_loop().set_exception_handler(self._on_fault.from_loop)
        serving = asyncio.Event()
        http = asyncio.create_task(self._listen_http(serving))
        try:
            directories = self._open_directories(format_if_needed)
            cluster_id = directories.online[0].cluster_id
            channel = await self._start_quorum(directories, cluster_id)
            log_manager = await self._load_logs(directories)
            gate = await self._listen(log_manager, channel, cluster_id)
            await self._join_cluster(log_manager, channel, directories, cluster_id)
            gate.open()
            serving.set()
            await http
        except (
            ConfigError,
            LogDirectoryError,
            FormatError,
            MetadataLogError,
            RegistrationRefused,
            ControllerUnavailable,
        ) as error:
            raise NodeStartError(str(error)) from error
        except OSError as error:
            raise NodeStartError(_words(error)) from error
        finally:
            http.cancel()

    @property
    def address(self) -> str:
        """`host:port` of the first broker listener, as advertised."""
        assert self._server is not None, "started"
        endpoint = self._advertised()[0]
        host = f"[{endpoint.host}]" if ":" in endpoint.host else endpoint.host
        return f"{host}:{endpoint.port}"

    def after_start(self) -> None:
        """What can wait until the node serves: memory housekeeping, prettier logs, metrics."""
        freeze_garbage_collector()
        self._lag.start()
        task = asyncio.get_running_loop().create_task(self._enhance_logs())
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    async def create_topic(self, name: str, partition_count: int, replication_factor: int) -> None:
        """Create a topic unless it exists.

        Raises:
            NodeStartError: the controller refuses it.
        """
        assert self._channel is not None, "started"
        request = CreateTopicsRequest(
            topics=[
                CreatableTopic(
                    name=name,
                    num_partitions=partition_count,
                    replication_factor=replication_factor,
                )
            ]
        )
        try:
            response = await self._channel.send(request, INTERNAL_PRINCIPAL)
        except ControllerUnavailable as error:
            raise NodeStartError(f"topic {name}: {error}") from error
        result = response.topics[0]
        if result.error_code not in (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS):
            raise NodeStartError(f"topic {name}: {result.error_message}")
        await self._metadata.wait_until(lambda image: name in image.topics.topics_by_name)

    def _open_directories(self, format_if_needed: bool) -> LogDirectories:
        paths = list(self._config.log_directories)
        if format_if_needed and not self._is_formatted(paths):
            cluster_id = random_cluster_id(self._random)
            plan = FormatPlan.from_config(self._config, cluster_id)
            format_storage(self._filesystem, self._clock, self._random, plan)
        self._directories = open_log_directories(
            self._filesystem,
            paths,
            cluster_id=None,
            node_id=self._config.node_id,
            random=self._random,
        )
        return self._directories

    def _is_formatted(self, paths: list[str]) -> bool:
        return any(self._filesystem.exists(os.path.join(path, META_PROPERTIES)) for path in paths)

    async def _start_quorum(
        self, directories: LogDirectories, cluster_id: str
    ) -> InProcessControllerChannel:
        quorum = QuorumNode(
            self._config,
            cluster_id=cluster_id,
            directory_id=self._metadata_directory_id(directories),
            on_fatal=self._on_fatal,
            exception_handler=self._on_fault.from_loop,
        )
        self._quorum = quorum
        await quorum.start()
        self._channel = InProcessControllerChannel(quorum)
        await follow_metadata(quorum, self._channel, self._metadata)
        return self._channel

    def _metadata_directory_id(self, directories: LogDirectories) -> uuid.UUID:
        wanted = os.path.abspath(self._config.metadata_log_directory)
        for directory in directories.online:
            if directory.path == wanted:
                return directory.directory_id
        reason = directories.offline.get(wanted, "it is not one of log.dirs")
        raise NodeStartError(f"metadata.log.dir {wanted} cannot be used: {reason}")

    async def _load_logs(self, directories: LogDirectories) -> LogManager:
        log_manager = LogManager(
            self._filesystem,
            self._clock,
            directories,
            LogManagerSettings.from_values(self._config),
            topic_config=self._log_config,
            random=self._random,
            on_directory_offline=self._directory_failed,
        )
        log_manager.on_flushed = self._registry.histogram(
            "kafka.log:type=LogFlushStats,name=LogFlushRateAndTimeMs"
        ).observe
        self._log_manager = log_manager
        report = await log_manager.start()
        self._previous_broker_epoch = report.previous_broker_epoch
        return log_manager

    async def _listen(
        self, log_manager: LogManager, channel: InProcessControllerChannel, cluster_id: str
    ) -> StartGate:
        gate = StartGate(self._route)
        server = Server(
            gate,
            clock=self._clock,
            limits=server_limits(self._config),
            observer=RequestMetrics(self._registry),
            offload=self._filesystem.offload,
        )
        self._server = server
        await server.start(
            ListenerSpec(endpoint.listener_name, endpoint.host, endpoint.port)
            for endpoint in self._config.broker_listeners
        )
        replica_manager = ReplicaManager(
            broker_id=self._config.node_id,
            node_values=self._config,
            log_manager=log_manager,
            clock=self._clock,
            filesystem=self._filesystem,
            timers=server.timers,
            registry=self._registry,
            on_fault=self._on_fault,
        )
        self._replica_manager = replica_manager
        services = BrokerServices(
            node_config=self._config,
            broker_id=self._config.node_id,
            cluster_id=cluster_id,
            metadata=self._metadata,
            replica_manager=replica_manager,
            log_manager=log_manager,
            controller=channel,
            fetch_sessions=FetchSessionCache(
                self._clock, self._random, max_sessions=fetch_session_limit(self._config)
            ),
            producer_ids=ProducerIds(
                ProducerIdBlocks(channel, self._config.node_id, self._broker_epoch)
            ),
        )
        self._services = services
        self._router = RequestRouter(
            services, authorizer=AllowAllAuthorizer(), on_fault=self._on_fault
        )
        services.fetch_sessions.register_gauges(self._registry)
        self._register_gauges()
        return gate

    async def _join_cluster(
        self,
        log_manager: LogManager,
        channel: InProcessControllerChannel,
        directories: LogDirectories,
        cluster_id: str,
    ) -> None:
        """Register, take over the partitions, and wait until the controller lets this broker in."""
        assert self._replica_manager is not None
        self._remove_strays(log_manager)
        self._metadata.add_publisher(self._replica_manager)
        assert self._server is not None
        self._metadata.add_publisher(DynamicSettings(self._config, self._server, log_manager))
        lifecycle = BrokerLifecycle(
            channel,
            BrokerDescription(
                broker_id=self._config.node_id,
                cluster_id=cluster_id,
                listeners=[
                    Listener(
                        name=endpoint.listener_name,
                        host=endpoint.host,
                        port=endpoint.port,
                        security_protocol=endpoint.security_protocol.value,
                    )
                    for endpoint in self._advertised()
                ],
                features=[
                    Feature(
                        name=name,
                        min_supported_version=levels.minimum_level,
                        max_supported_version=levels.maximum_level,
                    )
                    for name, levels in SUPPORTED_FEATURES.items()
                ],
                rack=self._config.rack,
                log_directory_ids=[each.directory_id for each in directories.online],
                previous_broker_epoch=self._previous_broker_epoch,
            ),
            incarnation_id=uuid.UUID(int=self._random.getrandbits(128), version=4),
            heartbeat_interval_ms=self._config.get_int("broker.heartbeat.interval.ms"),
            registration_timeout_ms=self._config.get_int("initial.broker.registration.timeout.ms"),
            metadata_offset=lambda: self._metadata.last_applied_offset,
            offline_log_directories=lambda: [
                each.directory_id for each in directories.online if not each.is_online
            ],
        )
        self._lifecycle = lifecycle
        lifecycle.move_to(BrokerState.STARTING)
        await lifecycle.register()
        lifecycle.move_to(BrokerState.RECOVERY)
        lifecycle.start_heartbeats()
        await lifecycle.wait_unfenced()
        own_id = self._config.node_id
        await self._metadata.wait_until(
            lambda image: (
                own_id in image.cluster.brokers
                and not image.cluster.brokers[own_id].fenced
                and image.cluster.brokers[own_id].broker_epoch == lifecycle.broker_epoch
            )
        )
        lifecycle.move_to(BrokerState.RUNNING)

    def _remove_strays(self, log_manager: LogManager) -> None:
        """Put aside what lies on disk and is not (any more) a replica of this broker."""
        topics = self._metadata.image.topics.topics_by_name
        for log in list(log_manager.logs()):
            name, index = log.topic_partition
            if log.topic_partition == METADATA_PARTITION:
                continue
            topic = topics.get(name)
            partition = None if topic is None else topic.partitions.get(index)
            if (
                topic is None
                or partition is None
                or self._config.node_id not in partition.replicas
                or log.topic_id not in (topic.topic_id, ZERO_UUID)
            ):
                logger.warning("%s is not a replica of this broker: put aside", log.topic_partition)
                log_manager.mark_stray(log.topic_partition)

    async def _listen_http(self, serving: asyncio.Event) -> None:
        """Serve HTTP as soon as clients are served; earlier when that takes long, so that whoever
        watches the node can tell recovery from death.
        """
        address = http_address(self._config)
        if address is None:
            return
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(serving.wait(), HTTP_PATIENCE_S)
        self._http = HttpListener(
            lambda: self._services,
            server=lambda: self._server,
            registry=self._registry,
            is_ready=self._is_ready,
            data_loop=asyncio.get_running_loop(),
        )
        await self._http.start(*address)

    # -- stop ------------------------------------------------------------------------------------

    async def stop(self) -> None:
        """Leave the cluster, answer what was accepted, flush and mark everything; idempotent."""
        lifecycle = self._lifecycle
        broker_epoch = UNKNOWN_BROKER_EPOCH
        if lifecycle is not None and lifecycle.state is BrokerState.RUNNING:
            if await lifecycle.begin_controlled_shutdown(CONTROLLED_SHUTDOWN_MS):
                broker_epoch = lifecycle.broker_epoch
            lifecycle.move_to(BrokerState.SHUTTING_DOWN)
        self._lag.stop()
        services, self._services = self._services, None  # from here on HTTP shows no more of it
        if self._replica_manager is not None:
            await self._replica_manager.close()
        if self._server is not None:
            await self._server.close(SERVER_CLOSE_MS)
        if self._router is not None:
            await self._router.close()
        if services is not None:
            await services.producer_ids.close()
        if lifecycle is not None:
            await lifecycle.stop()
        if self._log_manager is not None:
            await self._log_manager.shutdown(broker_epoch)
        if self._http is not None:
            await self._http.close()
        if self._quorum is not None:
            await self._quorum.stop()
        if self._directories is not None:
            self._directories.release()
        self._filesystem.close()

    # -- parts -----------------------------------------------------------------------------------

    def _advertised(self) -> tuple[Endpoint, ...]:
        assert self._server is not None, "listening"
        server = self._server
        ports = {
            endpoint.listener_name: server.port(endpoint.listener_name)
            for endpoint in self._config.broker_listeners
        }
        names = set(ports)
        return tuple(
            endpoint
            for endpoint in self._config.resolve_advertised(ports, socket.gethostname())
            if endpoint.listener_name in names
        )

    def _route(self, request: Request) -> None:
        assert self._router is not None, "listening"
        self._router(request)

    def _broker_epoch(self) -> int:
        return -1 if self._lifecycle is None else self._lifecycle.broker_epoch

    def _is_ready(self) -> bool:
        return self._lifecycle is not None and self._lifecycle.state is BrokerState.RUNNING

    def _log_config(self, topic_name: str) -> LogConfig:
        configs = self._metadata.image.configs
        node_values = effective_broker_config(
            self._config,
            configs.get(ConfigResourceType.BROKER, ""),
            configs.get(ConfigResourceType.BROKER, str(self._config.node_id)),
        )
        overrides = configs.get(ConfigResourceType.TOPIC, topic_name)
        return LogConfig.from_topic_config(effective_topic_config(node_values, overrides))

    def _directory_failed(self, directory: LogDirectory) -> None:
        assert self._directories is not None
        if not any(each.is_online for each in self._directories.online):
            self._on_fatal(f"the last log directory has failed: {directory.offline_reason}")

    def _register_gauges(self) -> None:
        registry = self._registry
        registry.gauge(
            "kafka.server:type=KafkaServer,name=BrokerState",
            lambda: float(self._lifecycle.state if self._lifecycle is not None else 0),
        )
        registry.gauge(
            "kafka.controller:type=KafkaController,name=ActiveControllerCount",
            lambda: float(self._quorum is not None),
        )
        registry.gauge(
            "kafka.log:type=LogManager,name=OfflineLogDirectoryCount",
            lambda: float(
                sum(not each.is_online for each in self._directories.online)
                if self._directories is not None
                else 0
            ),
        )

    async def _enhance_logs(self) -> None:
        """structlog costs more than the rest of the start: import it beside the loop."""
        await asyncio.to_thread(load_renderer)
        enhance()


def _words(error: OSError) -> str:
    """An OSError in one line."""
    if error.filename is not None and error.strerror:
        return f"{error.filename}: {error.strerror}"
    return error.strerror or str(error)
