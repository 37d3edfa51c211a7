"""A controller core among simulated brokers: every event is drawn from one seeded generator."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from moldau.controller.apis import DECIDERS
from moldau.controller.core.controller_core import ControllerCore
from moldau.controller.core.result import Asked, ControllerResult, VersionedRecord
from moldau.controller.core.state import ControllerSettings
from moldau.metadata.features import feature_records, initial_feature_levels
from moldau.metadata.image import (
    LOST_DIRECTORY,
    ConfigResourceType,
    MetadataImage,
    Provenance,
)
from moldau.metadata.steps import at_once
from moldau.protocol.api_keys import ApiKey
from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages import p44_incremental_alter_configs as configs
from moldau.protocol.messages import p73_assign_replicas_to_dirs as directories
from moldau.protocol.messages.p19_create_topics import CreatableTopic, CreateTopicsRequest
from moldau.protocol.messages.p20_delete_topics import DeleteTopicsRequest
from moldau.protocol.messages.p37_create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsTopic,
)
from moldau.protocol.messages.p43_elect_leaders import ElectLeadersRequest
from moldau.protocol.messages.p45_alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from moldau.protocol.messages.p56_alter_partition import (
    AlterPartitionRequest,
    BrokerState,
    PartitionData,
    TopicData,
)
from moldau.protocol.messages.p57_update_features import FeatureUpdateKey, UpdateFeaturesRequest
from moldau.protocol.messages.p63_broker_heartbeat import BrokerHeartbeatRequest
from moldau.protocol.messages.p64_unregister_broker import UnregisterBrokerRequest
from moldau.protocol.schema import Message
from tests.unit.metadata.builders import CLUSTER_ID, directory_id, node_config, registration

from .controller_checks import Checker, require

BROKERS = (1, 2, 3, 4, 5)
RELEASES = ("3.5", "3.6", "3.7", "3.9", "4.0", "4.1", "4.3", "4.3", "4.3")


@dataclass
class _Pending:
    """A request in several steps: the last result, whose next step is still to come."""

    request: Message
    result: ControllerResult[Any]
    then: Callable[[Any], None]


class World:
    """One run. Raises Violation when an invariant does not hold."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        settings = ControllerSettings(node_config(**{"node.id": "100"}), CLUSTER_ID)
        self.settings = settings._replace(max_changes_per_step=self.random.choice((1, 2, 5, 50)))
        self.core = ControllerCore(self.settings, random.Random(seed + 1))
        self.checker = Checker(self.settings)
        self.now_ms = 0.0
        self.log_end_offset = 0
        self.epoch = 0
        self.incarnations = 0
        self.topics = 0
        self.pending: list[_Pending] = []
        self.refusals = 0
        release = self.random.choice(RELEASES)
        overrides = {} if release.startswith("4") else {"eligible.leader.replicas.version": 0}
        levels = initial_feature_levels(overrides, release=release)
        self._bootstrap = feature_records(levels)
        self._uncommitted: list[tuple[int, dict[tuple[UUID, int], set[int]]]] = []
        self._committed_holders: dict[tuple[UUID, int], set[int]] = {}
        self.lost_batches = 0
        self.lead()

    @property
    def image(self) -> MetadataImage:
        return self.core.state.image

    # -- the log ---------------------------------------------------------------------------------

    def lead(self) -> None:
        self.epoch += 1
        self.log_end_offset += 1  # the quorum's own record of a new leader
        records = self.core.activate(self.epoch, self._bootstrap, monotonic_ms=self.now_ms)
        self.append(records)

    def append(self, records: Sequence[VersionedRecord]) -> None:
        if not records:
            return
        self.log_end_offset += len(records)
        last_offset = self.log_end_offset - 1
        self.checker.on_batch(records, last_offset)
        change = at_once(self.core.prepare(records))
        at_once(self.core.on_appended(change, last_offset, 1_000))
        self._uncommitted.append((last_offset, self.checker.copy_of_holders()))

    def fail_over(self) -> None:
        """This controller leads no more, and then again; what it had not committed may be lost."""
        keeps = len(self._uncommitted)
        if self.random.random() < 0.5:
            keeps = self.random.randrange(keeps + 1)
        for last_offset, _holders in self._uncommitted[:keeps]:
            self.core.on_committed((), Provenance(last_offset, self.epoch, 1_000))
        lost = self._uncommitted[keeps:]
        self.pending.clear()
        self.core.deactivate()
        if lost:
            self.lost_batches += len(lost)
            self._forget_lost_batches(keeps)
        self._uncommitted.clear()
        self._committed_holders = self.checker.copy_of_holders()
        self.lead()

    def _forget_lost_batches(self, kept: int) -> None:
        """The checker starts over from a snapshot of what was committed."""
        holders = self._uncommitted[kept - 1][1] if kept else self._committed_holders
        image = self.core.committed_image
        self.checker = Checker(self.settings)
        records = [record for record, _version in image.write()]
        self.checker.standby.load_snapshot(records, image.provenance)
        require(self.checker.image.digest() == image.digest(), "a snapshot loses something")
        self.checker.holders = holders
        self.log_end_offset = image.provenance.last_contained_offset + 1

    def ask(self, request: Message, then: Callable[[Any], None] = lambda _response: None) -> None:
        result = at_once(
            self.core.handle(
                request,
                DECIDERS[ApiKey(request.API_KEY)],
                Asked(self.log_end_offset, self.now_ms),
            )
        )
        self._take_over(_Pending(request, result, then))

    def _take_over(self, pending: _Pending) -> None:
        request = pending.request
        self.checker.is_unclean_asked = (
            isinstance(request, ElectLeadersRequest) and request.election_type == 1
        )
        self.append(pending.result.records)
        self.checker.is_unclean_asked = False
        if pending.result.resume is not None:
            self.pending.append(pending)
        else:
            pending.then(pending.result.response)

    def step(self) -> None:
        """The next step of one of the requests that are half done."""
        if self.pending:
            pending = self.pending.pop(self.random.randrange(len(self.pending)))
            pending.result = self.core.resume(
                pending.request,
                pending.result,
                Asked(self.log_end_offset, self.now_ms),
            )
            self._take_over(pending)

    # -- events ----------------------------------------------------------------------------------

    def event(self) -> None:
        """Something happens."""
        weights = {
            self.beat: 30,
            self.alter_partition: 40,
            self.register: 10,
            self.create_topic: 6,
            self.reassign: 10,
            self.assign_directory: 10,
            self.elect: 5,
            self.configure: 6,
            self.pass_time: 12,
            self.step: 20,
            self.unregister: 1,
            self.delete_topic: 1,
            self.grow_topic: 2,
            self.update_feature: 1,
            self.switch_eligible_leaders: 1,
            self.fail_over: 2,
        }
        (event,) = self.random.choices(list(weights), list(weights.values()))
        event()

    def settle(self) -> None:
        """Finish what is half done; then the brokers that can lead do."""
        while self.pending:
            self.step()
        while (due_ms := self.core.tasks.next_due_ms()) is not None and due_ms <= self.now_ms + 50:
            self.now_ms = max(self.now_ms, due_ms)
            self.append(self.core.run_due_task(self.now_ms))
        if not self.core.state.leaving:
            self.checker.check_quiet()
            require(
                self.checker.image.digest() == self.image.digest(),
                "another core that replays the same records has another image",
            )

    def register(self) -> None:
        broker_id = self.random.choice(BROKERS)
        old = self.image.cluster.brokers.get(broker_id)
        self.incarnations += 1
        is_clean = self.random.random() < 0.6
        previous = old.broker_epoch if old is not None and is_clean else self.random.choice((-1, 0))
        request = registration(
            broker_id,
            incarnation_id=UUID(int=0x5000 + self.incarnations),
            previous_broker_epoch=previous,
            rack=self.random.choice((None, "a", "b")),
            log_dirs=self._directories(broker_id),
        )
        if old is not None and self.random.random() < 0.2:
            # The same process names other directories than before.
            request.incarnation_id = old.incarnation_id
            self.ask(request)
            return
        lost = old is None or previous != old.broker_epoch

        def registered(response: Any) -> None:
            if response.error_code:
                return
            if lost and self.core.state.eligible_leader_replicas_enabled:
                self._require_out(broker_id)
                self.checker.on_lost_tail(broker_id)

        self.ask(request, registered)

    def _directories(self, broker_id: int) -> list[UUID]:
        """One or two of the three that a broker ever has."""
        numbers = self.random.sample(range(3), self.random.choice((1, 2)))
        return [directory_id(broker_id, each) for each in sorted(numbers)]

    def assign_directory(self) -> None:
        """A broker says where a replica lies: in a directory that it has, or had, or nowhere."""
        if (picked := self._pick()) is None:
            return
        topic = self.image.topics.topics_by_name[picked[0]]
        broker_id = self.random.choice(topic.partitions[picked[1]].replicas)
        broker = self.image.cluster.brokers.get(broker_id)
        if broker is None:
            return
        places = [*broker.directories] * 3 + [LOST_DIRECTORY, directory_id(broker_id)]
        data = directories.TopicData(
            topic_id=topic.topic_id,
            partitions=[directories.PartitionData(partition_index=picked[1])],
        )
        self.ask(
            directories.AssignReplicasToDirsRequest(
                broker_id=broker_id,
                broker_epoch=broker.broker_epoch,
                directories=[
                    directories.DirectoryData(id=self.random.choice(places), topics=[data])
                ],
            )
        )

    def _require_out(self, broker_id: int) -> None:
        for topic in self.image.topics.topics_by_id.values():
            for index, partition in topic.partitions.items():
                require(
                    broker_id not in (*partition.isr, *partition.elr, partition.leader),
                    f"{broker_id} lost its tail: {topic.name}-{index} {partition}",
                )

    def beat(self) -> None:
        brokers = self.image.cluster.brokers
        if not brokers:
            return
        broker = brokers[self.random.choice(sorted(brokers))]
        draw = self.random.random()
        behind = self.random.random() < 0.1
        request = BrokerHeartbeatRequest(
            broker_id=broker.broker_id,
            broker_epoch=broker.broker_epoch,
            current_metadata_offset=broker.broker_epoch - 1 if behind else self.log_end_offset - 1,
            want_fence=draw < 0.08,
            want_shut_down=0.06 < draw < 0.2,
            offline_log_dirs=list(broker.directories[1:]) if self.random.random() < 0.03 else [],
        )
        if self.random.random() < 0.05:
            request.broker_epoch -= 1
            self._refused(request, ErrorCode.STALE_BROKER_EPOCH)
            return
        self.ask(request)

    def pass_time(self) -> None:
        self.now_ms += self.random.choice((500, 3_000, 3_000, 10_000, 200_000))
        for broker_id, broker in self.image.cluster.brokers.items():
            if self.random.random() < 0.8:
                beat = BrokerHeartbeatRequest(
                    broker_id=broker_id,
                    broker_epoch=broker.broker_epoch,
                    current_metadata_offset=self.log_end_offset - 1,
                )
                self.ask(beat)
        for _ in range(self.random.randrange(4)):
            self.append(self.core.fence_expired(self.now_ms))
        for _ in range(self.random.randrange(4)):
            self.append(self.core.run_due_task(self.now_ms))

    def create_topic(self) -> None:
        if len(self.image.topics.topics_by_name) >= 6:
            return
        self.topics += 1
        topic = CreatableTopic(
            name=f"t{self.topics}",
            num_partitions=self.random.randrange(1, 5),
            replication_factor=self.random.randrange(1, 4),
        )
        self.ask(CreateTopicsRequest(topics=[topic]))

    def grow_topic(self) -> None:
        if (picked := self._pick()) is not None:
            count = len(self.image.topics.topics_by_name[picked[0]].partitions) + 1
            wanted = CreatePartitionsTopic(name=picked[0], count=count, assignments=None)
            self.ask(CreatePartitionsRequest(topics=[wanted]))

    def delete_topic(self) -> None:
        if (picked := self._pick()) is not None:
            self.ask(DeleteTopicsRequest(topic_names=[picked[0]]))

    def unregister(self) -> None:
        self.ask(UnregisterBrokerRequest(broker_id=self.random.choice(BROKERS)))

    def _pick(self) -> tuple[str, int] | None:
        names = sorted(self.image.topics.topics_by_name)
        if not names:
            return None
        name = self.random.choice(names)
        partitions = self.image.topics.topics_by_name[name].partitions
        return name, self.random.choice(sorted(partitions))

    def alter_partition(self) -> None:
        if (picked := self._pick()) is None:
            return
        topic = self.image.topics.topics_by_name[picked[0]]
        partition = topic.partitions[picked[1]]
        leader = self.image.cluster.brokers.get(partition.leader)
        if leader is None:
            return
        brokers = self.image.cluster.brokers
        members = [partition.leader] + [
            each
            for each in partition.replicas
            if each != partition.leader and self.random.random() < 0.7
        ]
        is_recovering = partition.leader_recovery_state == 1
        if is_recovering:
            members = members[:1]
        data = PartitionData(
            partition_index=picked[1],
            leader_epoch=partition.leader_epoch,
            partition_epoch=partition.partition_epoch,
            new_isr_with_epochs=[
                BrokerState(
                    broker_id=each,
                    broker_epoch=brokers[each].broker_epoch if each in brokers else -1,
                )
                for each in members
            ],
        )
        request = AlterPartitionRequest(
            broker_id=leader.broker_id,
            broker_epoch=leader.broker_epoch,
            topics=[TopicData(topic_id=topic.topic_id, partitions=[data])],
        )
        stale = self.random.randrange(12)
        if stale == 0:
            data.leader_epoch -= 1
            self._refused(request, ErrorCode.FENCED_LEADER_EPOCH)
        elif stale == 1:
            data.partition_epoch -= 1
            self._refused(request, ErrorCode.INVALID_UPDATE_VERSION)
        elif stale == 2:
            data.partition_epoch += 1
            self._refused(request, ErrorCode.NOT_CONTROLLER)
        elif stale == 3:
            request.broker_epoch -= 1
            self._refused(request, ErrorCode.STALE_BROKER_EPOCH)
        else:
            self.checker.reported[topic.topic_id, picked[1]] = set(members)
            self.ask(request)
            self.checker.reported.clear()

    def _refused(self, request: Message, error: ErrorCode) -> None:
        self.refusals += 1
        before = self.image

        def refused(response: Any) -> None:
            code = response.error_code
            if not code and isinstance(request, AlterPartitionRequest):
                code = response.topics[0].partitions[0].error_code
            require(code == error, f"{error.name} was due for {request}: {response}")

        self.ask(request, refused)
        require(self.image is before, f"a refused request changed something: {request}")

    def reassign(self) -> None:
        if (picked := self._pick()) is None:
            return
        replicas: list[int] | None = self.random.sample(BROKERS, self.random.randrange(1, 4))
        if self.random.random() < 0.3:
            replicas = None
        wanted = ReassignablePartition(partition_index=picked[1], replicas=replicas)
        topic = ReassignableTopic(name=picked[0], partitions=[wanted])
        self.ask(AlterPartitionReassignmentsRequest(topics=[topic]))

    def elect(self) -> None:
        election_type = 1 if self.random.random() < 0.15 else 0
        self.ask(ElectLeadersRequest(election_type=election_type, topic_partitions=None))

    def configure(self) -> None:
        picked = self._pick()
        resource_type, name = int(ConfigResourceType.BROKER), ""
        if picked is not None and self.random.random() < 0.6:
            resource_type, name = int(ConfigResourceType.TOPIC), picked[0]
        key, value = "min.insync.replicas", str(self.random.randrange(1, 4))
        if self.random.random() < 0.2:
            key, value = "unclean.leader.election.enable", self.random.choice(("true", "false"))
        resource = configs.AlterConfigsResource(
            resource_type=resource_type,
            resource_name=name,
            configs=[configs.AlterableConfig(name=key, config_operation=0, value=value)],
        )
        self.ask(configs.IncrementalAlterConfigsRequest(resources=[resource]))

    def update_feature(self) -> None:
        name = self.random.choice(("group.version", "metadata.version", "metadata.version"))
        level = 30 if name == "metadata.version" else self.random.randrange(2)
        update = FeatureUpdateKey(
            feature=name, max_version_level=level, upgrade_type=self.random.choice((1, 2))
        )
        self.ask(UpdateFeaturesRequest(feature_updates=[update]))

    def switch_eligible_leaders(self) -> None:
        is_on = self.core.state.eligible_leader_replicas_enabled
        update = FeatureUpdateKey(
            feature="eligible.leader.replicas.version",
            max_version_level=0 if is_on else 1,
            upgrade_type=2 if is_on else 1,
        )
        self.ask(UpdateFeaturesRequest(feature_updates=[update]))


def run(seed: int, events: int) -> World:
    """One run, settled now and then; the world, which shows how it went."""
    world = World(seed)
    for broker_id in BROKERS:
        world.ask(registration(broker_id, incarnation_id=UUID(int=0x4000 + broker_id)))
    for _ in range(4):
        world.create_topic()
        world.beat()
    for number in range(events):
        world.event()
        if number % 10 == 9:
            world.settle()
    world.settle()
    return world
