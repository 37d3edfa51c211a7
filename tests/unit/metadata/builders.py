"""Records, images and controller states for tests, built the way the log would."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any
from uuid import UUID

from moldau.config import NodeConfig
from moldau.controller.apis import DECIDERS
from moldau.controller.core.controller_core import ControllerCore
from moldau.controller.core.result import MAX_CHANGES_PER_STEP, Asked
from moldau.controller.core.state import ControllerSettings
from moldau.metadata.features import SUPPORTED_FEATURES, feature_records, initial_feature_levels
from moldau.metadata.image import (
    MetadataDelta,
    MetadataImage,
    PartitionRegistration,
    Provenance,
    TransactionFilter,
)
from moldau.metadata.steps import at_once
from moldau.protocol.api_keys import ApiKey
from moldau.protocol.messages.p19_create_topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
)
from moldau.protocol.messages.p56_alter_partition import (
    AlterPartitionRequest,
    BrokerState,
    PartitionData,
    TopicData,
)
from moldau.protocol.messages.p62_broker_registration import (
    BrokerRegistrationRequest,
    Feature,
    Listener,
)
from moldau.protocol.messages.p63_broker_heartbeat import BrokerHeartbeatRequest
from moldau.protocol.schema import Message
from moldau.raft.batch_codec import decode_batches
from tests.kit.manual_clock import ManualClock

GOLDEN = Path(__file__).parent / "golden"
CLUSTER_ID = "TrV5GzD9TWy-7UjVSbMWxQ"


def golden(name: str) -> bytes:
    """A file that Apache Kafka 4.3.0 wrote."""
    return (GOLDEN / f"kafka-4.3.0-{name}").read_bytes()


def metadata_records(data: bytes, *, below_offset: int = 2**62) -> list[Message]:
    """The metadata records of a log or snapshot, transactions resolved."""
    transactions = TransactionFilter()
    records: list[Message] = []
    for batch in decode_batches(data, "golden"):
        if batch.header.base_offset < below_offset:
            records += transactions.feed(batch.records)
    return records


def replay(
    image: MetadataImage, records: Iterable[Message], provenance: Provenance | None = None
) -> MetadataImage:
    """The image after `records`."""
    delta = MetadataDelta(image)
    for record in records:
        delta.replay(record)
    return delta.apply(provenance or Provenance())


def node_config(**overrides: str) -> NodeConfig:
    """A combined node's configuration; keyword `num_partitions` stands for num.partitions."""
    values = {
        "process.roles": "broker,controller",
        "node.id": "1",
        "listeners": "PLAINTEXT://127.0.0.1:9092,CONTROLLER://127.0.0.1:9093",
        "controller.listener.names": "CONTROLLER",
        "controller.quorum.bootstrap.servers": "127.0.0.1:9093",
        "log.dirs": "/data",
    }
    values.update({key.replace("_", "."): value for key, value in overrides.items()})
    return NodeConfig(values)


def directory_id(broker_id: int, number: int = 0) -> UUID:
    """A log directory's id."""
    return UUID(int=0x1000 + broker_id * 16 + number)


def registration(broker_id: int, /, **changes: Any) -> BrokerRegistrationRequest:
    """A broker that supports everything."""
    request = BrokerRegistrationRequest(
        broker_id=broker_id,
        cluster_id=CLUSTER_ID,
        incarnation_id=UUID(int=0x9000 + broker_id),
        listeners=[Listener(name="PLAINTEXT", host=f"host{broker_id}", port=9092)],
        features=[
            Feature(
                name=name,
                min_supported_version=levels.minimum_level,
                max_supported_version=levels.maximum_level,
            )
            for name, levels in SUPPORTED_FEATURES.items()
        ],
        rack=None,
        log_dirs=[directory_id(broker_id)],
    )
    for name, value in changes.items():
        setattr(request, name, value)
    return request


class BusyClock(ManualClock):
    """A clock on which work takes time: `tick_ms` with every look at it."""

    tick_ms = 0.0

    def monotonic_ms(self) -> float:
        self.stand_still(self.tick_ms)
        return super().monotonic_ms()

    def turn(self) -> bool:
        """Run the timers that are due; whether there were any."""
        due = [timer for timer in self._timers if timer.deadline_ms <= self._monotonic_ms]
        for timer in sorted(due, key=lambda each: (each.deadline_ms, each.sequence)):
            timer.cancel()
            timer.callback(*timer.args)
        return bool(due)


