"""A broker that starts without logs it should have: which it begins empty, and which never."""

from __future__ import annotations

import asyncio
import errno
import itertools
import random
import uuid
from typing import Any

import pytest

from moldau.broker.lifecycle.broker_lifecycle import RegistrationRefused
from moldau.broker.lifecycle.metadata_loader import MetadataLoader
from moldau.config import NodeConfig
from moldau.metadata.image import Provenance
from moldau.metadata.image.values import (
    LOST_DIRECTORY,
    MIGRATING_DIRECTORY,
    UNASSIGNED_DIRECTORY,
)
from moldau.node.broker_part import BrokerPart
from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.p62_broker_registration import (
    BrokerRegistrationRequest,
    BrokerRegistrationResponse,
)
from moldau.protocol.messages.p73_assign_replicas_to_dirs import AssignReplicasToDirsRequest
from moldau.protocol.metadata_records import PartitionRecord, RegisterBrokerRecord, TopicRecord
from moldau.protocol.metadata_records.nodes import Endpoint
from moldau.protocol.types import TopicPartition
from moldau.runtime.telemetry.metrics import Registry
from moldau.storage.log_directory import open_log_directories
from tests.kit.manual_clock import ManualClock
from tests.storage.simulated_disk import DiskImage
from tests.storage.simulated_filesystem import Fault, Operation, SimulatedFilesystem
from tests.storage.storage_fixtures import format_log_directory
from tests.unit.broker.harness import (
    BROKER_ID,
    CLUSTER_ID,
    OTHER_BROKER_ID,
    DataPath,
    topic_id_of,
)
from tests.unit.broker.messages import batch, only, produce
from tests.unit.broker.replica.directory_answers import answer
from tests.unit.broker.scripted_channel import ScriptedChannel

ELSEWHERE = uuid.UUID(int=0xE15E)
GONE = uuid.UUID(int=0x60E)
PARTITION = TopicPartition("t", 0)

BELIEVED: list[dict[str, Any]] = [
    {"leader": OTHER_BROKER_ID, "isr": [BROKER_ID, OTHER_BROKER_ID]},
    {"leader": OTHER_BROKER_ID, "isr": [OTHER_BROKER_ID], "eligible_leader_replicas": [BROKER_ID]},
    {"leader": -1, "isr": [], "eligible_leader_replicas": [BROKER_ID, OTHER_BROKER_ID]},
    {"leader": -1, "isr": [], "last_known_elr": [BROKER_ID]},
    {"leader": BROKER_ID, "isr": [BROKER_ID]},
]
NOT_BELIEVED: dict[str, Any] = {"leader": OTHER_BROKER_ID, "isr": [OTHER_BROKER_ID]}


