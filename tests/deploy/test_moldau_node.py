"""`moldau-node`, the helper in the container: who votes after formatting, health, waiting."""

from __future__ import annotations

import importlib.util
import json
import os
import ssl
import subprocess
import threading
from collections.abc import Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import trustme

from moldau.node.initial_users import scram_records
from moldau.protocol.scram import MECHANISM_NUMBERS, salted_password, scram_keys
from tests.deploy.command_lines import CommandLine, check
from tests.deploy.files import DEPLOY
from tests.deploy.helm_chart import CLUSTER_ID

pytestmark = pytest.mark.real

VOTERS = "101@a:9093:vAAwqmKmQ5exlmtKoxr_CA,102@b:9093:s74AwfMsTYaVv5OMpkwihw"
CONTROLLER = {
    "process.roles": "controller",
    "node.id": "101",
    "listeners": "CONTROLLER://127.0.0.1:9093",
    "controller.listener.names": "CONTROLLER",
    "controller.quorum.bootstrap.servers": "a:9093,b:9093",
    "moldau.http.listener": "0.0.0.0:8080",
}
BROKER = {**CONTROLLER, "process.roles": "broker", "node.id": "1", "listeners": "PLAINTEXT://:9092"}


class Moldau:
    """Stands for the `moldau` command: answers by its first words, and remembers what was asked."""

    def __init__(self) -> None:
        self.answers: dict[tuple[str, str], tuple[int, Any]] = {("storage", "format"): (0, None)}
        self.asked: list[tuple[str, ...]] = []

    def __call__(self, *arguments: str, captured: bool = False) -> subprocess.CompletedProcess[str]:
        check(CommandLine("moldau-node", arguments, may_be_a_name=False))
        self.asked.append(arguments)
        status, document = self.answers.get((arguments[0], arguments[1]), (1, None))
        return subprocess.CompletedProcess([], status, json.dumps(document) if captured else None)

    @property
    def formatting(self) -> list[tuple[str, ...]]:
        """The options behind `storage format … --ignore-formatted`, of each time."""
        asked = [each for each in self.asked if each[:2] == ("storage", "format")]
        return [each[each.index("--ignore-formatted") + 1 :] for each in asked]


