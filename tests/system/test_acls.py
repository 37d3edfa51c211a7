"""Access control lists on a real node: what a client may do, after a restart too."""

from __future__ import annotations

from pathlib import Path

import pytest

from moldau.client import (
    AclBinding,
    AclFilter,
    AclOperation,
    AclPatternType,
    AclPermission,
    AclResourceType,
    ClusterAuthorizationFailed,
    GroupAuthorizationFailed,
    NewTopic,
    TopicAuthorizationFailed,
)
from moldau.client.sync import Admin, Consumer, Producer
from moldau.testing import Cluster

ANONYMOUS = "User:ANONYMOUS"
AUTHORIZER = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "auto.create.topics.enable": "false",
}
LOOPBACK = "0:0:0:0:0:FFFF:7F00:1"
"""127.0.0.1, from which every client here comes, written as IPv6."""
TOPIC, GROUP = AclResourceType.TOPIC, AclResourceType.GROUP


def test_what_acls_allow_and_deny(tmp_path: Path) -> None:
    opened = {**AUTHORIZER, "super.users": ANONYMOUS}
    topics = ("t-1", "t-closed", "t-secret", "u", "hidden")
    with Cluster(config=opened, directory=tmp_path) as cluster:
        with Admin(cluster.bootstrap_server) as admin:
            admin.create_topics([NewTopic(each) for each in topics])
            admin.create_acls(
                [
                    AclBinding(
                        TOPIC, "t-", ANONYMOUS, AclOperation.ALL,
                        pattern_type=AclPatternType.PREFIXED,
                    ),
                    AclBinding(TOPIC, "t-secret", "User:*", AclOperation.READ, AclPermission.DENY),
                    AclBinding(
                        TOPIC, "t-closed", ANONYMOUS, AclOperation.ALL, AclPermission.DENY,
                        host=LOOPBACK,
                    ),
                    AclBinding(TOPIC, "u", ANONYMOUS, AclOperation.READ),
                    AclBinding(TOPIC, "hidden", ANONYMOUS, AclOperation.ALL, host="10.1.2.3"),
                    AclBinding(GROUP, "g", ANONYMOUS, AclOperation.READ),
                ]
            )  # fmt: skip
            assert len(admin.describe_acls(AclFilter())) == 6
            [closed] = admin.describe_acls(AclFilter(host=LOOPBACK))
            assert closed.host == LOOPBACK, "as it was written"
            assert not admin.describe_acls(AclFilter(host="127.0.0.1")), "filters compare texts"
        with Producer(cluster.bootstrap_server) as producer:
            for each in ("t-1", "t-secret", "u", "hidden"):
                producer.send(each, b"first")
    with Cluster(config=AUTHORIZER, directory=tmp_path) as cluster:
        bootstrap = cluster.bootstrap_server
        with Admin(bootstrap) as admin:
            assert admin.list_topics() == ["t-1", "t-secret", "u"]
            with pytest.raises(ClusterAuthorizationFailed):
                admin.describe_acls(AclFilter())
            with pytest.raises(ClusterAuthorizationFailed):
                admin.delete_acls([AclFilter()])
            with pytest.raises(TopicAuthorizationFailed):
                admin.create_topics([NewTopic("v")])
            for each in ("hidden", "never-there"):
                with pytest.raises(TopicAuthorizationFailed):
                    admin.delete_topics([each])
        with Producer(bootstrap) as producer:
            for each in ("t-1", "t-secret"):
                producer.send(each, b"second")
            for each in ("u", "hidden"):
                with pytest.raises(TopicAuthorizationFailed):
                    producer.send(each, b"second")
        assert _read(bootstrap, "g", "t-1", "u") == {b"first", b"second"}
        with pytest.raises(GroupAuthorizationFailed):
            _read(bootstrap, "another", "t-1")
        with pytest.raises(TopicAuthorizationFailed):
            _read(bootstrap, "g", "t-secret")


def _read(bootstrap: str, group: str, *topics: str) -> set[bytes | None]:
    """What three records say."""
    with Consumer(bootstrap, group_id=group, auto_offset_reset="earliest") as consumer:
        consumer.subscribe(topics)
        return {consumer.getone().value for _ in range(3)}
