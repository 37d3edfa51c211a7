"""Settings of a listener with GSSAPI that cannot work; tests/system/security has those that do."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from moldau.config import ConfigError
from moldau.runtime.aside import Aside
from moldau.sasl.gssapi.library import KerberosError
from moldau.sasl.gssapi.listener import AsideExchange
from moldau.sasl.mechanism import Accepted, Postponed, SaslRefused
from tests.kit.gssapi_double import GSSError, installed
from tests.unit.server.authentication.test_listener_security import security

KEY = "listener.name.outside.gssapi.sasl.jaas.config"
LOGIN = "com.sun.security.auth.module.Krb5LoginModule required"
GOOD = {
    KEY: f'{LOGIN} useKeyTab=true storeKey=true keyTab="/no/keytab" principal="kafka/h@R";',
    "sasl.kerberos.service.name": "kafka",
}


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({KEY: None}, f"{KEY}: is needed for GSSAPI"),
        ({KEY: f"{LOGIN};"}, "needs useKeyTab=true and principal"),
        ({KEY: f"{LOGIN} useKeyTab=true;"}, "needs useKeyTab=true and principal"),
        ({KEY: "x.PlainLoginModule required;"}, "GSSAPI needs Krb5LoginModule"),
        ({"sasl.kerberos.service.name": None}, "GSSAPI needs sasl.kerberos.service.name"),
        (
            {KEY: GOOD[KEY].replace(" keyTab", " serviceName=other keyTab")},
            "contradict each other",
        ),
        (
            {"sasl.kerberos.principal.to.local.rules": "DEFAULT,RULE:[1:$2]"},
            "sasl.kerberos.principal.to.local.rules=DEFAULT,RULE:[1:$2]: listener OUTSIDE: ",
        ),
        (
            {"listener.name.outside.sasl.kerberos.principal.to.local.rules": "nonsense"},
            "is not DEFAULT or RULE:",
        ),
        ({}, "kafka/h@R in /no/keytab: "),
    ],
)
def test_what_is_wrong_is_said_when_the_node_starts(
    monkeypatch: pytest.MonkeyPatch, changes: dict[str, str | None], complaint: str
):
    installed(monkeypatch).refused["accept"] = GSSError(1, "no such keytab")
    values = {key: value for key, value in {**GOOD, **changes}.items() if value is not None}
    with pytest.raises(ConfigError) as caught:
        security("SASL_PLAINTEXT", **{"sasl.enabled.mechanisms": "GSSAPI", **values})
    assert complaint in str(caught.value)


def test_without_the_package_it_is_said_how_to_get_it(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "gssapi", None)
    monkeypatch.setitem(sys.modules, "gssapi.raw", None)
    with pytest.raises(ConfigError, match=r"pip install 'moldau\[gssapi\]'.*libkrb5-dev"):
        security("SASL_PLAINTEXT", **{"sasl.enabled.mechanisms": "GSSAPI", **GOOD})


def test_a_listener_accepts_with_its_keytab_by_its_rules(monkeypatch: pytest.MonkeyPatch):
    library = installed(monkeypatch)
    made = security("SASL_PLAINTEXT", **{"sasl.enabled.mechanisms": "GSSAPI", **GOOD})
    assert library.asked == [("accept", {b"keytab": b"/no/keytab"}, (b"kafka/h@R", "principal"))]
    assert made.sasl is not None
    begin = made.sasl.mechanisms["GSSAPI"].begin
    assert isinstance(begin(), AsideExchange)
    assert begin() is not begin()


class Exchange:
    """Answers a token with what it is."""

    def step(self, token: bytes) -> bytes | Accepted:
        if token == b"refuse":
            raise SaslRefused("refused")
        if token == b"fail":
            raise KerberosError("failed")
        if token == b"pass":
            raise KerberosError("passing", is_passing=True)
        if token == b"hang":
            raise TimeoutError
        return token


class Beside:
    """Runs at once what is to run beside the loop."""

    async def __call__(self, function: Any, *args: Any) -> Any:
        return function(*args)


@pytest.mark.parametrize(
    ("token", "refusal", "is_passing"),
    [
        (b"more", None, False),
        (b"refuse", "refused", False),
        (b"fail", "failed", False),
        (b"pass", "passing", True),
        (b"hang", "not come to an end in time", True),
    ],
)
async def test_a_step_is_taken_beside_the_loop_and_its_end_given_when_it_is_taken_again(
    token: bytes, refusal: str | None, is_passing: bool
):
    made = AsideExchange(Exchange(), Beside())  # type: ignore[arg-type]
    for _ in range(2):
        with pytest.raises(Postponed) as postponed:
            made.step(token)
        assert await postponed.value.wait(lambda: False) is True
        if refusal is None:
            assert made.step(token) == token
        else:
            with pytest.raises(SaslRefused, match=refusal) as refused:
                made.step(token)
            assert refused.value.is_passing is is_passing


def test_a_step_may_take_half_a_minute(monkeypatch: pytest.MonkeyPatch):
    installed(monkeypatch)
    made = security("SASL_PLAINTEXT", **{"sasl.enabled.mechanisms": "GSSAPI", **GOOD})
    assert made.sasl is not None
    mechanism = made.sasl.mechanisms["GSSAPI"].begin()
    assert isinstance(mechanism, AsideExchange)
    assert isinstance(mechanism._aside, Aside)
    assert mechanism._aside._timeout_ms == 30_000.0
