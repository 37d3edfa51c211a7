"""One controller node: the production log, controller, request handlers and listener on simulated
loop, network and disk.

Owns: formatting, starting, killing and starting again; the tap through which the ledger sees every
append and commit. Must not: decide anything the production node would decide.
Invariant: a node is started only from what its last death left on the disk.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import TYPE_CHECKING, Any
from uuid import UUID

from moldau.config import NodeConfig
from moldau.controller.apis import ControllerApis, LongWork
from moldau.controller.controller import Controller, SnapshotPolicy
from moldau.controller.core.controller_core import ControllerCore
from moldau.controller.core.state import ControllerSettings
from moldau.controller.descriptions import ClusterDescriptions
from moldau.controller.mutation_quotas import ControllerMutationQuotas
from moldau.controller.registration import ControllerRegistrationManager
from moldau.metadata.features import feature_records, initial_feature_levels
from moldau.metadata.image import MetadataImage
from moldau.node.quorum_node import CLOSE_GRACE_MS, leader_address
from moldau.node.settings import controller_registration
from moldau.protocol.errors import ErrorCode
from moldau.protocol.schema import Message
from moldau.raft import (
    MetadataLogError,
    QuorumLog,
    VoterDescription,
    VoterSet,
    read_bootstrap,
    write_bootstrap,
)
from moldau.raft.request_handler import RaftRequestHandler
from moldau.raft.values import QuorumStopped
from moldau.runtime.connector import Connector
from moldau.runtime.leader_link import LeaderLink
from moldau.server.authorizer import Authorizer
from moldau.server.change_log import ChangeLog
from moldau.server.request_router import RequestRouter
from moldau.server.server import ListenerSpec, Server
from moldau.server.standard_authorizer import StandardAuthorizer
from moldau.storage.faults import DiskFull, LogOffline
from tests.simulation.cluster.disk import Death, DiskSettings, NodeDisk, Refusal
from tests.simulation.cluster.logs import (
    CLUSTER_ID,
    LISTENER,
    METADATA_DIRECTORY,
    PORT,
    controller_config,
    host_of,
    open_metadata_log,
    voter_of,
)
from tests.simulation.cluster.security_checks import SecurityChecks, check_mutation_quotas
from tests.storage.simulated_disk import DirectoryNode
from tests.storage.simulated_filesystem import SimulatedFilesystem
from tests.virtual.loop import Process, VirtualClock
from tests.virtual.network import SimulatedNetwork

if TYPE_CHECKING:
    from tests.simulation.cluster.base_world import BaseWorld


FAILED_START = "start: "
"""How the reason of a node begins that gives up before it has taken part."""


class LogTap:
    """The log as the controller sees it, with the ledger looking on."""

    def __init__(self, log: Any, node: ControllerNode, who: str) -> None:
        self._log = log
        self._node = node
        self._who = who

    def __getattr__(self, name: str) -> Any:
        return getattr(self._log, name)

    def append(
        self,
        records: Sequence[tuple[Message, int]],
        *,
        leader_epoch: int,
        values: Sequence[bytes] | None = None,
    ) -> tuple[ErrorCode, int]:
        error, last_offset = self._log.append(records, leader_epoch=leader_epoch, values=values)
        if error is ErrorCode.NONE:
            world = self._node.world
            world.guard(world.ledger.acts, self._who, leader_epoch)
            world.note(
                f"{self._who} appends {len(records)} up to {last_offset} in {leader_epoch}:"
                f" {type(records[0][0]).__name__}"
            )
        return error, last_offset

    def add_listener(self, listener: Any) -> Any:
        return self._log.add_listener(ListenerTap(listener, self._node, self._who))


class ListenerTap:
    """Calls the ledger first, then the real listener, and compares their images."""

    def __init__(self, listener: Any, node: ControllerNode, who: str) -> None:
        self._listener = listener
        self._node = node
        self._who = who

    def handle_snapshot(self, snapshot: Any) -> None:
        world = self._node.world
        world.note(f"{self._who} loads the snapshot up to {snapshot.end_offset}")
        world.guard(world.ledger.on_snapshot, self._who, snapshot)
        self._listener.handle_snapshot(snapshot)

    def handle_commit(self, batch: Any) -> None:
        world = self._node.world
        world.note(f"{self._who} commits {batch.base_offset} to {batch.last_offset}")
        world.guard(world.ledger.on_commit, self._who, batch)
        self._listener.handle_commit(batch)
        world.guard(self._node.check_image, self._who)

    def handle_leader_change(self, leader_id: int, leader_epoch: int) -> None:
        world = self._node.world
        world.note(f"{self._who} hears that {leader_id} leads epoch {leader_epoch}")
        if leader_id == self._node.controller_id:
            world.guard(world.ledger.acts, self._who, leader_epoch)
        self._listener.handle_leader_change(leader_id, leader_epoch)


class ControllerNode:
    """A machine with a disk, and on it a process or none."""

    def __init__(self, world: BaseWorld, controller_id: int, random: Random) -> None:
        self.world = world
        self.controller_id = controller_id
        self.host = host_of(controller_id)
        self.random = random
        self.disk_settings = DiskSettings(slow_call=world.slow_calls)
        self.refusal = Refusal()
        self.process: Process | None = None
        self.disk: NodeDisk | None = None
        self.controller: Controller | None = None
        self.log: QuorumLog | None = None
        self._parts: (
            tuple[Server, RequestRouter, ControllerRegistrationManager, Controller, QuorumLog]
            | None
        ) = None
        self.starts = 0
        self.is_held = False
        """An operator works on the machine: the nemesis does not start it."""
        self.is_ready = False
        self.root = DirectoryNode()
        self.wipe_count = 0
        self._compared_offset = -1
        self._security: SecurityChecks | None = None
        self._mutations: ControllerMutationQuotas | None = None
        self._asked_quotas: object = None

    @property
    def voter(self) -> VoterDescription:
        """This node as the voter set names it."""
        return voter_of(self.controller_id, self.wipe_count)

    @property
    def is_alive(self) -> bool:
        """Whether its process runs."""
        return self.process is not None and self.process.is_alive

    @property
    def is_active(self) -> bool:
        """Whether it decides, as far as it knows."""
        return self.is_alive and self.controller is not None and self.controller.is_active

    def format(self, voters: VoterSet) -> None:
        """`moldau storage format` on an empty disk."""
        filesystem = SimulatedFilesystem(self.root)
        write_bootstrap(
            filesystem,
            METADATA_DIRECTORY,
            feature_records(initial_feature_levels(self.world.feature_levels)),
            voters,
            now_ms=self.world.clock.now_ms(),
        )

    def start(self) -> None:
        """Start the process on what the disk has."""
        assert not self.is_alive, "one process per node"
        self.starts += 1
        self.is_ready = False
        self.controller = self.log = self._parts = None
        self._compared_offset = -1
        name = f"{self.host}#{self.starts}"
        process = self.process = Process(self.world.loop, name)
        self.disk = NodeDisk(
            process,
            self.root,
            self.random,
            self.disk_settings,
            VirtualClock(self.world.loop, self.world.wall_clocks.of(self.host)),
            self.world.disk_operation,
            [self.refusal],
        )
        # After everything that the death itself brings about: a crash unwinds the stack first.
        process.on_kill.append(
            lambda: self.world.loop.call_outside(0.0, self.world.on_controller_death, self)
        )
        self.world.fabric.host_up(self.host)
        self.world.note(f"{name} starts")
        process.spawn(self._run(process, self.disk))

    def kill(self, death: Death) -> None:
        """End the process now; `bury` makes its disk ready for the next start."""
        assert self.process is not None
        assert self.disk is not None
        self.disk.death = death
        self.process.kill()

    def leave(self) -> None:
        """SIGTERM: an orderly stop, as a node does it; what hangs is killed after a while."""
        process = self.process
        assert process is not None
        if self._parts is not None:
            self.is_ready = False
            process.spawn(self._stop(process, *self._parts))
            self._parts = None

    async def _stop(
        self,
        process: Process,
        server: Server,
        router: RequestRouter,
        registration: ControllerRegistrationManager,
        controller: Controller,
        log: QuorumLog,
    ) -> None:
        await registration.close()
        await router.close(cancels=True)
        await server.close(CLOSE_GRACE_MS)
        await controller.close()
        await log.close()
        self.world.note(f"{process.name} has stopped in good order")
        self.world.counts["orderly_stops"] += 1
        process.kill()

    async def resign(self) -> None:
        """Hand leadership over, as `moldau quorum transfer-leader` has it done."""
        if self.log is not None and self.log.is_leader:
            try:
                error, _message = await self.log.resign()
            except QuorumStopped:
                return
            self.world.note(f"{self.host} resigned: {error.name}")

    def bury(self) -> None:
        """After a death, however it came: what is left on the disk, and the silence of a machine
        that lost power.
        """
        assert self.disk is not None
        assert not self.is_alive
        self.root = self.disk.survivors(self.disk.death)
        self.is_ready = False
        if self.disk.death is Death.POWER_LOSS:
            self.world.fabric.host_down(self.host)

    def describe(self) -> str:
        """Where it stands, for the message of a failure."""
        state = ("ready" if self.is_ready else "not ready") if self.is_alive else "dead"
        if self.controller is not None:
            offset = self.controller.committed_image.provenance.last_contained_offset
            state += f", at {offset}, takes {self.controller.leader_id} for the leader"
        return f"{self.host}: {state}" + (", active" if self.is_active else "")

    def wipe(self) -> None:
        """The disk is replaced, and formatted as of a node that joins later."""
        assert not self.is_alive
        self.wipe_count += 1
        self.root = DirectoryNode()
        self.format(VoterSet())

    def check_image(self, who: str) -> None:
        """The controller's committed image is the ledger's at that offset."""
        assert self.controller is not None
        image = self.controller.committed_image
        last_offset = image.provenance.last_contained_offset
        if last_offset > self._compared_offset:
            self._compared_offset = last_offset
            self.world.ledger.compare(who, image, last_offset)
            self.check_security(who, image)

    def check_security(self, who: str, image: MetadataImage, **more: int) -> None:
        """What its authorizer and its quotas make of its committed image."""
        assert self._security is not None
        assert self._mutations is not None
        self._security.check_access(image, **more)
        if image.client_quotas is not self._asked_quotas:
            self._asked_quotas = image.client_quotas
            check_mutation_quotas(who, self._mutations, image)

    # -- inside the process ----------------------------------------------------------------------

    async def _run(self, process: Process, disk: NodeDisk) -> None:
        world = self.world
        config = controller_config(
            self.controller_id, {**world.quorum_keys, **world.controller_overrides}
        )
        clock = VirtualClock(world.loop, world.wall_clocks.of(self.host))
        network = world.fabric.port_of(process, self.host)

        def on_fatal(reason: str) -> None:
            world.process_failed(process, reason)

        authorizer = StandardAuthorizer.of(config)
        dice = Random(f"questions {process.name} {world.seed}")
        self._security = SecurityChecks(process.name, authorizer, dice)
        server = Server(clock=clock, network=network, offload=disk.offload)
        await server.start([ListenerSpec(LISTENER, "", PORT)])
        try:
            log = await open_metadata_log(
                config, disk, clock, network, on_fatal, self.random, self.voter.directory_id
            )
            bootstrap: list[tuple[Message, int]] = [
                (record, 0)
                for record in await disk.offload(read_bootstrap, disk, METADATA_DIRECTORY)
            ]
        except (MetadataLogError, OSError, LogOffline, DiskFull) as error:
            on_fatal(f"{FAILED_START}{error!r}")
            return
        controller = self._make_controller(config, log, clock, process, bootstrap, authorizer)
        requests = RaftRequestHandler(log, CLUSTER_ID, clock=clock, listener_name=LISTENER)
        descriptions = ClusterDescriptions(
            config,
            CLUSTER_ID,
            image=lambda: controller.committed_image,
            leader_id=lambda: log.leadership.leader_id,
            kraft_version=lambda: log.voters.kraft_version,
        )
        mutations = self._mutations = ControllerMutationQuotas(
            lambda: controller.committed_image, clock, sample_count=11, window_ms=1000.0
        )
        apis = ControllerApis(
            controller,
            requests,
            descriptions,
            kraft_upgrade=log.upgrade_kraft_version,
            work=LongWork(clock, disk.offload),
            mutations=mutations,
            changes=ChangeLog(clock),
        )
        router = RequestRouter(
            apis.routes(),
            clock=clock,
            authorizer=authorizer,
            on_fault=lambda error: world.fault(process, error),
        )
        registration = self._registration(config, controller, log, apis, clock, network)
        self._parts = (server, router, registration, controller, log)
        self.log = log
        self.controller = controller
        controller.start()
        server.open(router)
        log.add_listener(registration)
        log.on_leadership_change(lambda _leadership: registration.leader_changed())
        registration.start()
        self.is_ready = True

    def _make_controller(
        self,
        config: NodeConfig,
        log: QuorumLog,
        clock: VirtualClock,
        process: Process,
        bootstrap: list[tuple[Message, int]],
        authorizer: Authorizer,
    ) -> Controller:
        tap: Any = LogTap(log, self, process.name)
        settings = ControllerSettings(config, CLUSTER_ID)
        if self.world.max_changes_per_step is not None:
            settings = settings._replace(max_changes_per_step=self.world.max_changes_per_step)
        return Controller(
            ControllerCore(
                settings,
                Random(self.random.getrandbits(64)),
                on_entries_changed=authorizer.change,
            ),
            tap,
            clock,
            node_id=self.controller_id,
            bootstrap_records=bootstrap,
            snapshot_policy=SnapshotPolicy(
                max_bytes=self.world.snapshot_bytes, interval_ms=self.world.snapshot_interval_ms
            ),
            slice_ms=self.world.slice_ms,
        )

    def _registration(
        self,
        config: NodeConfig,
        controller: Controller,
        log: QuorumLog,
        apis: ControllerApis,
        clock: VirtualClock,
        network: SimulatedNetwork,
    ) -> ControllerRegistrationManager:
        request = controller_registration(config)
        # A simulated process draws its ids from the seed.
        request.incarnation_id = UUID(int=self.random.getrandbits(128), version=4)
        return ControllerRegistrationManager(
            request,
            image=lambda: controller.committed_image,
            leader=lambda: leader_address(log.leadership, [LISTENER]),
            apis=apis,
            link=LeaderLink(
                client_id=f"registration-{self.host}", connector=Connector(network, clock)
            ),
            random=Random(self.random.getrandbits(64)),
        )
