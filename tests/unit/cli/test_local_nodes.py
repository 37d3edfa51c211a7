"""`moldau quorum bootstrap` and `dev` without running anything: what they write and refuse."""

from __future__ import annotations

import os
import re
import socket
from pathlib import Path

import pytest

from moldau.config import NodeConfig
from tests.kit.commands import Ended, run_here


def bootstrap(*arguments: object) -> Ended:
    return run_here("quorum", "bootstrap", *arguments)


def refuse(*arguments: object) -> str:
    """Run a command to an end with one line; the line."""
    done = run_here(*arguments)
    assert (done.status, done.output) == (1, "")
    [line] = done.errors.splitlines()
    return line


def test_every_node_is_written_and_how_to_start_it_is_printed(tmp_path: Path):
    home = tmp_path / "a cluster"
    done = bootstrap(home, "--controllers", 3, "--brokers", 2, "--base-port", 21000)
    assert (done.status, done.errors) == (0, "")
    names = [f"controller-{number}" for number in (101, 102, 103)] + ["broker-1", "broker-2"]
    assert sorted(path.name for path in home.iterdir()) == sorted(names)
    first, *lines, last, console = done.output.splitlines()
    assert re.fullmatch(r"cluster \S{22}: 3 controllers, 2 brokers in .*", first)
    assert lines[1:] == [
        f"  moldau server start '{home / name / 'server.properties'}'" for name in names
    ]
    assert last == "clients connect to localhost:21000,localhost:21001"
    assert console == "console: http://localhost:21300/console/"
    for name in names:
        config = NodeConfig.load(str(home / name / "server.properties"))
        assert config.node_id == int(name.rpartition("-")[2])
        assert (home / name / "data" / "meta.properties").exists()
        servers = [str(each) for each in config.quorum_bootstrap_servers]
        assert servers == ["localhost:21100", "localhost:21101", "localhost:21102"]
        has_console = name == "broker-1"
        assert config["moldau.console.enable"] is has_console
        assert config["moldau.http.listener"] == ("localhost:21300" if has_console else "")


def test_a_cluster_that_others_reach_has_no_console(tmp_path: Path):
    home = tmp_path / "wide"
    done = bootstrap(home, "--brokers", 1, "--controllers", 1, "--host", "10.0.0.9")
    assert "console" not in done.output
    config = NodeConfig.load(str(home / "broker-1" / "server.properties"))
    assert (config["moldau.console.enable"], config["moldau.http.listener"]) == (False, "")


def test_a_cluster_without_the_extra_says_so_in_a_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("moldau.local.layout.find_spec", lambda _: None)
    done = bootstrap(tmp_path / "plain", "--brokers", 1, "--controllers", 1)
    assert done.status == 0
    assert done.output.splitlines()[-1] == "no console: pip install 'moldau[server]'"


def test_a_secured_cluster_has_listeners_to_scrape_and_says_who_can_read_its_files(tmp_path: Path):
    home = tmp_path / "secured"
    counts = ("--controllers", 1, "--brokers", 2, "--base-port", 21000)
    done = bootstrap(home, "--secure", *counts)
    assert (done.status, done.errors) == (0, "")
    assert done.output.splitlines()[-5] == (
        f"metrics: curl --cacert {home}/authority/ca.pem --cert {home}/admin.pem "
        "https://localhost:21300/metrics"
    )
    for port, name in enumerate(("broker-1", "broker-2", "controller-101"), start=21300):
        config = NodeConfig.load(str(home / name / "server.properties"))
        assert config["moldau.http.listener"] == f"localhost:{port}"
        assert config["moldau.http.ssl.keystore.location"] == str(home / name / "certificate.pem")
        assert config["moldau.http.ssl.client.auth"] == "requested"
        assert config["moldau.http.authentication"] == ("BASIC",)
        assert config["moldau.console.enable"] is (name != "controller-101")
    assert "console: https://localhost:21300/console/" in done.output.splitlines()
    comment = [line for line in (home / "kcat.conf").read_text().splitlines() if line[0] == "#"]
    assert "librdkafka from 2.6.1 on" in comment[0]
    assert "Debian 12's kcat has 2.0.2" in " ".join(comment)


def test_a_directory_that_holds_anything_is_left_alone(tmp_path: Path):
    (tmp_path / "mine").write_text("important")
    done = bootstrap(tmp_path)
    assert done.status == 1
    assert done.errors == f"moldau: {tmp_path} is not empty; it is left as it is\n"
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]
    done = bootstrap(tmp_path / "mine")
    assert done.status == 1
    assert "Not a directory" in done.errors


def test_a_directory_that_holds_a_cluster_is_left_alone_and_it_says_what_runs_it(tmp_path: Path):
    home = tmp_path / "two words"
    assert bootstrap(home, "--controllers", 1, "--brokers", 1).status == 0
    done = bootstrap(home, "--controllers", 1, "--brokers", 1)
    assert (done.status, done.output) == (1, "")
    assert done.errors == (
        f"moldau: {home} is not empty; it is left as it is: a cluster is in it, which "
        f"`moldau dev --data '{home}'` runs\n"
    )


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--controllers", 0), "--controllers"),
        (("--brokers", 101), "--brokers"),
        (("--base-port", 65500), "--base-port 65500 leaves no ports for 3 controllers"),
        (
            ("--base-port", 65300, "--secure"),
            "--base-port 65300 leaves no ports for 3 controllers and 3 brokers with --secure",
        ),
    ],
)
def test_what_cannot_be_laid_out(tmp_path: Path, arguments: tuple[object, ...], said: str):
    done = bootstrap(tmp_path / "new", *arguments)
    assert done.status == 2
    assert said in done.errors
    assert not (tmp_path / "new").exists()


