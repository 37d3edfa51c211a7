"""A node's part in the quorum, on its own thread: voter, candidate for one, or observer.

Owns: joining log, controller core, driver, listener and APIs on the quorum thread, and the way in
and out of it. Must not: know the broker. Invariants: all of that runs on the quorum's loop; what
other threads see are requests, responses, committed batches and the leader, none of which changes
afterwards; nothing crosses without a bound.
"""

from __future__ import annotations

import asyncio
import logging
import random
import secrets
import ssl
import threading
import uuid
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import TYPE_CHECKING, Final, Protocol, TypeAlias, TypeVar

from moldau.broker.lifecycle.controller_channel import OwnController
from moldau.config import ConfigError, NodeConfig
from moldau.controller.apis import ControllerApis, LongWork
from moldau.controller.controller import Controller, SnapshotPolicy
from moldau.controller.core.controller_core import ControllerCore
from moldau.controller.core.state import ControllerSettings
from moldau.controller.descriptions import ClusterDescriptions
from moldau.controller.mutation_quotas import ControllerMutationQuotas
from moldau.controller.registration import ControllerRegistrationManager
from moldau.metadata.features import feature_records, initial_feature_levels
from moldau.metadata.image import MetadataImage
from moldau.metadata.log import CommittedBatch, LoadedSnapshot
from moldau.metadata.scram_users import ScramUsers
from moldau.node.controller_listeners import ControllerListeners
from moldau.node.early_users import EarlyUsers, has_scram
from moldau.node.listeners import controller_connector, names_of_node
from moldau.node.settings import controller_registration, metadata_log_settings
from moldau.protocol.schema import Message
from moldau.protocol.types import ZERO_UUID, uuid_to_base64
from moldau.raft import (
    MetadataLogError,
    QuorumLog,
    RaftRequestHandler,
    Subscription,
    VoterSet,
    read_bootstrap,
)
from moldau.raft.core.values import NO_NODE, Leadership
from moldau.raft.peers import ConnectionPeers
from moldau.runtime.clock import Clock, SystemClock
from moldau.runtime.connector import Connector, ToldProblems
from moldau.runtime.filesystem import Filesystem, OsFilesystem
from moldau.runtime.leader_link import LeaderAddress, LeaderLink
from moldau.runtime.loop_thread import LoopBusy, LoopThread
from moldau.runtime.network import AsyncioNetwork
from moldau.runtime.shared_work import outcome_of
from moldau.runtime.telemetry.metrics import Registry
from moldau.server.authorizer import Authorizer
from moldau.server.change_log import ChangeLog
from moldau.server.connection_limits import ServerLimits
from moldau.server.loop_watchdog import LoopWatchdog
from moldau.server.request_router import RequestRouter
from moldau.server.server import Server
from moldau.server.standard_authorizer import StandardAuthorizer

if TYPE_CHECKING:
    from moldau.runtime.authentication.store_contexts import StoreContexts

logger = logging.getLogger(__name__)

ExceptionHandler: TypeAlias = Callable[[asyncio.AbstractEventLoop, dict[str, object]], object]
LeaderWatcher: TypeAlias = Callable[[LeaderAddress | None], None]

ACTIVATION_TIMEOUT_S: Final = 60.0

CLOSE_GRACE_MS: Final = 500.0
"""How long a stop waits for answers on their way; waiting fetches are ended before."""

MAX_RELAYED_BATCHES: Final = 1_000
MAX_RELAYED_BYTES: Final = 64 * 1024 * 1024
BATCHES_PER_VISIT: Final = 64

T = TypeVar("T")


class MetadataConsumer(Protocol):
    """Receives metadata on its own loop."""

    def on_snapshot(self, snapshot: LoadedSnapshot) -> None:
        """Replace everything by the snapshot's content."""

    def on_commit(self, batch: CommittedBatch) -> None:
        """Apply one committed batch; a control batch has no records."""


