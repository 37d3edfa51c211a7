"""From settings to credentials: what fits together, and what is missing, in words."""

from __future__ import annotations

import random
import sys
from typing import Any

import pytest
import trustme

from moldau.client import ClientConfig, ConfigurationError
from moldau.client.cluster.security import Security, security_of
from moldau.sasl.gssapi.client import KerberosLogin
from tests.kit.manual_clock import ManualClock

JAAS = 'org.apache.kafka.common.security.{} required username="u" password="p"{};'


def made(**settings: Any) -> Security:
    config = ClientConfig.from_properties({"bootstrap.servers": "a:1", **settings})
    return security_of(config, ManualClock(), random.Random(1))


def test_plaintext_needs_nothing():
    assert made() == Security(None, None)


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_a_name_and_a_password_either_way(mechanism: str):
    module = "plain.PlainLoginModule" if mechanism == "PLAIN" else "scram.ScramLoginModule"
    common = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": mechanism}
    jaas = made(**common, **{"sasl.jaas.config": JAAS.format(module, "")})
    keys = made(**common, **{"sasl.username": "u", "sasl.password": "p"})
    assert jaas == keys
    assert jaas.login is not None
    assert (jaas.context, jaas.login.username) == (None, "u")
    assert "'p'" not in repr(jaas)


def test_a_delegation_token():
    jaas = JAAS.format("scram.ScramLoginModule", ' tokenauth="true"')
    security = made(
        **{
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "SCRAM-SHA-256",
            "sasl.jaas.config": jaas,
        }
    )
    assert security.login is not None
    assert security.login.extensions == {"tokenauth": "true"}


def test_tls_with_and_without_sasl():
    authority = trustme.CA().cert_pem.bytes().decode()
    tls = {"ssl.truststore.certificates": authority}
    secure = made(**tls, **{"security.protocol": "SSL"})
    assert secure.context is not None
    assert secure.context.check_hostname
    open_minded = made(
        **tls, **{"security.protocol": "SSL", "ssl.endpoint.identification.algorithm": ""}
    )
    assert open_minded.context is not None
    assert not open_minded.context.check_hostname
    # Without TLS in the protocol the stores are not even looked at.
    assert made(**{"ssl.truststore.location": "/absent"}).context is None


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({}, r"GSSAPI, Kafka's default, needs sasl\.kerberos\.service\.name.*SCRAM-SHA-512"),
        (
            {"sasl.username": "u", "sasl.password": "p"},
            r"GSSAPI, Kafka's default, takes no sasl\.username.*SCRAM-SHA-512",
        ),
        ({"sasl.mechanism": "DIGEST-MD5"}, "not served"),
        ({"sasl.mechanism": "PLAIN"}, r"needs sasl\.username and sasl\.password"),
        ({"sasl.mechanism": "PLAIN", "sasl.username": "u"}, r"needs sasl\.username"),
        (
            {"sasl.mechanism": "PLAIN", "sasl.username": "u", "sasl.password": "a\0b"},
            "without NUL",
        ),
        ({"sasl.mechanism": "PLAIN", "sasl.jaas.config": "x"}, "nothing else"),
        (
            {
                "sasl.mechanism": "PLAIN",
                "sasl.jaas.config": JAAS.format("scram.ScramLoginModule", ""),
            },
            "needs PlainLoginModule",
        ),
        (
            {
                "sasl.mechanism": "PLAIN",
                "sasl.username": "u",
                "sasl.jaas.config": JAAS.format("plain.PlainLoginModule", ""),
            },
            "one or the other",
        ),
        ({"sasl.mechanism": "OAUTHBEARER"}, "needs sasl_oauthbearer_token_provider"),
        (
            {
                "sasl.mechanism": "OAUTHBEARER",
                "sasl.oauthbearer.token.provider": lambda: "t",
                "sasl.oauthbearer.token.endpoint.url": "https://a/b",
            },
            "exclude each other",
        ),
        (
            {
                "sasl.mechanism": "OAUTHBEARER",
                "sasl.oauthbearer.token.endpoint.url": "https://a/b",
            },
            r"client\.secret are needed",
        ),
    ],
)
def test_what_is_missing_or_contradicts_itself(settings: dict[str, Any], reason: str):
    with pytest.raises(ConfigurationError, match=reason):
        made(**{"security.protocol": "SASL_PLAINTEXT", **settings})


