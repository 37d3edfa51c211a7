"""How the lives of members end: a killed one stays in its group until its session is over."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from moldau.testing import Cluster
from tests.kit.waiting import until
from tests.system.transactions.consumers import RecordingConsumer, member_config
from tests.system.transactions.history import History
from tests.system.transactions.mortal_consumer import MortalConsumer

SESSION_MS = 45_000
CONFIG = {
    "group.initial.rebalance.delay.ms": "0",
    "group.consumer.session.timeout.ms": str(SESSION_MS),
    "group.consumer.heartbeat.interval.ms": "500",
    "group.consumer.min.heartbeat.interval.ms": "500",
}
TOPIC = "events"

pytestmark = [pytest.mark.system, pytest.mark.timeout(120)]


@pytest.fixture(scope="module")
def bootstrap() -> Iterator[str]:
    with Cluster(config=CONFIG) as cluster:
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap_server, "log_level": 0})
        admin.create_topics([NewTopic(TOPIC, 4, 1)])[TOPIC].result(30)
        yield cluster.bootstrap_server


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
@pytest.mark.parametrize(
    ("make", "is_killed"),
    [(None, False), (MortalConsumer, False), (MortalConsumer, True)],
    ids=["closed", "closed-process", "killed"],
)
def test_only_a_closed_member_leaves(
    bootstrap: str, protocol: str, make: type[MortalConsumer] | None, is_killed: bool
) -> None:
    group = f"{protocol}-{make}-{is_killed}"
    config = member_config(bootstrap, group, protocol)
    config |= {"auto.offset.reset": "earliest", "max.poll.interval.ms": SESSION_MS}
    if protocol == "classic":
        config["session.timeout.ms"] = SESSION_MS
    member = RecordingConsumer(config, "one", History(), make_consumer=make)
    member.subscribe([TOPIC])

    def owns_all() -> bool:
        member.take(1, 0.1)
        return len(member.owned) == 4

    until(owns_all, what="an assignment", deadline_s=30)
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})

    def member_count() -> int:
        described = admin.describe_consumer_groups([group], request_timeout=10)[group]
        return len(described.result(15).members)

    assert member_count() == 1
    if is_killed:
        member.kill()
        assert member_count() == 1
    else:
        member.close()
        assert member_count() == 0
