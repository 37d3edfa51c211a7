"""`moldau metadata`: what it shows of a log and a snapshot that Apache Kafka wrote."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from moldau.cli.metadata_files import read_metadata
from moldau.cli.metadata_shell import Shell, ShellError, metadata_tree
from moldau.raft import MetadataLogError
from moldau.runtime.filesystem import OsFilesystem
from tests.kit.commands import Ended, run_here

GOLDEN = Path(__file__).parents[1] / "metadata" / "golden"
LOG = "00000000000000000000.log"
SNAPSHOT = "00000000000000000047-0000000001.checkpoint"
META_PROPERTIES = "version=1\ncluster.id=MkU3OEVBNTcwNTJENDM2Qg\nnode.id=1\n"


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A log directory with the golden metadata log."""
    log = tmp_path / "data" / "__cluster_metadata-0"
    log.mkdir(parents=True)
    for name in (LOG, SNAPSHOT):
        shutil.copy(GOLDEN / f"kafka-4.3.0-{name}", log / name)
    (tmp_path / "data" / "meta.properties").write_text(META_PROPERTIES)
    return tmp_path / "data"


def shell_on(path: Path) -> tuple[Shell, list[str]]:
    said: list[str] = []
    return Shell(metadata_tree(read_metadata(OsFilesystem(), str(path))), said.append), said


def ask(path: Path, *lines: str) -> list[str]:
    """What the last of these commands says, line by line."""
    shell, said = shell_on(path)
    for line in lines:
        said.clear()
        shell.run(line)
    return "\n".join(said).splitlines()


def value(path: Path, where: str) -> Any:
    return json.loads("\n".join(ask(path, f"cat {where}")))


def run(*arguments: object, stdin: str = "") -> Ended:
    return run_here("metadata", *arguments, given=stdin.encode())


def test_paths_lead_to_what_the_cluster_is(data: Path):
    assert value(data, "/brokers/1/registration")["brokerEpoch"] == 50
    assert value(data, "/brokers/1/fenced") is True
    assert ask(data, "ls /topics/byName") == ["late/", "orders/"]
    partition = value(data, "/topics/byName/orders/0/data")
    assert (partition["leader"], partition["isr"], partition["leaderEpoch"]) == (-1, [], 3)
    [topic_id] = ask(data, "cat /topics/byName/orders/id")
    assert ask(data, f"cat /topics/byId/{topic_id}/name") == ["orders"]
    assert ask(data, "cat /features/metadata.version") == ["30 (4.3-IV0)"]
    assert ask(data, "ls /configs/TOPIC/orders") == ["max.message.bytes"]
    assert ask(data, "cat /configs/BROKER/<default>/log.retention.ms") == ["123456"]
    assert ask(data, "cat /clusterId") == ["MkU3OEVBNTcwNTJENDM2Qg"]
    assert value(data, "/clientQuotas/user=alice/producer_byte_rate") == 1024.0
    assert value(data, "/producerIds/nextProducerId") == 1000
    assert value(data, "/controllers/1/registration")["controllerId"] == 1
    assert len(ask(data, "ls /acls")) == 1


def test_the_quorum_and_the_files_are_paths_too(data: Path):
    assert value(data, "/metadataQuorum/leader") == {"leaderId": 1, "leaderEpoch": 2}
    assert value(data, "/metadataQuorum/kraftVersion") == 1
    [endpoint] = value(data, "/metadataQuorum/voters/1")["endpoints"]
    assert endpoint["listenerName"] == "CONTROLLER"
    assert value(data, "/metadataQuorum/offset") == 69
    log = data / "__cluster_metadata-0"
    assert value(data, "/local/files") == [str(log / SNAPSHOT), str(log / LOG)]
    assert value(data, "/local/damage") == []
    assert value(data, "/local/nodeId") == 1
    assert value(data, "/local/lastContainedEpoch") == 2


def test_secrets_are_not_shown(data: Path):
    credential = value(data, "/scram/SCRAM-SHA-256/alice")
    assert credential["iterations"] == 4096
    assert {credential[name] for name in ("salt", "storedKey", "serverKey")} == {"[hidden]"}


def test_a_node_that_is_only_formatted_has_a_snapshot_and_no_log(data: Path):
    (data / "__cluster_metadata-0" / LOG).unlink()
    assert value(data, "/metadataQuorum/offset") == 46


def test_a_snapshot_and_a_log_alone(data: Path):
    log = data / "__cluster_metadata-0"
    assert ask(log / SNAPSHOT, "ls /topics/byName") == ["orders/"]
    assert value(log / SNAPSHOT, "/metadataQuorum/offset") == 46
    assert value(log / LOG, "/metadataQuorum/offset") == 69
    whole, replayed = (ask(path, "cat /local/digest") for path in (log, log / LOG))
    assert whole == replayed
    for path in (data.parent, data, log):
        assert ask(path, "cat /local/digest") == whole
    bootstrap = data / "bootstrap.checkpoint"
    shutil.copy(GOLDEN / "kafka-4.3.0-bootstrap.checkpoint", bootstrap)
    assert ask(bootstrap, "cat /features/metadata.version") == ["30 (4.3-IV0)"]


def test_a_torn_end_is_reported_and_the_rest_is_shown(data: Path):
    log = data / "__cluster_metadata-0" / LOG
    log.write_bytes(log.read_bytes()[:-3])
    [damage] = value(data, "/local/damage")
    assert LOG in damage
    assert value(data, "/metadataQuorum/offset") < 69
    done = run("shell", data, "ls", "/topics/byName")
    assert done.status == 0
    assert done.errors.startswith("moldau: read up to here: ")
    log.write_bytes(log.read_bytes()[:200] + b"\xff" + log.read_bytes()[201:])
    (log.parent / SNAPSHOT).write_bytes(b"nonsense")
    with pytest.raises(MetadataLogError, match=SNAPSHOT):
        read_metadata(OsFilesystem(), str(data))


