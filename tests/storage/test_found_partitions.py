"""What a start finds and misses: directories, logs, and two copies of one partition."""

from __future__ import annotations

import errno
from uuid import UUID

import pytest

from moldau.metadata.image.values import UNASSIGNED_DIRECTORY
from moldau.protocol.types import ZERO_UUID
from moldau.storage.faults import LogOffline
from moldau.storage.log_manager import LogManager
from tests.storage.simulated_filesystem import Fault
from tests.storage.storage_fixtures import topic_id, tp
from tests.storage.test_log_manager import Node, fill, settle


async def two_directories_stopped_cleanly() -> Node:
    node = Node("/one", "/two")
    manager = await node.start()
    for name in ("a-0", "b-0"):
        fill(manager.get_or_create(tp(name), topic_id(1)))
    await manager.shutdown(7)
    return node


async def test_a_start_with_every_directory_is_clean() -> None:
    node = await two_directories_stopped_cleanly()
    await node.start()
    assert node.report.previous_broker_epoch == 7


async def test_a_start_without_a_directory_that_was_here_is_not_clean() -> None:
    """Taken out of the configuration: what is left of it is its name in the others' markers."""
    node = await two_directories_stopped_cleanly()
    node.paths = ("/two",)
    manager = await node.start()
    assert node.report.previous_broker_epoch == -1
    assert manager.found.may_have_had(None)
    assert not manager.found.may_have_had(manager.directories.all[0])
    await manager.shutdown(9)
    await node.start()
    assert node.report.previous_broker_epoch == 9, "it is missed once"


async def test_directories_get_the_names_of_their_partitions_once_all_are_known() -> None:
    """A directory without checkpoints, as of Apache Kafka's that was never stopped, has none."""
    node = await two_directories_stopped_cleanly()
    manager = await node.start()
    before = node.filesystem.operation_count
    manager.found.replicas_known()
    await settle()
    assert node.filesystem.operation_count == before, "the checkpoints name them"
    await manager.shutdown(8)
    name = "recovery-point-offset-checkpoint"
    for path in ("/one", "/two"):
        for each in node.names(path):
            if each.endswith("-checkpoint"):
                node.filesystem.unlink(f"{path}/{each}")
    manager = await node.start()
    await settle()
    assert name not in node.names("/one")
    manager.found.replicas_known()
    await settle()
    assert [len(node.offsets(name, path)) for path in ("/one", "/two")] == [1, 1]
    await manager.shutdown(9)


async def test_a_registered_directory_that_was_not_read_may_have_held_any_partition() -> None:
    """After a stop that was not clean, only the registration before names the directory."""
    node = await two_directories_stopped_cleanly()
    manager = await node.start()
    first, second = [each.directory_id for each in manager.directories.all]
    await node.kill(manager)
    node.paths = ("/two",)
    manager = await node.start()
    assert manager.found.has_all([second])
    assert not manager.found.may_have_had(None)
    assert not manager.found.has_all([first, second])
    assert manager.found.may_have_had(None)
    manager.found.note_missing([(tp("b-0"), topic_id(1)), (tp("c-0"), topic_id(3))])
    noted = node.offsets("recovery-point-offset-checkpoint", "/two")  # a kill may follow at once
    assert noted.keys() == {tp("b-0"), tp("c-0")}
    assert manager.found.missing == {tp("c-0")}


async def test_a_start_without_a_directory_that_failed_before_is_not_clean() -> None:
    node = await two_directories_stopped_cleanly()
    manager = await node.start()
    manager.directories.fail(manager.directories.all[0], "the test says so")
    await manager.shutdown(8)
    node.paths = ("/two",)
    await node.start()
    assert node.report.previous_broker_epoch == -1