class Machine:
    """Two disks, and the broker started on one or both of them."""

    def __init__(self) -> None:
        self.filesystem = SimulatedFilesystem()
        self.ids = {
            path: format_log_directory(
                self.filesystem,
                path,
                cluster_id=CLUSTER_ID,
                node_id=BROKER_ID,
                random=random.Random(path),
            ).directory_id
            for path in ("/one", "/two")
        }
        self.registration: RegisterBrokerRecord | None = None
        """The broker's last one."""

    def start(self, *paths: str, at_start: list[Any] | None = None) -> DataPath:
        """The broker with these directories, and what the metadata says when it starts."""
        paths = paths or ("/one", "/two")
        before = [] if self.registration is None else [self.registration, *(at_start or [])]
        self.registration = RegisterBrokerRecord(
            broker_id=BROKER_ID,
            broker_epoch=BROKER_ID,
            end_points=[Endpoint(name="PLAINTEXT", host="host-1", port=9092)],
            rack=None,
            fenced=False,
            log_dirs=[self.ids[path] for path in paths],
        )
        return DataPath(
            paths[0],
            filesystem=self.filesystem,
            more_directories=paths[1:],
            before=before,
            at_start=[self.registration, *(at_start or [])],
        )

    def kill(self) -> None:
        """The process is gone: of what the broker does from now on nothing reaches the disks."""
        self.filesystem = SimulatedFilesystem(self.filesystem.image().after_kill())

    def topic(self, directory: uuid.UUID | None, **changed: Any) -> list[Any]:
        fields: dict[str, Any] = {
            "partition_id": 0,
            "topic_id": topic_id_of("t"),
            "replicas": [BROKER_ID, OTHER_BROKER_ID],
            "isr": [BROKER_ID, OTHER_BROKER_ID],
            "directories": [directory, ELSEWHERE],
            "leader": BROKER_ID,
            "leader_epoch": 3,
        }
        fields |= changed
        if len(fields["replicas"]) == 1:
            fields["directories"] = [directory]
        topic_id = fields["topic_id"]
        return [TopicRecord(name="t", topic_id=topic_id), PartitionRecord(**fields)]

    async def fill(self, path: str = "/one") -> None:
        """The broker runs with both disks, and its replica, on one of them, gets records."""
        async with self.start() as broker:
            broker.replay(*self.topic(self.ids[path], leader_epoch=0))
            await broker.ask(produce({("t", 0): batch(3)}, acks=1), 12)
            assert broker.log("t").directory == f"{path}/t-0"

    def wipe(self, path: str) -> None:
        """Everything below a directory is gone but its identity."""
        for name in self.filesystem.listdir(path):
            if name != "meta.properties":
                self.remove(f"{path}/{name}")

    def remove(self, path: str) -> None:
        if self.filesystem.is_directory(path):
            self.filesystem.rmtree(path)
        else:
            self.filesystem.unlink(path)


def directories(broker: DataPath) -> list[str]:
    """Where there is something under the partition's name."""
    paths = [each.path for each in broker.log_manager.directories.all]
    return [path for path in paths if "t-0" in broker.filesystem.listdir(path)]


async def refused(broker: DataPath) -> bool:
    answered = only(await broker.ask(produce({("t", 0): batch()}, acks=1), 12))
    return bool(answered.error_code == ErrorCode.KAFKA_STORAGE_ERROR)


async def told(broker: DataPath) -> uuid.UUID:
    """The directory of the only replica in the next AssignReplicasToDirs."""
    while True:
        sent = await broker.channel.next()
        if isinstance(sent.request, AssignReplicasToDirsRequest):
            answer(sent)
            [directory] = sent.request.directories
            return uuid.UUID(int=directory.id.int)


def asked(broker: DataPath) -> list[Any]:
    kind = AssignReplicasToDirsRequest
    return [each for each in broker.channel.all_requests if isinstance(each, kind)]


# -- a directory that is not configured any more ---------------------------------------------------


@pytest.mark.parametrize("state", BELIEVED)
@pytest.mark.parametrize("directory", [GONE, LOST_DIRECTORY])
async def test_a_replica_in_a_directory_that_is_gone_is_not_begun_empty(
    state: dict[str, Any], directory: uuid.UUID
) -> None:
    machine = Machine()
    async with machine.start("/two", at_start=machine.topic(directory, **state)) as broker:
        assert broker.partition("t").is_offline
        assert directories(broker) == []
        broker.change_partition("t", leader=-1, isr=[])
        assert directories(broker) == [], "another one may yet need it"
        assert not asked(broker), "what the metadata says is right"
        broker.change_partition("t", **{**NOT_BELIEVED, "eligible_leader_replicas": []})
        assert broker.log("t").log_end_offset == 0
        assert await told(broker) == machine.ids["/two"]


async def test_the_replica_of_a_directory_taken_out_is_not_begun_empty() -> None:
    machine = Machine()
    await machine.fill("/one")
    state = machine.topic(machine.ids["/one"], **BELIEVED[1])
    async with machine.start("/two", at_start=state) as broker:
        assert broker.partition("t").is_offline
        assert directories(broker) == []
    async with machine.start(at_start=state) as broker:
        assert broker.log("t").log_end_offset == 3, "with the directory it is back"