class CoreDriver:
    """An active controller core whose appends are committed by hand."""

    def __init__(
        self,
        *,
        node_id: int = 100,
        features: bool = True,
        release: str | None = None,
        scram_secret: str = "",
        formatted: Sequence[tuple[Message, int]] = (),
        max_changes_per_step: int = MAX_CHANGES_PER_STEP,
        **overrides: str,
    ) -> None:
        overrides.setdefault("node.id", str(node_id))
        config = node_config(**overrides)
        settings = ControllerSettings(
            config,
            CLUSTER_ID,
            scram_secret=scram_secret,
            max_changes_per_step=max_changes_per_step,
        )
        self.core = ControllerCore(settings, random.Random(7))
        self.log_end_offset = 0
        self.now_ms = 0.0
        self.appended: list[Message] = []
        levels = initial_feature_levels(release=release) if features else {}
        if levels.get("metadata.version", 30) < 23:
            levels["eligible.leader.replicas.version"] = 0
        records = self.core.activate(
            1, [*feature_records(levels), *formatted], monotonic_ms=self.now_ms
        )
        self.append(records)

    def append(self, records: Sequence[tuple[Message, int]]) -> None:
        """What the driver does after a decision: encode (the versions must hold it) and apply."""
        for record, version in records:
            decoded, _ = type(record).decode(record.to_bytes(version), version)
            assert decoded == record, "nothing is lost on the way through the log"
        if not records:
            return
        self.log_end_offset += len(records)
        change = at_once(self.core.prepare(records))
        at_once(self.core.on_appended(change, self.log_end_offset - 1, 1_000))
        self.appended = [record for record, _version in records]

    def ask(self, request: Message, **who: Any) -> Any:
        """Decide, append; the response. `who` goes into `Asked`."""
        self.appended = []
        decide = DECIDERS[ApiKey(request.API_KEY)]
        result = at_once(self.core.handle(request, decide, self.asked(**who)))
        self.append(result.records)
        while result.resume is not None:
            result = self.core.resume(request, result, self.asked())
            self.append(result.records)
        return result.response

    def asked(self, **who: Any) -> Asked:
        """A request of this moment."""
        return Asked(self.log_end_offset, self.now_ms, **who)

    def run_tasks(self) -> int:
        """Everything that is due by itself; how many batches that made."""
        batches = 0
        while (due_ms := self.core.tasks.next_due_ms()) is not None and due_ms <= self.now_ms:
            records = self.core.run_due_task(self.now_ms)
            self.append(records)
            batches += bool(records)
            if (due_ms := self.core.tasks.next_due_ms()) is not None and due_ms <= self.now_ms + 10:
                self.now_ms = max(self.now_ms, due_ms)
        return batches

    def commit(self) -> None:
        """Everything appended is committed."""
        while self.core._appended:
            last_offset = self.core._appended[0][0]
            self.core.on_committed((), Provenance(last_offset, 1, 1_000))

    def join(self, broker_id: int, **changes: Any) -> int:
        """Register and unfence a broker; its broker epoch."""
        response = self.ask(registration(broker_id, **changes))
        assert response.error_code == 0
        self.beat(broker_id)
        return int(response.broker_epoch)

    def beat(self, broker_id: int, **changes: Any) -> Any:
        """A heartbeat of a broker that has read everything."""
        broker = self.core.state.broker(broker_id)
        assert broker is not None
        request = BrokerHeartbeatRequest(
            broker_id=broker_id,
            broker_epoch=broker.broker_epoch,
            current_metadata_offset=self.log_end_offset - 1,
        )
        for name, value in changes.items():
            setattr(request, name, value)
        return self.ask(request)

    @property
    def image(self) -> MetadataImage:
        """The working image."""
        return self.core.state.image

    def topic(self, name: str, *assignments: list[int], **configs: str) -> UUID:
        """A topic with a manual assignment; its id."""
        wanted = CreatableTopic(
            name=name,
            num_partitions=-1,
            replication_factor=-1,
            assignments=[
                CreatableReplicaAssignment(partition_index=index, broker_ids=broker_ids)
                for index, broker_ids in enumerate(assignments)
            ],
            configs=[
                CreatableTopicConfig(name=key.replace("_", "."), value=value)
                for key, value in configs.items()
            ],
        )
        (created,) = self.ask(CreateTopicsRequest(topics=[wanted])).topics
        assert created.error_code == 0, created
        topic_id: UUID = created.topic_id
        return topic_id

    def partition(self, name: str = "t", index: int = 0) -> PartitionRegistration:
        """A partition as it is now."""
        return self.image.topics.topics_by_name[name].partitions[index]

    def broker_epoch(self, broker_id: int) -> int:
        """A registered broker's epoch."""
        broker = self.core.state.broker(broker_id)
        assert broker is not None
        return broker.broker_epoch

    def alter_partition(
        self, isr: list[int], name: str = "t", index: int = 0, **changes: Any
    ) -> Any:
        """What a partition's leader asks for; the answer of the partition."""
        topic = self.image.topics.topics_by_name[name]
        partition = topic.partitions[index]
        sender = changes.pop("broker_id", partition.leader)
        sender_epoch = changes.pop("broker_epoch", None)
        epochs = changes.pop("epochs", {})
        data = PartitionData(
            partition_index=index,
            leader_epoch=partition.leader_epoch,
            partition_epoch=partition.partition_epoch,
            leader_recovery_state=partition.leader_recovery_state,
            new_isr_with_epochs=[
                BrokerState(
                    broker_id=each,
                    broker_epoch=epochs[each]
                    if each in epochs
                    else getattr(self.core.state.broker(each), "broker_epoch", -1),
                )
                for each in isr
            ],
        )
        topic_id = changes.pop("topic_id", topic.topic_id)
        for field, value in changes.items():
            setattr(data, field, value)
        request = AlterPartitionRequest(
            broker_id=sender,
            broker_epoch=self.broker_epoch(sender) if sender_epoch is None else sender_epoch,
            topics=[TopicData(topic_id=topic_id, partitions=[data])],
        )
        response = self.ask(request)
        if response.error_code:
            return response
        return response.topics[0].partitions[0]