@pytest.fixture(scope="module")
def script() -> ModuleType:
    """The container's script."""
    path = DEPLOY / "container" / "moldau_node.py"
    spec = importlib.util.spec_from_file_location("moldau_node_of_the_container", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def moldau(script: ModuleType, monkeypatch: pytest.MonkeyPatch) -> Moldau:
    """What the script believes to be the command line."""
    fake = Moldau()
    monkeypatch.setattr(script, "moldau", fake)
    monkeypatch.setattr(script.time, "sleep", lambda _seconds: None)
    monkeypatch.setenv("MOLDAU_CLUSTER_ID", CLUSTER_ID)
    monkeypatch.setenv("MOLDAU_INITIAL_CONTROLLERS", VOTERS)
    return fake


def written(home: Path, properties: Mapping[str, str], *directories: str) -> str:
    """A configuration with these log directories, the first of which is the metadata's."""
    paths = ",".join(str(home / name) for name in directories or ("data",))
    text = "".join(f"{key}={value}\n" for key, value in {**properties, "log.dirs": paths}.items())
    (home / "server.properties").write_text(text)
    return str(home / "server.properties")


def formatted(home: Path, name: str) -> None:
    (home / name).mkdir()
    (home / name / "meta.properties").touch()


def replica(node_id: int, log_end_offset: int, status: str = "Follower") -> dict[str, Any]:
    return {"node_id": node_id, "log_end_offset": log_end_offset, "status": status}


FOUNDING = [replica(102, 13, "Leader"), replica(101, -1)]


@pytest.mark.parametrize(
    ("replicas", "words"),
    [
        ([replica(102, 40, "Leader"), replica(101, 12)], "has heard of this voter"),
        ([replica(102, 4_000, "Leader"), replica(101, -1)], "has 4000 records"),
        ([replica(102, 13, "Leader"), replica(101, 13, "Observer")], "has other voters"),
    ],
)
def test_a_controller_with_a_new_disk_does_not_vote_as_the_one_it_was(
    script: ModuleType,
    moldau: Moldau,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    replicas: list[dict[str, Any]],
    words: str,
):
    moldau.answers["quorum", "replication"] = (0, replicas)
    assert script.main(["format", written(tmp_path, CONTROLLER)]) == 0
    assert moldau.formatting == [("--no-initial-controllers",)]
    said = capsys.readouterr().err
    assert words in said
    assert "add-controller" in said


@pytest.mark.parametrize("answer", [(1, None), (0, FOUNDING)])
def test_a_controller_is_a_founder_while_the_quorum_is_being_founded(
    script: ModuleType, moldau: Moldau, tmp_path: Path, answer: tuple[int, Any]
):
    moldau.answers["quorum", "replication"] = answer
    assert script.main(["format", written(tmp_path, CONTROLLER)]) == 0
    assert moldau.formatting == [("--initial-controllers", VOTERS)]
    assert "a:9093,b:9093" in moldau.asked[0]


def test_a_controller_without_named_voters_waits_to_be_added(
    script: ModuleType,
    moldau: Moldau,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
):
    monkeypatch.setenv("MOLDAU_INITIAL_CONTROLLERS", "")
    assert script.main(["format", written(tmp_path, CONTROLLER)]) == 0
    assert moldau.formatting == [("--no-initial-controllers",)]
    assert "waits to be added" in capsys.readouterr().err


def test_a_broker_has_no_part_in_who_votes(script: ModuleType, moldau: Moldau, tmp_path: Path):
    assert script.main(["format", written(tmp_path, BROKER)]) == 0
    assert moldau.formatting == [()]
    assert moldau.asked[0][:6] == (
        *("storage", "format", "--config", str(tmp_path / "server.properties")),
        *("--cluster-id", CLUSTER_ID),
    )


def test_storage_that_is_formatted_is_left_alone(
    script: ModuleType, moldau: Moldau, tmp_path: Path
):
    formatted(tmp_path, "data")
    assert script.main(["format", written(tmp_path, CONTROLLER)]) == 0
    assert moldau.asked == []


def test_a_further_disk_does_not_make_a_controller_a_founder_again(
    script: ModuleType, moldau: Moldau, tmp_path: Path
):
    formatted(tmp_path, "data")
    assert script.main(["format", written(tmp_path, CONTROLLER, "data", "more")]) == 0
    assert moldau.formatting == [("--no-initial-controllers",)]


def test_a_failed_format_is_the_end(
    script: ModuleType, moldau: Moldau, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    moldau.answers["storage", "format"] = (1, None)
    monkeypatch.setattr(script.os, "execv", lambda *_: pytest.fail("the node was started"))
    assert script.main(["run", written(tmp_path, BROKER)]) == 1


def test_run_becomes_the_node(
    script: ModuleType, moldau: Moldau, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    became: list[Any] = []
    monkeypatch.setattr(script.os, "execv", lambda *arguments: became.append(arguments))
    path = written(tmp_path, BROKER)
    script.main(["run", path])
    [(program, words)] = became
    assert words == [program, "-m", "moldau.broker", path]
    assert moldau.formatting == [()]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "usage: moldau-node format|run|health|wait-in-sync CONFIG"),
        (["format"], "usage"),
        (["start", "CONFIG"], "usage"),
        (["format", "/nowhere/server.properties"], "/nowhere/server.properties"),
    ],
)
def test_wrong_usage(
    script: ModuleType, capsys: pytest.CaptureFixture[str], arguments: list[str], words: str
):
    with pytest.raises(SystemExit) as ended:
        script.main(arguments)
    assert ended.value.code == 2
    said = capsys.readouterr().err
    assert said.startswith("moldau-node: ")
    assert words in said


def test_without_a_cluster_id_nothing_is_formatted(
    script: ModuleType,
    moldau: Moldau,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
):
    monkeypatch.delenv("MOLDAU_CLUSTER_ID")
    with pytest.raises(SystemExit) as ended:
        script.main(["format", written(tmp_path, BROKER)])
    assert ended.value.code == 2
    assert "MOLDAU_CLUSTER_ID is not set" in capsys.readouterr().err
    assert moldau.asked == []


# -- health ----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def listener() -> Iterator[int]:
    """The port of a listener that is ready, and dead."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200 if self.path == "/readyz" else 503)
            self.end_headers()
            self.wfile.write(b"about " + self.path.encode())

        def log_message(self, *_: object) -> None:
            """The stream is not read."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server.server_address[1]
        server.shutdown()
        thread.join()