@pytest.mark.parametrize("named", ["/one", "/two"])
async def test_a_log_half_made_at_a_power_loss_needs_no_operator_when_its_directory_is_back(
    named: str,
) -> None:
    """The replica is begun in another directory, and the power fails at any moment of that; then
    the first directory is put back. The controller may know of the other, or not.
    """
    machine = Machine()
    await machine.fill("/one")
    images: list[DiskImage] = []

    def observe(operation: Operation, image: DiskImage) -> None:
        if operation.path.startswith("/two/t-0/"):
            images.append(image)

    machine.filesystem.observer = observe
    state = machine.topic(machine.ids["/one"], **NOT_BELIEVED)
    async with machine.start("/two", at_start=state) as broker:
        assert broker.log("t").directory == "/two/t-0"
    state = machine.topic(machine.ids[named], **NOT_BELIEVED)
    torn = 0
    for image, seed in itertools.product(images, range(3)):
        machine.filesystem = SimulatedFilesystem(image.after_power_loss(random.Random(seed)))
        async with machine.start(at_start=[]) as broker:
            torn += bool(broker.log_manager.found.twins)
            await broker.log_manager.found.settle(lambda _: (topic_id_of("t"), machine.ids[named]))
            broker.replay(*state)
            assert not broker.partition("t").is_offline, f"seed {seed}"
            kept = broker.log("t")
            assert kept.directory == "/one/t-0" or (named == "/two" and kept.log_end_offset == 0)
    assert torn, "a copy was left in either directory"


@pytest.mark.parametrize("times", [1, 2])
async def test_the_only_replica_of_a_directory_taken_out_stays_offline(times: int) -> None:
    machine = Machine()
    await machine.fill("/one")
    state = machine.topic(machine.ids["/one"], replicas=[BROKER_ID], isr=[BROKER_ID])
    for _ in range(times):
        async with machine.start("/two", at_start=state) as broker:
            assert broker.partition("t").is_offline
            broker.change_partition("t", leader=-1, isr=[])
            broker.change_partition("t", leader=BROKER_ID, isr=[BROKER_ID])
            assert await refused(broker)
            assert directories(broker) == []
            assert not asked(broker)


async def test_a_replica_assigned_while_the_broker_was_away_begins_at_once() -> None:
    machine = Machine()
    for directory in (machine.ids["/two"], UNASSIGNED_DIRECTORY, GONE):
        state = machine.topic(directory, **NOT_BELIEVED)
        async with machine.start(at_start=state) as broker:
            assert broker.log("t").log_end_offset == 0
            broker.delete_topic("t")


async def test_a_replica_assigned_while_the_broker_runs_begins_at_once() -> None:
    machine = Machine()
    for directory in (machine.ids["/two"], UNASSIGNED_DIRECTORY):
        async with machine.start() as broker:
            broker.replay(*machine.topic(directory))
            assert await refused(broker) is False
            broker.delete_topic("t")


# -- a log that is gone from a directory that is here ----------------------------------------------


@pytest.mark.parametrize("state", BELIEVED)
@pytest.mark.parametrize("is_wiped", [False, True], ids=["log", "everything"])
async def test_a_log_that_is_gone_from_its_directory_is_lost(
    state: dict[str, Any], is_wiped: bool
) -> None:
    machine = Machine()
    await machine.fill("/one")
    if is_wiped:
        machine.wipe("/one")
    else:
        machine.remove("/one/t-0")
    records = machine.topic(machine.ids["/one"], **state)
    for _ in range(2):  # and at the next start, too
        async with machine.start(at_start=records) as broker:
            assert broker.partition("t").is_offline
            assert directories(broker) == []
            assert await told(broker) == LOST_DIRECTORY
    async with machine.start(at_start=records) as broker:
        assert await told(broker) == LOST_DIRECTORY
        broker.change_partition(
            "t",
            **{**NOT_BELIEVED, "eligible_leader_replicas": []},
            directories=[LOST_DIRECTORY, ELSEWHERE],
        )
        assert broker.log("t").log_end_offset == 0
        assert await told(broker) == machine.ids["/one"]


