"""meta.properties, partition.metadata, checkpoints, the marker, locks: formats and refusals."""

from __future__ import annotations

import errno
import random as random_module
import subprocess
import sys
from pathlib import Path
from uuid import UUID

import pytest

from moldau.protocol.types import TopicPartition, uuid_to_base64
from moldau.runtime.filesystem import OsFilesystem
from moldau.storage.checkpoints import (
    UNKNOWN_BROKER_EPOCH,
    CleanShutdown,
    read_clean_shutdown_marker,
    read_leader_epoch_checkpoint,
    read_offset_checkpoint,
    read_partition_metadata,
    write_clean_shutdown_marker,
    write_offset_checkpoint,
    write_partition_metadata,
    write_rows,
)
from moldau.storage.faults import CorruptFile
from moldau.storage.log_directory import (
    LogDirectory,
    LogDirectoryError,
    directory_mark,
    marked_directory_name,
    marked_partition,
    open_log_directories,
    parse_partition_directory,
)
from moldau.storage.meta_properties import (
    MetaProperties,
    read_meta_properties,
    write_meta_properties,
)
from tests.storage.simulated_filesystem import Fault, SimulatedFilesystem
from tests.storage.storage_fixtures import format_log_directory

DIRECTORY_ID = UUID(int=0xABCDEF << 96 | 0xFEDCBA)


def filesystem_with(path: str, data: bytes) -> SimulatedFilesystem:
    filesystem = SimulatedFilesystem()
    filesystem.put(path, data)
    return filesystem


def open_directories(filesystem: SimulatedFilesystem, *paths: str, node_id: int = 1) -> object:
    return open_log_directories(
        filesystem, paths, cluster_id="c", node_id=node_id, random=random_module.Random(1)
    )


def formatted(*paths: str, cluster_id: str = "c", node_id: int = 1) -> SimulatedFilesystem:
    filesystem = SimulatedFilesystem()
    random = random_module.Random(3)
    for path in paths:
        format_log_directory(
            filesystem, path, cluster_id=cluster_id, node_id=node_id, random=random
        )
    return filesystem


def test_offset_checkpoint_has_kafkas_text() -> None:
    filesystem = filesystem_with("/d/x", b"")
    assert read_offset_checkpoint(filesystem, "/d/absent") == {}
    assert read_offset_checkpoint(filesystem, "/d/x") == {}
    offsets = {TopicPartition("b.c", 1): 2**63 - 1, TopicPartition("a-1", 0): 7}
    write_offset_checkpoint(filesystem, "/d/x", offsets)
    assert filesystem.read_bytes("/d/x") == b"0\n2\na-1 0 7\nb.c 1 9223372036854775807\n"
    assert read_offset_checkpoint(filesystem, "/d/x") == offsets


def test_leader_epoch_checkpoint_has_kafkas_text() -> None:
    filesystem = filesystem_with("/d/x", b"")
    write_rows(filesystem, "/d/x", [(0, 0), (2, 100)])
    assert filesystem.read_bytes("/d/x") == b"0\n2\n0 0\n2 100\n"
    assert read_leader_epoch_checkpoint(filesystem, "/d/x") == [(0, 0), (2, 100)]


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"0\n", "no version and entry count"),
        (b"1\n0\n", "version 1 is unknown"),
        (b"x\n0\n", "version 'x'"),
        (b"0\n2\na 0 1\n", "2 entries are announced and 1 are there"),
        (b"0\n1\na 0\n", "line 3 has 2 fields"),
        (b"0\n1\na 0 -1\n", "offset '-1'"),
        (b"0\n1\na 0 9223372036854775808\n", "is not a number that fits"),
        (b"0\n2\na 0 1\na 0 2\n", "names a-0 a second time"),
        (b"0\n1\n\xff 0 1\n", "byte 4 is not UTF-8"),
        (b"\0" * 40, "no version and entry count"),
    ],
)
def test_damaged_checkpoint_is_named_with_what_is_wrong(data: bytes, reason: str) -> None:
    filesystem = filesystem_with("/d/recovery-point-offset-checkpoint", data)
    with pytest.raises(CorruptFile) as raised:
        read_offset_checkpoint(filesystem, "/d/recovery-point-offset-checkpoint")
    assert str(raised.value).startswith("/d/recovery-point-offset-checkpoint is damaged: ")
    assert reason in str(raised.value)


def test_leader_epochs_must_ascend() -> None:
    for text in (b"0\n2\n3 0\n2 5\n", b"0\n2\n3 0\n3 5\n", b"0\n2\n1 9\n2 5\n"):
        with pytest.raises(CorruptFile, match="line 4"):
            read_leader_epoch_checkpoint(filesystem_with("/d/x", text), "/d/x")