async def test_a_start_with_an_unavailable_directory_is_not_clean() -> None:
    """Configured, and not to be opened: in the markers of the others, or not (Apache Kafka's)."""
    for marker in (None, b'{"version":0,"brokerEpoch":7}'):
        node = await two_directories_stopped_cleanly()
        if marker is not None:
            node.filesystem.put("/two/.kafka_cleanshutdown", marker)
        node.filesystem.faults.append(Fault("lock", "/one", errno.EIO, count=None))
        manager = await node.start()
        assert list(manager.directories.unavailable) == ["/one"]
        assert node.report.previous_broker_epoch == -1
        await manager.shutdown(9)
        # And when it is taken out after that, what it may hold is still not forgotten.
        node.paths = ("/two",)
        manager = await node.start()
        assert node.report.previous_broker_epoch == (-1 if marker is None else 9)


async def test_a_start_with_a_directory_that_fails_while_it_is_read_is_not_clean() -> None:
    for marker in (None, b'{"version":0,"brokerEpoch":7}'):
        node = await two_directories_stopped_cleanly()
        if marker is not None:
            node.filesystem.put("/two/.kafka_cleanshutdown", marker)
        node.filesystem.faults.append(Fault("listdir", "/one", errno.EIO))
        manager = await node.start()
        assert [each.path for each in manager.directories.online()] == ["/two"]
        assert not manager.directories.unavailable
        assert node.report.previous_broker_epoch == -1


async def test_a_start_without_a_log_that_was_here_is_not_clean() -> None:
    """Removed by hand, below a directory that works: its checkpoint names it."""
    node = await two_directories_stopped_cleanly()
    node.filesystem.rmtree("/one/a-0")
    for epoch in (8, 9):
        manager = await node.start()
        assert node.report.previous_broker_epoch == -1
        assert manager.found.missing == set(manager.table.offline) == {tp("a-0")}
        assert node.offsets("recovery-point-offset-checkpoint", "/one") == {tp("a-0"): 20}
        await manager.shutdown(epoch)
    manager = await node.start()
    await manager.found.settle(lambda each: (topic_id(1), ZERO_UUID) if each == tp("b-0") else None)
    assert not manager.table.offline, "the metadata knows nothing of it"
    await manager.shutdown(10)
    await node.start()
    assert node.report.previous_broker_epoch == 10


async def test_what_was_deleted_before_a_crash_is_not_missed() -> None:
    """The checkpoint still names it when the process dies; the metadata does not."""
    node = await two_directories_stopped_cleanly()
    manager = await node.start()
    manager.delete(tp("a-0"))
    await node.kill(manager)
    manager = await node.start()
    await manager.found.settle(lambda each: (topic_id(1), ZERO_UUID) if each == tp("b-0") else None)
    assert not manager.found.missing
    assert manager.get_or_create(tp("a-0"), topic_id(2)).log_end_offset == 0


async def test_a_log_moved_by_hand_is_not_missed() -> None:
    node = await two_directories_stopped_cleanly()
    node.filesystem.rename("/one/a-0", "/two/a-0")
    manager = await node.start()
    assert node.report.previous_broker_epoch == 7
    log = manager.get(tp("a-0"))
    assert log is not None
    assert log.directory == "/two/a-0"
    assert not manager.found.missing


@pytest.mark.parametrize("right", ["/one", "/two"])
@pytest.mark.parametrize("is_same_topic", [False, True])
async def test_the_metadata_chooses_between_two_directories(
    right: str, is_same_topic: bool
) -> None:
    node = Node("/one", "/two")
    wrong = "/two" if right == "/one" else "/one"
    for path in ("/one", "/two"):
        node.paths = (path,)
        manager = await node.start()
        identity = topic_id(1 if path == right or is_same_topic else 2)
        fill(manager.get_or_create(tp("a-0"), identity), 5 if path == right else 9)
        await manager.shutdown(1)
    node.paths = ("/one", "/two")
    manager = await node.start()
    ids = {each.path: each.directory_id for each in manager.directories.all}
    assert manager.found.twins == {tp("a-0")}
    place = ids[right] if is_same_topic else ids[wrong]
    if is_same_topic:
        # The same topic in both, without a word on the directory, chooses nothing.
        await manager.found.settle(lambda _: (topic_id(1), topic_id(9)))
        assert manager.found.twins == {tp("a-0")}
        assert manager.get(tp("a-0")) is None
    manager = await node.start_again(manager)
    await manager.found.settle(lambda _: (topic_id(1), place))
    log = manager.get(tp("a-0"))
    assert log is not None
    assert (log.directory, log.log_end_offset) == (f"{right}/a-0", 10)
    assert not manager.found.twins
    assert next(each for each in node.names(wrong) if each.startswith("a-0")).endswith("-stray")


