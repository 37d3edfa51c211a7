"""What a node logs of the requests that it refuses: once each, and nothing of mere questions."""

from __future__ import annotations

import uuid
from typing import Any

import pytest

from moldau.client import (
    AuthenticationFailed,
    ClusterAuthorizationFailed,
    NewTopic,
    TopicAuthorizationFailed,
)
from moldau.client.sync import Admin, Producer
from tests.system.security.nodes import PASSWORD, SecuredNode


def as_user(node: SecuredNode, user: str, password: str) -> dict[str, Any]:
    return {
        "bootstrap_servers": node.address("SASL_SSL"),
        "security_protocol": "SASL_SSL",
        "sasl_mechanism": "PLAIN",
        "sasl_username": user,
        "sasl_password": password,
        **node.trust,
    }


def denied(node: SecuredNode, text: str) -> list[str]:
    return [
        line.partition("authorizer: ")[2]
        for line in node.log().splitlines()
        if "authorizer: " in line and text in line
    ]


def test_a_refusal_is_logged_and_a_question_is_not(node: SecuredNode) -> None:
    topic, missing = f"t-{uuid.uuid4().hex}", f"m-{uuid.uuid4().hex}"
    with Admin(**as_user(node, "alice", PASSWORD)) as admin:
        admin.create_topics([NewTopic(topic)])
    bob = as_user(node, "bob", "b-secret")
    with Admin(**bob) as other:
        assert topic not in other.list_topics()
        assert not denied(node, topic), "a list is filtered, nothing is refused"
        with pytest.raises(TopicAuthorizationFailed):
            other.delete_topics([topic])
        with pytest.raises(TopicAuthorizationFailed):
            other.create_topics([NewTopic(missing)])
    assert denied(node, topic) == [
        f"Principal = User:bob is Denied operation = DELETE from host = 127.0.0.1 on resource = "
        f"Topic:LITERAL:{topic} for request = DeleteTopics on listener = SASL_SSL based on rule "
        "DefaultDeny"
    ]
    [create] = denied(node, missing)
    assert "operation = CREATE" in create
    assert "for request = CreateTopics on listener = SASL_SSL" in create
    assert not denied(node, "operation = CREATE from host = 127.0.0.1 on resource = Cluster")
    with Producer(**bob) as producer, pytest.raises(ClusterAuthorizationFailed):
        producer.send(topic, b"x")
    [by_producer] = denied(node, "operation = IDEMPOTENT_WRITE")
    assert "on resource = Cluster:LITERAL:kafka-cluster for request = InitProducerId" in by_producer


def test_transactions_that_a_list_leaves_out_are_logged_as_in_kafka(node: SecuredNode) -> None:
    name = f"x-{uuid.uuid4().hex}"
    with Producer(**as_user(node, "alice", PASSWORD), transactional_id=name) as producer:
        with producer.transaction(), Admin(**as_user(node, "alice", PASSWORD)) as admin:
            assert name in [each.transactional_id for each in admin.list_transactions()]
        with Admin(**as_user(node, "bob", "b-secret")) as other:
            assert not other.list_transactions()
    [left_out] = denied(node, name)
    assert "Principal = User:bob is Denied operation = DESCRIBE" in left_out
    assert f"on resource = TransactionalId:LITERAL:{name} for request = ListTrans" in left_out


def test_a_failed_authentication_names_listener_and_reason_and_no_password(
    node: SecuredNode,
) -> None:
    for user, reason in (("bob", "the password is wrong"), ("eve", "there is no such user")):
        with (
            pytest.raises(AuthenticationFailed) as refused,
            Admin(**as_user(node, user, "sesame-open")) as admin,
        ):
            admin.list_topics()
        assert f"'{user}': {reason}" not in str(refused.value)
        assert (
            "authentication: failed authentication from host = 127.0.0.1 on listener = SASL_SSL: "
            f"authentication with PLAIN failed: '{user}': {reason}"
        ) in node.log()
    assert "sesame-open" not in node.log()