COMMANDS = [
    ("quorum", "bootstrap"),
    ("dev", "--port", 0, "--data"),
    ("dev", "--port", 0, "--brokers", 2, "--data"),
]


@pytest.mark.real
@pytest.mark.parametrize("command", COMMANDS, ids=["bootstrap", "one node", "two brokers"])
@pytest.mark.parametrize(
    ("below", "said"),
    [
        ("file", "Not a directory"),
        ("file/new", "Not a directory"),
        ("used", "is not empty; it is left as it is|holds no nodes of a cluster"),
        ("loop/new", "Too many levels of symbolic links"),
        ("n" * 300, "File name too long"),
        ("new/a,b", "cannot have a comma"),
    ],
)
def test_paths_that_cannot_be(tmp_path: Path, command: tuple[object, ...], below: str, said: str):
    (tmp_path / "file").write_text("mine")
    (tmp_path / "used").mkdir()
    (tmp_path / "used" / "mine").write_text("mine")
    (tmp_path / "loop").symlink_to("loop")
    before = sorted(tmp_path.rglob("*"))
    line = refuse(*command, tmp_path / below)
    assert line.startswith(f"moldau: {tmp_path}")
    assert re.search(said, line)
    assert sorted(tmp_path.rglob("*")) == before


def test_the_path_of_a_damaged_configuration_is_named_once(tmp_path: Path):
    assert bootstrap(tmp_path / "many", "--base-port", 21000).status == 0
    damaged = tmp_path / "many" / "broker-1" / "server.properties"
    damaged.write_bytes(b"node.id=\xff")
    line = refuse("dev", "--data", tmp_path / "many")
    assert line == f"moldau: {damaged}: is not UTF-8 text (byte 8)", "the path once"
    damaged.write_bytes(b"node.id=x\nprocess.roles=broker\n")
    line = refuse("dev", "--data", tmp_path / "many")
    assert line.startswith(f"moldau: {damaged}: node.id=x: must be")


def test_a_name_that_is_no_utf_8_cannot_stand_in_a_configuration(tmp_path: Path):
    done = bootstrap(tmp_path / "new" / os.fsdecode(b"caf\xe9"))
    assert done.status == 1
    assert re.fullmatch(r"moldau: broker 1: .*/caf\\udce9/.* is not UTF-8 text .*\n", done.errors)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("exists", [False, True])
def test_a_failure_half_way_leaves_nothing(tmp_path: Path, exists: bool):
    """The path of the metadata log is longer than any path may be; those before it are not."""
    home = tmp_path / "new"
    while len(str(home)) < 4_050:
        home /= "d" * min(200, 4_050 - len(str(home)) - 1)
    if exists:
        home.mkdir(parents=True)
    assert "File name too long" in refuse("quorum", "bootstrap", home)
    assert home.exists() is exists
    assert list(home.iterdir() if exists else tmp_path.iterdir()) == []


@pytest.mark.real
@pytest.mark.parametrize("brokers", [1, 3])
def test_a_port_in_use_is_named_before_anything_is_written(tmp_path: Path, brokers: int):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        arguments = ("--host", "127.0.0.1", "--port", port, "--brokers", brokers)
        line = refuse("dev", *arguments, "--data", tmp_path / "new" / "data")
        node = "node 1" if brokers == 1 else "broker 1"
        assert line == (
            f"moldau: 127.0.0.1:{port} is in use; {node} has it in `listeners`: "
            "stop what listens there, or choose another port"
        )
        assert list(tmp_path.iterdir()) == []


@pytest.mark.real
def test_a_host_that_is_not_this_machine_is_not_taken_for_a_port_in_use(tmp_path: Path):
    line = refuse("dev", "--host", "no.such.host.invalid", "--data", tmp_path / "new")
    assert re.fullmatch(r"moldau: no\.such\.host\.invalid(:\d+ cannot be used)?: [\w ,-]+", line), (
        line
    )
    line = refuse("dev", "--host", "192.0.2.1", "--port", 80, "--data", tmp_path / "new")
    assert line.endswith("Cannot assign requested address"), line


def test_a_cluster_keeps_its_shape(tmp_path: Path):
    assert bootstrap(tmp_path / "many", "--base-port", 21000).status == 0
    for option, value in (
        *(("--controllers", 1), ("--brokers", 1)),
        *(("--host", "127.0.0.1"), ("--port", 9092)),
    ):
        assert refuse("dev", "--data", tmp_path / "many", option, value) == (
            f"moldau: {tmp_path / 'many'} holds a cluster of 3 controllers and 3 brokers on "
            "localhost:21000,localhost:21001,localhost:21002, it cannot have "
            f"{option} {value}: leave that out, or choose another directory"
        )
    line = refuse("dev", "--data", tmp_path / "many" / "broker-2")
    assert "/many/broker-2: holds only broker 2 of a cluster; did you mean " in line
    assert line.endswith(f" {tmp_path / 'many'}?")