async def test_offline_partitions_of_another_topic_are_not_in_the_way() -> None:
    node = Node("/one", "/two")
    manager = await node.start()
    one, two = manager.directories.all
    fill(manager.get_or_create(tp("a-0"), topic_id(1), None, one))
    manager.directories.fail(one, "the test says so")
    manager.found.release_name(tp("a-0"), topic_id(1), is_elsewhere=False)
    with pytest.raises(LogOffline, match="the test says so"):
        manager.get_or_create(tp("a-0"), topic_id(1), None, two)
    manager.found.release_name(tp("a-0"), topic_id(1), is_elsewhere=True)
    assert manager.get_or_create(tp("a-0"), topic_id(1), None, two).directory == "/two/a-0"


async def test_a_damaged_partition_of_another_topic_is_put_aside() -> None:
    node = Node()
    manager = await node.start()
    log = manager.get_or_create(tp("a-0"), topic_id(1))
    fill(log)
    log.take_offline("the test says so")
    manager.found.release_name(tp("a-0"), topic_id(1), is_elsewhere=True)
    assert manager.offline_reason(tp("a-0")), "it is the one"
    manager.found.release_name(tp("a-0"), topic_id(2), is_elsewhere=False)
    assert manager.get_or_create(tp("a-0"), topic_id(2)).log_end_offset == 0
    assert any(name.endswith("-stray") for name in node.names())


async def two_copies() -> tuple[Node, LogManager]:
    """Two copies of a-0 of topic 1, one in each directory."""
    node = Node("/one", "/two")
    manager = await node.start()
    one, two = manager.directories.all
    fill(manager.get_or_create(tp("a-0"), topic_id(1), None, one))
    fill(manager.get_or_create(tp("b-0"), topic_id(1), None, two))
    await node.kill(manager)
    node.filesystem.rename("/two/b-0", "/two/a-0")
    manager = await node.start()
    assert manager.found.twins == {tp("a-0")}
    return node, manager


def tear(node: Node, copy: str, remains: str) -> None:
    """What a power loss leaves of a log that was just made: its name, the files, or not all."""
    filesystem = node.filesystem
    if remains == "an empty directory":
        for name in filesystem.listdir(copy):
            filesystem.unlink(f"{copy}/{name}")
    elif remains == "no topic id":
        filesystem.unlink(f"{copy}/partition.metadata")
    else:
        filesystem.put(f"{copy}/partition.metadata", b"")


REMAINS = ["an empty directory", "no topic id", "a torn topic id"]


@pytest.mark.parametrize("remains", REMAINS)
@pytest.mark.parametrize("place", ["/one", "/two", "elsewhere"])
async def test_a_copy_without_topic_id_counts_where_the_metadata_names_it(
    place: str, remains: str
) -> None:
    node, manager = await two_copies()
    tear(node, "/two/a-0", remains)
    ids = {each.path: each.directory_id for each in manager.directories.all}
    await manager.found.settle(lambda each: (topic_id(1), ids.get(place, topic_id(9))))
    assert not manager.found.twins
    right, wrong = ("/two", "/one") if place == "/two" else ("/one", "/two")
    log = manager.get_or_create(tp("a-0"), topic_id(1))
    assert (log.directory, log.topic_id) == (f"{right}/a-0", topic_id(1))
    assert any(each.startswith("a-0.") and each.endswith("-stray") for each in node.names(wrong))
    if right == "/one" or remains == "an empty directory":
        assert log.log_end_offset == (20 if right == "/one" else 0)


