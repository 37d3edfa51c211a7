"""Dynamic stores that cannot be used, stored already when a broker starts."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
import trustme

from moldau.config import ConfigError, NodeConfig
from moldau.metadata.image import ConfigResourceType, MetadataDelta, MetadataImage, Provenance
from moldau.metadata.scram_users import ScramUsers
from moldau.node.listener_changes import ListenerChanges
from moldau.node.listeners import listener_specs
from moldau.protocol.metadata_records import ConfigRecord
from moldau.runtime.authentication.store_contexts import StoreContexts
from moldau.runtime.authentication.tls import StoreContext
from moldau.runtime.clock import SystemClock
from moldau.sasl.gssapi import client
from moldau.server.authentication.peer_security import peer_security
from tests.kit.manual_clock import ManualClock

PREFIX = "listener.name.clients.ssl."


@pytest.fixture
def config(tmp_path: Path) -> NodeConfig:
    authority = trustme.CA()
    leaf = authority.issue_cert("localhost")
    leaf.private_key_and_cert_chain_pem.write_to_path(tmp_path / "own.pem")
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    return NodeConfig(
        {
            "process.roles": "broker",
            "node.id": "1",
            "controller.quorum.bootstrap.servers": "localhost:9093",
            "controller.listener.names": "CONTROLLER",
            "listeners": "CLIENTS://localhost:9092",
            "listener.security.protocol.map": "CLIENTS:SSL,CONTROLLER:PLAINTEXT",
            "inter.broker.listener.name": "CLIENTS",
            "ssl.keystore.location": str(tmp_path / "own.pem"),
            "ssl.truststore.location": str(tmp_path / "ca.pem"),
        }
    )


def stored(key: str, value: str) -> MetadataImage:
    delta = MetadataDelta(MetadataImage.EMPTY)
    broker = ConfigResourceType.BROKER
    delta.replay(
        ConfigRecord(resource_type=broker, resource_name="1", name=PREFIX + key, value=value)
    )
    return delta.apply(Provenance(1, 1, 0))


def start(config: NodeConfig, image: MetadataImage) -> None:
    """What a broker does with its listeners when it starts, but for binding them."""
    changes = ListenerChanges(config)
    specs = listener_specs(
        config.broker_listeners, lambda each: changes.security_of(each, image, ScramUsers())
    )
    changes.connector(specs, SystemClock(), None)


def test_a_broker_changes_when_it_logs_in_to_kerberos_again(
    config: NodeConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From the next login on: here from the one that fails, while the last ticket is good."""
    monkeypatch.setattr(client, "library", lambda: None)
    jaas = f'{client.MODULE} required useKeyTab=true keyTab="k" principal="kafka/h@R";'
    kerberized = NodeConfig(
        {
            **config.explicit,
            "listener.security.protocol.map": "CLIENTS:SASL_PLAINTEXT,CONTROLLER:PLAINTEXT",
            "sasl.kerberos.service.name": "kafka",
            "listener.name.clients.gssapi.sasl.jaas.config": jaas,
            "sasl.kerberos.ticket.renew.window.factor": "0.5",
        }
    )
    clock, logins = ManualClock(), []

    def log_in(_tickets: object, now_ms: float, rules: client.RenewalRules) -> client._Login:
        logins.append((now_ms - began_ms, rules))
        if len(logins) > 1:
            raise client.KerberosError("the KDC is away")
        return client._Login("ticket", now_ms + 100_000, now_ms + 50_000)

    monkeypatch.setattr(client.KeytabTickets, "_log_in", log_in)
    changes, began_ms = ListenerChanges(kerberized), clock.now_ms()
    security = peer_security(
        kerberized, "CLIENTS", "sasl.mechanism.inter.broker.protocol", clock=clock
    )
    assert security is not None
    changes.peers = security
    login = security.login
    assert isinstance(login, client.KerberosLogin)
    login.credentials()
    delta = MetadataDelta(MetadataImage.EMPTY)
    key = "sasl.kerberos.min.time.before.relogin"
    delta.replay(ConfigRecord(resource_type=4, resource_name="1", name=key, value="1000"))
    changes.on_metadata_update(delta, delta.apply(Provenance(1, 1, 0)))
    for _ in range(3):
        clock.advance(25_500)
        login.credentials()
        login.credentials()
        clock.advance(1_000)
    expected = client.RenewalRules(0.5, 0.05, 1000.0)
    assert logins[1:] == [(52_000, expected), (78_500, expected)]


