"""`moldau profile`: what its files have, what commands make of them, and what is refused."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import pytest
from typer.testing import CliRunner

from moldau.cli.client_settings import client_properties
from moldau.cli.main import app
from moldau.cli.profile_files import chosen_profile
from moldau.config import read_properties_file

SECRET = "p=a:s s#w!\\o\trd é"


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "configuration"
    monkeypatch.setenv("MOLDAU_CONFIG_HOME", str(path))
    return path


def run(*words: str, given: str | None = None) -> str:
    """A command that succeeds; what it prints."""
    done = CliRunner().invoke(app, ["profile", *words], input=given)
    assert done.exit_code == 0, done.output
    return done.output


def refused(*words: str, status: int = 2) -> str:
    """A command that fails; its one line."""
    done = CliRunner().invoke(app, ["profile", *words])
    assert done.exit_code == status, done.output
    assert done.stderr.count("\n") == 1
    assert done.stdout == ""
    return done.stderr


def servers(**options: str | None) -> object:
    """Which address a command uses."""
    settings = client_properties(
        options.get("bootstrap_server"),
        options.get("command_config"),
        None if options.get("property") is None else [f"bootstrap.servers={options['property']}"],
        profile=options.get("profile"),
        defaults={},
        options={},
    )
    return settings["bootstrap.servers"]


def test_a_profile_from_its_making_to_its_end(home: Path) -> None:
    assert "no profiles" in run("list")
    assert run("create", "dev", "bootstrap.servers=localhost:1") == "created profile dev\n"
    run("create", "prod", "bootstrap.servers=kafka:9092", "acks=all", "--use")
    assert json.loads(run("list", "--json")) == [
        {"profile": "dev", "in_use": False, "bootstrap.servers": "localhost:1"},
        {"profile": "prod", "in_use": True, "bootstrap.servers": "kafka:9092"},
    ]
    assert servers() == "kafka:9092"
    run("set", "prod", "linger.ms=5", "--unset", "acks")
    shown = json.loads(run("show", "--json"))
    assert shown["properties"] == {"bootstrap.servers": "kafka:9092", "linger.ms": "5"}
    run("use", "dev")
    assert servers() == "localhost:1"
    assert run("delete", "dev") == "deleted profile dev\nno profile is in use\n"
    assert servers() == "localhost:9092"
    assert sorted(each.name for each in (home / "profiles").iterdir()) == ["prod.properties"]


def test_secrets_are_hidden_and_files_their_owners(home: Path) -> None:
    run("create", "p", f"sasl.password={SECRET}", "sasl.username= ann ")
    run("set", "p", "sasl.jaas.config", "basic.auth.user.info=u:pw", given="unseen\n")
    table = run("show", "p")
    for word in ("unseen", "pw", "rd é"):
        assert word not in table
    assert table.count("[hidden]") == 3
    shown = json.loads(run("show", "p", "--json", "--secrets"))["properties"]
    assert shown["sasl.password"] == SECRET
    assert shown["sasl.username"] == " ann "
    assert shown["sasl.jaas.config"] == "unseen"
    file = home / "profiles" / "p.properties"
    assert read_properties_file(str(file)) == shown
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700


def test_a_profile_may_begin_with_a_file(tmp_path: Path) -> None:
    file = tmp_path / "client.properties"
    file.write_text("bootstrap.servers=a:1\nsecurity.protocol=SSL\n")
    run("create", "p", "bootstrap.servers=b:2", "--from-file", str(file))
    shown = json.loads(run("show", "p", "--json"))["properties"]
    assert shown == {"bootstrap.servers": "b:2", "security.protocol": "SSL"}


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["create", "p", "boostrap.servers=x"], "did you mean bootstrap.servers?"),
        (["create", "p", "acks=7"], "acks='7': one of all, -1, 0, 1"),
        (["create", "p", "sasl.password="], ""),
        (["create", "../p"], "'../p': a name has letters"),
        (["create", "none"], "'none': a name has letters"),
        (["create", "p", "--from-file", "/no/such"], "/no/such"),
        (["use", "dve"], "there is no profile 'dve'; did you mean dev?"),
        (["show", "x"], "there is no profile 'x'; there are dev"),
        (["delete", "x"], "there is no profile 'x'"),
        (["set", "dev"], "give KEY=VALUE, KEY or --unset KEY"),
    ],
)
def test_what_is_refused(words: list[str], line: str, home: Path) -> None:
    run("create", "dev", "bootstrap.servers=localhost:1")
    if line:
        assert line in refused(*words)
    else:
        run(*words)
    assert not [each for each in (home / "profiles").iterdir() if each.suffix != ".properties"]


def test_what_fails(home: Path) -> None:
    run("create", "dev")
    assert "exists already" in refused("create", "dev", status=1)
    assert "has no acks" in refused("set", "dev", "--unset", "acks", status=1)
    assert "no profile is in use" in refused("show", status=1)
    (home / "profiles" / "dev.properties").write_bytes(b"a=\\uXYZ\n")
    assert "profile dev: " in refused("show", "dev")
    (home / "profile").mkdir()
    assert str(home / "profile") in refused("use", "none", status=1)


def test_what_goes_before_what(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = tmp_path / "client.properties"
    file.write_text("bootstrap.servers=file:1\n")
    run("create", "used", "bootstrap.servers=used:1", "--use")
    run("create", "other", "bootstrap.servers=other:1")
    run("create", "without")
    assert servers() == "used:1"
    assert servers(profile="none") == servers(profile="") == "localhost:9092"
    assert servers(command_config=str(file)) == "file:1"
    monkeypatch.setenv("MOLDAU_PROFILE", "other")
    assert servers() == "other:1"
    assert servers(profile="used") == "used:1"
    monkeypatch.setenv("MOLDAU_BOOTSTRAP_SERVER", "environment:1")
    assert servers() == "environment:1"
    assert servers(profile="used") == "used:1"
    assert servers(profile="without") == "localhost:9092"
    assert servers(property="property:1") == "property:1"
    assert servers(bootstrap_server="given:1", profile="used", property="p:1") == "given:1"
    monkeypatch.setenv("MOLDAU_PROFILE", "none")
    assert chosen_profile(None) is None


def test_what_a_profile_has_for_its_cluster_goes_to_no_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run("create", "p", "bootstrap.servers=p:1", "sasl.password=secret", "--use")

    def sent(bootstrap_server: str | None, profile: str | None = None) -> bool:
        settings = client_properties(
            bootstrap_server, None, None, profile=profile, defaults={}, options={}
        )
        return "sasl.password" in settings

    assert sent(None)
    assert not sent("elsewhere:1")
    assert sent("elsewhere:1", "p")
    monkeypatch.setenv("MOLDAU_BOOTSTRAP_SERVER", "elsewhere:1")
    assert not sent(None)
    assert sent(None, "p")


def test_a_profile_that_an_address_leaves_out_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its settings would go to another cluster; on its own they are taken, and nothing is said."""
    run("create", "p", "bootstrap.servers=p:1,p:2", "sasl.username=ann", "--use")

    def said(bootstrap_server: str | None) -> tuple[bool, str]:
        settings = client_properties(bootstrap_server, None, None)
        return "sasl.username" in settings, capsys.readouterr().err

    line = (
        "moldau: the profile p is left out, because elsewhere:1 is not its cluster's; "
        "--profile p takes its settings there\n"
    )
    assert said("elsewhere:1") == (False, line)
    assert said("p:2") == (True, "")
    assert said(None) == (True, "")
    monkeypatch.setenv("MOLDAU_BOOTSTRAP_SERVER", "elsewhere:1")
    assert said(None) == (False, line)
    run("create", "bare", "bootstrap.servers=bare:1", "--use")
    assert said("elsewhere:1") == (False, "")


def test_a_file_and_a_profile(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    with pytest.raises(SystemExit):
        servers(command_config=str(tmp_path), profile="p")
    assert "--command-config and --profile exclude each other" in capsys.readouterr().err


@pytest.mark.real
def test_a_schema_registrys_settings_disturb_no_command() -> None:
    run("create", "p", "bootstrap.servers=127.0.0.1:1", "schema.registry.url=http://r:1", "--use")
    done = CliRunner().invoke(app, ["topics", "list", "--timeout-ms", "1000"])
    assert "127.0.0.1:1" in done.stderr
    assert "registry" not in done.stderr
