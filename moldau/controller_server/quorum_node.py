"""A controller node of a single-voter quorum, on its own thread.

Owns: joining log, core, driver and APIs on the quorum thread, and the way in and out of it. Must
not: know the broker. Invariant: everything below runs on the quorum's loop; what other threads see
are requests, responses and committed batches, none of which anybody changes afterwards.
"""

from __future__ import annotations

import asyncio
import logging
import random
import secrets
import uuid
from collections.abc import Callable
from typing import Any, Final, TypeAlias

from moldau.config import NodeConfig
from moldau.controller_server.apis import ControllerApis
from moldau.controller_server.descriptions import ClusterDescriptions
from moldau.controller_server.listener import ControllerListener
from moldau.controller_server.quorum_thread import (
    LoopRelay,
    MetadataConsumer,
    QuorumBusy,
    QuorumThread,
)
from moldau.controller_server.request_context import ControllerRequestContext
from moldau.metadata.authorizer import Authorizer
from moldau.metadata.bootstrap import feature_records, initial_feature_levels
from moldau.metadata.controller import (
    Controller,
    ControllerCore,
    ControllerSettings,
    SnapshotPolicy,
)
from moldau.metadata.features import SUPPORTED_FEATURES
from moldau.protocol.messages.p70_controller_registration import (
    ControllerRegistrationRequest,
    Feature,
    Listener,
)
from moldau.protocol.schema import Message
from moldau.protocol.types import ZERO_UUID
from moldau.raft import (
    MetadataLogError,
    MetadataLogSettings,
    QuorumLog,
    RaftRequestHandler,
    VoterDescription,
    VoterEndpoint,
    VoterSet,
    read_bootstrap,
)
from moldau.runtime.clock import Clock, SystemClock
from moldau.runtime.filesystem import Filesystem, OsFilesystem
from moldau.runtime.server import ListenerSpec, ServerLimits

logger = logging.getLogger("moldau.controller")

ExceptionHandler: TypeAlias = Callable[[asyncio.AbstractEventLoop, dict[str, Any]], object]

ACTIVATION_TIMEOUT_S: Final = 60.0
OWN_PRINCIPAL: Final = "User:ANONYMOUS"


class RequestUndelivered(Exception):
    """The controller did not take the request, or did not answer in time."""


