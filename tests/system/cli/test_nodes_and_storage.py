"""`moldau dev`, `server start` and `storage`: a node from its formatting to its orderly end."""

from __future__ import annotations

import json
import re
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.kit.waiting import until
from tests.system.cli.conftest import FAILED, WRONG_USAGE, Cli
from tests.system.processes import properties

LOG_LINE = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3} (INFO   |WARNING) [a-z._]+: ")
CLUSTER_ID = "MkU3OEVBNTcwNTJENDM2Qg"
BROKER_ONLY = {"process_roles": "broker", "listeners": "PLAINTEXT://127.0.0.1:0"}
CONTROLLER_ONLY = {"process_roles": "controller", "listeners": "CONTROLLER://127.0.0.1:0"}


@contextmanager
def running(
    cli: Cli, *arguments: object, follow: str = "stdout"
) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A node command in the foreground, and the first line of one of its outputs. A process, since
    it serves until a signal ends it.
    """
    with cli.start(*arguments, stdin=subprocess.DEVNULL) as process:
        followed = getattr(process, follow)
        try:
            yield process, followed.readline()
        finally:
            process.kill()


def address_in(line: str) -> str:
    assert line.startswith("ready: "), line
    return line.removeprefix("ready: ").strip()


def test_dev_creates_topics_and_leaves_nothing_behind(cli: Cli):
    with running(cli, "dev", "--port", 0, "--topic", "flights:4", "--topic", "plain") as (
        node,
        line,
    ):
        address = address_in(line)
        found = cli.json("topics", "describe", "-b", address)
        described = {topic["name"]: len(topic["partitions"]) for topic in found}
        assert described == {"flights": 4, "plain": 1}
        [directory] = cli.json("brokers", "describe", 1, "-b", address)["log_directories"]
        assert Path(directory["directory"]).exists()
        node.send_signal(signal.SIGINT)
        assert node.wait(60) == 0
        assert node.stderr is not None
        log = node.stderr.read()
        assert "Traceback" not in log
        first = next(line for line in log.splitlines() if " INFO " in line)
        assert " INFO    node.foreground: node serves" in first, "of elections nothing before it"
        # How long work holds a loop says something about the machine.
        warnings = [line for line in log.splitlines() if " WARNING " in line]
        assert [line for line in warnings if " WARNING server.loop_watchdog: " not in line] == []
    assert not Path(directory["directory"]).parent.exists()


def test_dev_keeps_the_data_it_is_given(cli: Cli, tmp_path: Path):
    home = tmp_path / "kept data"
    addresses = []
    for arguments in (("--port", 0, "--topic", "kept:1"), ()):
        with running(cli, "dev", "--data", home, *arguments) as (node, line):
            addresses.append(address_in(line))
            assert cli.json("topics", "list", "-b", addresses[-1]) == ["kept"]
            again = cli.refused("dev", "--data", home)
            assert f"{addresses[-1]} is in use; node 1 has it in `listeners`" in again
            node.terminate()
            assert node.stderr is not None
            log = node.stderr.read().splitlines()
            assert node.wait(60) == 0
            assert log[-1].endswith(" INFO    node.foreground: stopped")
            assert [line for line in log if not LOG_LINE.match(line)] == []
    assert addresses[0] == addresses[1]
    assert (home / "data" / "kept-0").is_dir()
    assert "group.initial.rebalance.delay.ms=0" in (home / "server.properties").read_text()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--brokers", "0"], "--brokers"),
        (["--controllers", "101"], "--controllers"),
        (["--brokers", "2", "--port", "65500"], "leaves no ports"),
        (["--topic", "a:b"], "NAME:PARTITIONS"),
        (["--topic", "a:0"], "at least 1"),
        (["--port", "70000"], "--port"),
    ],
)
def test_dev_refuses(cli: Cli, arguments: list[str], said: str):
    assert said in cli.refused("dev", *arguments, status=WRONG_USAGE)


def test_a_server_from_formatting_to_its_end(cli: Cli, tmp_path: Path):
    config = properties(tmp_path)
    data = tmp_path / "data"
    unformatted = cli.end("storage", "info", "--config", config)
    assert unformatted.status == FAILED
    assert "not formatted" in unformatted.output
    said = cli.refused("server", "start", config)
    assert str(data) in said
    formatted = cli.ok("storage", "format", "-c", config, "-t", CLUSTER_ID, "--standalone")
    assert formatted == f"formatted {data} for node 1 of cluster {CLUSTER_ID}\n"
    assert "formatted" in cli.refused("storage", "format", "-c", config, "--standalone")
    again = cli.ok("storage", "format", "-c", config, "--standalone", "--ignore-formatted")
    assert again == "nothing to format\n"
    [identity] = cli.json("storage", "info", "--config", config)
    assert (identity["cluster_id"], identity["node_id"]) == (CLUSTER_ID, 1)
    assert identity["problem"] is None
    # The ready line belongs to `dev`; a server says it with a log line.
    override = ("--override", "moldau.log.format=json")
    with running(cli, "server", "start", config, *override, follow="stderr") as (node, line):
        assert node.stderr is not None
        while line and "address" not in json.loads(line):
            line = node.stderr.readline()
        address = json.loads(line)["address"]
        assert cli.json("brokers", "list", "-b", address)["cluster_id"] == CLUSTER_ID
        node.terminate()
        rest = node.stderr.read().splitlines()
        assert node.wait(60) == 0
    assert all(json.loads(line)["event"] for line in rest)
    until(lambda: (data / ".kafka_cleanshutdown").exists(), what="the mark of a clean end")


def test_storage_refuses(cli: Cli, tmp_path: Path):
    config = properties(tmp_path)
    refuse = ("storage", "format", "-c", config)
    assert "--standalone" in cli.refused(*refuse, status=WRONG_USAGE)
    said = cli.refused(*refuse, "-s", "-t", "short", status=WRONG_USAGE)
    assert "cluster id" in said
    said = cli.refused(*refuse, "-s", "-f", "metadata.version=high", status=WRONG_USAGE)
    assert "metadata.version" in said
    said = cli.refused(*refuse, "-s", "-f", "metadata.version=29", status=WRONG_USAGE)
    assert "--release-version" in said
    said = cli.refused(*refuse, "-s", "-r", "2.8", status=WRONG_USAGE)
    assert "2.8 is not a known metadata version" in said
    said = cli.refused(*refuse, "-s", "-S", "SCRAM-SHA-256=[name=a,secret=b]", status=WRONG_USAGE)
    assert "--add-scram takes name, password" in said
    assert not (tmp_path / "data").exists()
    said = cli.refused(*refuse, "-s", "-f", "no.such.feature=1", status=WRONG_USAGE)
    assert "no.such.feature" in said
    missing = tmp_path / "nothing.properties"
    said = cli.refused("storage", "info", "-c", missing, status=WRONG_USAGE)
    assert str(missing) in said
    assert str(missing) in cli.refused("server", "start", missing, status=WRONG_USAGE)
    said = cli.refused("server", "start", config, "--override", "x", status=WRONG_USAGE)
    assert "KEY=VALUE" in said


def test_random_uuids_are_cluster_ids(cli: Cli):
    first, second = (cli.ok("storage", "random-uuid").strip() for _ in range(2))
    assert len(first) == len(second) == 22
    assert first != second


@pytest.mark.parametrize(
    ("changed", "arguments", "said"),
    [
        ({}, ("-s", "-N"), "--standalone and --no-initial-controllers exclude each other"),
        ({}, (), "--standalone, --initial-controllers or --no-initial-controllers"),
        ({}, ("-N",), "--cluster-id is needed"),
        ({}, ("-I", "1@h:1:x", "-t", CLUSTER_ID), "is not ID@HOST:PORT:DIRECTORYID"),
        ({"controller_quorum_voters": "1@h:1"}, ("-s",), "exclude each other"),
        ({"controller_quorum_voters": "1@h:1"}, ("-f", "kraft.version=1"), "exclude each other"),
        (BROKER_ONLY, ("-s",), "--standalone is for controllers"),
        (BROKER_ONLY, (), "--cluster-id is needed"),
    ],
)
def test_storage_refuses_voters_that_cannot_be(
    cli: Cli, tmp_path: Path, changed: dict[str, str], arguments: tuple[str, ...], said: str
):
    config = properties(tmp_path, **changed)
    ended = cli.end("storage", "format", "-c", config, *arguments)
    assert ended.status in (FAILED, WRONG_USAGE)
    assert said in ended.complaint
    assert not (tmp_path / "data").exists()


def test_a_quorum_is_formatted_node_by_node(cli: Cli, tmp_path: Path):
    directory_id = cli.ok("storage", "random-uuid").strip()
    voters = ("-I", f"101@h:9093:{directory_id}")
    for name, changed in (
        ("controller", {**CONTROLLER_ONLY, "node_id": "101"}),
        ("broker", {**BROKER_ONLY, "node_id": "1"}),
    ):
        home = tmp_path / name
        home.mkdir()
        config = properties(home, **changed)
        cli.ok("storage", "format", "-c", config, "-t", CLUSTER_ID, *voters)
        [identity] = cli.json("storage", "info", "-c", config)
        assert identity["problem"] is None
        assert identity["has_metadata_log"]
        assert (identity["directory_id"] == directory_id) is (name == "controller")
        again = cli.refused("storage", "format", "-c", config, "-t", CLUSTER_ID, *voters)
        assert "already formatted" in again