def test_clean_shutdown_marker() -> None:
    filesystem = filesystem_with("/d/x", b"")
    assert read_clean_shutdown_marker(filesystem, "/d") is None
    stop = CleanShutdown(255, frozenset({UUID(int=1), UUID(int=2)}))
    write_clean_shutdown_marker(filesystem, "/d", stop)
    assert filesystem.read_bytes("/d/.kafka_cleanshutdown") == (
        b'{"version":0,"brokerEpoch":255,'
        b'"directoryIds":["AAAAAAAAAAAAAAAAAAAAAQ","AAAAAAAAAAAAAAAAAAAAAg"]}'
    )
    assert read_clean_shutdown_marker(filesystem, "/d") == stop
    filesystem.put("/d/.kafka_cleanshutdown", b'{"version":0,"brokerEpoch":255}')
    assert read_clean_shutdown_marker(filesystem, "/d") == CleanShutdown(255), "Apache Kafka's"
    for old in (b"", b"{", b"[]", b'{"brokerEpoch":"x"}', b'{"directoryIds":5}'):
        filesystem.put("/d/.kafka_cleanshutdown", old)
        assert read_clean_shutdown_marker(filesystem, "/d") == CleanShutdown(UNKNOWN_BROKER_EPOCH)
    for old in (b'{"brokerEpoch":9,"directoryIds":["x"]}', b'{"brokerEpoch":9,"directoryIds":[1]}'):
        filesystem.put("/d/.kafka_cleanshutdown", old)
        assert read_clean_shutdown_marker(filesystem, "/d") == CleanShutdown(9)


def test_partition_metadata() -> None:
    filesystem = filesystem_with("/d/x", b"")
    assert read_partition_metadata(filesystem, "/d") is None
    write_partition_metadata(filesystem, "/d", DIRECTORY_ID)
    expected = f"version: 0\ntopic_id: {uuid_to_base64(DIRECTORY_ID)}"
    assert filesystem.read_bytes("/d/partition.metadata") == expected.encode()
    assert read_partition_metadata(filesystem, "/d") == DIRECTORY_ID


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"version: 1\ntopic_id: AAAAAAAAAAAAAAAAAAAAAQ",
        b"version: 0\n",
        b"version: 0\ntopic_id: short",
        b"version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAAAA",
        b"topic_id: AAAAAAAAAAAAAAAAAAAAAQ\nversion: 0",
        b"\xff\xfe",
    ],
)
def test_damaged_partition_metadata(data: bytes) -> None:
    with pytest.raises(CorruptFile, match=r"/d/partition\.metadata is damaged"):
        read_partition_metadata(filesystem_with("/d/partition.metadata", data), "/d")


def test_meta_properties_round_trip_with_any_cluster_id() -> None:
    filesystem = filesystem_with("/d/x", b"")
    for cluster_id in ("5L6g3nShT-eMCtK--X86sw", "a=b:c #!\\d", "ü"):
        written = MetaProperties(cluster_id, 3, DIRECTORY_ID)
        write_meta_properties(filesystem, "/d", written)
        assert read_meta_properties(filesystem, "/d") == written


def test_meta_properties_version_0() -> None:
    filesystem = filesystem_with("/d/meta.properties", b"version=0\nbroker.id=4\ncluster.id=c\n")
    assert read_meta_properties(filesystem, "/d") == MetaProperties("c", 4, None, 0)
    open_directories(filesystem, "/d", node_id=4)
    found = read_meta_properties(filesystem, "/d")
    assert found is not None
    assert found.version == 1
    assert found.directory_id is not None


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "broker.id is missing"),
        ("version=2\nnode.id=1\ncluster.id=c", "version 2 is unknown"),
        ("version=1\ncluster.id=c", "node.id is missing"),
        ("version=1\nnode.id=-1\ncluster.id=c", "node.id='-1'"),
        ("version=1\nnode.id=1", "cluster.id is missing"),
        ("version=1\nnode.id=1\ncluster.id=c\ndirectory.id=zz", "directory.id"),
        ("version=1\nnode.id=1\ncluster.id=c\ndirectory.id=AAAAAAAAAAAAAAAAAAAAAA", "reserved"),
        ("x" * 70_000, "70000 bytes"),
    ],
)
def test_damaged_meta_properties(text: str, reason: str) -> None:
    filesystem = filesystem_with("/d/meta.properties", text.encode())
    with pytest.raises(CorruptFile) as raised:
        read_meta_properties(filesystem, "/d")
    assert str(raised.value).startswith("/d/meta.properties is damaged: ")
    assert reason in str(raised.value)
    with pytest.raises(LogDirectoryError, match=r"meta\.properties is damaged"):
        open_directories(filesystem, "/d")


@pytest.mark.parametrize("size_bytes", [64 * 1024, 64 * 1024 + 1])
def test_meta_properties_of_up_to_64_kib_are_read(size_bytes: int) -> None:
    filesystem = SimulatedFilesystem()
    text = b"version=1\ncluster.id=c\nnode.id=4\n#"
    filesystem.put("/d/meta.properties", text.ljust(size_bytes, b"x"))
    if size_bytes <= 64 * 1024:
        assert read_meta_properties(filesystem, "/d") == MetaProperties("c", 4, None)
    else:
        with pytest.raises(CorruptFile, match="65537 bytes"):
            read_meta_properties(filesystem, "/d")


