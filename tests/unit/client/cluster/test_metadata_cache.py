"""What a client keeps of Metadata answers that come from brokers which know more or less."""

from __future__ import annotations

import uuid

import pytest

from moldau.client.cluster.metadata_cache import (
    KEPT_GONE,
    KEPT_IDS,
    MAX_REFUSALS,
    MetadataCache,
)
from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.p03_metadata import (
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)


def told(
    number: int, leader_epoch: int = 0, code: ErrorCode = ErrorCode.NONE, name: str = "t"
) -> MetadataResponse:
    """An answer in which topic `t` has the id of that number."""
    partition = MetadataResponsePartition(
        partition_index=0, leader_id=1, leader_epoch=leader_epoch, replica_nodes=[1], isr_nodes=[1]
    )
    topic = MetadataResponseTopic(
        name=name, topic_id=uuid.UUID(int=number), error_code=code, partitions=[partition]
    )
    broker = MetadataResponseBroker(node_id=1, host="one", port=1)
    return MetadataResponse(brokers=[broker], topics=[topic])


def known(cache: MetadataCache) -> tuple[int, int] | None:
    """The topic's id and leader epoch."""
    topic = cache.topics.get("t")
    return None if topic is None else (topic.topic_id.int, topic.partitions[0].leader_epoch)


@pytest.mark.parametrize("complete", [False, True])
def test_a_topic_that_was_created_again_is_not_replaced_by_the_former_one(complete: bool):
    cache = MetadataCache()
    cache.update(told(1, 7), complete=complete)
    cache.update(told(2, 0), complete=complete)
    assert known(cache) == (2, 0)
    cache.update(told(1, 8), complete=complete)  # a broker that lags
    assert known(cache) == (2, 0)
    assert cache.topic_names == {uuid.UUID(int=2): "t"}
    cache.update(told(2, 1), complete=complete)
    assert known(cache) == (2, 1)


def test_the_former_topic_does_not_come_back_while_the_new_one_is_unknown_to_a_broker():
    cache = MetadataCache()
    cache.update(told(1), complete=False)
    cache.update(told(2), complete=False)
    cache.update(told(2, code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION), complete=False)
    assert known(cache) is None
    cache.update(told(1), complete=False)
    assert known(cache) is None
    cache.update(told(2), complete=False)
    assert known(cache) == (2, 0)


def test_a_client_that_heard_of_the_former_topic_last_believes_what_is_repeated():
    cache = MetadataCache()
    cache.update(told(2), complete=False)
    cache.update(told(1), complete=False)  # a broker that lags, and nothing shows it
    for _ in range(MAX_REFUSALS):
        cache.update(told(2), complete=False)
    cache.update(told(2), complete=False)
    assert known(cache) == (2, 0)
    for _ in range(MAX_REFUSALS):
        cache.update(told(1), complete=False)
    assert known(cache) == (2, 0)


def test_a_topic_that_another_client_knows_is_waited_for():
    cache = MetadataCache()
    cache.update(told(1, 7), complete=False)
    cache.expect_topic("t", uuid.UUID(int=2))
    assert known(cache) is None
    for _ in range(MAX_REFUSALS):
        cache.update(told(1, 7), complete=False)  # a broker that lags
        assert known(cache) is None
        assert cache.doubted == {"t"}
        assert cache.problem("t", 0) is ErrorCode.LEADER_NOT_AVAILABLE
    cache.update(told(2), complete=False)
    assert known(cache) == (2, 0)
    assert not cache.doubted
    cache.update(told(3), complete=False)
    assert known(cache) == (3, 0)


@pytest.mark.parametrize("heard", [(), (1,), (2, 1)])
def test_brokers_that_tell_another_id_on_and_on_know_better_than_another_client(
    heard: tuple[int, ...],
):
    cache = MetadataCache()
    for number in heard:
        cache.update(told(number), complete=False)
    cache.expect_topic("t", uuid.UUID(int=2))
    for _ in range(MAX_REFUSALS):
        cache.update(told(1), complete=False)
        assert known(cache) is None
    cache.update(told(1), complete=False)
    assert known(cache) == (1, 0)
    cache.expect_topic("t", uuid.UUID(int=1))
    assert known(cache) == (1, 0)


def test_without_ids_the_leader_epoch_decides():
    cache = MetadataCache()
    cache.update(told(0, 7), complete=False)
    cache.update(told(0, 3), complete=False)
    assert known(cache) == (0, 7)


def test_few_former_ids_are_remembered_and_none_of_a_topic_that_is_not_used():
    cache = MetadataCache()
    for number in range(1, 3 * KEPT_IDS):
        cache.update(told(number), complete=False)
    assert known(cache) == (3 * KEPT_IDS - 1, 0)
    assert len(cache._ids["t"]) == KEPT_IDS
    cache.retain(())
    assert not cache._ids
    for number in range(3 * KEPT_GONE):
        cache.update(told(number + 1, name=f"t-{number}"), complete=True)
    assert len(cache._ids) <= KEPT_GONE + 1


@pytest.mark.parametrize("complete", [False, True])
@pytest.mark.parametrize("known_first", [False, True])
def test_no_leader_older_than_a_position_is_named(complete: bool, known_first: bool):
    cache = MetadataCache()
    if known_first:
        cache.update(told(1, 3), complete=complete)
        assert cache.leader("t", 0) == 1
    assert cache.expect_epoch("t", 0, 5)
    for epoch in (3, 4):
        cache.update(told(1, epoch), complete=complete)  # brokers that lag
        assert cache.leader("t", 0) is None
        assert cache.problem("t", 0) is ErrorCode.LEADER_NOT_AVAILABLE
        assert cache.doubted == {"t"}
    cache.update(told(1, code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION), complete=complete)
    cache.update(told(1, 4), complete=complete)
    assert cache.leader("t", 0) is None
    cache.update(told(1, 6), complete=complete)
    assert cache.leader("t", 0) == 1
    assert not cache.doubted
    assert not cache.expect_epoch("t", 0, 6)


def test_a_leader_named_by_a_fetch_is_enough_when_its_epoch_is_new():
    cache = MetadataCache()
    cache.update(told(1, 3), complete=False)
    cache.expect_epoch("t", 0, 5)
    assert cache.learn_leader("t", 0, 1, 4)
    assert cache.leader("t", 0) is None
    assert cache.learn_leader("t", 0, 1, 5)
    assert cache.leader("t", 0) == 1


def test_the_epochs_of_another_topic_or_of_no_broker_or_of_a_former_position_are_not_waited_for():
    cache = MetadataCache()
    cache.update(told(1, 3), complete=False)
    cache.expect_epoch("t", 0, 5)
    cache.update(told(2, 0), complete=False)
    assert cache.leader("t", 0) == 1
    cache.expect_epoch("t", 0, 5)
    cache.expect_topic("t", uuid.UUID(int=3))
    cache.update(told(3, 0), complete=False)
    assert cache.leader("t", 0) == 1
    cache.expect_epoch("t", 0, 10**9)
    cache.expect_epoch("t", 0, -1)
    assert cache.leader("t", 0) == 1
    cache.expect_epoch("t", 0, 10**9)
    cache.retain(("other",))
    cache.update(told(3, 0), complete=False)
    assert cache.leader("t", 0) == 1
    cache = MetadataCache()
    cache.update(told(0, -1), complete=False)
    assert not cache.expect_epoch("t", 0, 5)
    assert cache.leader("t", 0) == 1
