"""`moldau-kubernetes`: zones, Secrets, users and fewer brokers, for the chart's pods and jobs."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from moldau.local.certificate_authority import summaries_of, summary_of
from tests.deploy.api_server import SECRETS, ApiServer
from tests.deploy.command_lines import CommandLine, check
from tests.deploy.files import DEPLOY

pytestmark = pytest.mark.real

CONTAINER = DEPLOY / "container"
ZONE = "topology.kubernetes.io/zone"
MACHINES = {"m1": {"metadata": {"labels": {ZONE: "eu-1a"}}}, "bare": {"metadata": {}}}
WANTED = {
    "nodes": {"demo-broker": ["*.demo-broker.streams", "10.0.0.7"]},
    "clients": ["admin"],
    "passwords": ["admin", "alice"],
}
NAMES = {
    "authority": "demo-authority",
    "stores": {"demo-broker": "demo-broker-tls", "admin": "demo-admin-tls"},
    "passwords": {"admin": ["demo-admin", "password"], "alice": ["demo-users", "alice"]},
    "labels": {"app.kubernetes.io/instance": "demo"},
}


@pytest.fixture(scope="module")
def script() -> Iterator[ModuleType]:
    """The container's script, which finds the one for secrets beside it."""
    sys.path.insert(0, str(CONTAINER))
    path = CONTAINER / "moldau_kubernetes.py"
    spec = importlib.util.spec_from_file_location("moldau_kubernetes_of_the_container", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    yield module
    sys.path.remove(str(CONTAINER))


@pytest.fixture
def api(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ApiServer]:
    """The API server, and the variables of a pod."""
    account = tmp_path / "account"
    account.mkdir()
    server = ApiServer(account, machines=MACHINES)
    for name, value in {
        **server.environment,
        "NODE_NAME": "m1",
        "MOLDAU_ZONE_LABEL": ZONE,
        "MOLDAU_RACK_FILE": str(tmp_path / "rack"),
        "MOLDAU_SECRETS": json.dumps(WANTED),
        "MOLDAU_KUBERNETES_SECRETS": json.dumps(NAMES),
    }.items():
        monkeypatch.setenv(name, value)
    yield server
    server.close()


class Moldau:
    """Stands for the `moldau` command: answers by its first words, the last answer for ever."""

    def __init__(self) -> None:
        self.answers: dict[tuple[str, str], list[tuple[int, Any]]] = {}
        self.asked: list[tuple[str, ...]] = []

    def __call__(self, *arguments: str, captured: bool = False) -> subprocess.CompletedProcess[str]:
        check(CommandLine("moldau-kubernetes", arguments, may_be_a_name=False))
        self.asked.append(arguments)
        answers = self.answers.get((arguments[0], arguments[1]), [(0, None)])
        status, document = answers.pop(0) if len(answers) > 1 else answers[0]
        return subprocess.CompletedProcess([], status, json.dumps(document) if captured else None)


@pytest.fixture
def moldau(script: ModuleType, monkeypatch: pytest.MonkeyPatch) -> Moldau:
    """What the script believes to be the command line; and no time passes."""
    fake = Moldau()
    monkeypatch.setattr(script, "moldau", fake)
    now = [0.0]

    def sleep(seconds: float) -> None:
        now[0] += seconds

    monkeypatch.setattr(script.time, "sleep", sleep)
    monkeypatch.setattr(script.time, "monotonic", lambda: now[0])
    return fake


@pytest.mark.parametrize(
    "arguments",
    [[], ["zones"], ["zone", "x"], ["empty"], ["empty", "quickly", "4"], ["empty", "move"]],
)
def test_wrong_usage(script: ModuleType, capsys: pytest.CaptureFixture[str], arguments: list[str]):
    with pytest.raises(SystemExit) as ended:
        script.main(arguments)
    assert ended.value.code == 2
    assert capsys.readouterr().err.startswith("moldau-kubernetes: usage: moldau-kubernetes ")


# -- the zone --------------------------------------------------------------------------------------


def test_the_zone_of_the_machine_is_written(script: ModuleType, api: ApiServer, tmp_path: Path):
    assert script.main(["zone"]) == 0
    assert (tmp_path / "rack").read_text() == "eu-1a\n"


@pytest.mark.parametrize(
    ("name", "token", "words"),
    [
        ("bare", "the-token", f"has no label {ZONE}"),
        ("gone", "the-token", "answered 404"),
        ("m1", "another", "answered 403"),
    ],
)
def test_a_machine_whose_zone_is_not_known_is_said(
    script: ModuleType,
    api: ApiServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    name: str,
    token: str,
    words: str,
):
    monkeypatch.setenv("NODE_NAME", name)
    (tmp_path / "account" / "token").write_text(token)
    assert script.main(["zone"]) == 1
    assert words in capsys.readouterr().err
    assert not (tmp_path / "rack").exists()


# -- secrets ---------------------------------------------------------------------------------------


def stored(api: ApiServer, secret: str, key: str, tmp_path: Path) -> Path:
    path = tmp_path / f"{secret}.{key}"
    path.write_bytes(api.data(secret)[key])
    return path


def test_what_is_missing_is_made_once(
    script: ModuleType, api: ApiServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    assert script.main(["secrets"]) == 0
    assert sorted(api.secrets) == [
        "demo-admin",
        "demo-admin-tls",
        "demo-authority",
        "demo-broker-tls",
        "demo-users",
    ]
    # What signs is kept before anything that it has signed.
    assert api.changed[0] == "demo-authority"
    assert sorted(api.data("demo-authority")) == ["ca-key.pem", "ca.pem"]
    node = summary_of(stored(api, "demo-broker-tls", "tls-combined.pem", tmp_path))
    assert node.subject == "CN=demo-broker,OU=nodes"
    assert node.hosts == ("*.demo-broker.streams", "10.0.0.7")
    admin = summary_of(stored(api, "demo-admin-tls", "tls-combined.pem", tmp_path))
    assert (admin.subject, admin.hosts) == ("CN=admin,OU=clients", ())
    assert b"PRIVATE" not in api.data("demo-broker-tls")["ca.crt"]
    assert len(api.data("demo-admin")["password"]) >= 32
    assert api.data("demo-admin")["password"] != api.data("demo-users")["alice"]
    assert api.secrets["demo-users"]["metadata"]["labels"] == NAMES["labels"]
    said, count = capsys.readouterr().err, len(api.changed)
    assert "CN=demo-broker,OU=nodes" in said
    assert script.main(["secrets"]) == 0
    assert len(api.changed) == count
    assert capsys.readouterr().err == ""


def test_a_password_of_before_stays_and_other_keys_too(script: ModuleType, api: ApiServer):
    kept = {"alice": "YSBzZWNyZXQ=", "carol": "eA=="}
    document = {"metadata": {"name": "demo-users"}, "kind": "Secret", "data": kept}
    assert api.answer("POST", SECRETS, document)[0] == 201
    assert script.main(["secrets"]) == 0
    assert api.data("demo-users") == {"alice": b"a secret", "carol": b"x"}


def test_other_hosts_and_an_end_that_is_near_make_another_certificate(
    script: ModuleType,
    api: ApiServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
):
    assert script.main(["secrets"]) == 0
    authority, count = api.data("demo-authority"), len(api.changed)
    more = {**WANTED, "nodes": {"demo-broker": ["kafka.example"]}}
    monkeypatch.setenv("MOLDAU_SECRETS", json.dumps(more))
    assert script.main(["secrets"]) == 0
    assert api.changed[count:] == ["demo-broker-tls"]
    path = stored(api, "demo-broker-tls", "tls-combined.pem", tmp_path)
    assert summary_of(path).hosts == ("kafka.example",)
    monkeypatch.setenv("MOLDAU_SECRETS", json.dumps({**more, "days": 700, "renew_days": 365}))
    assert script.main(["secrets"]) == 0
    assert sorted(api.changed[count + 1 :]) == ["demo-admin-tls", "demo-broker-tls"]
    assert api.data("demo-authority") == authority


def test_an_authority_that_ends_gives_its_place_to_another_step_by_step(
    script: ModuleType, api: ApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    assert script.main(["secrets"]) == 0
    import moldau_secrets

    def trusted() -> list[str]:
        return [
            each.signed_by
            for each in summaries_of(stored(api, "demo-broker-tls", "ca.crt", tmp_path))
        ]

    def signer() -> str:
        return summary_of(stored(api, "demo-broker-tls", "tls-combined.pem", tmp_path)).signed_by

    [old] = trusted()
    monkeypatch.setattr(moldau_secrets, "AUTHORITY_ENDS_SOON_DAYS", 4_000)
    assert script.main(["secrets"]) == 0
    [first, new] = trusted()
    assert (first, signer()) == (old, old)
    # Nothing goes on until clients have had the time to take the new one.
    assert script.main(["secrets"]) == 0
    assert signer() == old
    at_once = json.dumps({**WANTED, "rotation_pause_hours": 0})
    monkeypatch.setenv("MOLDAU_SECRETS", at_once)
    assert script.main(["secrets"]) == 0
    assert (trusted(), signer()) == ([old, new], new)
    monkeypatch.setattr(moldau_secrets, "AUTHORITY_ENDS_SOON_DAYS", 365)
    assert script.main(["secrets"]) == 0
    assert (trusted(), signer()) == ([new], new)
    assert sorted(api.data("demo-authority")) == ["ca-key.pem", "ca.pem"]


def test_rights_that_are_missing_are_said(
    script: ModuleType, api: ApiServer, capsys: pytest.CaptureFixture[str]
):
    api.rules = [{"resources": ["secrets"], "verbs": ["create"]}]
    assert script.main(["secrets"]) == 1
    assert f"{SECRETS}/demo-authority answered 403" in capsys.readouterr().err


def test_what_is_wanted_must_be_said(
    script: ModuleType,
    api: ApiServer,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
):
    monkeypatch.setenv("MOLDAU_SECRETS", '{"node": {}}')
    assert script.main(["secrets"]) == 1
    assert "MOLDAU_SECRETS" in capsys.readouterr().err
    assert api.secrets == {}


# -- users -----------------------------------------------------------------------------------------


def test_users_get_passwords_and_permissions_when_the_cluster_answers(
    script: ModuleType, moldau: Moldau, monkeypatch: pytest.MonkeyPatch
):
    moldau.answers["brokers", "list"] = [(1, None), (1, None), (0, {})]
    words = ["--producer --topic flights", "--operation Describe --cluster"]
    user = {"name": "alice", "passwordFile": "/passwords/alice", "acls": words}
    monkeypatch.setenv("MOLDAU_USERS", json.dumps([user]))
    assert script.main(["users"]) == 0
    assert moldau.asked[3:] == [
        ("users", "create", "alice", "--password-file", "/passwords/alice"),
        ("acls", "create", "--allow", "alice", "--producer", "--topic", "flights"),
        ("acls", "create", "--allow", "alice", "--operation", "Describe", "--cluster"),
    ]


@pytest.mark.parametrize(
    ("failing", "asked"), [(("brokers", "list"), 201), (("users", "create"), 2)]
)
def test_users_without_a_cluster_that_takes_them(
    script: ModuleType,
    moldau: Moldau,
    monkeypatch: pytest.MonkeyPatch,
    failing: tuple[str, str],
    asked: int,
):
    moldau.answers[failing] = [(1, None)]
    user = {"name": "alice", "passwordFile": "/passwords/alice", "acls": ["--cluster"]}
    monkeypatch.setenv("MOLDAU_USERS", json.dumps([user]))
    assert script.main(["users"]) == 1
    assert len(moldau.asked) == asked


# -- fewer brokers ---------------------------------------------------------------------------------


def on(*replicas: list[int]) -> tuple[int, Any]:
    rows = [{"partition": place, "replicas": each} for place, each in enumerate(replicas)]
    return 0, [{"name": "flights", "partitions": rows}]


def test_a_broker_with_replicas_is_not_let_go(
    script: ModuleType, moldau: Moldau, capsys: pytest.CaptureFixture[str]
):
    moldau.answers["topics", "describe"] = [on([1, 2], [4, 1], [5, 2])]
    assert script.main(["empty", "refuse", "5", "4"]) == 1
    said = capsys.readouterr().err
    assert "2 replicas are on brokers that are to go (4,5): flights-1, flights-2." in said
    check(
        CommandLine("the advice", tuple(said.split("moldau ", 1)[1].split(";")[0].split()), False)
    )
    assert [each[1] for each in moldau.asked] == ["describe"]


def test_an_empty_broker_is_let_go(script: ModuleType, moldau: Moldau):
    moldau.answers["topics", "describe"] = [on([1, 2], [3, 1])]
    assert script.main(["empty", "refuse", "4"]) == 0


def test_replicas_are_moved_until_none_is_left(script: ModuleType, moldau: Moldau):
    moldau.answers["topics", "describe"] = [on([4]), on([4, 1]), (1, None), on([1])]
    moldau.answers["topics", "reassign"] = [(1, None), (0, None)]
    assert script.main(["empty", "move", "4"]) == 0
    moves = [each for each in moldau.asked if each[1] == "reassign"]
    assert moves == [("topics", "reassign", "execute", "--without", "4")] * 2


@pytest.mark.parametrize("mode", ["refuse", "move"])
def test_no_broker_goes_without_an_answer(script: ModuleType, moldau: Moldau, mode: str):
    moldau.answers["topics", "describe"] = [(1, None)]
    assert script.main(["empty", mode, "4"]) == 1
    assert len(moldau.asked) == 20


def test_a_move_that_is_refused_for_ever_ends(script: ModuleType, moldau: Moldau):
    moldau.answers["topics", "describe"] = [on([4])]
    moldau.answers["topics", "reassign"] = [(1, None)]
    assert script.main(["empty", "move", "4"]) == 1


def state(broker_id: int, word: str) -> dict[str, Any]:
    return {"broker_id": broker_id, "state": word}


def test_brokers_are_removed_when_they_have_stopped(script: ModuleType, moldau: Moldau):
    moldau.answers["brokers", "list"] = [
        (0, {"brokers": [state(1, "serving"), state(4, "serving"), state(5, "fenced")]}),
        (1, None),
        (0, {"brokers": [state(1, "serving"), state(4, "fenced")]}),
        (0, {"brokers": [state(1, "serving")]}),
    ]
    assert script.main(["unregister", "4", "5"]) == 0
    removed = [each for each in moldau.asked if each[1] == "unregister"]
    assert removed == [("brokers", "unregister", n, "--yes") for n in ("5", "4")]


def test_a_broker_that_never_stops_is_said(
    script: ModuleType, moldau: Moldau, capsys: pytest.CaptureFixture[str]
):
    moldau.answers["brokers", "list"] = [(0, {"brokers": [state(4, "serving")]})]
    assert script.main(["unregister", "4"]) == 1
    assert "broker 4 has not stopped" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        script.main(["unregister", "four"])
