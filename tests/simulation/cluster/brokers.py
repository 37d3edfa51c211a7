"""Simulated brokers: the production lifecycle over the simulated network, and a leader's duties.

Owns: incarnations and whether their start is clean, the metadata a broker has seen, the changes of
ISRs it asks for. Must not: hold records. Invariant: what a broker is answered goes to the ledger.
"""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING, Any
from uuid import UUID

from moldau.broker.lifecycle.broker_lifecycle import (
    BrokerLifecycle,
    BrokerState,
    RegistrationRefused,
)
from moldau.broker.lifecycle.controller_channel import ControllerUnavailable
from moldau.metadata.features import SUPPORTED_FEATURES
from moldau.metadata.image import MetadataImage
from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages import p56_alter_partition as alter
from moldau.protocol.messages.p62_broker_registration import (
    BrokerRegistrationRequest,
    Feature,
    Listener,
)
from moldau.protocol.messages.p67_allocate_producer_ids import AllocateProducerIdsRequest
from moldau.server.quotas.client_quotas import Quotas
from moldau.server.standard_authorizer import StandardAuthorizer
from tests.kit.seeds import Violation
from tests.simulation.cluster.disk import Death, DiskSettings, NodeDisk
from tests.simulation.cluster.link import ControllerLink
from tests.simulation.cluster.logs import CLUSTER_ID, broker_config
from tests.simulation.cluster.observers import Observer
from tests.simulation.cluster.security_checks import CLOSING_QUESTIONS, SecurityChecks
from tests.storage.simulated_disk import DirectoryNode
from tests.virtual.loop import Process, VirtualClock
from tests.virtual.network import SimulatedNetwork

if TYPE_CHECKING:
    from tests.simulation.cluster.world import World

PRINCIPAL = "User:broker"
UNEXPECTED = frozenset({ErrorCode.UNKNOWN_SERVER_ERROR, ErrorCode.INVALID_REQUEST})


