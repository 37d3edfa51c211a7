"""Users with reserved names, from before these were reserved, are named once."""

from __future__ import annotations

import logging

import pytest

from moldau.config import NodeConfig
from moldau.metadata.image import MetadataDelta, MetadataImage, Provenance
from moldau.node.reserved_users import MAX_TOLD, warn_of_reserved_users
from moldau.protocol.metadata_records import DelegationTokenRecord, UserScramCredentialRecord
from moldau.protocol.schema import Message

PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule required"


def configured(**keys: str) -> NodeConfig:
    return NodeConfig(
        {
            "node.id": "1",
            "process.roles": "broker",
            "listeners": "INTERNAL://:9091,CLIENTS://:9092",
            "listener.security.protocol.map": (
                "INTERNAL:SASL_PLAINTEXT,CLIENTS:SASL_PLAINTEXT,CONTROLLER:PLAINTEXT"
            ),
            "inter.broker.listener.name": "INTERNAL",
            "controller.listener.names": "CONTROLLER",
            "controller.quorum.bootstrap.servers": "localhost:9093",
            "sasl.enabled.mechanisms": "PLAIN",
            "sasl.mechanism.inter.broker.protocol": "PLAIN",
            "listener.name.internal.plain.sasl.jaas.config": (
                f'{PLAIN} username="k" password="p" user_k="p" user_nodes="p";'
            ),
            "listener.name.clients.plain.sasl.jaas.config": f'{PLAIN} user_a="p" user_k="p";',
            **keys,
        }
    )


def user(name: str) -> UserScramCredentialRecord:
    return UserScramCredentialRecord(
        name=name, mechanism=1, salt=b"", stored_key=b"", server_key=b"", iterations=4_096
    )


def warned(caplog: pytest.LogCaptureFixture, config: NodeConfig, *records: Message) -> list[str]:
    delta = MetadataDelta(MetadataImage.EMPTY)
    for record in records:
        delta.replay(record)
    caplog.clear()
    with caplog.at_level(logging.INFO, "moldau.node"):
        warn_of_reserved_users(config, delta.apply(Provenance()))
    return [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]


def test_all_of_them_are_named_in_one_line(caplog: pytest.LogCaptureFixture) -> None:
    token = DelegationTokenRecord(owner="User:k", requester="User:k", token_id="t")
    [line] = warned(
        caplog,
        configured(**{"moldau.node.principals": "User:k"}),
        *(user(name) for name in ("alice", "nodes", "k", "ANONYMOUS")),
        token,
    )
    assert line == (
        "users with reserved names, which cannot log in as clients: 'ANONYMOUS' of SCRAM, 'k' of "
        "SCRAM, 'nodes' of SCRAM, 'k' of PLAIN on listener CLIENTS, 'k' of delegation tokens; give "
        "them other names (`moldau users delete` removes one of SCRAM)"
    )


def test_without_one_nothing_is_said(caplog: pytest.LogCaptureFixture) -> None:
    assert warned(caplog, configured(), user("alice"), user("k")) == []


def test_the_line_is_bounded(caplog: pytest.LogCaptureFixture) -> None:
    config = configured(**{"moldau.node.principals": "User:k*"})
    [line] = warned(caplog, config, *(user(f"k{number}") for number in range(1_000)))
    assert line.count("of SCRAM,") == MAX_TOLD
    assert ", …; give" in line
