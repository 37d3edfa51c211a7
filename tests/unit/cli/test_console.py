"""`moldau console` before it serves: whose rights count, and what it refuses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import typer

from moldau.cli.console import console_settings, is_loopback
from tests.kit.commands import run_here

SCRAM = {
    "bootstrap.servers": "localhost:9092",
    "security.protocol": "SASL_SSL",
    "sasl.mechanism": "SCRAM-SHA-512",
    "sasl.username": "admin",
    "sasl.password": "secret",
}
PLAIN = {"bootstrap.servers": "localhost:9092"}


def settings(properties: dict[str, Any], host: str = "localhost", **more: Any) -> Any:
    given = {"login": False, "names": [], "read_only": False, **more}
    return console_settings(dict(properties), host, **given)


def test_all_act_by_the_settings() -> None:
    made = settings(SCRAM)
    assert (made.needs_login, made.logins, made.served_from) == (False, (), "command")
    assert made.way.properties == SCRAM
    assert set(made.names) == {"localhost", "127.0.0.1", "::1"}


def test_people_log_in_where_it_is_asked() -> None:
    made = settings(SCRAM, "0.0.0.0", login=True, names=["Console.Example"])
    assert (made.needs_login, made.logins) == (True, ("password",))
    assert {"console.example", "0.0.0.0"} < set(made.names)
    without = {key: value for key, value in SCRAM.items() if key != "sasl.mechanism"}
    assert settings(without, login=True).way.mechanisms == ("SCRAM-SHA-512", "SCRAM-SHA-256")
    bearer = {**without, "sasl.mechanism": "OAUTHBEARER"}
    assert settings(bearer, login=True).logins == ("token",)


def test_a_registrys_settings_are_kept_apart() -> None:
    made = settings({**PLAIN, "schema.registry.url": "http://localhost:8081"}, read_only=True)
    assert made.registry == {"schema.registry.url": "http://localhost:8081"}
    assert "schema.registry.url" not in made.way.properties
    assert made.is_read_only


@pytest.mark.parametrize(
    ("properties", "host", "login", "said"),
    [
        (SCRAM, "0.0.0.0", False, "add --login"),
        (SCRAM, "", False, "add --login"),
        ({**PLAIN, "ssl.keystore.location": "a.pem"}, "10.0.0.7", False, "add --login"),
        (PLAIN, "localhost", True, "security.protocol=PLAINTEXT"),
        ({**SCRAM, "sasl.mechanism": "GSSAPI"}, "localhost", True, "--login"),
        ({**PLAIN, "request.timeout.ms": "soon"}, "localhost", False, "request.timeout.ms"),
    ],
)
def test_what_cannot_be_is_refused(
    properties: dict[str, Any],
    host: str,
    login: bool,
    said: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises((SystemExit, typer.Exit)) as ended:
        settings(properties, host, login=login)
    assert getattr(ended.value, "code", None) == 2 or getattr(ended.value, "exit_code", None) == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    ("host", "is_near"),
    [("localhost", True), ("127.0.0.2", True), ("::1", True), ("", False), ("0.0.0.0", False)],
)
def test_where_others_reach_it(host: str, is_near: bool) -> None:
    assert is_loopback(host) is is_near


@pytest.mark.parametrize("listen", ["", "localhost", "localhost:x", "a:b:1", "localhost:70000"])
def test_addresses_that_cannot_be(listen: str) -> None:
    done = run_here("console", "--listen", listen)
    assert done.status == 2
    assert "is not HOST:PORT" in done.errors


def test_without_the_extra_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("moldau.cli.console.find_spec", lambda _: None)
    done = run_here("console")
    assert (done.status, done.output) == (1, "")
    assert "pip install 'moldau[server]'" in done.errors


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    done = run_here("console", "--command-config", tmp_path / "none.properties")
    assert done.status == 2
    assert "none.properties" in done.errors