@dataclass(eq=False, repr=False)
class MetadataRelay:
    """A log listener that hands committed metadata to a consumer on another loop, in order.
    It holds at most MAX_RELAYED_BATCHES before it asks the log for a pause.
    """

    _consumer: MetadataConsumer
    _consumer_loop: asyncio.AbstractEventLoop
    _log_loop: asyncio.AbstractEventLoop
    subscription: Subscription | None = None
    _queue: deque[CommittedBatch | LoadedSnapshot] = field(default_factory=deque)
    _queued_bytes: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _is_scheduled: bool = False
    _is_paused: bool = False
    _is_closed: bool = False

    # -- on the log's loop -----------------------------------------------------------------------

    def handle_snapshot(self, snapshot: LoadedSnapshot) -> None:
        """Queue a snapshot; what was queued before it is void."""
        with self._lock:
            self._queue.clear()
            self._queued_bytes = 0
        self._put(snapshot)

    def handle_commit(self, batch: CommittedBatch) -> None:
        self._put(batch)

    def handle_leader_change(self, leader_id: int, leader_epoch: int) -> None:
        """Ignored: metadata does not depend on the leader that wrote it."""

    def _put(self, item: CommittedBatch | LoadedSnapshot) -> None:
        with self._lock:
            self._queue.append(item)
            self._queued_bytes += item.size_bytes
            is_full = (
                len(self._queue) >= MAX_RELAYED_BATCHES or self._queued_bytes >= MAX_RELAYED_BYTES
            )
            if is_full and not self._is_paused and self.subscription is not None:
                self._is_paused = True
                self.subscription.pause()
            must_schedule = not self._is_scheduled
            self._is_scheduled = True
        if must_schedule and not self._consumer_loop.is_closed():
            self._consumer_loop.call_soon_threadsafe(self._drain)

    # -- on the consumer's loop ------------------------------------------------------------------

    def _drain(self) -> None:
        for _ in range(BATCHES_PER_VISIT):
            with self._lock:
                if not self._queue or self._is_closed:
                    self._is_scheduled = False
                    resume, self._is_paused = self._is_paused, False
                    break
                item = self._queue.popleft()
                self._queued_bytes -= item.size_bytes
            is_taken = False
            try:
                if isinstance(item, LoadedSnapshot):
                    self._consumer.on_snapshot(item)
                else:
                    self._consumer.on_commit(item)
                is_taken = True
            finally:
                if not is_taken:
                    # The loop reports the exception; what comes after it is delivered still.
                    self._consumer_loop.call_soon(self._drain)
        else:
            self._consumer_loop.call_soon(self._drain)
            return
        if resume and self.subscription is not None and not self._log_loop.is_closed():
            self._log_loop.call_soon_threadsafe(self.subscription.resume)

    def close(self) -> None:
        """Hand over nothing any more; on the consumer's loop."""
        with self._lock:
            self._is_closed = True
            self._queue.clear()