def test_health_is_what_the_listener_answers(
    script: ModuleType, listener: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    path = written(tmp_path, {**BROKER, "moldau.http.listener": f"0.0.0.0:{listener}"})
    assert script.main(["health", path]) == 0
    assert script.main(["health", path, "/healthz"]) == 1
    assert capsys.readouterr().out == "about /readyz\nabout /healthz\n"


def test_health_over_tls(
    script: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    leaf = trustme.CA().issue_cert("node.example")
    store = tmp_path / "http.pem"
    leaf.private_key_and_cert_chain_pem.write_to_path(str(store))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    leaf.configure_cert(context)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"over TLS")

        def log_message(self, *_: object) -> None:
            """The stream is not read."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.socket = context.wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        secured = {
            "moldau.http.listener": f"0.0.0.0:{server.server_address[1]}",
            "moldau.http.ssl.keystore.location": str(store),
        }
        assert script.main(["health", written(tmp_path, {**BROKER, **secured})]) == 0
        server.shutdown()
        thread.join()
    assert capsys.readouterr().out == "over TLS\n"


def test_health_fails_with_the_address_when_nothing_listens(
    script: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    path = written(tmp_path, {**BROKER, "moldau.http.listener": "127.0.0.1:1"})
    assert script.main(["health", path]) == 1
    assert "127.0.0.1:1/readyz" in capsys.readouterr().err
    with pytest.raises(SystemExit) as ended:
        script.main(["health", written(tmp_path, {**BROKER, "moldau.http.listener": ""})])
    assert ended.value.code == 2


# -- secured listeners -----------------------------------------------------------------------------

SECURED = {
    "listeners": "CLIENT://0.0.0.0:9092,INTERNAL://0.0.0.0:9091",
    "advertised.listeners": "CLIENT://broker-1:9092,INTERNAL://broker-1:9091",
    "listener.security.protocol.map": "CLIENT:SASL_SSL,INTERNAL:SSL,CONTROLLER:SSL",
    "inter.broker.listener.name": "INTERNAL",
    "ssl.keystore.location": "/keys/of-all.pem",
    "listener.name.internal.ssl.keystore.location": "/keys/internal.pem",
    "ssl.truststore.location": "/keys/ca.pem",
    "listener.name.internal.ssl.client.auth": "required",
}


def test_a_secured_broker_is_asked_by_the_name_in_its_certificate(
    script: ModuleType, moldau: Moldau, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("MOLDAU_PROFILE", "admin")
    moldau.answers["topics", "describe"] = (0, [])
    assert script.main(["wait-in-sync", written(tmp_path, {**BROKER, **SECURED})]) == 0
    [asked] = moldau.asked
    assert asked[-2:] == ("--bootstrap-server", "broker-1:9092")


def test_a_quorum_that_is_secured_is_asked_with_its_profile(
    script: ModuleType,
    moldau: Moldau,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
):
    monkeypatch.setenv("MOLDAU_CONTROLLERS_PROFILE", "controllers")
    keys = {key: SECURED[key] for key in ("ssl.keystore.location", "ssl.truststore.location")}
    secured = {**CONTROLLER, "listener.security.protocol.map": "CONTROLLER:SSL", **keys}
    assert script.main(["format", written(tmp_path, secured)]) == 0
    assert moldau.asked[0][-2:] == ("--profile", "controllers")
    # It says why it goes on as a founder: whether nothing answers, or what does refuses.
    assert "no controller answers, so this one is a founder (status 1)" in capsys.readouterr().err


@pytest.mark.parametrize("password", ['a, b"]', "geheim\nnever read"])
def test_a_cluster_is_founded_with_its_administrator(
    script: ModuleType,
    moldau: Moldau,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    password: str,
):
    (tmp_path / "password").write_text(password)
    monkeypatch.setenv("MOLDAU_ADMIN_PASSWORD_FILE", str(tmp_path / "password"))
    assert script.main(["format", written(tmp_path, CONTROLLER)]) == 0
    [(_, _, option, user)] = moldau.formatting
    assert option == "--add-scram"
    assert password.partition("\n")[0] not in user
    [record] = scram_records([user], lambda _: b"")
    assert (record.name, record.mechanism) == ("admin", MECHANISM_NUMBERS["SCRAM-SHA-512"])
    salted = salted_password(
        "SCRAM-SHA-512", password.partition("\n")[0], record.salt, record.iterations
    )
    keys = scram_keys("SCRAM-SHA-512", salted, record.salt, record.iterations)
    assert record.stored_key == keys.stored_key


@pytest.mark.parametrize("content", [None, "", "\n"])
def test_a_cluster_is_not_founded_without_the_password_that_is_promised(
    script: ModuleType,
    moldau: Moldau,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    content: str | None,
):
    if content is not None:
        (tmp_path / "password").write_text(content)
    monkeypatch.setenv("MOLDAU_ADMIN_PASSWORD_FILE", str(tmp_path / "password"))
    with pytest.raises(SystemExit) as ended:
        script.main(["format", written(tmp_path, CONTROLLER)])
    assert ended.value.code == 2
    assert str(tmp_path / "password") in capsys.readouterr().err
    assert moldau.formatting == []


# -- before a broker stops -------------------------------------------------------------------------


def under_replicated(*, offline: bool) -> list[dict[str, Any]]:
    row = {"partition": 0, "out_of_sync_replicas": [2], "offline_replicas": [2] if offline else []}
    return [{"name": "flights", "partitions": [row]}]


def test_a_broker_that_stops_waits_for_those_that_catch_up(
    script: ModuleType, moldau: Moldau, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    path = written(tmp_path, BROKER)
    moldau.answers["topics", "describe"] = (0, under_replicated(offline=False))
    pauses: list[float] = []

    def caught_up(seconds: float) -> None:
        pauses.append(seconds)
        moldau.answers["topics", "describe"] = (0, [])

    monkeypatch.setattr(script.time, "sleep", caught_up)
    assert script.main(["wait-in-sync", path]) == 0
    assert len(pauses) == 1
    assert moldau.asked[0][-2:] == ("--bootstrap-server", "127.0.0.1:9092")


def test_it_does_not_wait_for_ever(
    script: ModuleType, moldau: Moldau, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    moldau.answers["topics", "describe"] = (0, under_replicated(offline=False))
    assert script.main(["wait-in-sync", written(tmp_path, BROKER), "0"]) == 0
    assert "flights-0 on broker 2" in capsys.readouterr().err


@pytest.mark.parametrize("answer", [(0, under_replicated(offline=True)), (0, []), (1, None)])
def test_it_does_not_wait_for_dead_brokers_or_without_an_answer(
    script: ModuleType,
    moldau: Moldau,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    answer: tuple[int, Any],
):
    moldau.answers["topics", "describe"] = answer
    monkeypatch.setattr(script.time, "sleep", lambda _: pytest.fail("it waited"))
    assert script.main(["wait-in-sync", written(tmp_path, BROKER)]) == 0
    assert len(moldau.asked) == 1


def test_a_controller_has_no_replicas_to_wait_for(
    script: ModuleType, moldau: Moldau, tmp_path: Path
):
    assert script.main(["wait-in-sync", written(tmp_path, CONTROLLER)]) == 0
    assert moldau.asked == []


def test_a_limit_is_a_number(
    script: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    with pytest.raises(SystemExit) as ended:
        script.main(["wait-in-sync", written(tmp_path, BROKER), "soon"])
    assert ended.value.code == 2
    assert "'soon'" in capsys.readouterr().err


# -- the rack --------------------------------------------------------------------------------------


def test_the_rack_that_the_chart_has_found_is_the_brokers(
    script: ModuleType, moldau: Moldau, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    started: list[str | None] = []
    monkeypatch.setattr(
        script.os, "execv", lambda *_: started.append(os.environ.get("KAFKA_BROKER_RACK"))
    )
    (tmp_path / "rack").write_text("eu-1a\n")
    monkeypatch.setenv("MOLDAU_RACK_FILE", str(tmp_path / "rack"))
    monkeypatch.setenv("KAFKA_BROKER_RACK", "")
    assert script.main(["run", written(tmp_path, BROKER)]) == 0
    assert started == ["eu-1a"]


@pytest.mark.parametrize("variable", ["MOLDAU_RACK", "MOLDAU_RACK_FILE"])
def test_no_broker_runs_with_a_rack_that_is_none(
    script: ModuleType,
    moldau: Moldau,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    variable: str,
):
    """Kubernetes gives a label that is not there as an empty text."""
    (tmp_path / "rack").touch()
    monkeypatch.setenv(variable, "" if variable == "MOLDAU_RACK" else str(tmp_path / "rack"))
    with pytest.raises(SystemExit) as ended:
        script.main(["run", written(tmp_path, BROKER)])
    assert ended.value.code == 1
    assert "this pod has none" in capsys.readouterr().err
