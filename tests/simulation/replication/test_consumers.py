"""What the consumers' check makes of topics that follow another of their name.

Owns: a consumer and a cluster that only say where things are. Invariant: what is lawful passes, and
the same without its reason does not.
"""

from __future__ import annotations

from collections import defaultdict
from random import Random
from types import SimpleNamespace
from uuid import UUID

import pytest

from moldau.client.records import ConsumerRecord, OffsetAndMetadata
from moldau.protocol.types import TopicPartition
from tests.kit.seeds import Violation
from tests.simulation.replication.consumers import ConsumerClient, Reading
from tests.simulation.replication.ledger import PartitionTruth

PLACE = TopicPartition("passing", 0)
FORMER, LATER = UUID(int=1), UUID(int=2)
COMMITTED = range(5)
BEGINNING = 2
"""The beginning of every topic: where a client goes that is to begin again."""


class KnownWorld(SimpleNamespace):
    """A cluster of one topic, in which brokers take for it what the test says.

    Attributes:
        meant: what brokers and the committed metadata take for the topic.
    """

    def __init__(self) -> None:
        truth = PartitionTruth("passing~1-0", deleted_to=BEGINNING)
        super().__init__(
            **dict.fromkeys(("loop", "fabric")),
            note=print,
            wall_clocks=SimpleNamespace(of=str),
            broker_addresses=[],
            clients=[],
            data=SimpleNamespace(truth=defaultdict(lambda: truth).__getitem__, records=self),
            ledger=SimpleNamespace(image=SimpleNamespace(topics=self), deletions_asked=set()),
            topics_by_name={PLACE.topic: SimpleNamespace(topic_id=FORMER)},
        )
        self.meant = {FORMER}

    def recreate(self) -> None:
        self.ledger.deletions_asked.add(PLACE.topic)
        self.topics_by_name[PLACE.topic].topic_id = LATER
        self.meant = {LATER}

    def topic_ids(self, topic: str) -> set[UUID]:
        return set(self.meant)

    def on_read(self, *what: object) -> None:
        """It was written."""

    def offsets_in(self, _truth: PartitionTruth, _key: object, start: int, end: int) -> list[int]:
        return list(COMMITTED[start:end])


class KnownConsumer:
    """Stands where the test says, in the topic that the test says."""

    def __init__(self, topic_id: UUID | None) -> None:
        self.topic_id = topic_id
        self.offset = 0

    def seek(self, place: TopicPartition, offset: int) -> None:
        self.offset = offset

    def positions(self) -> dict[TopicPartition, OffsetAndMetadata]:
        return {PLACE: OffsetAndMetadata(self.offset, "", None, self.topic_id)}

    def lag(self, place: TopicPartition) -> None:
        """Not asked for."""


class StillClient(ConsumerClient):
    """Does nothing by itself."""

    def start(self) -> None:
        self.readings = {PLACE: Reading()}

    def shows(self, consumer: KnownConsumer, topic_id: UUID, *offsets: int) -> None:
        """A poll hands out these of that topic."""
        consumer.topic_id, consumer.offset = topic_id, offsets[-1] + 1
        records = [
            ConsumerRecord(
                topic=PLACE.topic,
                partition=PLACE.partition,
                offset=offset,
                timestamp_ms=0,
                timestamp_type=0,
                key=None,
                value=None,
                headers=(),
                leader_epoch=0,
            )
            for offset in offsets
        ]
        self._take(consumer, {PLACE: records})


@pytest.fixture
def world():
    return KnownWorld()


@pytest.fixture
def client(world):
    return StillClient(world, 1, Random(1), [PLACE])


def test_where_it_went_in_a_topic_says_nothing_of_the_next(world, client):
    consumer = KnownConsumer(FORMER)
    client._begin_again(consumer)
    world.recreate()
    client.shows(consumer, LATER, 0, 1)
    client.shows(consumer, LATER, 2)
    assert client.readings[PLACE] == Reading(LATER, 3)


@pytest.mark.parametrize("known", [FORMER, None])
@pytest.mark.parametrize(("offset", "kind"), [(1, "read-twice"), (3, "consumer-gap")])
def test_it_reads_on_from_where_it_went(client, known, offset, kind):
    consumer = KnownConsumer(known)
    client._begin_again(consumer)
    with pytest.raises(Violation, match=kind):
        client.shows(consumer, FORMER, offset)


def test_it_reads_anywhere_where_it_may_have_gone_in_another_topic(world, client):
    world.recreate()
    consumer = KnownConsumer(None)
    client._begin_again(consumer)
    client.shows(consumer, LATER, 0)
    assert client.readings[PLACE] == Reading(LATER, 1)


def test_it_is_led_astray_only_while_a_broker_means_another_topic(world, client):
    world.recreate()
    world.meant.add(FORMER)
    consumer = KnownConsumer(LATER)
    client.shows(consumer, LATER, 0, 1, 2)
    world.meant.remove(FORMER)
    # The broker may have been asked before it heard of the deletion.
    client.shows(consumer, LATER, 0, 1)
    with pytest.raises(Violation, match="read-twice"):
        client.shows(consumer, LATER, 0)