def test_stores_and_names_are_looked_at_when_the_client_is_made():
    with pytest.raises(ConfigurationError, match="No such file"):
        made(**{"security.protocol": "SSL", "ssl.truststore.location": "/absent"})
    with pytest.raises(ConfigurationError, match="https, or nothing"):
        made(**{"security.protocol": "SSL", "ssl.endpoint.identification.algorithm": "x"})


KRB5 = "com.sun.security.auth.module.Krb5LoginModule required"
KERBEROS = {
    "security.protocol": "SASL_SSL",
    "sasl.mechanism": "GSSAPI",
    "sasl.kerberos.service.name": "kafka",
}


def kerberos_login(**settings: Any) -> KerberosLogin:
    pytest.importorskip("gssapi")
    login = made(**{**KERBEROS, **settings}).login
    assert isinstance(login, KerberosLogin)
    return login


def test_kerberos_by_a_keytab_either_way():
    keys = {"sasl.kerberos.principal": "alice", "sasl.kerberos.keytab": "/k"}
    jaas = f'{KRB5} useKeyTab=true storeKey=true keyTab="/k" principal="alice";'
    for settings in (keys, {"sasl.jaas.config": jaas}):
        login = kerberos_login(**settings)
        assert (login.principal, login.keytab, login.uses_keytab) == ("alice", "/k", True)
        assert (login.service_name, login.rules.min_pause_ms) == ("kafka", 60_000.0)


def test_kerberos_by_a_ticket_cache():
    login = kerberos_login()
    assert (login.principal, login.ticket_cache, login.uses_keytab) == (None, None, False)
    jaas = f'{KRB5} useTicketCache=true ticketCache="/c" principal="alice" serviceName="other";'
    login = kerberos_login(
        **{"sasl.jaas.config": jaas, "sasl.kerberos.service.name": "other"},
    )
    assert (login.principal, login.ticket_cache, login.service_name) == ("alice", "/c", "other")


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"sasl.jaas.config": f'{KRB5} serviceName="other";'}, "contradict each other"),
        ({"sasl.jaas.config": f"{KRB5} useKeyTab=true;"}, "useKeyTab=true of .* needs principal"),
        ({"sasl.jaas.config": f"{KRB5} keyTab=x;"}, "needs useKeyTab=true"),
        (
            {"sasl.jaas.config": f"{KRB5} useKeyTab=true useTicketCache=true principal=a;"},
            "exclude each other",
        ),
        ({"sasl.jaas.config": JAAS.format("plain.PlainLoginModule", "")}, "needs Krb5LoginModule"),
        ({"sasl.kerberos.keytab": "/k"}, r"keytab needs sasl\.kerberos\.principal"),
        (
            {"sasl.kerberos.principal": "a", "sasl.jaas.config": f"{KRB5} useTicketCache=true;"},
            "one or the other",
        ),
        ({"sasl.password": "p"}, r"GSSAPI takes no sasl\.username"),
    ],
)
def test_kerberos_settings_that_do_not_fit(settings: dict[str, str], reason: str):
    pytest.importorskip("gssapi")
    with pytest.raises(ConfigurationError, match=reason):
        made(**{**KERBEROS, **settings})


def test_kerberos_without_its_package(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "gssapi", None)
    monkeypatch.setitem(sys.modules, "gssapi.raw", None)
    with pytest.raises(ConfigurationError, match=r"pip install 'moldau\[gssapi\]'"):
        made(**KERBEROS)
