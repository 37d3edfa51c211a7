"""Settings of a listener with GSSAPI that cannot work; tests/system/security has those that do."""

from __future__ import annotations

import sys

import pytest

from moldau.config import ConfigError
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
def test_what_is_wrong_is_said_when_the_node_starts(changes: dict[str, str | None], complaint: str):
    pytest.importorskip("gssapi")
    values = {key: value for key, value in {**GOOD, **changes}.items() if value is not None}
    with pytest.raises(ConfigError) as caught:
        security("SASL_PLAINTEXT", **{"sasl.enabled.mechanisms": "GSSAPI", **values})
    assert complaint in str(caught.value)


def test_without_the_package_it_is_said_how_to_get_it(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "gssapi", None)
    monkeypatch.setitem(sys.modules, "gssapi.raw", None)
    with pytest.raises(ConfigError, match=r"pip install 'moldau\[gssapi\]'.*libkrb5-dev"):
        security("SASL_PLAINTEXT", **{"sasl.enabled.mechanisms": "GSSAPI", **GOOD})