@pytest.mark.parametrize("path", ["/nonexistent", "/x\0y"])
@pytest.mark.parametrize("key", ["keystore.location", "truststore.location"])
def test_a_broker_starts_without_a_store_that_cannot_be_used(
    config: NodeConfig, caplog: pytest.LogCaptureFixture, key: str, path: str
) -> None:
    with caplog.at_level(logging.ERROR):
        start(config, stored(key, path))
    [line] = caplog.messages
    assert line.startswith("dynamic configuration is left out at this start: listener CLIENTS: ")
    assert f"ssl.{key}: " in line


@pytest.mark.parametrize("path", ["/nonexistent", "/x\0y"])
def test_its_own_file_must_be_right(config: NodeConfig, path: str) -> None:
    wrong = NodeConfig({**config.explicit, "ssl.keystore.location": path})
    with pytest.raises(ConfigError, match=r"listener CLIENTS: ssl\.keystore\.location: "):
        start(wrong, MetadataImage.EMPTY)


def test_a_broker_starts_without_a_store_that_lies_where_none_may(
    config: NodeConfig, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Stored before there was the rule, or by a controller: the node's own is used, and the line
    names the key that allows the directory.
    """
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (tmp_path / "own.pem").rename(elsewhere / "new.pem")
    (tmp_path / "own.pem").write_bytes((elsewhere / "new.pem").read_bytes())
    image = stored("keystore.location", str(elsewhere / "new.pem"))
    with caplog.at_level(logging.ERROR):
        start(config, image)
    assert caplog.messages == []
    narrow = NodeConfig({**config.explicit, "moldau.ssl.store.directories": "/etc"})
    with caplog.at_level(logging.ERROR):
        start(narrow, image)
    [line] = caplog.messages
    assert line.startswith("dynamic configuration is left out at this start: listener CLIENTS: ")
    assert "moldau.ssl.store.directories" in line
    caplog.clear()
    logs = NodeConfig({**config.explicit, "log.dirs": str(elsewhere)})
    with caplog.at_level(logging.ERROR):
        start(logs, image)
    assert "never in a log directory" in caplog.text


def test_the_stores_of_identity_providers_are_known(config: NodeConfig, tmp_path: Path) -> None:
    """Those for the keys of clients' tokens, and for the broker's own token."""
    keys, own = "https://login.example.com/keys", "https://login.example.com/token"
    module = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule"
    trusting = f'{module} required clientId="a" clientSecret="b" ssl.truststore.location="{{}}";'
    by_tokens = NodeConfig(
        {
            **config.explicit,
            "listener.security.protocol.map": "CLIENTS:SASL_SSL,CONTROLLER:PLAINTEXT",
            "sasl.enabled.mechanisms": "OAUTHBEARER",
            "sasl.mechanism.inter.broker.protocol": "OAUTHBEARER",
            "sasl.oauthbearer.jwks.endpoint.url": keys,
            "sasl.oauthbearer.token.endpoint.url": own,
            "moldau.sasl.oauthbearer.allowed.urls": f"{keys},{own}",
            "listener.name.clients.oauthbearer.sasl.jaas.config": trusting.format(
                tmp_path / "ca.pem"
            ),
        }
    )
    changes = ListenerChanges(by_tokens)
    specs = listener_specs(
        by_tokens.broker_listeners,
        lambda each: changes.security_of(each, MetadataImage.EMPTY, ScramUsers()),
    )
    changes.connector(specs, SystemClock(), None)
    listener, provider, peers, token = changes.contexts()
    assert {name for name, _ in (listener, provider, peers, token)} == {"CLIENTS"}
    assert isinstance(listener[1], StoreContexts)
    assert isinstance(peers[1], StoreContexts)
    for _, context in (provider, token):
        assert isinstance(context, StoreContext)
        assert context.trust is not None
        assert context.trust.store.location == str(tmp_path / "ca.pem")
