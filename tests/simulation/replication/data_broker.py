"""A broker with data: the production BrokerPart on simulated loop, network and disk.

Owns: formatting, starting, stopping, killing and starting again, what its disk suffers, and the
reports of its logs to the ledger. Must not: decide anything a production node would decide.
Invariant: a broker is started only from what its last death left on the disk.
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from random import Random
from typing import TYPE_CHECKING, Any

from moldau.broker.lifecycle.broker_lifecycle import BrokerState, RegistrationRefused
from moldau.broker.lifecycle.controller_channel import ControllerUnavailable
from moldau.config import NodeConfig
from moldau.node.broker_part import BrokerPart
from moldau.node.formatting import FormatPlan, format_storage
from moldau.node.quorum_link import follow_metadata
from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.p56_alter_partition import AlterPartitionRequest
from moldau.protocol.messages.p62_broker_registration import BrokerRegistrationRequest
from moldau.protocol.messages.p63_broker_heartbeat import BrokerHeartbeatRequest
from moldau.raft import MetadataLogError
from moldau.runtime.telemetry.metrics import Registry
from moldau.storage.faults import DiskFull, LogOffline
from moldau.storage.log_directory import LogDirectoryError, open_log_directories
from tests.kit.seeds import Violation
from tests.simulation.cluster.disk import Death, DiskSettings, NodeDisk
from tests.simulation.cluster.logs import CLUSTER_ID
from tests.simulation.cluster.observers import Observer
from tests.simulation.replication.broker_directories import BrokerDirectories
from tests.simulation.replication.late_requests import LANES, LateLink
from tests.simulation.replication.mirror import Batch, Mirror, read_bytes
from tests.storage.simulated_disk import DirectoryNode
from tests.storage.simulated_filesystem import SimulatedFilesystem
from tests.virtual.loop import Process, VirtualClock

if TYPE_CHECKING:
    from tests.simulation.replication.ledger import Key
    from tests.simulation.replication.world import ReplicationWorld

PORT = 9092
LISTENER = "PLAINTEXT"
NO_ROOM = "No space left"

START_FAILURES = (
    LogDirectoryError,
    MetadataLogError,
    RegistrationRefused,
    ControllerUnavailable,
    LogOffline,
    DiskFull,
    OSError,
)
"""What a production node ends with at its start, in one line."""


class ChannelTap:
    """The way to the controller, with the ledger looking on; slow for some requests."""

    def __init__(self, channel: Any, broker: DataBroker) -> None:
        self._channel = channel
        self._broker = broker

    def __getattr__(self, name: str) -> Any:
        return getattr(self._channel, name)

    async def send(self, request: Any, principal: str, **options: Any) -> Any:
        broker = self._broker
        if isinstance(request, BrokerRegistrationRequest):
            broker.world.guard(broker.registers, request)
        if isinstance(request, BrokerHeartbeatRequest) and broker.is_mute_until:
            silent_ms = (broker.is_mute_until - broker.world.loop.time()) * 1000
            if silent_ms > 0:
                await broker.world.loop.elapse(min(silent_ms, options.get("timeout_ms", silent_ms)))
                raise ControllerUnavailable("the simulated network has lost it")
        if not isinstance(request, AlterPartitionRequest):
            return await self._channel.send(request, principal, **options)
        await self._dawdle()
        response = await self._channel.send(request, principal, **options)
        broker.world.guard(broker.isr_answered, response)
        await self._dawdle()
        return response

    async def _dawdle(self) -> None:
        broker = self._broker
        longest_ms = broker.world.alter_partition_ms
        if longest_ms:
            await broker.world.loop.elapse(broker.random.uniform(0.0, longest_ms))


class DataBroker:
    """A machine with disks, and on it a process or none."""

    def __init__(self, world: ReplicationWorld, broker_id: int, random: Random) -> None:
        self.world = world
        self.broker_id = broker_id
        self.host = f"broker-{broker_id}"
        self.random = random
        self.disk_settings = DiskSettings(slow_call=world.slow_calls)
        self.process: Process | None = None
        self.disk: NodeDisk | None = None
        self.part: BrokerPart | None = None
        self.starts = 0
        self.is_leaving = False
        self.is_ready = False
        self.has_failed_disk = False
        self.bad_lanes: dict[str, float] = {}
        """The time until which what it asks controllers for comes late and more than once."""
        self.is_mute_until = 0.0
        """None of its heartbeats arrive before."""
        self.is_held = False
        """Its disk is being exchanged, or it stays away: the nemesis does not start it."""
        self._parts: tuple[BrokerPart, Observer, Any] | None = None
        self._replica_manager: Any = None
        self.root = DirectoryNode()
        self._was_killed = False
        self.directories = BrokerDirectories(self)
        self.config = self._make_config()

    def _make_config(self) -> NodeConfig:
        return NodeConfig(
            {
                "process.roles": "broker",
                "node.id": str(self.broker_id),
                "broker.rack": f"rack-{self.broker_id}",
                "listeners": f"{LISTENER}://{self.host}:{PORT}",
                "controller.listener.names": "CONTROLLER",
                "log.dirs": ",".join(self.directories.configured),
                **{key: value for key, value in self.world.quorum_keys.items() if value},
                **self.world.broker_overrides,
            }
        )

    @property
    def is_alive(self) -> bool:
        """Whether its process runs."""
        return self.process is not None and self.process.is_alive

    @property
    def name(self) -> str:
        """The name of this incarnation."""
        assert self.process is not None
        return self.process.name

    # -- life ------------------------------------------------------------------------------------

    def format(self) -> None:
        """`moldau storage format` on empty disks; what is formatted is left alone."""
        filesystem = SimulatedFilesystem(self.root)
        plan = FormatPlan.from_config(self.config, CLUSTER_ID)
        format_storage(filesystem, self.world.clock, self.random, plan, ignore_formatted=True)
        filesystem.fsync_directory("/")  # mount points do not go with the power

    def start(self) -> None:
        """Start the process on what the disk has."""
        assert not self.is_alive, "one process per broker"
        self.starts += 1
        self.is_leaving = self.is_ready = self.has_failed_disk = False
        self.part = self._parts = self._replica_manager = None
        self.world.data.found_less.discard(self.broker_id)
        self.config = self._make_config()
        process = self.process = Process(self.world.loop, f"{self.host}#{self.starts}")
        self.disk = NodeDisk(
            process,
            self.root,
            self.random,
            self.disk_settings,
            VirtualClock(self.world.loop, self.world.wall_clocks.of(self.host)),
            self.world.disk_operation,
            self.directories.refusals.values(),
        )
        self.disk.owner = self
        self.directories.mount(self.disk)
        process.on_kill.append(
            lambda: self.world.loop.call_outside(0.0, self.world.on_broker_death, self)
        )
        self.world.fabric.host_up(self.host)
        self.world.note(f"{process.name} starts")
        process.spawn(self._run(process, self.disk))

    def kill(self, death: Death = Death.KILL) -> None:
        """End the process now; `bury` makes its disk ready for the next start."""
        assert self.process is not None
        assert self.disk is not None
        self.disk.death = death
        self.process.kill()

    def bury(self) -> None:
        """After a death, however it came: what is left on the disk."""
        assert self.disk is not None
        assert not self.is_alive
        disk = self.disk
        self.root = disk.survivors(disk.death)
        self.is_ready = False
        self.part = self._parts = self._replica_manager = None
        # Inside an operation what was being written may be there or not.
        self._was_killed = disk.death is Death.KILL and not disk.has_crashed_inside
        if disk.death is Death.POWER_LOSS:
            self.world.data.on_loss(self.broker_id)
            self.world.fabric.host_down(self.host)

    def leave(self) -> None:
        """SIGTERM: a controlled stop; what hangs is killed after a while."""
        process = self.process
        assert process is not None
        if self._parts is not None and not self.is_leaving and self.is_ready:
            self.is_leaving = True
            process.spawn(self._stop(process, *self._parts))

    def wipe(self) -> None:
        """The disk is replaced by an empty one, and all log directories of the world are formatted,
        also one that the configuration did without.
        """
        assert not self.is_alive
        self.world.data.on_loss(self.broker_id)
        self._was_killed = False
        self.root = DirectoryNode()
        self.directories.replaced()
        self.format_again()

    def make_partition_directory(self, name: str) -> None:
        """`mkdir` in the first log directory, by an operator."""
        assert not self.is_alive
        directory = self.directories.configured[0]
        filesystem = SimulatedFilesystem(self.root)
        filesystem.mkdirs(f"{directory}/{name}")
        filesystem.fsync_directory(directory)

    def fill_disk(self, free_bytes: int) -> None:
        """Leave so much room."""
        if self.disk is not None:
            self.disk.capacity_bytes = self.disk.used_bytes() + free_bytes

    def format_again(self) -> None:
        """`moldau storage format --ignore-formatted` after the configuration has changed."""
        self.config = self._make_config()
        self.format()

    def directory_changed(self) -> None:
        """A log directory is not what it was when the last process died."""
        self._was_killed = False

    def lag_metadata(self, duration_ms: float) -> None:
        """It applies no metadata for a while."""
        if self._parts is not None:
            self._parts[1].lag(duration_ms)

    def topic_id_of(self, topic: str) -> Any:
        """What this broker takes for the topic of that name now, None for none."""
        if not self.is_alive or self._parts is None:
            return None
        known = self._parts[1].loader.image.topics.topics_by_name.get(topic)
        return None if known is None else known.topic_id

    def free_disk(self) -> None:
        """Room again."""
        if self.disk is not None:
            self.disk.capacity_bytes = None

    def fail_disk(self) -> None:
        """The next operation of some kind fails, and from then on whatever it belongs to."""
        if self.disk is not None:
            self.has_failed_disk = True
            operation = self.random.choice(("append", "fdatasync", "pread"))
            self.disk.fail(operation, errno.EIO)

    def describe(self) -> str:
        """Where it stands, for the message of a failure."""
        state = "dead"
        if self.is_alive:
            state = "not ready" if self.part is None else self.part.state.name
        return f"{self.host}: {state}"

    # -- inside the process ----------------------------------------------------------------------

    async def _run(self, process: Process, disk: NodeDisk) -> None:
        world = self.world
        clock = VirtualClock(world.loop, world.wall_clocks.of(self.host))
        network = world.fabric.port_of(process, self.host)
        try:
            directories = open_log_directories(
                disk,
                list(self.config.log_directories),
                cluster_id=None,
                node_id=self.broker_id,
                random=self.random,
            )
            first = self.config.log_directories[0]
            if first in directories.offline:  # as a node whose metadata log lies there
                directories.release()
                raise LogDirectoryError(directories.offline[first])
            observer = Observer(
                world,
                process,
                self.broker_id,
                self.host,
                config=self.config,
                directory_id=directories.online[0].directory_id,
            )
            await observer.start(disk, network, self.random)
            assert observer.channel is not None
            assert observer.log is not None
            log = observer.log
            await follow_metadata(
                observer,  # type: ignore[arg-type]
                observer.channel,
                observer.loader,
                leader_timeout_ms=60_000,
            )
            part = self.part = BrokerPart(
                self.config,
                directories=directories,
                filesystem=disk,
                clock=clock,
                registry=Registry(clock.monotonic_ms),
                random=Random(self.random.getrandbits(64)),
                metadata=observer.loader,
                kraft_version=lambda: log.voters.kraft_version,
                on_fault=lambda error: world.fault(process, error),
                on_fatal=lambda reason: world.process_failed(process, reason),
                network=network,
            )
            self._parts = (part, observer, directories)
            links = observer.channel._links
            for lane in LANES:
                links[lane] = LateLink(links[lane], world.late_requests, self._bad_lane(lane))  # type: ignore[assignment]
            channel: Any = ChannelTap(observer.channel, self)
            await part.load()
            await part.listen(channel)
            await part.join(channel)
        except START_FAILURES as error:
            if process.is_alive:
                world.note(f"{process.name} does not start: {error}")
                world.counts["failed_starts"] += 1
                process.kill()
            return
        self.is_ready = True
        world.note(f"{process.name} serves")

    def _bad_lane(self, lane: str) -> Callable[[], bool]:
        return lambda: self.bad_lanes.get(lane, 0.0) > self.world.loop.time()

    async def _stop(
        self, process: Process, part: BrokerPart, observer: Observer, directories: Any
    ) -> None:
        await part.stop()
        if observer.channel is not None:
            await observer.channel.close()
        if observer.log is not None:
            await observer.log.close()
        directories.release()
        self.world.note(f"{process.name} has stopped in good order")
        self.world.counts["orderly_stops"] += 1
        process.kill()

    # -- what the taps report --------------------------------------------------------------------

    def key_of(self, log: Any) -> Key:
        """The partition a log belongs to."""
        return (log.topic_id, log.topic_partition.partition)

    def wrote(self, log: Any, leader_epoch: int, batches: list[Batch], records: Any) -> None:
        """As a leader."""
        if batches:
            self._tell("on_contents", self.key_of(log), batches, records)
            self._tell("on_leader_append", self.broker_id, self.key_of(log), leader_epoch, batches)

    def replicated(self, log: Any, batches: list[Batch]) -> None:
        """As a follower."""
        if batches:
            self._tell("on_follower_append", self.broker_id, self.key_of(log), batches)

    def truncated(self, log: Any, end_offset: int) -> None:
        """The log was cut, or begun again."""
        start_offset = log.log_start_offset
        self.world.note(f"{self.name} cuts {log.name} to {log.log_end_offset}")
        self._tell("on_cut", self.broker_id, self.key_of(log), end_offset, start_offset)

    def start_moved(self, log: Any, *, is_asked: bool) -> None:
        """Records were deleted."""
        partition = self._partition_of(log)
        is_asked = is_asked or (partition is not None and partition.core.is_leader)
        self.world.guard(
            lambda: self.world.data.on_start_moved(
                self.broker_id, self.key_of(log), log.log_start_offset, is_asked=is_asked
            )
        )

    def opened(self, log: Any, found: Mirror) -> None:
        """A log was opened at the start, or made."""
        was_killed = self._was_killed and not self.world.expected_disk_faults
        self.world.guard(self.directories.opened, self.key_of(log), log.directory, found)
        unseen = self.world.data.written_unseen(self.broker_id, self.key_of(log), found)
        if unseen:
            records = read_bytes(log, unseen[0].base_offset)
            self._tell("on_contents", self.key_of(log), unseen, records)
        self.world.guard(
            lambda: self.world.data.on_opened(
                self.broker_id, self.key_of(log), found, was_killed=was_killed
            )
        )

    def removed(self, log: Any) -> None:
        """A log was put aside."""
        self.world.note(f"{self.name} puts {log.name} aside")
        self.directories.removed(self.key_of(log))
        self._tell("on_removed", self.broker_id, self.key_of(log))

    def log_failed(self, log: Any, reason: str) -> None:
        """A log is offline."""
        self.world.note(f"{self.name}: {log.name} is offline: {reason}")
        if NO_ROOM in reason:
            self.world.counts["offline_for_want_of_room"] += 1
        elif not self.world.expected_disk_faults:
            violation = Violation("log-offline", f"{self.name}: {log.name}: {reason}")
            self.world.violation = self.world.violation or violation
        self._tell("on_offline", self.broker_id, self.key_of(log))

    def high_watermark_set(self, log: Any) -> None:
        """The log was given a high watermark."""
        partition = self._partition_of(log)
        if partition is not None:
            self._tell_high_watermark(partition)

    def state_applied(self, partition: Any) -> None:
        """The partition has taken over what the controller decided."""
        core = partition.core
        if core.is_leader:
            key = self.key_of(partition.log)
            self._tell("on_leads", self.name, self.broker_id, key, core.leader_epoch)

    def _tell_high_watermark(self, partition: Any) -> None:
        core, key = partition.core, self.key_of(partition.log)
        if core.is_leader:
            least = min(partition.min_insync_replicas, max(1, len(core.replicas)))
            self._tell(
                "on_high_watermark",
                self.name,
                self.broker_id,
                key,
                core.leader_epoch,
                core.partition_epoch,
                partition.log.high_watermark,
                least,
            )
        else:
            self._tell("on_follower_high_watermark", self.name, key, partition.log.high_watermark)

    def _partition_of(self, log: Any) -> Any:
        if self.part is None:
            return None
        if self.part.services is not None:
            # A stopping part gives its services away, and still takes what is on its way.
            self._replica_manager = self.part.services.replica_manager
        if self._replica_manager is None:
            return None
        topic, index = log.topic_partition
        partition = self._replica_manager.get(topic, index)
        return partition if partition is not None and partition.log is log else None

    def _tell(self, what: str, *arguments: Any) -> None:
        self.world.guard(getattr(self.world.data, what), *arguments)

    # -- what the controller is sent -------------------------------------------------------------

    def registers(self, request: BrokerRegistrationRequest) -> None:
        """This incarnation says whether its start is a clean one: then nothing is missing."""
        if self.world.data.incarnation_of.get(self.broker_id) == request.incarnation_id:
            return
        is_clean = request.previous_broker_epoch >= 0
        self.world.ledger.incarnations_clean[request.incarnation_id] = is_clean
        self.world.data.incarnation_of[self.broker_id] = request.incarnation_id
        if not is_clean:
            self.world.data.on_unclean_start(self.broker_id)
        elif self.broker_id in self.world.data.found_less:
            raise Violation("unclean-told-clean", f"{self.name}: {request}")
        else:
            self.directories.check_clean(self.name)

    def isr_answered(self, response: Any) -> None:
        """The controller says what it made of proposed ISRs."""
        for topic in response.topics:
            for partition in topic.partitions:
                if partition.error_code != ErrorCode.NONE:
                    self.world.counts[f"isr {ErrorCode.of(partition.error_code).name}"] += 1
                else:
                    self.world.counts["isr_changes"] += 1
                    self.world.ledger.acknowledged_isr(
                        topic.topic_id,
                        partition.partition_index,
                        partition.partition_epoch,
                        tuple(partition.isr),
                    )

    @property
    def is_serving(self) -> bool:
        """Whether it has been let in."""
        return self.part is not None and self.part.state is BrokerState.RUNNING
