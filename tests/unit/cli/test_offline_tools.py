"""Offline tools on what is no directory of theirs: status 1, one line, and the directory meant."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from moldau.cli import nearby as nearby_module
from moldau.cli.nearby import nearby
from tests.kit.commands import Ended, run_here

GOLDEN = Path(__file__).parents[1] / "metadata" / "golden"
LOG = "00000000000000000000.log"
META_PROPERTIES = "version=1\ncluster.id=MkU3OEVBNTcwNTJENDM2Qg\nnode.id=1\n"
PROPERTIES = """
process.roles=broker,controller
node.id=1
listeners=PLAINTEXT://localhost:9092,CONTROLLER://localhost:9093
controller.listener.names=CONTROLLER
controller.quorum.bootstrap.servers=localhost:9093
"""


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where `cp1` is a node with one log directory, and `cluster` has two nodes."""
    for node in ("cp1", "cluster/broker-1", "cluster/controller-101"):
        log = tmp_path / node / "data" / "__cluster_metadata-0"
        log.mkdir(parents=True)
        shutil.copy(GOLDEN / f"kafka-4.3.0-{LOG}", log / LOG)
        (log.parent / "meta.properties").write_text(META_PROPERTIES)
        (tmp_path / node / "server.properties").write_text(PROPERTIES)
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path)
    return tmp_path


BOTH = "cluster/broker-1/data or cluster/controller-101/data"
VERIFY = "this is neither a log directory nor a partition's"
DUMP = "there are no files of a log in this directory"
METADATA = "there is no metadata log in this directory"


@pytest.mark.parametrize(
    ("command", "path", "said"),
    [
        ("log verify", "cp1", f"{VERIFY}; did you mean cp1/data?"),
        ("log verify", "cp1/", f"{VERIFY}; did you mean cp1/data?"),
        ("log verify", "cluster", f"{VERIFY}; did you mean {BOTH}?"),
        # A node's directory has a name as partitions' have.
        (
            *("log verify", "cluster/broker-1"),
            f"{VERIFY}; did you mean cluster/broker-1/data?",
        ),
        ("log verify", "empty", VERIFY),
        ("log verify", "cp2/data", "there is no such directory"),
        ("log verify", "cp1/dta", "there is no such directory; did you mean cp1/data?"),
        ("log verify", "cp1/server.properties", "not a directory; did you mean cp1/data?"),
        ("log dump", "cp1", f"{DUMP}; did you mean cp1/data?"),
        ("log dump", "cluster", f"{DUMP}; did you mean {BOTH}?"),
        ("log dump", "empty", DUMP),
        ("log dump", "cp", "there is no such file or directory; did you mean cp1/data?"),
        ("metadata dump", ".", f"{METADATA}; did you mean cp1?"),
        (
            *("metadata dump", "cluster"),
            f"{METADATA}; did you mean cluster/broker-1 or cluster/controller-101?",
        ),
        ("metadata dump", "empty", METADATA),
        ("metadata shell", "cp1/dta", "there is no such file or directory; did you mean cp1/data?"),
    ],
)
def test_a_directory_with_nothing_to_check_is_status_1(
    home: Path, command: str, path: str, said: str
) -> None:
    assert run_here(*command.split(), path) == Ended(1, "", f"moldau: {path}: {said}\n")


@pytest.mark.parametrize(
    "path", ["cp1/data", "cp1/data/", "cp1/data/__cluster_metadata-0", "cluster/broker-1/data"]
)
def test_what_is_a_log_is_checked_as_before(home: Path, path: str) -> None:
    done = run_here("log", "verify", path)
    assert done.status == 0, done
    assert "1 partitions, 1 segments, " in done.output
    assert run_here("log", "dump", path).status == 0
    assert run_here("metadata", "dump", path).status == 0


def test_a_log_directory_may_have_a_partitions_name_and_no_identity(home: Path) -> None:
    """As a copy has, of some partitions."""
    shutil.move("cp1/data", "copy-1")
    Path("copy-1/meta.properties").unlink()
    done = run_here("log", "verify", "copy-1")
    assert "1 partitions, 1 segments, " in done.output
    assert "copy-1/meta.properties: missing" in done.output


def test_a_log_directory_without_segments_says_that_little_is_checked(home: Path) -> None:
    shutil.rmtree("cp1/data/__cluster_metadata-0")
    done = run_here("log", "verify", "cp1/data")
    assert done.status == 0
    assert done.output.startswith("there are no segments yet: only the files beside them")


def test_a_partition_without_segments_is_status_1(home: Path) -> None:
    partition = Path("cp1/data/t-0")
    partition.mkdir()
    (partition / "partition.metadata").write_text("version: 0\ntopic_id: x\n")
    done = run_here("log", "verify", partition)
    assert (done.status, done.output) == (1, "")
    assert "there are no segments in it to check" in done.complaint


def test_a_wrong_path_of_several_is_found_before_the_first_line(home: Path) -> None:
    done = run_here("log", "dump", "cp1/data", "cp1")
    assert (done.status, done.output) == (1, "")
    assert done.complaint.startswith("moldau: cp1: there are no files of a log")


@pytest.mark.parametrize(
    ("command", "path", "said"),
    [
        ("storage info -c", "cp1", "did you mean cp1/server.properties?"),
        ("storage format -c", "cp1", "did you mean cp1/server.properties?"),
        ("server health", "cp1", "did you mean cp1/server.properties?"),
        ("quorum add-controller -c", "cp1", "did you mean cp1/server.properties?"),
        (
            *("storage info -c", "cluster"),
            "did you mean cluster/broker-1/server.properties or "
            "cluster/controller-101/server.properties?",
        ),
        ("storage info -c", "empty", "empty: cannot be read: not a regular file"),
    ],
)
def test_a_nodes_directory_in_place_of_its_configuration(
    home: Path, command: str, path: str, said: str
) -> None:
    done = run_here(*command.split(), path)
    assert (done.status, done.output) == (2, "")
    assert done.complaint.endswith(said)


def test_a_directory_in_the_clusters_own_names_that(home: Path) -> None:
    done = run_here("dev", "--data", "cp1/data")
    assert (done.status, done.output) == (1, "")
    assert "cp1/data: holds no nodes of a cluster" in done.complaint
    assert done.complaint.endswith(f"; did you mean {home / 'cp1'}?")


def test_certificates_are_looked_for_near_by(home: Path) -> None:
    Path("cp1/authority").mkdir()
    Path("cp1/authority/ca.pem").touch()
    done = run_here("certificates", "show", "cp1/data")
    assert done.complaint == (
        "moldau: cp1/data: no cluster that was made with --secure; did you mean cp1?"
    )


def test_the_search_ends(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    looked_at: list[str] = []
    monkeypatch.setattr(nearby_module, "MOST_DIRECTORIES", 5)
    for number in range(30):
        Path(f"many/{number}/below").mkdir(parents=True)

    def fits(path: str) -> bool:
        looked_at.append(path)
        return False

    assert nearby("many", fits) == ""
    assert len([each for each in looked_at if each.startswith("many/")]) == 10


def test_at_most_three_are_proposed(home: Path) -> None:
    for name in "abcde":
        Path(f"many/{name}").mkdir(parents=True)
    assert nearby("many", lambda path: path != str(home)) == (
        "; did you mean many/a, many/b, many/c or 2 more?"
    )
