"""Starts that must be refused: one clear line and an exit status, never a traceback."""

from __future__ import annotations

import socket
import tempfile
from pathlib import Path

import pytest

from moldau.testing import Cluster
from tests.system.conftest import SmallDisk
from tests.system.processes import properties, run_node

REFUSED, WRONG_USAGE = 1, 2


def test_a_second_process_on_the_same_directory(cluster: Cluster, tmp_path: Path) -> None:
    config = properties(tmp_path, log_dirs=str(cluster.data_directory()))
    ended = run_node(config)
    assert ended.status == REFUSED
    assert str(cluster.data_directory()) in ended.complaint
    assert cluster.node().running


def test_a_read_only_directory(small_disk: SmallDisk, tmp_path: Path) -> None:
    small_disk.make_read_only()
    ended = run_node(properties(tmp_path, log_dirs=str(small_disk.path / "data")))
    assert ended.status == REFUSED
    assert str(small_disk.path) in ended.complaint
    assert "read-only" in ended.complaint.lower()


def test_a_formatted_directory_that_became_read_only(small_disk: SmallDisk, tmp_path: Path) -> None:
    data = small_disk.path / "data"
    with Cluster(directory=tmp_path / "cluster", config={"log.dirs": str(data)}) as cluster:
        assert cluster.stop() == 0
    small_disk.make_read_only()
    ended = run_node(properties(tmp_path, log_dirs=str(data)))
    assert ended.status == REFUSED
    assert str(data) in ended.complaint


def test_a_directory_that_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("not a directory")
    ended = run_node(properties(tmp_path))
    assert ended.status == REFUSED
    assert str(tmp_path / "data") in ended.complaint


def test_a_directory_that_was_never_formatted(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    ended = run_node(properties(tmp_path), format_if_needed=False)
    assert ended.status == REFUSED
    assert str(tmp_path / "data") in ended.complaint
    assert "format" in ended.complaint


def test_secrets_that_every_user_may_read_are_named_before_anything_else() -> None:
    with tempfile.TemporaryDirectory(dir="/tmp") as made:
        home = Path(made)
        home.chmod(0o755)
        config = properties(home, delegation_token_secret_key="s3cret")
        config.chmod(0o644)
        ended = run_node(config, format_if_needed=False)
        assert ended.status == REFUSED
        assert ended.errors.count(f"every user of this machine may read {config}") == 1
        assert "s3cret" not in ended.errors
        config.chmod(0o600)
        assert "every user" not in run_node(config, format_if_needed=False).errors


def test_the_directory_of_another_node(tmp_path: Path) -> None:
    with Cluster(directory=tmp_path / "cluster") as cluster:
        assert cluster.stop() == 0
        data = cluster.data_directory()
    ended = run_node(properties(tmp_path, node_id="2", log_dirs=str(data)))
    assert ended.status == REFUSED
    assert str(data) in ended.complaint
    assert "node 1" in ended.complaint
    assert "node 2" in ended.complaint


@pytest.mark.parametrize("topic", ["no good", "t:many", "t:1:7"])
def test_a_first_topic_that_cannot_be(tmp_path: Path, topic: str) -> None:
    """The node was up by then: it is stopped in good order all the same."""
    ended = run_node(properties(tmp_path), "--create-topic", topic)
    assert ended.status in (REFUSED, WRONG_USAGE)
    assert ended.complaint
    if ended.status == REFUSED:
        assert (tmp_path / "data" / ".kafka_cleanshutdown").exists()


def test_a_garbled_meta_properties(tmp_path: Path) -> None:
    with Cluster(directory=tmp_path / "cluster") as cluster:
        assert cluster.stop() == 0
        data = cluster.data_directory()
    (data / "meta.properties").write_bytes(b"\xff\xfe\x00 nonsense")
    ended = run_node(properties(tmp_path, log_dirs=str(data)))
    assert ended.status == REFUSED
    assert "meta.properties" in ended.complaint


def test_an_address_that_is_taken(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        listeners = f"PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:0"
        ended = run_node(properties(tmp_path, listeners=listeners))
    assert ended.status == REFUSED
    assert str(port) in ended.complaint


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("log_segment_bytes", "many", "log.segment.bytes"),
        ("log_segment_bytes", "-5", "log.segment.bytes"),
        ("num_partitions", "0", "num.partitions"),
        ("node_id", "one", "node.id"),
        ("node_id", None, "node.id"),
        ("process_roles", "king", "process.roles"),
        ("listeners", "nonsense", "listeners"),
        ("compression_type", "rar", "compression.type"),
        ("log_cleanup_policy", "shred", "log.cleanup.policy"),
    ],
)
def test_a_bad_value_names_its_key(tmp_path: Path, key: str, value: str | None, said: str) -> None:
    ended = run_node(properties(tmp_path, **{key: value}))
    assert ended.status == WRONG_USAGE
    assert said in ended.complaint
    if value is not None:
        assert value in ended.complaint
    assert not (tmp_path / "data").exists()


def test_a_config_that_is_not_there(tmp_path: Path) -> None:
    ended = run_node(tmp_path / "missing.properties")
    assert ended.status == WRONG_USAGE
    assert "missing.properties" in ended.complaint


def test_a_config_that_is_no_text(tmp_path: Path) -> None:
    path = tmp_path / "server.properties"
    path.write_bytes(b"\x80\x81\xff=\xfe\x00")
    ended = run_node(path)
    assert ended.status == WRONG_USAGE
    assert ended.complaint


def test_overrides_are_checked_too(tmp_path: Path) -> None:
    for override in ("num.partitions=none", "nonsense"):
        ended = run_node(properties(tmp_path), "--override", override)
        assert ended.status == WRONG_USAGE
        assert override.partition("=")[0] in ended.complaint
