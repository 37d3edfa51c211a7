"""Every key that holds a secret: it may come from each provider, and is shown nowhere."""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from pathlib import Path

import pytest

from moldau.config import ConfigError, NodeConfig
from moldau.config.definition import ConfigType, Password
from moldau.config.describe import describe_broker_config
from moldau.config.table import BROKER_KEYS, ONLY_PER_MECHANISM_KEYS, PER_LISTENER_KEYS
from moldau.metadata.scram_users import ScramUsers
from moldau.node.http.access import HttpSecurity
from moldau.server.authentication.listener_security import ListenerSecurity
from moldau.server.authentication.peer_security import peer_security
from tests.unit.config.test_providers import PACKAGE

SECRET = "hunter2-hunter2"
NODE = {
    "process.roles": "broker,controller",
    "node.id": "1",
    "controller.quorum.bootstrap.servers": "localhost:9093",
    "controller.listener.names": "CONTROLLER",
    "listeners": "PLAINTEXT://:9092,CONTROLLER://:9093,OUTSIDE://:9094",
    "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,OUTSIDE:SASL_SSL",
    "sasl.enabled.mechanisms": "PLAIN",
}
PROVIDERS = {
    "config.providers": "file,dir,env",
    "config.providers.file.class": f"{PACKAGE}FileConfigProvider",
    "config.providers.dir.class": f"{PACKAGE}DirectoryConfigProvider",
    "config.providers.env.class": f"{PACKAGE}EnvVarConfigProvider",
}


def secret_keys() -> Iterator[str]:
    """With the prefix of a listener too, where a key may have it."""
    for name, key in BROKER_KEYS.items():
        if key.type is not ConfigType.PASSWORD:
            continue
        if name not in ONLY_PER_MECHANISM_KEYS:
            yield name
        if name in PER_LISTENER_KEYS:
            mechanism = "plain." if name in ONLY_PER_MECHANISM_KEYS else ""
            yield f"listener.name.outside.{mechanism}{name}"


def value_in(config: NodeConfig, key: str) -> object:
    if not key.startswith("listener.name."):
        return config[key]
    name = key.removeprefix("listener.name.outside.")
    mechanism = "PLAIN" if name.startswith("plain.") else None
    return config.listener_value("OUTSIDE", name.removeprefix("plain."), mechanism)


def test_secrets_are_among_the_keys() -> None:
    assert {
        "delegation.token.secret.key",
        "listener.name.outside.plain.sasl.jaas.config",
        "listener.name.outside.sasl.oauthbearer.client.credentials.client.secret",
        "moldau.http.sasl.jaas.config",
        "moldau.http.ssl.keystore.key",
        "ssl.key.password",
    } <= set(secret_keys())


@pytest.mark.parametrize("key", list(secret_keys()))
def test_a_secret_comes_from_each_provider_and_is_not_shown(key: str, tmp_path: Path) -> None:
    (tmp_path / "all.properties").write_text(f"one = {SECRET}\n")
    (tmp_path / "one").write_text(SECRET)
    for reference in (
        f"${{file:{tmp_path}/all.properties:one}}",
        f"${{dir:{tmp_path}:one}}",
        "${env:ONE}",
    ):
        path = tmp_path / "server.properties"
        values = {**NODE, **PROVIDERS, key: reference}
        path.write_text("".join(f"{name}={value}\n" for name, value in values.items()))
        config = NodeConfig.load(str(path), {}, {"ONE": SECRET})
        assert value_in(config, key) == Password(SECRET)
        described = describe_broker_config(config, {}, {key: SECRET})
        shown = (repr(config), config.redacted(), config.text, config.warnings, described)
        assert SECRET not in repr(shown)
        assert [each.name for each in described if each.name == key and not each.sensitive] == []


JAAS = "listener.name.outside.plain.sasl.jaas.config"
PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule"
OAUTH = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule"


@pytest.mark.parametrize(
    "changed",
    [
        {JAAS: SECRET},
        {JAAS: f'{PLAIN} required user_a="{SECRET}'},
        {JAAS: f'{PLAIN} required user_a="{SECRET}" {SECRET};'},
        {JAAS: f'{PLAIN} {SECRET} user_a="{SECRET}";'},
        {JAAS: f'{OAUTH} required clientSecret="{SECRET}";'},
        {JAAS: f'{PLAIN} required user_a="b";', "ssl.keystore.key": SECRET},
        {"ssl.keystore.key": SECRET, "ssl.keystore.certificate.chain": SECRET},
        {"ssl.truststore.certificates": SECRET},
        {"ssl.keystore.location": __file__, "ssl.keystore.password": SECRET},
        {"ssl.keystore.location": __file__, "ssl.key.password": SECRET},
        {"ssl.truststore.location": __file__, "ssl.truststore.password": SECRET},
        {
            "sasl.mechanism.inter.broker.protocol": "PLAIN",
            "inter.broker.listener.name": "OUTSIDE",
            JAAS: f'{PLAIN} required username="" password="{SECRET}" user_a="{SECRET}";',
        },
        {
            "sasl.mechanism.inter.broker.protocol": "OAUTHBEARER",
            "sasl.enabled.mechanisms": "PLAIN,OAUTHBEARER",
            "inter.broker.listener.name": "OUTSIDE",
            "sasl.oauthbearer.client.credentials.client.secret": SECRET,
            "sasl.oauthbearer.token.endpoint.url": "http://127.0.0.1:1/token",
            "moldau.sasl.oauthbearer.allowed.urls": "http://127.0.0.1:1/token",
        },
        {"moldau.http.authentication": "BEARER", "moldau.http.sasl.jaas.config": SECRET},
        {
            "moldau.http.authentication": "BEARER",
            "moldau.http.sasl.jaas.config": f'{PLAIN} required password="{SECRET}";',
            "sasl.oauthbearer.jwks.endpoint.url": "http://127.0.0.1:1/keys",
            "moldau.sasl.oauthbearer.allowed.urls": "http://127.0.0.1:1/keys",
        },
        {
            "moldau.http.ssl.keystore.key": SECRET,
            "moldau.http.ssl.keystore.certificate.chain": SECRET,
        },
        {"moldau.http.ssl.keystore.location": __file__, "moldau.http.ssl.key.password": SECRET},
    ],
)
def test_a_setting_that_cannot_work_is_refused_without_its_secret(changed: dict[str, str]) -> None:
    with pytest.raises(ConfigError) as refused:
        _start({**NODE, **changed})
    text = "".join(traceback.format_exception(refused.value))
    assert SECRET not in text
    assert SECRET not in repr(refused.value)


def _start(values: dict[str, str]) -> None:
    """What a node makes of its settings of security before it serves."""
    config = NodeConfig(values)
    [outside] = [each for each in config.listeners if each.listener_name == "OUTSIDE"]
    HttpSecurity.of(config)
    if config.inter_broker_listener_name == "OUTSIDE":
        peer_security(config, "OUTSIDE", "sasl.mechanism.inter.broker.protocol")
    ListenerSecurity.of(config, outside, ScramUsers())