def test_a_directory_that_was_made_durably_survives_a_power_loss() -> None:
    filesystem = formatted("/deep/er/d")
    before = filesystem.read_bytes("/deep/er/d/meta.properties")
    for seed in range(20):
        root = filesystem.image().after_power_loss(random_module.Random(seed))
        survived = SimulatedFilesystem(root)
        assert survived.read_bytes("/deep/er/d/meta.properties") == before


@pytest.mark.parametrize(
    ("cluster_id", "node_id", "reason"),
    [("other", 1, "belongs to cluster 'other', not to 'c'"), ("c", 9, "belongs to node 9")],
)
def test_foreign_directory_is_refused_and_untouched(
    cluster_id: str, node_id: int, reason: str
) -> None:
    filesystem = formatted("/d", cluster_id=cluster_id, node_id=node_id)
    before = filesystem.files()
    with pytest.raises(LogDirectoryError, match=reason):
        open_directories(filesystem, "/d")
    assert filesystem.files() == {**before, "/d/.lock": b""}
    assert filesystem.locks == set()


def test_copied_directory_id_is_refused() -> None:
    filesystem = formatted("/one")
    filesystem.put("/two/meta.properties", filesystem.read_bytes("/one/meta.properties"))
    with pytest.raises(LogDirectoryError, match=r"/one and /two have the same directory\.id"):
        open_directories(filesystem, "/one", "/two")


def test_directory_named_twice_unformatted_or_missing() -> None:
    filesystem = formatted("/d")
    filesystem.put("/empty/file", b"")
    with pytest.raises(LogDirectoryError, match="configured twice"):
        open_directories(filesystem, "/d", "/d/")
    with pytest.raises(LogDirectoryError, match="is not formatted"):
        open_directories(filesystem, "/d", "/empty")
    with pytest.raises(LogDirectoryError, match="there is no such directory"):
        open_directories(filesystem, "/absent")
    assert filesystem.locks == set()


@pytest.mark.parametrize("error", [errno.EROFS, errno.EACCES, errno.EIO])
def test_unusable_directory_is_left_out_while_another_works(error: int) -> None:
    filesystem = formatted("/good", "/bad")
    filesystem.faults.append(Fault("create", "/bad", error, count=None))
    directories = open_directories(filesystem, "/good", "/bad")
    assert [each.path for each in directories.online] == ["/good"]  # type: ignore[attr-defined]
    assert "/bad cannot be used" in directories.offline["/bad"]  # type: ignore[attr-defined]
    directories.release()  # type: ignore[attr-defined]
    with pytest.raises(LogDirectoryError, match="/bad cannot be used") as raised:
        open_directories(filesystem, "/bad")
    assert "\n" not in str(raised.value)


@pytest.mark.real
def test_second_process_is_kept_out(tmp_path: Path) -> None:
    """With one clear line, whichever node holds the lock: another process or another node in this
    one.
    """
    filesystem = OsFilesystem()
    path = str(tmp_path / "log")
    random = random_module.Random(1)
    format_log_directory(filesystem, path, cluster_id="c", node_id=1, random=random)
    script = (
        "import random, sys\n"
        "from moldau.runtime.filesystem import OsFilesystem\n"
        "from moldau.storage.log_directory import *\n"
        "try:\n"
        "    open_log_directories(OsFilesystem(), [sys.argv[1]], cluster_id='c', node_id=1,\n"
        "        random=random.Random(1))\n"
        "except LogDirectoryError as error:\n"
        "    sys.exit(str(error))\n"
    )
    command = [sys.executable, "-c", script, path]
    held = open_log_directories(filesystem, [path], cluster_id="c", node_id=1, random=random)
    second = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert second.returncode == 1
    assert second.stderr == f"log directory {path} is in use by another process (it holds .lock)\n"
    with pytest.raises(LogDirectoryError, match="in use by another process"):
        open_log_directories(filesystem, [path], cluster_id="c", node_id=1, random=random)
    held.release()
    assert subprocess.run(command, timeout=60, check=False).returncode == 0


def test_a_directory_fails_once_and_keeps_the_first_reason() -> None:
    directory = LogDirectory("/data", "c", 1, UUID(int=1))
    assert directory.is_online
    assert directory.fail("burnt") is True
    assert directory.fail("drowned") is False
    assert (directory.is_online, directory.offline_reason) == (False, "burnt")


def test_the_largest_partition_number_has_a_directory() -> None:
    largest = 2**31 - 1
    assert parse_partition_directory(f"t-{largest}") == TopicPartition("t", largest)
    assert parse_partition_directory(f"t-{largest + 1}") is None


def test_directory_names() -> None:
    assert parse_partition_directory("a-b.c_d-12") == TopicPartition("a-b.c_d", 12)
    for name in ("a", "a-", "-1", "a-01", "a-x", "a b-1", "a-99999999999", "..-1", "a-0.b-delete"):
        assert parse_partition_directory(name) is None
    for topic in ("t", "t" * 249, "a-1.b"):
        name = marked_directory_name(TopicPartition(topic, 10), DIRECTORY_ID, "-delete")
        assert len(name) <= 255
        assert directory_mark(name) == "-delete"
        found = marked_partition(name)
        assert found is not None
        assert topic.startswith(found.topic)
        assert found.partition == 10
    assert directory_mark("t-0") is None