async def test_a_log_damaged_before_the_start_waits_for_no_leader_epoch() -> None:
    """What was proposed for the former process names its broker epoch, which is void."""
    machine = Machine()
    await machine.fill("/one")
    machine.filesystem.put("/one/t-0/partition.metadata", b"nonsense")
    state = machine.topic(machine.ids["/one"], **NOT_BELIEVED)
    async with machine.start(at_start=state) as broker:
        assert broker.log("t").log_end_offset == 0
        assert any("-stray" in name for name in machine.filesystem.listdir("/one"))


async def test_the_only_replica_that_is_gone_from_its_directory_stays_offline() -> None:
    machine = Machine()
    await machine.fill("/one")
    machine.remove("/one/t-0")
    state = machine.topic(machine.ids["/one"], replicas=[BROKER_ID], isr=[BROKER_ID])
    for _ in range(3):
        async with machine.start(at_start=state) as broker:
            assert broker.partition("t").is_offline
            assert await refused(broker)
            assert not asked(broker)


@pytest.mark.parametrize("directory", ["/one", "unassigned", "migrating"])
async def test_a_replica_whose_log_was_never_made_is_no_loss(directory: str) -> None:
    """The broker died between the metadata that gave it the replica and the log."""
    machine = Machine()
    async with machine.start():
        pass
    place = {"unassigned": UNASSIGNED_DIRECTORY, "migrating": MIGRATING_DIRECTORY}
    state = machine.topic(
        place.get(directory) or machine.ids[directory], replicas=[BROKER_ID], isr=[BROKER_ID]
    )
    async with machine.start(at_start=state) as broker:
        assert await refused(broker) is False


async def test_a_replica_whose_directory_was_never_reported_may_be_in_one_that_is_gone() -> None:
    machine = Machine()
    await machine.fill("/one")
    state = machine.topic(UNASSIGNED_DIRECTORY, replicas=[BROKER_ID], isr=[BROKER_ID])
    for _ in range(2):
        async with machine.start("/two", at_start=state) as broker:
            assert broker.partition("t").is_offline
            assert await refused(broker)


@pytest.mark.parametrize("directory", [UNASSIGNED_DIRECTORY, MIGRATING_DIRECTORY])
async def test_a_killed_broker_may_have_lost_a_replica_whose_directory_was_never_reported(
    directory: uuid.UUID,
) -> None:
    """No marker of an orderly stop names the directory that is gone: the registration does."""
    machine = Machine()
    state = machine.topic(directory, replicas=[BROKER_ID], isr=[BROKER_ID], partition_epoch=1)
    async with machine.start() as broker:
        broker.replay(*state)
        await broker.ask(produce({("t", 0): batch(3)}, acks=1), 12)
        assert broker.log("t").directory == "/one/t-0"
        machine.kill()
    for start in range(3):  # and once it has registered without that directory, too
        async with machine.start("/two", at_start=state) as broker:
            assert broker.has_every_directory == (start > 0)
            assert broker.partition("t").is_offline
            assert await refused(broker)
            assert directories(broker) == []
            assert not asked(broker)
            machine.kill()
    async with machine.start(at_start=state) as broker:
        assert broker.log("t").log_end_offset == 3, "with the directory it is back"


async def test_a_broker_killed_with_all_its_directories_has_lost_nothing() -> None:
    """A directory was added, and later a replica came that no log was made for."""
    machine = Machine()
    async with machine.start("/one"):
        machine.kill()
    async with machine.start() as broker:
        assert broker.has_every_directory
    async with machine.start():
        machine.kill()
    state = machine.topic(UNASSIGNED_DIRECTORY, replicas=[BROKER_ID], isr=[BROKER_ID])
    async with machine.start(at_start=state) as broker:
        assert broker.has_every_directory
        assert await refused(broker) is False


