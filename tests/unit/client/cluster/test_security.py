"""From settings to credentials: what fits together, and what is missing, in words."""

from __future__ import annotations

import random
from typing import Any

import pytest
import trustme

from moldau.client import ClientConfig, ConfigurationError
from moldau.client.cluster.security import Security, security_of
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
    assert jaas.credentials is not None
    assert (jaas.context, jaas.credentials.username) == (None, "u")
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
    assert security.credentials is not None
    assert security.credentials.scram_extensions == {"tokenauth": "true"}


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