@dataclass(eq=False, repr=False)
class QuorumNode:
    """States: made -> `start` -> running -> `stop`.

    With the role controller it votes (if it is a voter), serves the controller listeners and can
    become the active controller; without, it only follows the log.

    Args:
        directory_id: the id of the directory that holds the metadata log.
        on_fatal: called once, from the quorum's thread, when the node must not go on.
        exception_handler: the quorum loop's, called with unexpected exceptions.
        limits: of the controller listeners.
        registry: gets what the loop's watchdog counts; without it there is none.
    """

    config: NodeConfig
    _: KW_ONLY
    cluster_id: str
    directory_id: uuid.UUID
    on_fatal: Callable[[str], None]
    exception_handler: ExceptionHandler | None = None
    limits: ServerLimits = field(default_factory=ServerLimits)
    registry: Registry | None = None
    own_controller: OwnController | None = None
    """For the broker of this process, once started; None without the role controller."""
    told: ToldProblems = field(default_factory=ToldProblems)
    """For all of this node's connections to controllers."""
    _watchdog: LoopWatchdog | None = None
    _changes: ChangeLog | None = None
    _starting: asyncio.Task[None] | None = None
    _log: QuorumLog | None = None
    _peers: ConnectionPeers | None = None
    _controller: Controller | None = None
    _server: Server | None = None
    _router: RequestRouter | None = None
    _listeners: ControllerListeners | None = None
    _registration: ControllerRegistrationManager | None = None
    _early_users: EarlyUsers = field(default_factory=EarlyUsers)
    _relays: list[MetadataRelay] = field(default_factory=list)
    _ports: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._filesystem = OsFilesystem(thread_count=2)
        self._network = AsyncioNetwork()
        self._thread = LoopThread("moldau-quorum")
        self._scram_users = ScramUsers(lambda: self._users)
        self.authorizer: Authorizer = StandardAuthorizer.of(self.config)

    # -- start -----------------------------------------------------------------------------------

    async def start(self) -> None:
        """Bind the listeners, open the log, take part; a quorum of one leads on return.

        Raises:
            ConfigError: the settings of a secured listener cannot work.
            MetadataLogError: the metadata log cannot be used; one line.
            OSError: the disk refuses, or an address cannot be bound.
        """
        self._thread.start()
        # What began on the thread goes on when the caller is cancelled; `stop` waits for it then.
        self._starting = asyncio.create_task(self._thread.run(self._start()))
        try:
            await outcome_of(self._starting)
        except (ConfigError, MetadataLogError, OSError):
            await self.stop()
            raise

    async def _start(self) -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(self.exception_handler)
        clock = SystemClock(loop)
        if self.registry is not None:
            self._watchdog = LoopWatchdog(clock, self.registry, "QuorumLoop")
            self._watchdog.start()
        config = self.config
        bootstrap: list[tuple[Message, int]] = []
        if config.is_controller:
            # Read before the log is opened: a start that is refused leaves it as it was.
            bootstrap = await self._bootstrap_records()
            self._early_users = EarlyUsers(record for record, _version in bootstrap)
        connector = controller_connector(config, clock, self.told)
        if config.is_controller:
            await self._bind(clock)
        peers = self._peers = ConnectionPeers(
            connector,
            cluster_id=self.cluster_id,
            client_id=f"raft-client-{config.node_id}",
            listener_name=config.controller_listener_names[0],
        )
        log = self._log = await QuorumLog.open(
            self._filesystem,
            clock,
            metadata_log_settings(config, self.directory_id, self._ports),
            self.on_fatal,
            peers=peers,
            inspect=self._early_users.take_log if has_scram(config) else None,
        )
        if config.is_controller:
            await self._start_controller(log, clock, bootstrap, connector)

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The quorum's, once started: where `authorizer` may be asked."""
        return self._thread.loop

    def contexts(self) -> list[tuple[str, StoreContexts | ssl.SSLContext]]:
        """Those of the controller's listeners with TLS, which live on its loop, by name."""
        return [] if self._listeners is None else list(self._listeners.changes.contexts())

    @property
    def is_running(self) -> bool:
        """Whether there is a loop."""
        return self._thread.is_running

    @property
    def image(self) -> MetadataImage:
        """What the controller has seen committed; empty before it runs, and on brokers."""
        return MetadataImage.EMPTY if self._controller is None else self._controller.committed_image

    async def _bootstrap_records(self) -> list[tuple[Message, int]]:
        """What the first active controller of a cluster appends. Raises: MetadataLogError."""
        records = await self._filesystem.offload(
            read_bootstrap, self._filesystem, self.config.metadata_log_directory
        )
        return [(record, 0) for record in records] or feature_records(initial_feature_levels())

    async def _bind(self, clock: Clock) -> None:
        server = self._server = Server(
            clock=clock,
            network=self._network,
            limits=self.limits,
            offload=self._filesystem.offload,
            watchdog=self._watchdog,
        )
        self._listeners = ControllerListeners(self.config, server, self._scram_users, self.on_fatal)
        self._ports = await self._listeners.bind()

    @property
    def _users(self) -> MetadataImage:
        """Where the users are that may log in to this controller."""
        controller = self._controller
        if controller is None:
            return MetadataImage.EMPTY
        return self._early_users.image(controller.committed_image)

    async def _start_controller(
        self,
        log: QuorumLog,
        clock: Clock,
        bootstrap: list[tuple[Message, int]],
        connector: Connector,
    ) -> None:
        config = self.config
        controller = self._controller = Controller(
            ControllerCore(
                ControllerSettings(
                    config,
                    self.cluster_id,
                    scram_secret=secrets.token_hex(32),
                    own_names=names_of_node(config),
                ),
                random.Random(secrets.randbits(128)),
                on_entries_changed=self.authorizer.change,
            ),
            log,
            clock,
            node_id=config.node_id,
            bootstrap_records=bootstrap,
            snapshot_policy=SnapshotPolicy(
                max_bytes=config.get_int("metadata.log.max.record.bytes.between.snapshots"),
                interval_ms=config.get_int("metadata.log.max.snapshot.interval.ms"),
            ),
            token_check_interval_ms=(
                None
                if config["delegation.token.secret.key"] is None
                else config.get_int("delegation.token.expiry.check.interval.ms")
            ),
        )
        apis = self._make_apis(controller, log, clock)
        self.own_controller = OwnController(
            config.node_id, self._thread, apis.answer, apis.committed_end_offset, self.authorizer
        )
        assert self._server is not None, "bound"
        assert self._listeners is not None, "bound"
        self._listeners.follow(lambda: controller.committed_image, lambda: log.high_watermark)
        controller.start()
        log.add_listener(self._listeners)  # behind the controller, which replays before
        self._router = RequestRouter(
            apis.routes(),
            clock=clock,
            authorizer=self.authorizer,
            on_fault=self._on_fault,
            watchdog=self._watchdog,
            decoded_max_bytes=self.limits.decoded_max_bytes,
        )
        self._server.open(self._router)  # what came early, and everything from now on
        self._start_registration(controller, log, apis, connector)
        if not log.is_leader:
            return
        try:
            await asyncio.wait_for(controller.active_since.wait(), ACTIVATION_TIMEOUT_S)
        except TimeoutError:
            raise MetadataLogError(
                f"the controller is not active after {ACTIVATION_TIMEOUT_S:.0f} s"
            ) from None

    def _make_apis(self, controller: Controller, log: QuorumLog, clock: Clock) -> ControllerApis:
        max_lines = self.config.get_int("moldau.audit.log.max.lines")
        changes = self._changes = ChangeLog(clock, max_lines)
        return ControllerApis(
            controller,
            RaftRequestHandler(
                log,
                self.cluster_id,
                clock=clock,
                listener_name=self.config.controller_listener_names[0],
            ),
            ClusterDescriptions(
                self.config,
                self.cluster_id,
                image=lambda: controller.committed_image,
                leader_id=lambda: log.leadership.leader_id,
                kraft_version=lambda: log.voters.kraft_version,
            ),
            kraft_upgrade=log.upgrade_kraft_version,
            work=LongWork(clock, self._filesystem.offload),
            changes=changes,
            mutations=ControllerMutationQuotas(
                lambda: controller.committed_image,
                clock,
                self.registry,
                sample_count=self.config.get_int("controller.quota.window.num"),
                window_ms=self.config.get_int("controller.quota.window.size.seconds") * 1000.0,
            ),
        )

    def _start_registration(
        self, controller: Controller, log: QuorumLog, apis: ControllerApis, connector: Connector
    ) -> None:
        registration = self._registration = ControllerRegistrationManager(
            controller_registration(self.config, self._ports),
            image=lambda: controller.committed_image,
            leader=lambda: self._leader(log),
            apis=apis,
            link=LeaderLink(
                client_id=f"controller-{self.config.node_id}-registration", connector=connector
            ),
            random=random.Random(secrets.randbits(128)),
        )
        log.add_listener(registration)
        log.on_leadership_change(lambda _leadership: registration.leader_changed())
        log.add_listener(VoterIdentity(log))
        registration.start()

    def _leader(self, log: QuorumLog) -> LeaderAddress | None:
        return leader_address(log.leadership, self.config.controller_listener_names)

    def _on_fault(self, error: BaseException) -> None:
        asyncio.get_running_loop().call_exception_handler(
            {"message": "a request to the controller failed", "exception": error}
        )

    # -- use, from any loop ----------------------------------------------------------------------

    def port(self, listener_name: str) -> int:
        """Where a controller listener is bound."""
        return self._ports[listener_name]

    @property
    def kraft_version(self) -> int:
        """The level of `kraft.version` as this node knows it; 0 before the start."""
        log = self._log
        return 0 if log is None else log.voters.kraft_version

    @property
    def is_active_controller(self) -> bool:
        controller = self._controller
        return controller is not None and controller.is_active

    async def subscribe(self, consumer: MetadataConsumer) -> None:
        """Deliver snapshot and batches to `consumer` on the calling loop, from the beginning."""
        relay = MetadataRelay(consumer, asyncio.get_running_loop(), self._thread.loop)
        self._relays.append(relay)
        await self._thread.run(self._subscribe(relay))

    async def _subscribe(self, relay: MetadataRelay) -> None:
        assert self._log is not None, "started"
        relay.subscription = self._log.add_listener(relay)

    async def watch_leader(self, watcher: LeaderWatcher) -> None:
        """Call `watcher` on the quorum's loop with the active controller's address, now and
        whenever it changes; None while no leader is known. It must return at once.
        """
        await self._thread.run(self._watch_leader(watcher))

    async def _watch_leader(self, watcher: LeaderWatcher) -> None:
        log = self._log
        assert log is not None, "started"
        names = self.config.controller_listener_names
        log.on_leadership_change(lambda leadership: watcher(leader_address(leadership, names)))
        watcher(self._leader(log))

    async def with_log(
        self, work: Callable[[QuorumLog, Filesystem], Coroutine[object, None, T]]
    ) -> T:
        """What a coroutine makes of the log, on the quorum's loop: it must not block, and changes
        nothing. Raises: LoopBusy: there is no log, or too much is asked of it.
        """
        log = self._log
        if log is None:
            raise LoopBusy("the node is starting or stopping")
        return await self._thread.run(work(log, self._filesystem))

    async def peer_problems(self) -> dict[str, str]:
        """Why the others of the quorum do not answer well, by `host:port`."""
        return await self._thread.run(self._peer_problems())

    async def _peer_problems(self) -> dict[str, str]:
        assert self._peers is not None, "started"
        return self._peers.problems()

    # -- stop ------------------------------------------------------------------------------------

    async def stop(self) -> None:
        """Stop deciding, hand leadership on, flush and close the log, end the thread."""
        for relay in self._relays:
            relay.close()
        if self._starting is not None and not self._starting.done():
            await asyncio.wait([self._starting])
            if self._starting.exception() is not None:
                logger.warning("the start had been called off: %s", self._starting.exception())
        if self._log is not None or self._server is not None:
            await self._thread.run(self._stop())
        await self._thread.stop()
        self._filesystem.close()

    async def _stop(self) -> None:
        if self._watchdog is not None:
            self._watchdog.stop()
        # The server ends last: the others fetch from this log until another leads.
        registration, self._registration = self._registration, None
        controller, self._controller = self._controller, None
        log, self._log = self._log, None
        server, self._server = self._server, None
        for part in (self._listeners, registration, controller):
            if part is not None:
                await part.close()
        if self._changes is not None:
            self._changes.close()
        if log is not None:
            await log.close()
        if self._router is not None:
            await self._router.close(cancels=True)  # fetches may wait long
        if server is not None:
            await server.close(CLOSE_GRACE_MS)


