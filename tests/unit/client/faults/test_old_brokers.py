"""The same calls with brokers of Apache Kafka 2.1, 2.8, 3.5 and 4.3, and mixtures of them.

The fake cluster fails the test when a request of a version comes that was not advertised.
"""

from __future__ import annotations

from typing import Any

import pytest

from moldau.client import (
    Admin,
    CommittedOffset,
    Consumer,
    ConsumerRecord,
    KafkaError,
    NewPartitions,
    NewTopic,
    OffsetAndMetadata,
    OffsetSpec,
    Producer,
    UnsupportedByBroker,
)
from moldau.protocol import ApiKey
from tests.fake_broker import KAFKA_2_1, KAFKA_4_3, RELEASES, FakeCluster, Settings, limited
from tests.unit.client.faults.harness import (
    CONSUMER,
    MEMBER,
    PRODUCER,
    check_delivered,
    ends,
    partition,
    poll_until,
    take,
    values_of,
)

EVERY_RELEASE = pytest.mark.parametrize("release", RELEASES)


def _cluster(release: str, **settings: Any) -> FakeCluster:
    is_kraft = release == "4.3"
    settings = {"transaction_version": 2 if is_kraft else 0, "forwards_admin": is_kraft, **settings}
    return FakeCluster(
        2, topics={"t": 2}, versions=RELEASES[release], settings=Settings(**settings)
    )


@EVERY_RELEASE
@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
async def test_records_go_in_and_out(release: str, codec: str):
    async with _cluster(release) as cluster:
        async with Producer(
            cluster.bootstrap_servers, **{**PRODUCER, "compression_type": codec}
        ) as producer:
            for number in range(6):
                headers = [("h", b"1")]
                await ends(
                    producer.send(
                        "t", b"%d" % number, key=b"k", headers=headers, partition=number % 2
                    ),
                    "send",
                )
            cluster.move_leader("t", 0)
            await ends(producer.send("t", b"moved", partition=0), "after the move")
        check_delivered(cluster, "t", {0: [b"0", b"2", b"4", b"moved"], 1: [b"1", b"3", b"5"]})
        async with Consumer(cluster.bootstrap_servers, **CONSUMER) as consumer:
            consumer.assign([partition(0), partition(1)])
            records: list[ConsumerRecord] = await take(consumer, 7)
            assert sorted(values_of(records)) == [b"0", b"1", b"2", b"3", b"4", b"5", b"moved"]
            assert records[0].headers == (("h", b"1"),) or records[0].value == b"moved"
            ends_at = await ends(consumer.end_offsets([partition(0)]), "end offsets")
            assert ends_at == {partition(0): 4}
            found = await ends(consumer.offsets_for_times({partition(0): 0}), "by time")
            assert found[partition(0)].offset == 0
            cluster.move_leader("t", 0)
            cluster.fill("t", [b"again"], 0)
            assert values_of(await take(consumer, 1)) == [b"again"]


@EVERY_RELEASE
async def test_groups_share_and_commit(release: str):
    async with _cluster(release) as cluster:
        for index in range(2):
            cluster.fill("t", [b"%d" % index], index)
        first = Consumer(cluster.bootstrap_servers, **MEMBER)
        second = Consumer(cluster.bootstrap_servers, **MEMBER)
        async with first, second:
            for consumer in (first, second):
                consumer.subscribe(["t"])
            await poll_until(
                [first, second],
                lambda: len(first.assignment()) == len(second.assignment()) == 1,
                "the assignment",
            )
            for consumer in (first, second):
                (owned,) = consumer.assignment()
                await ends(consumer.commit({owned: OffsetAndMetadata(1, "m")}), "commit")
                committed = await ends(consumer.committed([owned]), "committed")
                assert committed[owned].offset == 1
        assert [cluster.groups.committed("g", "t", index) for index in range(2)] == [1, 1]
        assert cluster.groups.get("g").is_empty


@EVERY_RELEASE
async def test_transactions_commit_and_abort(release: str):
    async with _cluster(release) as cluster:
        settings = {**PRODUCER, "transactional_id": "x"}
        async with Producer(cluster.bootstrap_servers, **settings) as producer:
            for name in ("a", "b"):
                async with producer.transaction():
                    await ends(producer.send("t", name.encode(), partition=0), "send")
                    offsets = {partition(1): OffsetAndMetadata(ord(name))}
                    await ends(producer.send_offsets(offsets, group="g"), "offsets")
            with pytest.raises(ZeroDivisionError):
                await ends(_abort(producer), "abort")
        values = [record.value for record in cluster.records("t", 0, committed_only=True)]
        assert values == [b"a", b"b"]
        assert cluster.groups.committed("g", "t", 1) == ord("b")
        async with Consumer(
            cluster.bootstrap_servers, **{**CONSUMER, "isolation_level": "read_committed"}
        ) as consumer:
            consumer.assign([partition(0)])
            cluster.fill("t", [b"last"], 0)
            assert values_of(await take(consumer, 3)) == [b"a", b"b", b"last"]