def test_zeros_at_the_end_of_an_open_segment_are_no_damage(data: Path):
    log = data / "__cluster_metadata-0" / LOG
    log.write_bytes(log.read_bytes() + bytes(4096))
    assert value(data, "/local/damage") == []
    assert value(data, "/metadataQuorum/offset") == 69


def test_walking_around(data: Path):
    assert ask(data, "cd topics/byName", "pwd") == ["/topics/byName"]
    assert ask(data, "cd topics/byName", "cd ../../..", "pwd") == ["/"]
    assert ask(data, "cd /topics/byName/orders", "cd", "pwd") == ["/"]
    assert ask(data, "cd topics", "ls byName/o*/[01]") == [
        "/topics/byName/orders/0:",
        "data",
        "/topics/byName/orders/1:",
        "data",
    ]
    assert ask(data, "ls /brokers/1/*") == [
        "/brokers/1/fenced",
        "/brokers/1/inControlledShutdown",
        "/brokers/1/registration",
    ]
    assert ask(data, "find /configs/TOPIC") == [
        "/configs/TOPIC",
        "/configs/TOPIC/orders",
        "/configs/TOPIC/orders/max.message.bytes",
    ]
    assert ask(data, "tree /configs/TOPIC") == [
        "/configs/TOPIC",
        "  orders/",
        "    max.message.bytes",
        "      2000000",
    ]
    assert ask(data, "cd configs", "tree TOPIC/orders/max.message.bytes") == ["2000000"]
    assert ask(data, "", "# a comment") == []
    assert ask(data, "man cat") == ["cat PATH…", "    Print the value of each path."]
    assert len(ask(data, "help")) == len(ask(data, "man")) == 9


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("cat /brokers", "cat: /brokers is a directory"),
        ("cat", "cat: which path"),
        ("cat /nothing", "/nothing: no such file or directory"),
        ("ls /brokers/7*", r"/brokers/7\*: no such file or directory"),
        ("cd /clusterId", "cd: /clusterId is not a directory"),
        ("cd /brokers /topics", "cd: one directory only"),
        ("cd /*", "matches several"),
        ("vi /brokers", "vi: no such command; there are cat, cd,"),
        ("man vi", "man: vi is no command"),
        ("cat 'open", "No closing quotation"),
    ],
)
def test_mistakes_are_one_line_and_change_nothing(data: Path, line: str, said: str):
    shell, _ = shell_on(data)
    shell.run("cd brokers")
    with pytest.raises(ShellError, match=said) as caught:
        shell.run(line)
    assert "\n" not in str(caught.value)
    assert shell.directory == "/brokers"


def test_completion(data: Path):
    shell, _ = shell_on(data)
    assert shell.complete("ca") == ["cat "]
    assert shell.complete("cd to") == ["topics/"]
    assert shell.complete("ls /topics/byName/o") == ["/topics/byName/orders/"]
    assert shell.complete("cat /clus") == ["/clusterId "]
    assert shell.complete("cat /nowhere/x") == []
    assert shell.complete("cat /clusterId/x") == []


def test_commands_from_arguments_and_from_the_input(data: Path):
    assert run("shell", data, "ls", "/topics").output == "byId/\nbyName/\n"
    piped = run("shell", data, stdin="cd topics\npwd\nls nope\npwd\nexit\nls\n")
    assert piped.output == "/topics\n/topics\n"
    assert piped.errors == "moldau: nope: no such file or directory\n"
    assert piped.status == 1
    refused = run("shell", data, "cat", "/nope")
    assert (refused.status, refused.output) == (1, "")
    for command in ("shell", "dump"):
        missing = run(command, data / "nothing")
        assert missing.status == 1
        assert "no such file or directory" in missing.errors
    (data / "empty").mkdir()
    assert "no metadata log" in run("shell", data / "empty", "ls").errors


def test_dump_shows_every_record_with_offset_and_epoch(data: Path):
    done = run("dump", "--json", data)
    assert done.status == 0, done.errors
    rows = [json.loads(line) for line in done.output.splitlines()]
    log_rows = rows[1 : next(i for i, row in enumerate(rows[1:], 1) if row["row"] == "file")]
    assert [row["offset"] for row in log_rows] == list(range(70))
    assert [row["leaderEpoch"] for row in log_rows] == [1] * 48 + [2] * 22
    assert log_rows[0]["row"] == "control"
    assert (log_rows[0]["type"], log_rows[0]["data"]["leaderId"]) == ("LEADER_CHANGE", 1)
    topic = next(row for row in log_rows if row["type"] == "TopicRecord")
    assert topic["data"]["name"] == "orders"
    assert rows[-1]["type"] == "SNAPSHOT_FOOTER"
    text = run("dump", data / "__cluster_metadata-0" / SNAPSHOT).output.splitlines()
    assert SNAPSHOT in text[0]
    assert text[1].startswith('0 epoch 1 SNAPSHOT_HEADER {"version":0,')


def test_dump_goes_on_behind_damage_and_says_so(data: Path):
    log = data / "__cluster_metadata-0" / LOG
    damaged = bytearray(log.read_bytes())
    damaged[100] ^= 0xFF
    log.write_bytes(damaged)
    done = run("dump", log)
    assert done.status == 1
    assert "ERROR at byte 0: the CRC does not match" in done.output
    assert "TopicRecord" in done.output
    assert done.errors == "moldau: 1 errors in these files\n"
