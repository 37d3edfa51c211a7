"""confluent-kafka (librdkafka): groups with the classic and with the consumer protocol."""

from __future__ import annotations

import pytest
from confluent_kafka import (
    Consumer,
    ConsumerGroupState,
    ConsumerGroupTopicPartitions,
    ConsumerGroupType,
    KafkaError,
    KafkaException,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient

from tests.interop.confluent.clients import (
    WAIT_S,
    Reading,
    consumer_config,
    consuming,
    numbers,
    owned,
    positions,
    write_numbers,
)
from tests.interop.topics import TopicMaker, fresh_name

pytestmark = pytest.mark.timeout(300)

PARTITIONS = 6
COUNT = 600
CONSUMER_PROTOCOL = {"group.protocol": "consumer"}
PROTOCOLS = {
    "range": {"partition.assignment.strategy": "range"},
    "roundrobin": {"partition.assignment.strategy": "roundrobin"},
    "cooperative-sticky": {"partition.assignment.strategy": "cooperative-sticky"},
    "consumer-uniform": {**CONSUMER_PROTOCOL, "group.remote.assignor": "uniform"},
    "consumer-range": {**CONSUMER_PROTOCOL, "group.remote.assignor": "range"},
}
BOTH_KINDS = pytest.mark.parametrize(
    "config", [PROTOCOLS["cooperative-sticky"], CONSUMER_PROTOCOL], ids=["classic", "consumer"]
)


@pytest.fixture(scope="module")
def admin(trio: str) -> AdminClient:
    """For looking at groups from outside."""
    return AdminClient({"bootstrap.servers": trio, "log_level": 0})


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_two_share_and_one_takes_over(trio: str, trio_topics: TopicMaker, protocol: str) -> None:
    """Every record once; what the one that left had committed is not read again."""
    topic = trio_topics.create(partitions=PARTITIONS)
    group = fresh_name(protocol)
    config = PROTOCOLS[protocol]
    write_numbers(trio, topic, range(COUNT), PARTITIONS)
    with consuming(trio, group, **config) as first:
        first.subscribe([topic])
        with consuming(trio, group, **config) as second:
            second.subscribe([topic])
            reading = Reading(first, second)
            shares = reading.until_shared(topic, (3, 3))
            if "range" in protocol:
                assert {tuple(sorted(number for _, number in share)) for share in shares} == {
                    (0, 1, 2),
                    (3, 4, 5),
                }
            # What the first one read before the second came is read again: nothing was committed.
            reading.until(
                lambda: (
                    [each.offset for consumer in (first, second) for each in positions(consumer)]
                    == [COUNT // PARTITIONS] * PARTITIONS
                ),
                what="both have read what is theirs",
            )
            assert set(reading.values) == set(numbers(COUNT))
            for consumer in (first, second):
                consumer.commit(offsets=positions(consumer), asynchronous=False)
        alone = Reading(first)
        alone.until_shared(topic, [PARTITIONS])
        write_numbers(trio, topic, range(COUNT, COUNT + 60), PARTITIONS)
        alone.until_read(60)
        assert alone.values == numbers(60, COUNT)


@BOTH_KINDS
def test_offsets_outlive_the_group_s_members(
    trio: str, trio_topics: TopicMaker, config: dict[str, str]
) -> None:
    topic = trio_topics.create(partitions=2)
    group = fresh_name("offsets")
    write_numbers(trio, topic, range(40), 2)
    with consuming(trio, group, **config) as consumer:
        consumer.subscribe([topic])
        Reading(consumer).until_shared(topic, [2])
        committed = [
            TopicPartition(topic, 0, 7, metadata="where the seventh was"),
            TopicPartition(topic, 1, 20),
        ]
        consumer.commit(offsets=committed, asynchronous=False)
        found = consumer.committed(
            [TopicPartition(topic, 0), TopicPartition(topic, 1)], timeout=WAIT_S
        )
        assert [each.offset for each in found] == [7, 20]
        assert found[0].metadata == "where the seventh was"
    with consuming(trio, group, **config) as consumer:
        consumer.subscribe([topic])
        reading = Reading(consumer)
        reading.until_read(13)
        assert {(each.partition(), each.offset()) for each in reading.messages} == {
            (0, offset) for offset in range(7, 20)
        }


@BOTH_KINDS
def test_a_static_member_comes_back_to_what_it_had(
    trio: str, trio_topics: TopicMaker, config: dict[str, str]
) -> None:
    """No other member is disturbed: the other keeps its partitions throughout."""
    topic = trio_topics.create(partitions=4)
    group = fresh_name("static")
    revoked: list[list[TopicPartition]] = []
    with consuming(trio, group, **config, **{"group.instance.id": "one"}) as first:
        first.subscribe([topic], on_revoke=lambda _, partitions: revoked.append(partitions))
        second = Consumer(static_config(trio, group, config))
        second.subscribe([topic])
        shares = Reading(first, second).until_shared(topic, (2, 2))
        revoked.clear()
        # Closing a static member is not reported; with the consumer protocol it says "back soon".
        second.close()
        again = Consumer(static_config(trio, group, config))
        try:
            again.subscribe([topic])
            assert Reading(first, again).until_shared(topic, (2, 2)) == shares
            assert revoked == []
        finally:
            again.close()


def static_config(
    bootstrap: str, group: str, config: dict[str, str], instance: str = "two"
) -> dict[str, object]:
    """A static member's."""
    return consumer_config(bootstrap, group, **config, **{"group.instance.id": instance})


def test_a_second_member_with_the_same_instance_id_fences_the_first(
    trio: str, trio_topics: TopicMaker
) -> None:
    """The newest wins in classic groups."""
    topic = trio_topics.create()
    group = fresh_name("fenced")
    config = PROTOCOLS["range"]
    first = Consumer(static_config(trio, group, config))
    second = Consumer(static_config(trio, group, config))
    try:
        first.subscribe([topic])
        Reading(first).until_shared(topic, [1])
        second.subscribe([topic])
        reading = Reading(second)
        reading.until_shared(topic, [1])
        old = Reading(first)

        def is_fenced() -> bool:
            return any(
                error.code() in (KafkaError._FATAL, KafkaError.FENCED_INSTANCE_ID)
                for error in old.errors
            )

        old.until(is_fenced, what="the first is fenced")
        assert owned(second) == {(topic, 0)}
    finally:
        second.close()
        first.close()


def test_an_instance_id_that_is_in_use_is_refused(trio: str, trio_topics: TopicMaker) -> None:
    """The newest is refused in consumer groups while the first is a member."""
    topic = trio_topics.create()
    group = fresh_name("unreleased")
    first = Consumer(static_config(trio, group, CONSUMER_PROTOCOL))
    second = Consumer(static_config(trio, group, CONSUMER_PROTOCOL))
    try:
        first.subscribe([topic])
        Reading(first).until_shared(topic, [1])
        second.subscribe([topic])
        reading = Reading(second, first)

        def is_refused() -> bool:
            return any(
                error.code() in (KafkaError._FATAL, KafkaError.UNRELEASED_INSTANCE_ID)
                for error in reading.errors
            )

        reading.until(is_refused, what="the second is refused")
        assert owned(first) == {(topic, 0)}
        assert owned(second) == set()
    finally:
        second.close()
        first.close()


@BOTH_KINDS
def test_a_regular_expression_finds_topics_that_come_later(
    trio: str, trio_topics: TopicMaker, config: dict[str, str]
) -> None:
    prefix = fresh_name("matched")
    early = trio_topics.create(f"{prefix}-early", partitions=2)
    trio_topics.create(fresh_name("unmatched"))
    with consuming(trio, fresh_name("regex"), **config) as consumer:
        consumer.subscribe([f"^{prefix}-.*"])
        reading = Reading(consumer)
        reading.until(
            lambda: owned(consumer) == {(early, 0), (early, 1)}, what="the early topic's partitions"
        )
        late = trio_topics.create(f"{prefix}-late")
        reading.until(
            lambda: owned(consumer) == {(early, 0), (early, 1), (late, 0)}, what="the late topic's"
        )
        write_numbers(trio, late, range(5), 1)
        reading.until_read(5)
        assert reading.values == numbers(5)


@BOTH_KINDS
def test_what_the_admin_client_sees_and_changes(
    trio: str, trio_topics: TopicMaker, admin: AdminClient, config: dict[str, str]
) -> None:
    topic = trio_topics.create(partitions=2)
    group = fresh_name("seen")
    kind = ConsumerGroupType.CONSUMER if config is CONSUMER_PROTOCOL else ConsumerGroupType.CLASSIC
    with consuming(trio, group, **config, **{"client.id": "watched"}) as consumer:
        consumer.subscribe([topic])
        Reading(consumer).until_shared(topic, [2])
        consumer.commit(offsets=[TopicPartition(topic, 1, 3)], asynchronous=False)
        listing = admin.list_consumer_groups(types={kind}, states={ConsumerGroupState.STABLE})
        assert group in [each.group_id for each in listing.result(WAIT_S).valid]
        described = admin.describe_consumer_groups([group])[group].result(WAIT_S)
        assert (described.state, described.type) == (ConsumerGroupState.STABLE, kind)
        [member] = described.members
        assert member.client_id == "watched"
        assert {(each.topic, each.partition) for each in member.assignment.topic_partitions} == {
            (topic, 0),
            (topic, 1),
        }
        with pytest.raises(KafkaException) as refused:
            admin.delete_consumer_groups([group])[group].result(WAIT_S)
        assert refused.value.args[0].code() == KafkaError.NON_EMPTY_GROUP
    described = admin.describe_consumer_groups([group])[group].result(WAIT_S)
    assert described.state == ConsumerGroupState.EMPTY
    wanted = ConsumerGroupTopicPartitions(group, [TopicPartition(topic, 0, 11)])
    admin.alter_consumer_group_offsets([wanted])[group].result(WAIT_S)
    asked = ConsumerGroupTopicPartitions(group)
    listed = admin.list_consumer_group_offsets([asked])[group].result(WAIT_S)
    assert {(each.partition, each.offset) for each in listed.topic_partitions} == {(0, 11), (1, 3)}
    admin.delete_consumer_groups([group])[group].result(WAIT_S)
    with pytest.raises(KafkaException) as gone:
        admin.delete_consumer_groups([group])[group].result(WAIT_S)
    assert gone.value.args[0].code() == KafkaError.GROUP_ID_NOT_FOUND


def test_migration_from_classic_to_consumer_and_back(
    trio: str, trio_topics: TopicMaker, admin: AdminClient
) -> None:
    """One after the other, the members are replaced while the group goes on reading."""
    topic = trio_topics.create(partitions=4)
    group = fresh_name("migrated")
    classic = PROTOCOLS["cooperative-sticky"]

    def group_type() -> ConsumerGroupType:
        return admin.describe_consumer_groups([group])[group].result(WAIT_S).type

    def replace_one(leaving: Consumer, config: dict[str, str]) -> None:
        joining = Consumer(consumer_config(trio, group, **config))
        members.append(joining)
        joining.subscribe([topic])
        Reading(*members).until_shared(topic, (2, 1, 1))
        members.remove(leaving)
        leaving.close()
        Reading(*members).until_shared(topic, (2, 2))

    members = [Consumer(consumer_config(trio, group, **classic)) for _ in range(2)]
    try:
        for member in members:
            member.subscribe([topic])
        Reading(*members).until_shared(topic, (2, 2))
        assert group_type() == ConsumerGroupType.CLASSIC
        for config, kind in (
            (CONSUMER_PROTOCOL, ConsumerGroupType.CONSUMER),
            (classic, ConsumerGroupType.CLASSIC),
        ):
            for leaving in list(members):
                replace_one(leaving, config)
            assert group_type() == kind
            write_numbers(trio, topic, range(40), 4)
            reading = Reading(*members)
            reading.until_read(40)
            assert reading.values == numbers(40)
            for member in members:
                member.commit(offsets=positions(member), asynchronous=False)
    finally:
        for member in members:
            member.close()