async def _abort(producer: Producer) -> None:
    async with producer.transaction():
        await producer.send("t", b"aborted", partition=0)
        raise ZeroDivisionError


@EVERY_RELEASE
async def test_the_admin_client_does_what_the_release_can(release: str):
    async with _cluster(release) as cluster, Admin(cluster.bootstrap_servers) as admin:
        await ends(admin.create_topics([NewTopic("new", 1, 1)]), "create")
        await ends(admin.create_partitions({"new": NewPartitions(2)}), "grow")
        assert await ends(admin.list_topics(), "list") == ["new", "t"]
        described = await ends(admin.describe_topics(["new"]), "describe")
        assert len(described["new"].partitions) == 2
        assert len((await ends(admin.describe_cluster(), "cluster")).brokers) == 2
        cluster.fill("t", [b"a"], 0)
        offsets = await ends(admin.list_offsets({partition(0): OffsetSpec.LATEST}), "offsets")
        assert offsets[partition(0)].offset == 1
        committed = {partition(0): CommittedOffset(1)}
        assert await ends(admin.alter_group_offsets("g", committed), "alter") == {
            partition(0): None
        }
        listed = await ends(admin.list_group_offsets(["g"]), "list offsets")
        assert listed["g"][partition(0)].offset == 1
        assert [each.group_id for each in await ends(admin.list_groups(), "groups")] == ["g"]
        group = (await ends(admin.describe_groups(["g"]), "describe group"))["g"]
        assert not isinstance(group, KafkaError), group
        assert await ends(admin.delete_groups(["g"]), "delete group") == {"g": None}
        await ends(admin.delete_topics(["new"]), "delete")
        assert "new" not in cluster.topics


async def test_what_a_release_does_not_serve_is_one_error_that_says_so():
    async with _cluster("2.1") as cluster:
        settings = {**MEMBER, "group_protocol": "consumer"}
        async with Consumer(cluster.bootstrap_servers, **settings) as consumer:
            consumer.subscribe(["t"])
            with pytest.raises(UnsupportedByBroker, match=r"(?i)CONSUMER_?GROUP_?HEARTBEAT"):
                await ends(consumer.getone(), "the new protocol")


@pytest.mark.parametrize(
    ("release", "call", "given"),
    [
        ("3.5", "list_transactions", {"transactional_id_pattern": "a.*"}),
        ("3.5", "list_transactions", {"longer_than_ms": 1_000}),
        ("2.1", "list_groups", {"states": ["Stable"]}),
        ("3.5", "list_groups", {"group_types": ["consumer"]}),
    ],
)
async def test_a_filter_that_a_release_does_not_know_is_one_error_that_says_so(
    release: str, call: str, given: dict[str, Any]
):
    """Without the filter the list would be too long, and look right."""
    async with (
        FakeCluster(1, versions=RELEASES[release]) as cluster,
        Admin(cluster.bootstrap_servers) as admin,
    ):
        assert await getattr(admin, call)() == []
        with pytest.raises(UnsupportedByBroker, match="is needed"):
            await getattr(admin, call)(**given)


async def test_a_broker_too_old_is_one_error_that_says_so():
    """Before 2.1 there are no versions in common for some APIs; nothing hangs."""
    ancient = limited(KAFKA_2_1, produce=(0, 2), fetch=(0, 3), metadata=(0, 5))
    async with FakeCluster(1, topics={"t": 1}, versions=ancient) as cluster:
        producer = Producer(cluster.bootstrap_servers, **{**PRODUCER, "enable_idempotence": False})
        with pytest.raises(UnsupportedByBroker, match="PRODUCE"):
            await ends(_send_one(producer), "produce")


async def _send_one(producer: Producer) -> None:
    async with producer:
        await producer.send("t", b"value")


async def test_brokers_of_different_releases_in_one_cluster():
    """A rolling upgrade: each connection negotiates for itself."""
    versions = {0: KAFKA_2_1, 1: KAFKA_4_3}
    settings = Settings(transaction_version=0)
    async with FakeCluster(2, topics={"t": 2}, versions=versions, settings=settings) as cluster:
        async with Producer(cluster.bootstrap_servers, **PRODUCER) as producer:
            for number in range(8):
                if number == 4:
                    cluster.move_leader("t", 0)
                    cluster.move_leader("t", 1)
                await ends(producer.send("t", b"%d" % number, partition=number % 2), "send")
        assert cluster.recorder.versions(ApiKey.PRODUCE) >= {7}
        async with Consumer(cluster.bootstrap_servers, **CONSUMER) as consumer:
            consumer.assign([partition(0), partition(1)])
            assert len(await take(consumer, 8)) == 8
