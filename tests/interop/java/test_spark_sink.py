"""The Spark sink on Apache Kafka 4.3: the protocol without Spark, and what ACLs refuse.

The tests themselves are those of `tests/spark/sink`, collected here once more with another node.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from moldau.client import (
    AclBinding,
    AclFilter,
    AclOperation,
    AclPatternType,
    AclPermission,
    AclResourceType,
)
from moldau.client.sync import Admin
from moldau.spark_connector import errors
from tests.interop.java.server import KafkaServer
from tests.interop.java.tools import JavaTools
from tests.spark.conftest import make_topic
from tests.spark.sink.plain_sink import Sink
from tests.spark.sink.test_without_spark import (  # noqa: F401
    fresh_process,
    test_a_driver_that_was_overtaken,
    test_a_ledger_that_was_deleted_and_created_again_is_refused,
    test_a_slot_that_was_used_after_the_decision,
    test_abort,
    test_abort_after_the_decision,
    test_batches_and_their_replays,
    test_dead_attempts_are_swept,
    test_lost_rows_that_come_again_changed,
    test_named_batch_writes,
    test_settling,
    test_the_own_record_behind_a_transaction_of_another_sink,
)

pytestmark = pytest.mark.timeout(300)

# The node's own requests come from the same principal: what is denied is only what sinks do.
SECURED = """
authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer
allow.everyone.if.no.acl.found=true
"""


@pytest.fixture(scope="module")
def cluster(java: JavaTools, tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaServer]:
    """One Kafka node with ACLs, of which there are none at first."""
    home = tmp_path_factory.mktemp("kafka") / "node"
    server = KafkaServer(java, home)
    with (home / "server.properties").open("a") as properties:
        properties.write(SECURED)
    with server:
        yield server


@pytest.fixture(scope="module")
def admin(cluster: KafkaServer) -> Iterator[Admin]:
    """An admin client of the node."""
    with Admin(cluster.bootstrap_server) as client:
        yield client


@pytest.fixture
def topic(admin: Admin) -> str:
    """A fresh topic with two partitions."""
    return make_topic(admin, partitions=2)


@pytest.fixture
def sink(cluster: Any, topic: str) -> Sink:
    """A sink with transactions of the only kind there is."""
    return Sink(cluster, topic)


@pytest.mark.parametrize("kind", ["transactional id", "ledger", "output"])
@pytest.mark.promise("refusal-access")
def test_what_is_not_permitted(cluster: Any, admin: Admin, topic: str, kind: str) -> None:
    """Each is one clear error that names what is needed."""
    sink = Sink(cluster, topic, **{"kafka.default.api.timeout.ms": "5000"})
    planned = sink.plan()
    resource_type, name, operation = {
        "transactional id": (AclResourceType.TRANSACTIONAL_ID, sink.id, AclOperation.WRITE),
        "ledger": (AclResourceType.TOPIC, sink.options.ledger_topic, AclOperation.WRITE),
        "output": (AclResourceType.TOPIC, topic, AclOperation.WRITE),
    }[kind]
    pattern = AclPatternType.LITERAL
    if kind == "transactional id":
        pattern = AclPatternType.PREFIXED
    denied = AclBinding(
        resource_type,
        name,
        "User:ANONYMOUS",
        operation,
        AclPermission.DENY,
        pattern_type=pattern,
    )
    admin.create_acls([denied])
    try:
        with pytest.raises(Exception, match="AUTHORIZATION_FAILED") as caught:
            sink.commit(planned, 0, sink.write(planned, 0))
    finally:
        admin.delete_acls([AclFilter(resource_type, name, pattern_type=pattern)])
    if kind == "ledger":
        assert isinstance(caught.value, errors.AccessDenied)
        assert "READ, WRITE and DESCRIBE on the ledger topic" in str(caught.value)
    sink.batch(0)