class QuorumNode:
    """States: made -> `start` -> running -> `stop`.

    Args:
        directory_id: the id of the directory that holds the metadata log.
        on_fatal: told once, from the quorum's thread, when the node must not go on.
        exception_handler: the quorum loop's, told of exceptions that nobody expected.
        filesystem, clock: the simulation's, or None for the machine's.
    """

    def __init__(
        self,
        config: NodeConfig,
        *,
        cluster_id: str,
        directory_id: uuid.UUID,
        on_fatal: Callable[[str], None],
        filesystem: Filesystem | None = None,
        clock: Clock | None = None,
        loop_factory: Callable[[], asyncio.AbstractEventLoop] = asyncio.new_event_loop,
        exception_handler: ExceptionHandler | None = None,
    ) -> None:
        self._config = config
        self._cluster_id = cluster_id
        self._directory_id = directory_id
        self._on_fatal = on_fatal
        self._own_filesystem = OsFilesystem(thread_count=2) if filesystem is None else None
        self._filesystem: Filesystem = filesystem or self._own_filesystem  # type: ignore[assignment]
        self._clock = clock
        self._thread = QuorumThread(loop_factory=loop_factory)
        self._exception_handler = exception_handler
        self._starting: asyncio.Task[None] | None = None
        self._log: QuorumLog | None = None
        self._controller: Controller | None = None
        self._apis: ControllerApis | None = None
        self._listener: ControllerListener | None = None
        self._relays: list[LoopRelay] = []

    async def start(self) -> None:
        """Open the log, lead, activate the controller, register it.

        Raises:
            MetadataLogError: the metadata log cannot be used; one line.
            OSError: the disk refuses.
        """
        self._thread.start()
        # What began on the thread goes on when the caller is cancelled; `stop` waits for it then.
        self._starting = asyncio.create_task(self._thread.run(self._start()))
        try:
            await asyncio.shield(self._starting)
        except (MetadataLogError, OSError):
            await self.stop()
            raise

    async def _start(self) -> None:
        asyncio.get_running_loop().set_exception_handler(self._exception_handler)
        config, filesystem = self._config, self._filesystem
        clock = self._clock or SystemClock(asyncio.get_running_loop())
        settings = MetadataLogSettings(
            metadata_directory=config.metadata_log_directory,
            node_id=config.node_id,
            directory_id=self._directory_id,
            endpoints=controller_endpoints(config),
            static_voters=static_voters(config),
            segment_bytes=config.get_int("metadata.log.segment.bytes"),
            segment_ms=config.get_int("metadata.log.segment.ms"),
            retention_bytes=config.get_int("metadata.max.retention.bytes"),
            retention_ms=config.get_int("metadata.max.retention.ms"),
        )
        bootstrap: list[tuple[Message, int]] = [
            (record, 0)
            for record in await filesystem.offload(
                read_bootstrap, filesystem, config.metadata_log_directory
            )
        ] or feature_records(initial_feature_levels())
        log = self._log = await QuorumLog.open(filesystem, clock, settings, self._on_fatal)
        core = ControllerCore(
            ControllerSettings.from_node_config(config, self._cluster_id),
            random.Random(secrets.randbits(128)),
        )
        controller = Controller(
            core,
            log,
            clock,
            node_id=config.node_id,
            bootstrap_records=bootstrap,
            snapshot_policy=SnapshotPolicy(
                max_bytes=config.get_int("metadata.log.max.record.bytes.between.snapshots"),
                interval_ms=config.get_int("metadata.log.max.snapshot.interval.ms"),
            ),
        )
        self._controller = controller
        self._apis = ControllerApis(
            controller,
            RaftRequestHandler(
                log,
                self._cluster_id,
                clock=clock,
                listener_name=config.controller_listener_names[0],
            ),
            ClusterDescriptions(
                config,
                self._cluster_id,
                image=lambda: controller.committed_image,
                leader_id=lambda: controller.leader_id,
                kraft_version=lambda: log.voters.kraft_version,
            ),
        )
        controller.start()
        try:
            await asyncio.wait_for(controller.active_since.wait(), ACTIVATION_TIMEOUT_S)
        except TimeoutError:
            raise MetadataLogError(
                f"the controller is not active after {ACTIVATION_TIMEOUT_S:.0f} s"
            ) from None
        await self._apis.handle(
            self._registration(), ControllerRequestContext(OWN_PRINCIPAL, timeout_ms=30_000)
        )

    def _registration(self) -> ControllerRegistrationRequest:
        return ControllerRegistrationRequest(
            controller_id=self._config.node_id,
            incarnation_id=uuid.UUID(int=secrets.randbits(128), version=4),
            zk_migration_ready=False,
            listeners=[
                Listener(
                    name=endpoint.listener_name,
                    host=endpoint.host or "localhost",
                    port=endpoint.port,
                    security_protocol=endpoint.security_protocol.value,
                )
                for endpoint in self._config.controller_listeners
            ],
            features=[
                Feature(
                    name=name,
                    min_supported_version=levels.minimum_level,
                    max_supported_version=levels.maximum_level,
                )
                for name, levels in SUPPORTED_FEATURES.items()
            ],
        )

    async def listen(
        self,
        *,
        on_fault: Callable[[BaseException], None],
        limits: ServerLimits | None = None,
        authorizer: Authorizer | None = None,
    ) -> None:
        """Serve the controller listeners, on the quorum's loop.

        Args:
            on_fault: told, on that loop, of an exception that no handler expected.

        Raises:
            OSError: an address cannot be bound.
        """
        await self._thread.run(self._listen(on_fault, limits, authorizer))

    async def _listen(
        self,
        on_fault: Callable[[BaseException], None],
        limits: ServerLimits | None,
        authorizer: Authorizer | None,
    ) -> None:
        assert self._apis is not None, "started"
        listener = ControllerListener(
            self._apis,
            clock=self._clock or SystemClock(asyncio.get_running_loop()),
            on_fault=on_fault,
            authorizer=authorizer,
            limits=limits,
            offload=self._filesystem.offload,
        )
        await listener.start(
            ListenerSpec(endpoint.listener_name, endpoint.host, endpoint.port)
            for endpoint in self._config.controller_listeners
        )
        self._listener = listener

    def port(self, listener_name: str) -> int:
        """Where a controller listener is bound."""
        assert self._listener is not None, "listening"
        return self._listener.port(listener_name)

    async def send(
        self,
        request: Message,
        principal: str,
        *,
        timeout_ms: float | None = None,
        client_host: str = "127.0.0.1",
        client_id: str | None = None,
        api_version: int | None = None,
    ) -> Any:
        """The controller's response to a request, from any loop.

        Args:
            principal, client_host, client_id: the client's, when its request is passed on.
            api_version: what the response will be encoded as, None for the latest.

        Raises:
            RequestUndelivered: it was not taken, or not answered within `timeout_ms`.
        """
        assert self._apis is not None, "started"
        context = ControllerRequestContext(
            principal,
            client_id,
            timeout_ms=timeout_ms,
            client_host=client_host,
            api_version=api_version,
        )
        try:
            return await self._thread.run(self._apis.handle(request, context))
        except QuorumBusy as error:
            raise RequestUndelivered(str(error)) from None

    async def subscribe(self, consumer: MetadataConsumer) -> None:
        """Deliver snapshot and batches to `consumer` on the calling loop, from the beginning."""
        relay = LoopRelay(consumer, asyncio.get_running_loop(), self._thread.loop)
        self._relays.append(relay)
        await self._thread.run(self._subscribe(relay))

    async def _subscribe(self, relay: LoopRelay) -> None:
        assert self._log is not None, "started"
        relay.subscription = self._log.add_listener(relay)

    async def stop(self) -> None:
        """Stop deciding, flush and close the log, end the thread."""
        for relay in self._relays:
            relay.close()
        if self._starting is not None and not self._starting.done():
            await asyncio.wait([self._starting])
            if self._starting.exception() is not None:
                logger.warning("the start had been called off: %s", self._starting.exception())
        listener, self._listener = self._listener, None
        if listener is not None:
            await self._thread.run(listener.close())
        controller, log = self._controller, self._log
        self._controller = self._log = None
        if log is not None:
            await self._thread.run(self._stop(controller, log))
        await self._thread.stop()
        self._close_filesystem()

    @staticmethod
    async def _stop(controller: Controller | None, log: QuorumLog) -> None:
        if controller is not None:
            await controller.close()
        await log.close()

    def _close_filesystem(self) -> None:
        if self._own_filesystem is not None:
            self._own_filesystem.close()


def static_voters(config: NodeConfig) -> VoterSet:
    """The voters of `controller.quorum.voters`: they count until the metadata log names others."""
    name = config.controller_listener_names[0]
    return VoterSet(
        tuple(
            VoterDescription(
                voter.node_id, ZERO_UUID, (VoterEndpoint(name, voter.host, voter.port),)
            )
            for voter in config.quorum_voters
        )
    )


def controller_endpoints(config: NodeConfig) -> tuple[VoterEndpoint, ...]:
    """Where other nodes find this controller: what it advertises, or else where it listens."""
    advertised = {endpoint.listener_name: endpoint for endpoint in config.advertised_listeners}
    return tuple(
        VoterEndpoint(
            endpoint.listener_name,
            advertised.get(endpoint.listener_name, endpoint).host or "localhost",
            advertised.get(endpoint.listener_name, endpoint).port,
        )
        for endpoint in config.controller_listeners
    )
