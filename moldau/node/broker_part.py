"""The broker of a node: its logs, its listeners, its partitions and its standing in the cluster.

Owns the order in which these start and stop, and nothing of what they do. Must not: know how the
quorum works; it is given a channel to the controller and a loader of metadata. Invariant: clients
are answered only after every log is recovered and the controller has unfenced this broker; a stop
flushes everything and says so in the clean-shutdown marker, or does not say so.
"""

from __future__ import annotations

import logging
import os
import socket
import uuid
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from functools import partial
from random import Random
from typing import TYPE_CHECKING, Final

from moldau.broker.api import broker_routes
from moldau.broker.api.services import BrokerServices
from moldau.broker.coordinator.coordinators import Coordinators, replica_ports
from moldau.broker.coordinator.internal_topics import InternalTopics
from moldau.broker.coordinator.other_brokers import OtherBrokers
from moldau.broker.coordinator.producer_ids import ProducerIds
from moldau.broker.lifecycle.background import Background
from moldau.broker.lifecycle.broker_lifecycle import BrokerLifecycle, BrokerState
from moldau.broker.lifecycle.controller_channel import ControllerChannel
from moldau.broker.lifecycle.metadata_loader import ElectionMeters, MetadataLoader, catch_up
from moldau.broker.replica.fetch_sessions import FetchSessionCache
from moldau.broker.replica.replica_manager import ReplicaManager
from moldau.broker.replica.replication import ReplicationPorts
from moldau.config import Endpoint, NodeConfig, effective_broker_config, effective_topic_config
from moldau.config.listeners import host_and_port
from moldau.metadata.features import advertised_features, range_entries
from moldau.metadata.image import ConfigResourceType, MetadataImage
from moldau.metadata.scram_users import ScramUsers
from moldau.metadata.token_secrets import TokenSecrets
from moldau.node.listener_changes import ListenerChanges
from moldau.node.listeners import listener_specs, log_in
from moldau.node.quorum_link import allocate_producer_ids
from moldau.node.reserved_users import warn_of_reserved_users
from moldau.node.settings import DynamicSettings, server_limits
from moldau.protocol.messages.p62_broker_registration import (
    BrokerRegistrationRequest,
    Feature,
    Listener,
)
from moldau.protocol.types import TopicPartition
from moldau.runtime.clock import Clock
from moldau.runtime.connector import Connector
from moldau.runtime.filesystem import Filesystem
from moldau.runtime.network import Network
from moldau.runtime.telemetry.metrics import Registry
from moldau.runtime.timers import TimerWheel
from moldau.server.authorizer import Authorizer
from moldau.server.loop_watchdog import LoopWatchdog
from moldau.server.quotas.client_quotas import Quotas
from moldau.server.request import RequestMetrics
from moldau.server.request_router import RequestRouter
from moldau.server.server import Server
from moldau.server.standard_authorizer import StandardAuthorizer
from moldau.storage.checkpoints import UNKNOWN_BROKER_EPOCH
from moldau.storage.cleaner.workers import ProcessWorker
from moldau.storage.log_config import CleanerSettings, LogConfig, LogManagerSettings
from moldau.storage.log_directory import LogDirectories, LogDirectory
from moldau.storage.log_manager import LogManager

if TYPE_CHECKING:
    from moldau.node.token_credentials import TokenCredentials
    from moldau.protocol.scram import KnownKeys

logger = logging.getLogger(__name__)

SERVER_CLOSE_MS: Final = 2_000

CONFIRMED_SHARE: Final = 2 / 3
"""The share of `broker.session.timeout.ms`: for so long after a heartbeat that was answered well,
no other broker leads in this one's place. Not all of it: the answer may be that of a controller
which is being replaced.
"""


