"""Which names a client listener refuses: those of nodes, and what this node itself is called."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import trustme

from moldau.config import NodeConfig
from moldau.metadata.scram_users import ScramUsers
from moldau.sasl.mechanism import Accepted
from moldau.server.authentication.listener_security import ListenerSecurity
from moldau.server.authentication.own_names import own_names

RULES = "RULE:^CN=([^,]+).*$/$1/,DEFAULT"


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    authority = trustme.CA()
    leaf = authority.issue_cert("localhost", common_name="kafka-1")
    home = tmp_path_factory.mktemp("store")
    authority.cert_pem.write_to_path(home / "ca.pem")
    path = home / "broker.pem"
    path.write_bytes(
        leaf.private_key_pem.bytes() + b"".join(each.bytes() for each in leaf.cert_chain_pems)
    )
    return path


def configured(store: Path, **keys: str) -> NodeConfig:
    return NodeConfig(
        {
            "process.roles": "broker",
            "node.id": "1",
            "controller.listener.names": "CONTROLLER",
            "controller.quorum.bootstrap.servers": "127.0.0.1:1",
            "listeners": "INTERNAL://127.0.0.1:0,CLIENTS://127.0.0.1:0,MTLS://127.0.0.1:0",
            "inter.broker.listener.name": "INTERNAL",
            "listener.security.protocol.map": (
                "INTERNAL:SSL,CLIENTS:SASL_PLAINTEXT,MTLS:SSL,CONTROLLER:SSL"
            ),
            "listener.name.internal.ssl.client.auth": "required",
            "listener.name.clients.sasl.enabled.mechanisms": "SCRAM-SHA-512",
            "ssl.keystore.location": str(store),
            "ssl.truststore.location": str(store.with_name("ca.pem")),
            "ssl.principal.mapping.rules": RULES,
            **{name.replace("__", "."): text for name, text in keys.items()},
        }
    )


def refused(config: NodeConfig, listener_name: str, *names: str) -> list[str]:
    [endpoint] = [each for each in config.listeners if each.listener_name == listener_name]
    made = ListenerSecurity.of(config, endpoint, ScramUsers())
    assert made is not None
    return [name for name in names if made.is_refused(name)]


def test_clients_have_no_node_s_name_and_nodes_do(store: Path) -> None:
    names = ("alice", "nodes", "ANONYMOUS", "kafka-1", "kafka-2")
    config = configured(store)
    assert refused(config, "CLIENTS", *names) == ["nodes", "ANONYMOUS", "kafka-1"]
    assert refused(config, "MTLS", *names) == ["nodes", "ANONYMOUS", "kafka-1"]
    assert refused(config, "INTERNAL", *names) == ["ANONYMOUS"]
    told = configured(store, moldau__node__principals="User:kafka-1;User:kafka-2")
    assert refused(told, "CLIENTS", *names) == ["nodes", "ANONYMOUS", "kafka-1", "kafka-2"]
    assert refused(told, "INTERNAL", *names) == ["ANONYMOUS"]


@pytest.mark.parametrize(
    ("keys", "found"),
    [
        ({}, {"kafka-1"}),
        ({"listener__name__internal__ssl__client__auth": "none"}, set()),
        ({"listener__name__internal__ssl__principal__mapping__rules": "RULE:^x$/y/"}, set()),
        ({"listener__name__controller__ssl__client__auth": "requested"}, {"kafka-1"}),
        ({"ssl__keystore__location": "/no/such/file"}, set()),
    ],
)
def test_what_a_node_is_called(store: Path, keys: dict[str, str], found: set[str]) -> None:
    assert own_names(configured(store, **keys)) == found


def test_a_session_ends_where_the_name_is_refused(store: Path) -> None:
    from moldau.sasl.mechanism import Offer
    from moldau.server.authentication.core.session import SaslSession, State

    class AnyName:
        def step(self, token: bytes) -> Accepted:
            return Accepted(token.decode(), b"")

    def log_in(name: bytes) -> Any:
        session = SaslSession({"A": Offer(AnyName)}, lambda user: user == "nodes")
        session.handshake("A", 1, 0)
        return session, session.token(name, 0)

    session, outcome = log_in(b"alice")
    assert (session.state, outcome.failure) == (State.ACTIVE, None)
    session, outcome = log_in(b"nodes")
    assert (session.state, session.user) == (State.FAILED, None)
    assert outcome.failure == (
        "authentication with A failed: 'nodes' is a reserved name, which no client may have"
    )
    assert outcome.response.error_message == "authentication with A failed", "no name is told"
