"""Starts a quorum must not suffer: refused in one line, nothing overwritten, the rest serves on."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from moldau.local.node_process import NodeProcess
from moldau.runtime.filesystem import OsFilesystem
from moldau.storage.meta_properties import read_meta_properties
from moldau.testing import Cluster
from tests.kit.waiting import until
from tests.system.processes import Ended, run_cli, run_node
from tests.system.quorum.conftest import (
    CONFIG,
    create_topic,
    fenced,
    quorum,
    topics,
    wait_for_topics,
    wait_until_caught_up,
)

pytestmark = pytest.mark.timeout(120)

REFUSED, WRONG_USAGE = 1, 2
METADATA = "__cluster_metadata-0"
OTHER_CLUSTER = "AAAAAAAAQACAAAAAAAAAAQ"
VICTIM = 103
TIMEOUT = "initial.broker.registration.timeout.ms=2500"
#: What a start makes again from the records before it finds that they do not do.
DERIVED = (".index", ".timeindex", ".snapshot")

Change = Callable[[Path], object]


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """Three controllers and two brokers with snapshots of their metadata; one controller rests."""
    config = {**CONFIG, "metadata.log.max.record.bytes.between.snapshots": "3000"}
    with Cluster(controllers=3, brokers=2, config=config) as cluster:
        metadata = cluster.data_directory(VICTIM) / METADATA

        def has_records_after_a_snapshot() -> bool:
            create_topic(cluster, f"topic-{len(topics(cluster))}", 2)
            snapshot, segment = _snapshots(metadata)[-1], _segments(metadata)[-1]
            # A snapshot that has just been written begins a segment in a moment.
            begins_there = 0 < int(snapshot.name[:20]) <= int(segment.name[:20])
            return begins_there and segment.stat().st_size > 300

        until(has_records_after_a_snapshot, what="records after a snapshot")
        assert cluster.stop(VICTIM) == 0
        yield cluster


@pytest.fixture(autouse=True)
def _the_others_serve_on(cluster: Cluster, request: pytest.FixtureRequest) -> Iterator[None]:
    before = quorum(cluster)
    yield
    after = quorum(cluster)
    assert (after.leader_id, after.leader_epoch) == (before.leader_id, before.leader_epoch)
    name = f"after-{hashlib.sha256(request.node.name.encode()).hexdigest()[:20]}"
    create_topic(cluster, name, 1)
    wait_for_topics(cluster, name)
    assert not fenced(cluster)


def _snapshots(metadata: Path) -> list[Path]:
    return sorted(metadata.glob("*.checkpoint"))


def _segments(metadata: Path) -> list[Path]:
    return sorted(metadata.glob("*.log"))


def digests(directory: Path) -> dict[str, str]:
    """A hash of every file; the lock file's only content is that it is held."""
    return {
        str(path.relative_to(directory)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in directory.rglob("*")
        if path.is_file() and path.name != ".lock"
    }


def assert_kept(before: dict[str, str], directory: Path) -> None:
    """Nothing is changed, added or gone but what is derived from the records."""
    after = digests(directory)
    kept = [path for path in before if not path.endswith(DERIVED)]
    assert {path: after.get(path) for path in kept} == {path: before[path] for path in kept}
    assert [path for path in after if path not in before] == []


def refused(ended: Ended, *said: object, status: int = REFUSED) -> None:
    assert ended.status == status, ended.errors
    for each in said:
        assert str(each) in ended.complaint


def start_on(cluster: Cluster, directory: Path, *overrides: str, node_id: int = VICTIM) -> Ended:
    """A node of the cluster with another directory in the place of its own."""
    arguments = [f"log.dirs={directory}", *overrides]
    options = [option for each in arguments for option in ("--override", each)]
    config = cluster.node(node_id).config_path
    return run_node(config, *options, format_if_needed=False)


@pytest.fixture
def copy(cluster: Cluster, tmp_path: Path) -> Path:
    """A copy of the resting controller's directory."""
    return Path(shutil.copytree(cluster.data_directory(VICTIM), tmp_path / "copy"))


def cluster_id(cluster: Cluster) -> str:
    found = read_meta_properties(OsFilesystem(1), str(cluster.data_directory(VICTIM)))
    assert found is not None
    return found.cluster_id


# -- formatting ----------------------------------------------------------------------------------


def test_formatting_twice(cluster: Cluster):
    directory = cluster.data_directory(VICTIM)
    before = digests(directory)
    again = ("storage", "format", "-c", cluster.node(VICTIM).config_path, "-N")
    refused(run_cli(*again, "-t", cluster_id(cluster)), "already formatted", directory)
    refused(run_cli(*again, "-t", OTHER_CLUSTER), directory, cluster_id(cluster), OTHER_CLUSTER)
    ignoring = run_cli(*again, "-t", OTHER_CLUSTER, "--ignore-formatted")
    refused(ignoring, directory, cluster_id(cluster), OTHER_CLUSTER)
    done = run_cli(*again, "-t", cluster_id(cluster), "--ignore-formatted")
    assert done.status == 0, done.errors
    assert "nothing to format" in done.output
    assert digests(directory) == before


def test_bootstrapping_over_a_cluster(cluster: Cluster):
    before = digests(cluster.data_directory(VICTIM))
    said = run_cli("quorum", "bootstrap", cluster.directory, "--controllers", 3, "--brokers", 1)
    assert said.status in (REFUSED, WRONG_USAGE)
    assert str(cluster.directory) in said.complaint
    assert digests(cluster.data_directory(VICTIM)) == before


@pytest.mark.parametrize(
    ("voters", "said"),
    [
        ("103@h:1:{a},103@h:2:{b}", "node 103 is named twice"),
        ("103@h:1:{a},104@h:2:{a}", "is named twice"),
        ("104@h:1:{a}", "node.id 103"),
    ],
)
def test_initial_controllers_that_cannot_be(
    cluster: Cluster, tmp_path: Path, voters: str, said: str
):
    ids = {"a": "AAAAAAAAQACAAAAAAAAAAg", "b": "AAAAAAAAQACAAAAAAAAAAw"}
    config = tmp_path / "server.properties"
    text = cluster.node(VICTIM).config_path.read_text()
    config.write_text(f"{text}\nlog.dirs={tmp_path / 'data'}\n")
    command = ("storage", "format", "-c", config, "-t", cluster_id(cluster))
    refused(run_cli(*command, "-I", voters.format(**ids)), "--initial-controllers", said)
    assert not (tmp_path / "data").exists()


# -- whose directory -----------------------------------------------------------------------------


def test_a_directory_that_was_never_formatted(cluster: Cluster, tmp_path: Path):
    empty = tmp_path / "empty"
    empty.mkdir()
    refused(start_on(cluster, empty), empty, "is not formatted", "storage format")
    assert digests(empty) == {}


def test_another_nodes_directory(cluster: Cluster, copy: Path):
    before = digests(copy)
    ended = start_on(cluster, copy, "node.id=104")
    refused(ended, copy, "belongs to node 103", "this is node 104")
    assert digests(copy) == before


def test_directories_of_two_clusters(cluster: Cluster, copy: Path, tmp_path: Path):
    other = tmp_path / "other"
    shutil.copytree(copy, other)
    path = other / "meta.properties"
    path.write_text(path.read_text().replace(cluster_id(cluster), OTHER_CLUSTER))
    before = digests(tmp_path)
    refused(start_on(cluster, copy, f"log.dirs={copy},{other}"), other, OTHER_CLUSTER)
    assert digests(tmp_path) == before


def test_a_copied_directory_beside_the_original(cluster: Cluster, copy: Path, tmp_path: Path):
    other = Path(shutil.copytree(copy, tmp_path / "other"))
    before = digests(tmp_path)
    ended = start_on(cluster, copy, f"log.dirs={copy},{other}")
    refused(ended, copy, other, "same directory.id")
    assert digests(tmp_path) == before


def test_a_directory_that_runs_already(cluster: Cluster):
    ended = start_on(cluster, cluster.data_directory(102), node_id=102)
    refused(ended, cluster.data_directory(102), "in use by another process")
    assert cluster.node(102).running


# -- what is in it -------------------------------------------------------------------------------


def flip(path: Path, position: int) -> None:
    data = bytearray(path.read_bytes())
    data[position] ^= 0xFF
    path.write_bytes(bytes(data))


def cut(path: Path, size_bytes: int) -> None:
    path.write_bytes(path.read_bytes()[:size_bytes])


def append(path: Path, data: bytes) -> None:
    path.write_bytes(path.read_bytes() + data)


def _newer_version(metadata: Path) -> None:
    path = metadata / "quorum-state"
    path.write_text(path.read_text().replace('"data_version":1', '"data_version":7'))


def _earlier_epoch(metadata: Path) -> None:
    (metadata / "quorum-state").write_text(
        '{"leaderId":-1,"leaderEpoch":0,"votedId":-1,"votedDirectoryId":"AAAAAAAAAAAAAAAAAAAAAA",'
        '"data_version":1}'
    )


DAMAGE: dict[str, tuple[Change, tuple[str, ...]]] = {
    "quorum-state: garbage": (
        lambda at: (at / "quorum-state").write_bytes(b"\0\xffgarbage"),
        ("quorum-state",),
    ),
    "quorum-state: empty": (lambda at: cut(at / "quorum-state", 0), ("quorum-state", "JSON")),
    "quorum-state: cut": (lambda at: cut(at / "quorum-state", 30), ("quorum-state", "JSON")),
    "quorum-state: newer": (_newer_version, ("quorum-state", "data_version 7")),
    "quorum-state: older than the log": (_earlier_epoch, ("quorum-state", "leaderEpoch 0")),
    "snapshot: a byte": (lambda at: flip(_snapshots(at)[-1], 300), (".checkpoint", "CRC")),
    "snapshot: cut": (lambda at: cut(_snapshots(at)[-1], -5), (".checkpoint",)),
    "snapshot: no footer": (lambda at: cut(_snapshots(at)[-1], -75), (".checkpoint", "footer")),
    "snapshot: empty": (lambda at: cut(_snapshots(at)[-1], 0), (".checkpoint", "header")),
    "bootstrap.checkpoint: a byte": (
        lambda at: flip(at.parent / "bootstrap.checkpoint", -3),
        ("bootstrap.checkpoint", "CRC"),
    ),
    "bootstrap.checkpoint: cut": (
        lambda at: cut(at.parent / "bootstrap.checkpoint", -9),
        ("bootstrap.checkpoint",),
    ),
    "log: a byte of what is committed": (
        lambda at: flip(_segments(at)[-1], 70),
        (".log", "recovery point"),
    ),
    "log: the last byte": (lambda at: flip(_segments(at)[-1], -1), (".log", "recovery point")),
    "log: cut": (lambda at: cut(_segments(at)[-1], -1), (".log", "recovery point")),
    "log: a segment is gone": (lambda at: _segments(at)[-1].unlink(), (METADATA, "recovery point")),
    "log: another topic's": (
        lambda at: (at / "partition.metadata").write_text(
            "version: 0\ntopic_id: DZAo9FN4Rr6HKmBUsdrU_w"
        ),
        (METADATA, "not the metadata log"),
    ),
    "all of it is gone": (lambda at: shutil.rmtree(at), (METADATA, "is missing")),
    "meta.properties: garbage": (
        lambda at: (at.parent / "meta.properties").write_bytes(b"\xff\0"),
        ("meta.properties",),
    ),
    "meta.properties: newer": (
        lambda at: (at.parent / "meta.properties").write_text("version=9\nnode.id=103\n"),
        ("meta.properties", "version 9", "0 or 1"),
    ),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_damage_is_refused(cluster: Cluster, copy: Path, name: str):
    change, said = DAMAGE[name]
    change(copy / METADATA)
    before = digests(copy)
    refused(start_on(cluster, copy), copy, *said)
    assert_kept(before, copy)


def _starts_and_catches_up(cluster: Cluster, directory: Path) -> None:
    data = cluster.data_directory(VICTIM)
    saved = data.with_name("saved")
    data.rename(saved)
    directory.rename(data)
    try:
        cluster.restart(VICTIM)
        wait_until_caught_up(cluster, VICTIM)
        assert cluster.stop(VICTIM) == 0
    finally:
        cluster.kill(VICTIM)
        shutil.rmtree(data)
        saved.rename(data)


@pytest.mark.parametrize(
    "change",
    [
        lambda at: append(_segments(at)[-1], b"\0" * 50),
        lambda at: flip(_segments(at)[0], 100),
        lambda at: (at / "quorum-state").unlink(),
        lambda at: (at / "leader-epoch-checkpoint").write_text("garbage"),
        lambda at: (at / "00000000000000009999-0000000001.checkpoint.part").write_text("x"),
        lambda at: None,
    ],
    ids=[
        "a torn tail",
        "a byte below the latest snapshot",
        "no quorum-state",
        "derived epochs",
        "an unfinished snapshot",
        "nothing",
    ],
)
def test_what_a_crash_leaves_or_the_log_does_not_need_is_no_damage(
    cluster: Cluster, copy: Path, change: Change
):
    change(copy / METADATA)
    _starts_and_catches_up(cluster, copy)


# -- who votes -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("voters", "said", "status"),
    [
        ("103@127.0.0.1:1,104@127.0.0.1:2", "names 103, 104 and the metadata log 101, 102", 1),
        ("101@127.0.0.1:1,102@127.0.0.1:2", "must contain node.id 103", WRONG_USAGE),
        ("103@127.0.0.1:1,103@127.0.0.1:2", "voter 103 is listed twice", WRONG_USAGE),
        ("103@127.0.0.1:nine", "must be HOST:PORT", WRONG_USAGE),
    ],
)
def test_static_voters_that_disagree(
    cluster: Cluster, copy: Path, voters: str, said: str, status: int
):
    before = digests(copy)
    ended = start_on(cluster, copy, f"controller.quorum.voters={voters}")
    refused(ended, "controller.quorum.voters", said, status=status)
    assert_kept(before, copy)


# -- strangers and doubles -----------------------------------------------------------------------


def stranger(cluster: Cluster, home: Path, node_id: int, role: str, of_cluster: str) -> Path:
    """The configuration of one more node, formatted; not started."""
    listener = {"controller": "CONTROLLER", "broker": "PLAINTEXT"}[role]
    config = home / "server.properties"
    config.write_text(
        f"process.roles={role}\nnode.id={node_id}\nlisteners={listener}://127.0.0.1:0\n"
        "controller.listener.names=CONTROLLER\n"
        f"controller.quorum.bootstrap.servers={cluster.bootstrap_controllers}\n"
        f"log.dirs={home / 'data'}\n{TIMEOUT}\n"
    )
    options = ("-N",) if role == "controller" else ()
    done = run_cli("storage", "format", "-c", config, "-t", of_cluster, *options)
    assert done.status == 0, done.errors
    return config


def test_a_broker_of_another_cluster(cluster: Cluster, tmp_path: Path):
    config = stranger(cluster, tmp_path, 7, "broker", OTHER_CLUSTER)
    identity = (tmp_path / "data" / "meta.properties").read_bytes()
    ended = run_node(config, format_if_needed=False)
    refused(ended, cluster.bootstrap_controllers, OTHER_CLUSTER, "INCONSISTENT_CLUSTER_ID", TIMEOUT)
    assert (tmp_path / "data" / "meta.properties").read_bytes() == identity


def test_a_second_broker_with_the_same_id(cluster: Cluster, tmp_path: Path):
    config = stranger(cluster, tmp_path, 1, "broker", cluster_id(cluster))
    ended = run_node(config, format_if_needed=False)
    refused(ended, "node.id=1", "DUPLICATE_BROKER_REGISTRATION", TIMEOUT)
    assert not list((tmp_path / "data").glob("topic-*")), "it has never been that broker"
    assert cluster.node(1).running


@pytest.mark.parametrize(
    ("servers", "said"),
    [("127.0.0.1:1", "Connect call failed"), ("no.such.host.invalid:9", "no.such.host.invalid:9:")],
)
def test_a_node_without_a_controller_at_the_bootstrap_address_ends_with_one_line(
    cluster: Cluster, tmp_path: Path, servers: str, said: str
):
    config = stranger(cluster, tmp_path, 8, "broker", cluster_id(cluster))
    override = f"controller.quorum.bootstrap.servers={servers}"
    ended = run_node(config, "--override", override, format_if_needed=False)
    refused(ended, override, said, TIMEOUT)


def test_brokers_for_bootstrap_controllers(cluster: Cluster, tmp_path: Path):
    config = stranger(cluster, tmp_path, 8, "broker", cluster_id(cluster))
    override = f"controller.quorum.bootstrap.servers={cluster.bootstrap_server}"
    ended = run_node(config, "--override", override, format_if_needed=False)
    refused(ended, override, "no active controller", TIMEOUT)


@pytest.mark.parametrize("servers", ["nonsense", "localhost:99999", ":9093", "host:", "a:1,,b"])
def test_bootstrap_servers_that_are_none(cluster: Cluster, copy: Path, servers: str):
    before = digests(copy)
    ended = start_on(cluster, copy, f"controller.quorum.bootstrap.servers={servers}")
    refused(ended, "controller.quorum.bootstrap.servers", status=WRONG_USAGE)
    assert digests(copy) == before


def _run_beside(cluster: Cluster, config: Path, said: str) -> None:
    """A controller that runs, says what is wrong, and does not vote."""
    voters = {each.replica_id: each.directory_id for each in quorum(cluster).voters}
    node = NodeProcess(config, config.with_name("node.log"))
    node.start()
    try:
        node.wait_ready()
        until(lambda: said in node.log_tail(), what=said)
        assert {each.replica_id: each.directory_id for each in quorum(cluster).voters} == voters
    finally:
        node.kill()


def test_a_controller_of_another_cluster(cluster: Cluster, tmp_path: Path):
    """It looks for its own quorum as long as it runs, as in Apache Kafka."""
    config = stranger(cluster, tmp_path, 104, "controller", OTHER_CLUSTER)
    _run_beside(cluster, config, "INCONSISTENT_CLUSTER_ID")


def test_a_second_controller_with_the_same_id(cluster: Cluster, tmp_path: Path):
    """Voters are node and directory (KIP-853): it observes, and says so."""
    others = {cluster.active_controller_id(), VICTIM}
    double = next(each for each in cluster.controller_ids if each not in others)
    config = stranger(cluster, tmp_path, double, "controller", cluster_id(cluster))
    _run_beside(cluster, config, f"node.id={double} votes with another directory")


def test_a_double_of_the_active_controller(cluster: Cluster, tmp_path: Path):
    """A node does not follow itself: it does not even observe, and says so."""
    double = cluster.active_controller_id()
    config = stranger(cluster, tmp_path, double, "controller", cluster_id(cluster))
    _run_beside(cluster, config, f"node.id={double} leads the quorum in epoch")