def leader_address(leadership: Leadership, listener_names: Sequence[str]) -> LeaderAddress | None:
    """The active controller's address, None while no leader is known.

    Args:
        listener_names: `controller.listener.names`; the first that the leader has is taken, as
            brokers and controllers connect by the first one.
    """
    if leadership.leader_id == NO_NODE:
        return None
    by_name = {endpoint.listener_name: endpoint for endpoint in leadership.endpoints}
    for name in listener_names:
        if name in by_name:
            return LeaderAddress(leadership.leader_id, by_name[name].host, by_name[name].port)
    return None


class VoterIdentity:
    """A metadata log listener that warns when another directory votes under this node's id."""

    def __init__(self, log: QuorumLog) -> None:
        self._log = log
        self._told = ZERO_UUID
        self._seen = VoterSet()

    def _check(self, *_: object, **__: object) -> None:
        voters = self._log.voters
        if voters is self._seen:
            return
        self._seen = voters
        voter = voters.with_id(self._log.node_id)
        found: uuid.UUID = ZERO_UUID if voter is None else voter.directory_id
        if found in (self._log.directory_id, ZERO_UUID, self._told):
            return
        self._told = found
        logger.warning(
            "node.id=%d votes with another directory, %s, and this one, %s, only observes: either "
            "that process is a double, or its disk was replaced and "
            "`moldau quorum remove-controller` and `add-controller` give the vote to this one",
            self._log.node_id,
            uuid_to_base64(found),
            uuid_to_base64(self._log.directory_id),
        )

    handle_snapshot = handle_commit = handle_leader_change = _check
