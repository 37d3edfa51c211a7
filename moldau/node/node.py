"""The composition root: one node from its configuration to its last flush.

Owns the order in which quorum, broker and HTTP start and stop, and nothing of what they do. This
package is the only one that joins `raft`, `controller` and `broker`.
Invariant: the broker starts when the metadata log has been read; the quorum ends after the broker.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import logging
import os
import random
import secrets
import uuid
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Final

from moldau.broker.lifecycle.broker_lifecycle import BrokerState, RegistrationRefused
from moldau.broker.lifecycle.controller_channel import (
    INTERNAL_PRINCIPAL,
    ControllerUnavailable,
    NetworkControllerChannel,
)
from moldau.broker.lifecycle.metadata_loader import MetadataLoader
from moldau.config import ConfigError, NodeConfig
from moldau.config.listeners import host_and_port
from moldau.node.broker_part import BrokerPart
from moldau.node.expirations import Expirations, WatchedLogin, WatchedStores
from moldau.node.faults import FaultHandler
from moldau.node.formatting import FormatError, FormatPlan, format_storage, random_cluster_id
from moldau.node.listener_changes import contexts_of
from moldau.node.listeners import controller_connector, log_in
from moldau.node.quorum_link import LeaderRelay, NoActiveController, follow_metadata
from moldau.node.quorum_node import QuorumNode
from moldau.node.settings import CONSOLE_ENABLE, check_console, http_address, server_limits
from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.p19_create_topics import CreatableTopic, CreateTopicsRequest
from moldau.raft import METADATA_DIRECTORY, MetadataLogError
from moldau.runtime.clock import SystemClock
from moldau.runtime.filesystem import OsFilesystem
from moldau.runtime.garbage_collector import MemoryKeeper, freeze_garbage_collector
from moldau.runtime.health_socket import HealthSocket
from moldau.runtime.private_files import close_to_others
from moldau.runtime.telemetry.metrics import Registry
from moldau.server.authorizer import Authorizer
from moldau.server.loop_watchdog import LoopWatchdog
from moldau.storage.log_directory import (
    LOCK_FILE,
    LogDirectories,
    LogDirectoryError,
    open_log_directories,
)
from moldau.storage.meta_properties import META_PROPERTIES

if TYPE_CHECKING:
    from moldau.metadata.image import MetadataImage
    from moldau.metadata.image.values import Endpoint
    from moldau.node.http.access import HttpAccess, HttpSecurity
    from moldau.node.http.server import HttpListener
    from moldau.runtime.connector import PeerSecurity

logger = logging.getLogger(__name__)

HTTP_PATIENCE_S: Final = 1.0

COLLECT_AFTER_S: Final = 1.0
"""The one collection of all that start-up made holds the loop for 30 ms."""


class NodeStartError(Exception):
    """The node cannot start as it is configured; one line that says why."""


class Node:
    """One node, a broker, a controller or both. States: made → `start` → serving → `stop`.

    Args:
        config: checked configuration.
        on_fatal: called once, from any thread, when the node must not go on.
    """

    def __init__(self, config: NodeConfig, *, on_fatal: Callable[[str], None]) -> None:
        self._config = config
        self._on_fatal = on_fatal
        self._random = random.Random(secrets.randbits(128))
        self._filesystem = OsFilesystem()
        self._clock = SystemClock()
        self._registry = Registry(self._clock.monotonic_ms)
        failures = self._registry.counter("kafka.server:type=BackgroundJobs,name=Failures")
        self._on_fault = FaultHandler(on_fatal, failures.add)
        self._metadata = MetadataLoader(config.node_id)
        self._directories: LogDirectories | None = None
        self._quorum: QuorumNode | None = None
        self._channel: NetworkControllerChannel | None = None
        self._broker: BrokerPart | None = None
        self._http: HttpListener | None = None
        self._health: HealthSocket | None = None
        self._memory = MemoryKeeper()
        self._watchdog = LoopWatchdog(self._clock, self._registry, "DataLoop")
        self._is_serving = False
        #: Of connections to controllers, None with PLAINTEXT.
        self._controllers: PeerSecurity | None = None
        self._expirations = Expirations(
            self._clock,
            self._watched_stores,
            self._watched_logins,
            config.get_int("moldau.certificate.warning.days"),
        )
        self._registry.gauge(
            "kafka.controller:type=KafkaController,name=ActiveControllerCount",
            lambda: float(self._quorum is not None and self._quorum.is_active_controller),
        )

    # -- start -----------------------------------------------------------------------------------

    async def start(self, *, format_if_needed: bool = False) -> None:
        """Bring everything up; returns when the broker's clients are answered. A controller does
        not wait for the others of its quorum.

        Raises:
            NodeStartError: configuration, directories, addresses or metadata do not allow it.
        """
        asyncio.get_running_loop().set_exception_handler(self._on_fault.from_loop)
        serving = asyncio.Event()
        http: asyncio.Task[None] | None = None
        try:
            security = self._http_security()  # refuses before anything is opened
            self._open_health_socket()
            http = asyncio.create_task(self._listen_http(serving, security))
            directories = self._open_directories(format_if_needed)
            channel = await self._start_quorum(directories)
            if self._config.is_broker:
                await self._start_broker(directories, channel)
            self._is_serving = True
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
            if http is not None:
                http.cancel()

    @property
    def address(self) -> str:
        """`host:port` of the first listener, a broker's before a controller's, as advertised."""
        if self._broker is not None:
            return self._broker.address
        assert self._quorum is not None, "started"
        endpoint = self._config.advertised_controller_listeners[0]
        port = endpoint.port or self._quorum.port(endpoint.listener_name)
        return host_and_port(endpoint.host, port)

    def after_start(self) -> None:
        """What can wait until the node serves: memory housekeeping, metrics, expirations."""
        loop = asyncio.get_running_loop()
        loop.call_later(COLLECT_AFTER_S, freeze_garbage_collector)
        self._memory.start(loop)
        self._watchdog.start()
        self._expirations.start()

    async def create_topic(self, name: str, partition_count: int, replication_factor: int) -> None:
        """Create a topic unless it exists.

        Raises:
            NodeStartError: the controller refuses it.
        """
        assert self._channel is not None, "started"
        request = CreateTopicsRequest(
            topics=[
                CreatableTopic(
                    name=name, num_partitions=partition_count, replication_factor=replication_factor
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
        markers = [os.path.join(path, META_PROPERTIES) for path in paths]
        if format_if_needed and not any(map(self._filesystem.exists, markers)):
            cluster_id = random_cluster_id(self._random)
            plan = FormatPlan.from_config(self._config, cluster_id)
            format_storage(self._filesystem, self._clock, self._random, plan)
        metadata_directory = self._config.metadata_log_directory
        has_run = self._filesystem.exists(os.path.join(metadata_directory, LOCK_FILE))
        self._directories = open_log_directories(
            self._filesystem,
            paths,
            cluster_id=None,
            node_id=self._config.node_id,
            random=self._random,
        )
        for directory in self._directories.online:
            _close_to_others(directory.path)
        if self._config.is_controller:
            self._check_metadata_log(os.path.join(metadata_directory, METADATA_DIRECTORY), has_run)
        return self._directories

    def _check_metadata_log(self, path: str, has_run: bool) -> None:
        """A voter whose log is gone must not vote under the same identity: it has acknowledged
        records that it does not know any more.
        """
        if self._filesystem.exists(path):
            return
        if has_run:
            raise NodeStartError(
                f"{path} is missing, and this controller has run here before: a voter must not "
                "forget what it acknowledged. Restore it, or format "
                f"{self._config.metadata_log_directory} anew, with another directory id"
            )
        self._filesystem.mkdirs(path)

    async def _start_quorum(self, directories: LogDirectories) -> NetworkControllerChannel:
        quorum = QuorumNode(
            self._config,
            cluster_id=directories.online[0].cluster_id,
            directory_id=self._metadata_directory_id(directories),
            on_fatal=self._on_fatal,
            exception_handler=self._on_fault.from_loop,
            limits=server_limits(self._config),
            registry=self._registry,
        )
        connector = controller_connector(self._config, self._clock, quorum.told)
        self._controllers = connector.security
        # Here, as a start of the quorum is not called off before its end.
        await log_in(connector)
        self._quorum = quorum
        await quorum.start()
        relay = LeaderRelay(asyncio.get_running_loop())
        channel = self._channel = NetworkControllerChannel(
            relay.leader,
            own=quorum.own_controller,
            client_id=f"broker-{self._config.node_id}",
            connector=connector,
            request_timeout_ms=self._config.get_int("controller.socket.timeout.ms"),
            offload=self._filesystem.offload,
        )
        relay.on_change = channel.leader_changed
        await quorum.watch_leader(relay.publish)
        if self._config.is_broker:
            await self._follow_metadata(quorum, channel)
        return channel

    async def _follow_metadata(self, quorum: QuorumNode, channel: NetworkControllerChannel) -> None:
        config, limit = self._config, "initial.broker.registration.timeout.ms"
        try:
            await follow_metadata(
                quorum, channel, self._metadata, leader_timeout_ms=config.get_int(limit)
            )
        except NoActiveController as problem:
            key = "controller.quorum.bootstrap.servers"
            if not config.quorum_bootstrap_servers:
                key = "controller.quorum.voters"
            assert self._directories is not None, "opened"
            raise NodeStartError(
                f"{key}={config.text(key)}: no active controller of cluster "
                f"{self._directories.online[0].cluster_id} was found within "
                f"{limit}={config.get_int(limit)}: {problem}"
            ) from problem

    def _metadata_directory_id(self, directories: LogDirectories) -> uuid.UUID:
        wanted = os.path.abspath(self._config.metadata_log_directory)
        for directory in directories.online:
            if directory.path == wanted:
                return directory.directory_id
        reason = directories.offline.get(wanted, "it is not one of log.dirs")
        raise NodeStartError(f"metadata.log.dir {wanted} cannot be used: {reason}")

    async def _start_broker(
        self, directories: LogDirectories, channel: NetworkControllerChannel
    ) -> None:
        quorum = self._quorum
        assert quorum is not None, "started"
        broker = BrokerPart(
            self._config,
            directories=directories,
            filesystem=self._filesystem,
            clock=self._clock,
            registry=self._registry,
            random=self._random,
            metadata=self._metadata,
            kraft_version=lambda: quorum.kraft_version,
            on_fault=self._on_fault,
            on_fatal=self._on_fatal,
            has_child_processes=True,
            watchdog=self._watchdog,
        )
        self._broker = broker
        await broker.load()
        await broker.listen(channel)
        await broker.join(channel)

    async def _listen_http(self, serving: asyncio.Event, security: HttpSecurity | None) -> None:
        """Serve HTTP as soon as clients are served; earlier when that takes long, so that a client
        that watches the node can tell recovery from death.
        """
        address = http_address(self._config)
        if address is None or security is None:
            return
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(serving.wait(), HTTP_PATIENCE_S)
        await asyncio.to_thread(importlib.import_module, "moldau.node.http.server")
        from moldau.node.http.connections import HttpLimits
        from moldau.node.http.console import NodeConsole
        from moldau.node.http.server import HttpListener

        has_console = self._config.is_broker and self._config.get_boolean(CONSOLE_ENABLE)
        self._http = HttpListener(
            lambda: None if self._broker is None else self._broker.services,
            server=lambda: None if self._broker is None else self._broker.server,
            registry=self._registry,
            is_ready=self._is_ready,
            data_loop=asyncio.get_running_loop(),
            access=self._http_access(security),
            limits=HttpLimits.from_config(self._config),
            expirations=self._expirations,
            console=NodeConsole(
                self._config,
                self._registered,
                address[0],
                quorum=lambda: self._quorum,
                image=lambda: self._metadata.image,
            )
            if has_console
            else None,
        )
        await self._http.start(*address)

    def _registered(self) -> Mapping[str, Endpoint] | None:
        """The listeners that this broker has registered; None before it has."""
        own = self._metadata.image.cluster.brokers.get(self._config.node_id)
        return None if own is None else own.listeners

    def _http_security(self) -> HttpSecurity | None:
        """What the HTTP listener asks of its clients, None without one. Raises: ConfigError."""
        check_console(self._config)
        if http_address(self._config) is None:
            return None
        from moldau.node.http.access import HttpSecurity

        return HttpSecurity.of(self._config)

    def _http_access(self, security: HttpSecurity) -> HttpAccess:
        """Access is decided by the broker's authorizer, and on a controller by the quorum's."""
        from moldau.node.http.access import Authority, HttpAccess

        own_loop, without_rules = asyncio.get_running_loop(), Authorizer()

        def authorizer() -> Authorizer | None:
            if not self._config.has_authorizer:
                return without_rules
            if self._config.is_broker:
                return None if self._broker is None else self._broker.authorizer
            return None if self._quorum is None else self._quorum.authorizer

        def loop() -> asyncio.AbstractEventLoop:
            if self._config.is_broker or self._quorum is None:
                return own_loop
            return self._quorum.loop

        def image() -> MetadataImage:
            if self._config.is_broker or self._quorum is None:
                return self._metadata.image
            return self._quorum.image

        return HttpAccess(security, Authority(authorizer, loop, image))

    # -- stop ------------------------------------------------------------------------------------

    async def stop(self) -> None:
        """Stop the broker, then what it stands on; idempotent."""
        self._watchdog.stop()
        self._memory.stop()
        self._is_serving = False
        await self._expirations.stop()
        if self._broker is not None:
            await self._broker.stop()
        for part in (self._http, self._channel):
            if part is not None:
                await part.close()
        if self._quorum is not None:
            await self._quorum.stop()
        if self._directories is not None:
            self._directories.release()
        if self._health is not None:
            await asyncio.to_thread(self._health.close)
        self._filesystem.close()

    # -- parts -----------------------------------------------------------------------------------

    def _watched_stores(self) -> Iterator[WatchedStores]:
        """Every store that this node shows or trusts, in the order of its listeners."""
        own = asyncio.get_running_loop()
        if self._broker is not None:
            for name, contexts in self._broker.listener_changes.contexts():
                yield WatchedStores(name, contexts, own)
        if self._quorum is not None:
            for name, contexts in self._quorum.contexts():
                yield WatchedStores(name, contexts, self._quorum.loop)
        if self._controllers is not None:
            for name, contexts in contexts_of(self._controllers):
                yield WatchedStores(name, contexts, own)
        if self._http is not None:
            yield from self._http.stores()

    def _watched_logins(self) -> Iterator[WatchedLogin]:
        brokers = None if self._broker is None else self._broker.listener_changes.peers
        for each in (brokers, self._controllers):
            if each is not None and each.login is not None:
                yield WatchedLogin(each.listener_name, each.login)

    def _open_health_socket(self) -> None:
        """Say from now on whether the loops run, to the end of the stop. Raises: OSError."""
        path = self._config.get_string("moldau.health.socket")
        if not path:
            return
        own_loop = asyncio.get_running_loop()

        def loops() -> dict[str, asyncio.AbstractEventLoop]:
            watched = {"data": own_loop}
            if self._quorum is not None and self._quorum.is_running:
                watched["quorum"] = self._quorum.loop
            return watched

        self._health = HealthSocket(path, loops)
        self._health.open()

    def _is_ready(self) -> bool:
        if self._config.is_broker:
            return self._broker is not None and self._broker.state is BrokerState.RUNNING
        return self._is_serving


def _close_to_others(path: str) -> None:
    """Take others' rights on a directory of an earlier version; says so, once for all in it."""
    count, refused = close_to_others(path)
    if count:
        logger.warning(
            "%s: others than the owner had rights on %d files and directories, as those of SCRAM "
            "keys and topics' data are; these rights are taken",
            path,
            count,
        )
    if refused:
        logger.warning("others keep their rights on a file or directory: %s", refused)


def _words(error: OSError) -> str:
    if error.filename is not None and error.strerror:
        return f"{error.filename}: {error.strerror}"
    return error.strerror or str(error)