@pytest.mark.parametrize("remains", REMAINS)
async def test_a_copy_of_another_topic_is_none_beside_one_without_topic_id(remains: str) -> None:
    node, manager = await two_copies()
    tear(node, "/two/a-0", remains)
    await manager.found.settle(lambda each: (topic_id(2), UNASSIGNED_DIRECTORY))
    log = manager.get_or_create(tp("a-0"), topic_id(2))
    assert (log.directory, log.topic_id) == ("/two/a-0", topic_id(2))
    assert any(each.startswith("a-0.") and each.endswith("-stray") for each in node.names("/one"))


@pytest.mark.parametrize("remains", REMAINS)
async def test_copies_give_their_name_up_with_the_topic_also_without_its_id(remains: str) -> None:
    node, manager = await two_copies()
    tear(node, "/two/a-0", remains)
    await manager.found.settle(lambda each: None)
    assert not manager.found.twins
    assert manager.get_or_create(tp("a-0"), topic_id(2)).log_end_offset == 0


async def test_a_copy_whose_topic_id_the_disk_does_not_give_may_be_the_right_one() -> None:
    node, manager = await two_copies()
    one = manager.directories.all[0]
    unreadable = Fault("read", "/two/a-0/partition.metadata", errno.EIO, count=None)
    node.filesystem.faults.append(unreadable)
    for place in (None, (topic_id(1), one.directory_id), (topic_id(2), one.directory_id)):
        await manager.found.settle(lambda each, place=place: place)
        assert manager.found.twins == {tp("a-0")}
        assert all("a-0" in node.names(each.path) for each in manager.directories.all)


@pytest.mark.parametrize("wanted", [None, topic_id(2)])
async def test_two_copies_of_topics_that_are_gone_are_put_aside(wanted: UUID | None) -> None:
    node, manager = await two_copies()
    place = None if wanted is None else (wanted, manager.directories.all[0].directory_id)
    await manager.found.settle(lambda each: place if each == tp("a-0") else None)
    assert not manager.found.twins
    log = manager.get_or_create(tp("a-0"), topic_id(2), None, manager.directories.all[1])
    assert log.log_end_offset == 0
    for path in ("/one", "/two"):
        assert any(each.startswith("a-0.") and each.endswith("-stray") for each in node.names(path))


async def test_a_wrong_copy_that_cannot_be_put_aside_keeps_the_right_one_offline() -> None:
    """Else the next start would find two of them again, and the metadata may have changed."""
    node, manager = await two_copies()
    one, two = manager.directories.all
    node.filesystem.faults.append(Fault("rename", "/two/a-0", errno.EIO))
    await manager.found.settle(lambda each: (topic_id(1), one.directory_id))
    assert not two.is_online
    assert manager.get(tp("a-0")) is None
    assert manager.offline_reason(tp("a-0"))
    assert manager.found.twins == {tp("a-0")}


async def test_two_copies_give_their_name_to_a_topic_made_later() -> None:
    node, manager = await two_copies()
    # The topic is the one of both, and the metadata name neither place: an operator has to say.
    await manager.found.settle(lambda each: (topic_id(1), topic_id(9)))
    assert manager.found.twins
    manager.found.release_name(tp("a-0"), topic_id(1), is_elsewhere=True)
    assert manager.found.twins, "it may be either"
    manager.found.release_name(tp("a-0"), topic_id(2), is_elsewhere=False)
    for directory in manager.directories.all:
        assert "a-0" not in node.names(directory.path)
    assert manager.get_or_create(tp("a-0"), topic_id(2)).log_end_offset == 0


async def test_a_deleted_topic_leaves_no_copy_in_the_way_of_the_next() -> None:
    node, manager = await two_copies()
    await manager.found.settle(lambda each: (topic_id(1), topic_id(9)))
    assert manager.delete(tp("a-0"))
    for directory in manager.directories.all:
        assert "a-0" not in node.names(directory.path)
    log = manager.get_or_create(tp("a-0"), topic_id(2), None, manager.directories.all[1])
    assert log.log_end_offset == 0
