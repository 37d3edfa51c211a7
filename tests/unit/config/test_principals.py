"""Who the cluster's nodes are, and which names no client may have."""

from __future__ import annotations

import pytest

from moldau.config import ConfigError, NodeConfig
from moldau.config.principals import NodePrincipals


def configured(**keys: str) -> NodeConfig:
    return NodeConfig(
        {
            "node.id": "1",
            "process.roles": "broker,controller",
            "listeners": "PLAINTEXT://:9092,INTERNAL://:9091,CONTROLLER://:9093",
            "listener.security.protocol.map": (
                "PLAINTEXT:PLAINTEXT,INTERNAL:PLAINTEXT,CONTROLLER:PLAINTEXT"
            ),
            "inter.broker.listener.name": "INTERNAL",
            "controller.listener.names": "CONTROLLER",
            "controller.quorum.voters": "1@localhost:9093",
            **{name.replace("_", "."): text for name, text in keys.items()},
        }
    )


@pytest.mark.parametrize(
    ("text", "nodes", "others"),
    [
        ("", (), ("User:nodes", "User:ANONYMOUS", "User:", "")),
        ("User:kafka-1; User:kafka-2;", ("User:kafka-1", "User:kafka-2"), ("User:kafka-11",)),
        (
            "User:CN=*,OU=nodes",
            ("User:CN=broker-1,OU=nodes", "User:CN=a b,OU=nodes"),
            (
                "User:CN=,OU=nodes",
                "User:CN=a,b,OU=nodes",
                "User:CN=a\\,OU=nodes,OU=clients",
                "User:CN=a,OU=nodes,OU=clients",
                "User:CN=a,OU=nodes\n",
                "Group:CN=a,OU=nodes",
            ),
        ),
        ("User:kafka.1", ("User:kafka.1",), ("User:kafka-1", "user:kafka.1")),
    ],
)
def test_which_principals_are_nodes(
    text: str, nodes: tuple[str, ...], others: tuple[str, ...]
) -> None:
    made = configured(moldau_node_principals=text).principals
    assert bool(made) == bool(nodes)
    assert [each for each in nodes if not made.is_node(each)] == []
    assert [each for each in others if made.is_node(each)] == []
    assert all(made.is_reserved(each.removeprefix("User:")) for each in nodes)


@pytest.mark.parametrize("text", ["User:*", "User:* , *", "kafka-1", ":x", "User:", "User:a;*"])
def test_a_pattern_for_every_user_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"moldau\.node\.principals=.*is not TYPE:NAME"):
        configured(moldau_node_principals=text)


def test_reserved_names() -> None:
    made = NodePrincipals("User:kafka-*")
    for name in ("ANONYMOUS", "nodes", "kafka-1"):
        assert made.is_reserved(name)
        assert not made.may_have_password(name)
    for name in ("alice", "anonymous", "Nodes", "nodes2", "kafka", "User:kafka-1"):
        assert not made.is_reserved(name)
        assert made.may_have_password(name)
        assert made.is_reserved(name, {name})
        assert not made.may_have_password(name, {name})


def test_nodes_that_are_users_of_scram_may_have_a_password() -> None:
    made = configured(
        moldau_node_principals="User:node",
        sasl_mechanism_inter_broker_protocol="SCRAM-SHA-512",
    ).principals
    assert made.may_have_password("node")
    assert made.is_reserved("node")
    assert not made.may_have_password("nodes")
    assert not configured(moldau_node_principals="User:node").principals.may_have_password("node")


def test_which_listeners_are_between_nodes() -> None:
    names = ("PLAINTEXT", "INTERNAL", "CONTROLLER")
    made = configured()
    assert [name for name in names if made.is_between_nodes(name)] == ["INTERNAL", "CONTROLLER"]


def test_the_super_user_of_an_earlier_secured_cluster_is_one_warning() -> None:
    [warning] = configured(super_users="User:admin; User:nodes").warnings
    assert "super.users names User:nodes" in warning
    assert configured(super_users="User:admin;User:nodes2").warnings == ()