class SimulatedBroker:
    """A machine on which a broker process runs, or none."""

    def __init__(self, world: World, broker_id: int, random: Random) -> None:
        self.world = world
        self.broker_id = broker_id
        self.host = f"broker-{broker_id}"
        self.random = random
        self.process: Process | None = None
        self.lifecycle: BrokerLifecycle | None = None
        self.starts = 0
        self.is_leaving = False
        self.disk: NodeDisk | None = None
        self.observer: Observer | None = None
        self.is_observing = random.random() < world.observing_brokers
        self._root = DirectoryNode()
        self._clean_epoch = -1
        self._link: ControllerLink | None = None
        self._light_image = MetadataImage.EMPTY
        self._security: SecurityChecks | None = None

    @property
    def is_alive(self) -> bool:
        """Whether its process runs."""
        return self.process is not None and self.process.is_alive

    @property
    def broker_epoch(self) -> int:
        """The epoch of this incarnation, -1 before it is registered."""
        return -1 if self.lifecycle is None else self.lifecycle.broker_epoch

    @property
    def image(self) -> MetadataImage:
        """The metadata as far as this incarnation has seen it."""
        return self._light_image if self.observer is None else self.observer.loader.image

    def start(self) -> None:
        """Start a new incarnation: a clean start when the last one had leave to stop."""
        assert not self.is_alive, "one process per broker"
        self.starts += 1
        self.is_leaving = False
        self._light_image = MetadataImage.EMPTY
        self.world.fabric.host_up(self.host)
        if self.disk is not None:
            self._root = self.disk.survivors(self.random.choice(list(Death)))
        process = self.process = Process(self.world.loop, f"{self.host}#{self.starts}")
        incarnation_id = UUID(int=(self.broker_id << 32) + self.starts + (1 << 100), version=4)
        previous_epoch, self._clean_epoch = self._clean_epoch, -1
        self.world.ledger.incarnations_clean[incarnation_id] = previous_epoch >= 0
        self.world.note(f"{process.name} starts, previous epoch {previous_epoch}")
        network = self.world.fabric.port_of(process, self.host)
        self._link = ControllerLink(
            self.world.loop,
            network,
            self.random,
            self.world.controller_addresses,
            process.name,
        )
        self.lifecycle = self.observer = self.disk = None
        if self.is_observing:
            self.disk = NodeDisk(
                process,
                self._root,
                self.random,
                DiskSettings(),
                VirtualClock(self.world.loop, self.world.wall_clocks.of(self.host)),
                self.world.disk_operation,
            )
            self.observer = self._observe(process)
        process.spawn(self._run(process, network, incarnation_id, previous_epoch))

    def _observe(self, process: Process) -> Observer:
        """The replica of the metadata log, and who follows it on a broker."""
        world = self.world
        overrides = {**world.quorum_keys, **world.security_keys}
        config = broker_config(self.broker_id, self.host, overrides)
        observer = Observer(world, process, self.broker_id, self.host, config=config)
        authorizer = StandardAuthorizer.of(config)
        quotas = Quotas(VirtualClock(world.loop, world.wall_clocks.of(self.host)))
        dice = Random(f"questions {process.name} {world.seed}")
        self._security = SecurityChecks(process.name, authorizer, dice, quotas)
        for publisher in (authorizer, quotas, self._security):
            observer.loader.add_publisher(publisher)
        return observer

    def check_security(self) -> None:
        """Before the end: more questions about the image that it has come to."""
        if self.is_alive and self.observer is not None:
            assert self._security is not None
            self._security.check_access(self.image, CLOSING_QUESTIONS)
            self._security.check_quotas(self.image)

    def wipe(self) -> None:
        """The disk is replaced by an empty one."""
        assert not self.is_alive
        self._root, self.disk = DirectoryNode(), None

    def kill(self) -> None:
        """End the process: what it had not flushed may be lost."""
        if self.process is not None:
            self.process.kill()

    def leave(self) -> None:
        """SIGTERM: ask for leave, and stop when it is given or takes too long."""
        process = self.process
        assert process is not None
        lifecycle = self.lifecycle
        if not self.is_leaving and lifecycle is not None and lifecycle.state is BrokerState.RUNNING:
            self.is_leaving = True
            process.spawn(self._shut_down(process, lifecycle))

    # -- inside the process ----------------------------------------------------------------------

    def _registration(self, incarnation_id: UUID, previous_epoch: int) -> BrokerRegistrationRequest:
        return BrokerRegistrationRequest(
            broker_id=self.broker_id,
            cluster_id=CLUSTER_ID,
            incarnation_id=incarnation_id,
            listeners=[Listener(name="PLAINTEXT", host=self.host, port=9092)],
            features=[
                Feature(
                    name=name,
                    min_supported_version=levels.minimum_level,
                    max_supported_version=levels.maximum_level,
                )
                for name, levels in SUPPORTED_FEATURES.items()
            ],
            rack=f"rack-{self.broker_id % 2}",
            log_dirs=[UUID(int=0xB000 + self.broker_id)],
            previous_broker_epoch=previous_epoch,
        )

    async def _run(
        self,
        process: Process,
        network: SimulatedNetwork,
        incarnation_id: UUID,
        previous_epoch: int,
    ) -> None:
        channel: Any = self._link
        if self.observer is not None:
            await self.observer.start(self.disk, network, self.random)
            channel = self.observer.channel
        else:
            process.spawn(self._follow_metadata())
        lifecycle = self.lifecycle = BrokerLifecycle(
            channel,
            self._registration(incarnation_id, previous_epoch),
            heartbeat_interval_ms=self.world.heartbeat_interval_ms,
            registration_timeout_ms=60_000,
            confirmed_for_ms=self.world.heartbeat_interval_ms,
            catch_up=self._catch_up,
            metadata_offset=lambda: self._offset,
            offline_log_directories=list,
        )
        lifecycle.move_to(BrokerState.STARTING)
        while True:
            try:
                broker_epoch = await lifecycle.register()
                break
            except ControllerUnavailable:
                continue
            except RegistrationRefused as refusal:
                raise Violation("registration-refused", f"{process.name}: {refusal}") from None
        self.world.note(f"{process.name} is registered with epoch {broker_epoch}")
        self.world.ledger.acknowledged_registration(self.broker_id, broker_epoch)
        lifecycle.move_to(BrokerState.RECOVERY)
        lifecycle.start_heartbeats()
        await lifecycle.wait_unfenced()
        lifecycle.move_to(BrokerState.RUNNING)
        self.world.note(f"{process.name} is unfenced")
        process.spawn(self._allocate_ids())
        while not self.is_leaving:
            await self.world.loop.elapse(self.random.expovariate(1 / self.world.isr_pause_ms))
            await self._change_an_isr()

    async def _shut_down(self, process: Process, lifecycle: BrokerLifecycle) -> None:
        self.world.note(f"{process.name} asks for leave")
        has_leave = await lifecycle.begin_controlled_shutdown(self.random.choice((500, 30_000)))
        lifecycle.move_to(BrokerState.SHUTTING_DOWN)
        await lifecycle.stop()
        self.world.note(f"{process.name} stops, leave given: {has_leave}")
        # The logs are flushed on either way out: the start after it is a clean one.
        self._clean_epoch = lifecycle.broker_epoch
        self.world.loop.call_soon(process.kill)

    async def _catch_up(self) -> None:
        wanted = self.world.ledger.image.provenance.last_contained_offset
        while self._offset < wanted:
            await self.world.loop.elapse(1.0)

    async def _follow_metadata(self) -> None:
        """The committed metadata, some time late."""
        loop, ledger = self.world.loop, self.world.ledger
        while True:
            image = ledger.image
            await loop.elapse(self.random.uniform(1.0, self.world.metadata_lag_ms))
            if image.provenance.last_contained_offset > self._offset:
                self._light_image = image

    @property
    def _offset(self) -> int:
        return self.image.provenance.last_contained_offset

    async def _allocate_ids(self) -> None:
        assert self._link is not None
        while True:
            await self.world.loop.elapse(self.random.expovariate(1 / self.world.ids_pause_ms))
            request = AllocateProducerIdsRequest(
                broker_id=self.broker_id, broker_epoch=self.broker_epoch
            )
            try:
                response = await self._link.send_once(request)
            except ControllerUnavailable:
                continue
            self._expect(response.error_code)
            if response.error_code == ErrorCode.NONE:
                self.world.ledger.acknowledged_ids(
                    self.host, response.producer_id_start, response.producer_id_len
                )

    # -- a leader's duties -----------------------------------------------------------------------

    def _led_partitions(self) -> list[tuple[UUID, int, Any]]:
        return [
            (topic.topic_id, index, partition)
            for _name, topic in sorted(self.image.topics.topics_by_name.items())
            for index, partition in sorted(topic.partitions.items())
            if partition.leader == self.broker_id
        ]

    async def _change_an_isr(self) -> None:
        """Followers fall behind and catch up: ask for another ISR of a partition led here."""
        led = self._led_partitions()
        if not led or self.is_leaving:
            return
        assert self._link is not None
        topic_id, index, partition = self.random.choice(led)
        behind = [each for each in partition.isr if each != self.broker_id]
        ahead = [each for each in partition.replicas if each not in partition.isr]
        new_isr = list(partition.isr)
        if ahead and (not behind or self.random.random() < 0.75):
            new_isr.append(self.random.choice(ahead))
        elif behind:
            new_isr.remove(self.random.choice(behind))
        else:
            return
        brokers = self.image.cluster.brokers
        request = alter.AlterPartitionRequest(
            broker_id=self.broker_id,
            broker_epoch=self.broker_epoch,
            topics=[
                alter.TopicData(
                    topic_id=topic_id,
                    partitions=[
                        alter.PartitionData(
                            partition_index=index,
                            leader_epoch=partition.leader_epoch,
                            new_isr_with_epochs=[
                                alter.BrokerState(
                                    broker_id=each,
                                    broker_epoch=brokers[each].broker_epoch
                                    if each in brokers
                                    else -1,
                                )
                                for each in new_isr
                            ],
                            leader_recovery_state=0,
                            partition_epoch=partition.partition_epoch,
                        )
                    ],
                )
            ],
        )
        try:
            response = await self._link.send_once(request)
        except ControllerUnavailable:
            return
        self._take_alter_partition(response, new_isr)

    def _take_alter_partition(self, response: Any, new_isr: list[int]) -> None:
        self._expect(response.error_code)
        for topic in response.topics:
            for partition in topic.partitions:
                self._expect(partition.error_code)
                if partition.error_code == ErrorCode.NONE:
                    self.world.counts["isr_changes"] += 1
                    self.world.ledger.acknowledged_isr(
                        topic.topic_id,
                        partition.partition_index,
                        partition.partition_epoch,
                        tuple(partition.isr),
                    )

    def _expect(self, error_code: int) -> None:
        """Whatever the cluster goes through, these errors are bugs."""
        if error_code in UNEXPECTED:
            raise Violation("unexpected-error", f"{self.host}: {ErrorCode.of(error_code).name}")
