"""Access control lists made by Kafka's tool."""

from __future__ import annotations

import pytest

from moldau.client import ClusterAuthorizationFailed
from moldau.client.sync import Admin
from moldau.testing import Cluster
from tests.interop.java.tools import JavaTools

AUTHORIZER = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "auto.create.topics.enable": "false",
}
ANONYMOUS = "User:ANONYMOUS"


@pytest.mark.timeout(300)
def test_acls_by_kafkas_tool(java: JavaTools) -> None:
    with Cluster(config=AUTHORIZER) as cluster:
        bootstrap = cluster.bootstrap_server
        with Admin(bootstrap) as admin:
            with pytest.raises(ClusterAuthorizationFailed):
                admin.describe_acls()
            assert admin.list_topics() == []
        refused = java.run(*_acls(bootstrap, "--list"))
        assert "ClusterAuthorizationException" in refused.output + refused.errors
    opened = {**AUTHORIZER, "super.users": f"User:admin;{ANONYMOUS}"}
    with Cluster(config=opened) as cluster:
        bootstrap = cluster.bootstrap_server
        to_read = ("--allow-principal", "User:bob", "--consumer", "--group", "g", "--topic", "t")
        java.check(*_acls(bootstrap, "--add", *to_read))
        java.check(
            *_acls(
                bootstrap, "--add", "--deny-principal", "User:eve", "--operation", "All",
                "--topic", "t-", "--resource-pattern-type", "prefixed", "--deny-host", "10.0.0.9",
            )
        )  # fmt: skip
        listed = java.check(*_acls(bootstrap, "--list")).output
        assert "principal=User:bob, host=*, operation=READ, permissionType=ALLOW" in listed
        assert "principal=User:eve, host=10.0.0.9, operation=ALL, permissionType=DENY" in listed
        with Admin(bootstrap) as admin:
            assert len(admin.describe_acls()) == 4
        java.check(*_acls(bootstrap, "--remove", "--force", *to_read))
        listed = java.check(*_acls(bootstrap, "--list")).output
        assert "User:bob" not in listed
        assert "User:eve" in listed


def _acls(bootstrap: str, *options: object) -> tuple[object, ...]:
    return ("kafka-acls", "--bootstrap-server", bootstrap, *options)