@pytest.mark.real
@pytest.mark.parametrize(("paths", "epoch"), [(("/one", "/two"), 7), (("/two",), -1)])
async def test_a_broker_reports_whether_it_has_all_that_was_registered(
    paths: tuple[str, ...], epoch: int
) -> None:
    """Apache Kafka's marker of an orderly stop does not say which directories there were."""
    machine = Machine()
    machine.start()
    for path in machine.ids:
        machine.filesystem.put(f"{path}/.kafka_cleanshutdown", b'{"version":0,"brokerEpoch":7}')
    config = NodeConfig(
        {
            "process.roles": "broker",
            "node.id": str(BROKER_ID),
            "listeners": "PLAINTEXT://127.0.0.1:0",
            "controller.listener.names": "CONTROLLER",
            "controller.quorum.voters": "9@127.0.0.1:9",
            "log.dirs": ",".join(paths),
        }
    )
    metadata = MetadataLoader(BROKER_ID)
    metadata.handle_commit([machine.registration], Provenance(5, 1, 0))
    clock, faults, channel = ManualClock(), list[Any](), ScriptedChannel()
    part = BrokerPart(
        config,
        directories=open_log_directories(
            machine.filesystem,
            paths,
            cluster_id=CLUSTER_ID,
            node_id=BROKER_ID,
            random=random.Random(1),
        ),
        filesystem=machine.filesystem,
        clock=clock,
        registry=Registry(clock.monotonic_ms),
        random=random.Random(1),
        metadata=metadata,
        kraft_version=lambda: 1,
        on_fault=faults.append,
        on_fatal=faults.append,
    )
    await part.load()
    await part.listen(channel)
    joining = asyncio.create_task(part.join(channel))
    sent = await channel.next()
    assert isinstance(sent.request, BrokerRegistrationRequest)
    assert sent.request.previous_broker_epoch == epoch
    sent.answer(BrokerRegistrationResponse(error_code=ErrorCode.INVALID_REGISTRATION))
    with pytest.raises(RegistrationRefused):
        await joining
    await part.stop()
    assert not faults


async def test_a_log_in_another_directory_than_the_metadata_says_is_used() -> None:
    machine = Machine()
    await machine.fill("/one")
    for directory in (machine.ids["/two"], GONE, LOST_DIRECTORY, UNASSIGNED_DIRECTORY):
        async with machine.start(at_start=machine.topic(directory)) as broker:
            assert broker.log("t").log_end_offset == 3
            assert await told(broker) == machine.ids["/one"]


# -- names that are used again (a failed directory keeps the old ones) -----------------------------


def fail(broker: DataPath, index: int) -> None:
    broker.log_manager.directories.fail(
        broker.log_manager.directories.all[index], "the test says so"
    )


@pytest.mark.parametrize("directory", ["/two", "unassigned"])
async def test_a_topic_made_again_while_its_old_directory_is_failed(directory: str) -> None:
    machine = Machine()
    again = topic_id_of("again")
    place = machine.ids.get(directory) or UNASSIGNED_DIRECTORY
    async with machine.start() as broker:
        broker.replay(*machine.topic(machine.ids["/one"]))
        await broker.ask(produce({("t", 0): batch(3)}, acks=1), 12)
        machine.filesystem.faults.append(Fault("rename", "/one/t-0", errno.EIO, count=None))
        fail(broker, 0)
        broker.delete_topic("t")
        broker.replay(*machine.topic(place, topic_id=again))
        assert broker.log("t").directory == "/two/t-0"
        assert await refused(broker) is False
        machine.filesystem.faults.clear()
    # The old disk is repaired: two directories have a partition of that name, one is the topic's.
    state = machine.topic(machine.ids["/two"], topic_id=again)
    async with machine.start(at_start=[]) as broker:
        assert broker.log_manager.found.twins == {PARTITION}
        await broker.log_manager.found.settle(lambda _: (again, machine.ids["/two"]))
        broker.replay(*state)
        assert broker.log("t").directory == "/two/t-0"
        assert broker.log("t").log_end_offset == 1
        assert not broker.log_manager.found.twins
        strays = [each for each in machine.filesystem.listdir("/one") if each.endswith("-stray")]
        assert len(strays) == 1