@dataclass(eq=False, repr=False)
class BrokerPart:
    """States: made → `load` → `listen` → `join` → serving → `stop`.

    Args:
        directories: opened; the caller releases them after `stop`.
        kraft_version: the quorum's level, for clients that ask.
        on_fault: called with unexpected exceptions.
        on_fatal: called with one line when the node must not go on.
        network: where it listens, and reaches other brokers; the machine's own without one.
    """

    config: NodeConfig
    _: KW_ONLY
    directories: LogDirectories
    filesystem: Filesystem
    clock: Clock
    registry: Registry
    random: Random
    metadata: MetadataLoader
    kraft_version: Callable[[], int]
    on_fault: Callable[[BaseException], None]
    on_fatal: Callable[[str], None]
    network: Network | None = None
    has_child_processes: bool = False
    watchdog: LoopWatchdog | None = None
    authorizer: Authorizer | None = None
    server: Server | None = None
    services: BrokerServices | None = None
    _log_manager: LogManager | None = None
    _router: RequestRouter | None = None
    _replica_manager: ReplicaManager | None = None
    _coordinators: Coordinators | None = None
    _lifecycle: BrokerLifecycle | None = None
    _token_credentials: TokenCredentials | None = None
    _previous_broker_epoch: int = UNKNOWN_BROKER_EPOCH

    def __post_init__(self) -> None:
        self._cluster_id = self.directories.online[0].cluster_id
        self.listener_changes = ListenerChanges(self.config)
        self._token_secrets = TokenSecrets(self.config["delegation.token.secret.key"])
        self._scram_users = ScramUsers(lambda: self.metadata.image, self._token_keys)
        self._background = Background(self.clock, self.on_fault)

    # -- start -----------------------------------------------------------------------------------

    async def load(self) -> None:
        """Open and recover every log.

        Raises:
            LogDirectoryError: no directory can be used.
        """
        worker = partial(ProcessWorker, self.filesystem)
        log_manager = LogManager(
            self.filesystem,
            self.clock,
            self.directories,
            LogManagerSettings.from_config(self.config),
            topic_config=self._log_config,
            random=self.random,
            on_directory_offline=self._directory_failed,
            cleaner_settings=CleanerSettings.from_config(self.config),
            make_cleaner_worker=worker if self.has_child_processes else None,
        )
        log_manager.jobs.on_flushed = self.registry.histogram(
            "kafka.log:type=LogFlushStats,name=LogFlushRateAndTimeMs"
        ).observe
        self._log_manager = log_manager
        report = await log_manager.start()
        self._previous_broker_epoch = report.previous_broker_epoch

    async def listen(self, controller: ControllerChannel) -> None:
        """Bind the listeners; requests that come wait until `join` has let them in.

        Raises:
            ConfigError: the settings of a secured listener cannot work.
            OSError: an address cannot be bound.
        """
        log_manager = self._log_manager
        assert log_manager is not None, "loaded"
        quotas = Quotas(
            self.clock,
            self.registry,
            sample_count=self.config.get_int("quota.window.num"),
            window_ms=self.config.get_int("quota.window.size.seconds") * 1000.0,
        )
        self.metadata.add_publisher(quotas)
        server = Server(
            network=self.network,
            clock=self.clock,
            limits=server_limits(self.config),
            metrics=RequestMetrics(self.registry),
            offload=self.filesystem.offload,
            watchdog=self.watchdog,
            rates=quotas.connection_rates,
        )
        self.server = server
        timers = server.connections.timers
        connector = await self._bind(server)
        replica_manager = ReplicaManager(
            broker_id=self.config.node_id,
            node_values=self.config,
            log_manager=log_manager,
            clock=self.clock,
            filesystem=self.filesystem,
            timers=timers,
            registry=self.registry,
            ports=ReplicationPorts(
                controller=controller,
                broker_epoch=self._broker_epoch,
                is_confirmed=self._is_confirmed,
                listener_name=self.config.inter_broker_listener_name,
                connector=connector,
            ),
            on_fault=self.on_fault,
        )
        self._replica_manager = replica_manager
        services = self._make_services(controller, log_manager, replica_manager, timers, connector)
        self.services = services
        authorizer = self.authorizer = StandardAuthorizer.of(self.config, self.clock)
        self.metadata.add_publisher(authorizer)
        self._router = RequestRouter(
            broker_routes(services),
            clock=self.clock,
            authorizer=authorizer,
            on_fault=self.on_fault,
            quotas=quotas,
            watchdog=self.watchdog,
            decoded_max_bytes=self.config.get_int("moldau.decoded.max.bytes"),
        )
        services.fetch_sessions.register_gauges(self.registry)
        self.registry.gauge(
            "kafka.server:type=KafkaServer,name=BrokerState", lambda: float(self.state)
        )
        self.registry.gauge(
            "kafka.log:type=LogManager,name=OfflineLogDirectoryCount",
            lambda: float(sum(not each.is_online for each in self.directories.online)),
        )

    async def _bind(self, server: Server) -> Connector:
        """Open the listeners; gives the way to those of other brokers."""
        changes, image = self.listener_changes, self.metadata.image
        listeners = listener_specs(
            self.config.broker_listeners,
            lambda each: changes.security_of(each, image, self._scram_users, self.clock),
        )
        connector = changes.connector(listeners, self.clock, self.network)
        await log_in(connector)
        await server.start(listeners)
        return connector

    def _token_keys(self, mechanism: str, token_id: str) -> KnownKeys | None:
        if self._token_credentials is None:
            from moldau.node.token_credentials import TokenCredentials

            self._token_credentials = TokenCredentials(
                self._token_secrets,
                lambda: self.metadata.image.delegation_tokens.tokens_by_id,
                self.clock,
                self.filesystem.offload,
                self._background.start,
                lambda *place: self._scram_users.token_keys(*place).salt,
            )
        return self._token_credentials(mechanism, token_id)

    def _make_services(
        self,
        controller: ControllerChannel,
        log_manager: LogManager,
        replica_manager: ReplicaManager,
        timers: TimerWheel,
        connector: Connector,
    ) -> BrokerServices:
        background = self._background
        producer_ids = ProducerIds(
            lambda: allocate_producer_ids(controller, self.config.node_id, self._broker_epoch()),
            clock=self.clock,
            timers=timers,
            start=background.start,
        )
        self._coordinators = Coordinators(
            self.config,
            replica_ports(replica_manager, background, timers, self.registry),
            replica_manager,
            OtherBrokers(
                lambda: self.metadata.image,
                self.config.inter_broker_listener_name,
                connector,
                self.config.get_int("request.timeout.ms"),
            ),
            background,
            producer_ids,
            random=self.random,
            has_child_processes=self.has_child_processes,
        )
        return BrokerServices(
            node_config=self.config,
            broker_id=self.config.node_id,
            cluster_id=self._cluster_id,
            metadata=self.metadata,
            kraft_version=self.kraft_version,
            replica_manager=replica_manager,
            log_manager=log_manager,
            controller=controller,
            coordinators=self._coordinators,
            fetch_sessions=FetchSessionCache(
                self.clock,
                self.random,
                max_sessions=self.config.get_int("max.incremental.fetch.session.cache.slots"),
                max_partitions=self.config.get_int("moldau.fetch.session.cache.max.partitions"),
            ),
            producer_ids=producer_ids,
            clock=self.clock,
            background=background,
            internal_topics=InternalTopics(self.config, controller, self.clock, background.start),
            is_confirmed=self._is_confirmed,
            check_listeners=self.listener_changes.check,
            token_secrets=self._token_secrets,
        )

    async def join(self, controller: ControllerChannel) -> None:
        """Register, take over the partitions, wait until the controller lets this broker in, serve.

        Raises:
            RegistrationRefused: the controller will not have this broker.
            ControllerUnavailable: no controller answered in time.
        """
        log_manager = self._log_manager
        assert log_manager is not None, "loaded"
        assert self._replica_manager is not None, "listening"
        assert self.server is not None, "listening"
        if not self._replica_manager.has_every_directory(self.metadata.image):
            self._previous_broker_epoch = UNKNOWN_BROKER_EPOCH
        lifecycle = self._lifecycle = self._make_lifecycle(controller)
        lifecycle.move_to(BrokerState.STARTING)
        await lifecycle.register()
        # Only now: until it is registered another process may be this broker, and own its replicas.
        # And only from an image that knows of it: an older one may say that this broker leads what
        # its last stop has cost it (its end in the logs, or the whole disk).
        await self.metadata.wait_until(
            lambda image: self._registered_epoch(image) >= lifecycle.broker_epoch
        )
        await log_manager.found.settle(self._place_of)
        assert self._coordinators is not None, "listening"
        self.metadata.add_publisher(self._replica_manager)
        # Behind it: a partition has its new role before its coordinator is loaded or unloaded.
        self.metadata.add_publisher(self._coordinators)
        self.metadata.add_publisher(ElectionMeters(self.registry))
        self.metadata.add_publisher(
            DynamicSettings(
                self.config,
                self.server.connections,
                log_manager,
                self._replica_manager.replication,
                self._coordinators.verifier,
            )
        )
        self.metadata.add_publisher(self.listener_changes)
        self.metadata.add_publisher(lifecycle)
        lifecycle.move_to(BrokerState.RECOVERY)
        lifecycle.start_heartbeats()
        await lifecycle.wait_unfenced()
        own_id = self.config.node_id
        await self.metadata.wait_until(
            lambda image: (
                own_id in image.cluster.brokers
                and not image.cluster.brokers[own_id].fenced
                and image.cluster.brokers[own_id].broker_epoch == lifecycle.broker_epoch
            )
        )
        warn_of_reserved_users(self.config, self.metadata.image)
        lifecycle.move_to(BrokerState.RUNNING)
        assert self._router is not None, "listening"
        self.server.open(self._router)

    def _registered_epoch(self, image: MetadataImage) -> int:
        registration = image.cluster.brokers.get(self.config.node_id)
        return UNKNOWN_BROKER_EPOCH if registration is None else registration.broker_epoch

    def _make_lifecycle(self, controller: ControllerChannel) -> BrokerLifecycle:
        online = self.directories.online
        finalized = self.metadata.image.features.finalized_levels
        return BrokerLifecycle(
            controller,
            BrokerRegistrationRequest(
                broker_id=self.config.node_id,
                cluster_id=self._cluster_id,
                incarnation_id=uuid.UUID(int=self.random.getrandbits(128), version=4),
                listeners=[
                    Listener(
                        name=endpoint.listener_name,
                        host=endpoint.host,
                        port=endpoint.port,
                        security_protocol=endpoint.security_protocol.value,
                    )
                    for endpoint in self._advertised()
                ],
                features=range_entries(Feature, advertised_features(finalized).items()),
                rack=self.config.rack,
                log_dirs=[each.directory_id for each in online],
                previous_broker_epoch=self._previous_broker_epoch,
            ),
            heartbeat_interval_ms=self.config.get_int("broker.heartbeat.interval.ms"),
            registration_timeout_ms=self.config.get_int("initial.broker.registration.timeout.ms"),
            confirmed_for_ms=CONFIRMED_SHARE * self.config.get_int("broker.session.timeout.ms"),
            catch_up=lambda: catch_up(controller, self.metadata),
            metadata_offset=lambda: self.metadata.last_applied_offset,
            offline_log_directories=lambda: [
                each.directory_id for each in online if not each.is_online
            ],
        )

    def _place_of(self, topic_partition: TopicPartition) -> tuple[uuid.UUID, uuid.UUID] | None:
        """Topic id and log directory of this broker's replica, as the metadata says."""
        topic = self.metadata.image.topics.topics_by_name.get(topic_partition.topic)
        partition = None if topic is None else topic.partitions.get(topic_partition.partition)
        if topic is None or partition is None or self.config.node_id not in partition.replicas:
            return None
        return topic.topic_id, partition.directory(self.config.node_id)

    # -- stop ------------------------------------------------------------------------------------

    async def stop(self) -> None:
        """Leave the cluster, answer what was accepted, flush and mark every log; idempotent."""
        lifecycle = self._lifecycle
        broker_epoch = UNKNOWN_BROKER_EPOCH
        if lifecycle is not None and lifecycle.state is BrokerState.RUNNING:
            # Followers go on fetching, so that the next leader has everything.
            if self.config.get_boolean("controlled.shutdown.enable"):
                await lifecycle.begin_controlled_shutdown()
            # With or without leave: everything is flushed below, so nothing will be missing.
            broker_epoch = lifecycle.broker_epoch
            lifecycle.move_to(BrokerState.SHUTTING_DOWN)
        services, self.services = self.services, None  # from here on HTTP shows no more of it
        if self._coordinators is not None:
            # First: clients that wait for a coordinator are asked to look for the next one.
            await self._coordinators.close()
        if self._replica_manager is not None:
            await self._replica_manager.close()
        if self.server is not None:
            await self.server.close(SERVER_CLOSE_MS)
        if self._router is not None:
            await self._router.close()
        if services is not None:
            await services.background.close()
            await services.producer_ids.close()
            await services.coordinators.matcher.close()
            services.changes.close()
        if lifecycle is not None:
            await lifecycle.stop()
        if self._log_manager is not None:
            await self._log_manager.shutdown(broker_epoch)

    # -- parts -----------------------------------------------------------------------------------

    @property
    def state(self) -> BrokerState:
        return BrokerState.NOT_RUNNING if self._lifecycle is None else self._lifecycle.state

    @property
    def address(self) -> str:
        """`host:port` of the first listener, as advertised."""
        endpoint = self._advertised()[0]
        return host_and_port(endpoint.host, endpoint.port)

    def _advertised(self) -> tuple[Endpoint, ...]:
        assert self.server is not None, "listening"
        server = self.server
        ports = {
            endpoint.listener_name: server.port(endpoint.listener_name)
            for endpoint in self.config.broker_listeners
        }
        return tuple(
            endpoint
            for endpoint in self.config.resolve_advertised(ports, socket.gethostname())
            if endpoint.listener_name in ports
        )

    def _broker_epoch(self) -> int:
        return -1 if self._lifecycle is None else self._lifecycle.broker_epoch

    def _is_confirmed(self) -> bool:
        return self._lifecycle is not None and self._lifecycle.is_confirmed()

    def _log_config(self, topic_name: str) -> LogConfig:
        configs = self.metadata.image.configs
        node_values = effective_broker_config(
            self.config,
            configs.get(ConfigResourceType.BROKER, ""),
            configs.get(ConfigResourceType.BROKER, str(self.config.node_id)),
        )
        overrides = configs.get(ConfigResourceType.TOPIC, topic_name)
        return LogConfig.from_config(effective_topic_config(node_values, overrides))

    def _directory_failed(self, directory: LogDirectory) -> None:
        if self._lifecycle is not None:
            self._lifecycle.beat_soon()
        if directory.path == os.path.abspath(self.config.metadata_log_directory):
            self.on_fatal(
                f"the metadata log's directory {directory.path} has failed: "
                f"{directory.offline_reason}"
            )
        elif not any(each.is_online for each in self.directories.online):
            self.on_fatal(f"the last log directory has failed: {directory.offline_reason}")
