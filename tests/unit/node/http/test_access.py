"""Settings of the HTTP listener's security that cannot work."""

from __future__ import annotations

import pytest

from moldau.config import NodeConfig
from moldau.config.definition import ConfigError
from moldau.node.http.access import HttpSecurity

URL = "sasl.oauthbearer.jwks.endpoint.url"
MODULE = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule"
KEYS = "https://127.0.0.1:1/keys"
ALLOWED = {URL: KEYS, "moldau.sasl.oauthbearer.allowed.urls": KEYS}


def security(**changed: str) -> HttpSecurity:
    return HttpSecurity.of(
        NodeConfig(
            {
                "node.id": "1",
                "process.roles": "broker,controller",
                "listeners": "PLAINTEXT://:9092,CONTROLLER://:9093",
                "controller.listener.names": "CONTROLLER",
                "controller.quorum.voters": "1@localhost:9093",
                "moldau.http.authentication": "BEARER",
                **changed,
            }
        )
    )


@pytest.mark.parametrize(
    ("changed", "complaint"),
    [
        ({}, "moldau.http.sasl.oauthbearer.jwks.endpoint.url"),
        ({f"moldau.http.{URL}": "https://x/keys"}, "moldau.sasl.oauthbearer.allowed.urls must"),
        ({f"moldau.http.{URL}": "https://u:p@x/keys"}, "file: URL without a password"),
        (
            {**ALLOWED, "moldau.http.sasl.jaas.config": "x.PlainLoginModule required;"},
            "OAUTHBEARER needs OAuthBearerLoginModule",
        ),
        (
            {
                **ALLOWED,
                "moldau.http.sasl.jaas.config": (
                    f'{MODULE} required ssl.truststore.location="/no/such.pem";'
                ),
            },
            "the HTTP listener: ssl.truststore.location: /no/such.pem: No such file",
        ),
        (
            {"moldau.http.authentication": "", f"moldau.http.{URL}": KEYS},
            "needs BEARER, which moldau.http.sasl.oauthbearer.jwks.endpoint.url is about",
        ),
    ],
)
def test_settings_that_cannot_work(changed: dict[str, str], complaint: str) -> None:
    with pytest.raises(ConfigError) as refused:
        security(**changed)
    assert complaint in str(refused.value)
    assert "u:p@" not in str(refused.value)


def test_what_is_not_set_for_http_is_as_for_the_other_listeners() -> None:
    of_http = security(**ALLOWED, **{"moldau.http.sasl.oauthbearer.expected.audience": ""})
    assert of_http.tokens is not None
    assert of_http.methods == ("BEARER",)
    inherited = security(**ALLOWED, **{"sasl.oauthbearer.expected.audience": "kafka"})
    assert inherited.tokens is not None
    assert inherited.tokens._rules.audiences == ("kafka",)
    own = security(
        **ALLOWED,
        **{
            "sasl.oauthbearer.expected.audience": "kafka",
            "moldau.http.sasl.oauthbearer.expected.audience": "",
        },
    )
    assert own.tokens is not None
    assert own.tokens._rules.audiences == ()
