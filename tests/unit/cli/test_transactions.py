"""Which open transactions hang, whatever the two sides say."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import pytest

from moldau.client import (
    Admin,
    Broker,
    KafkaError,
    ProducerState,
    TopicPartition,
    TransactionDescription,
    TransactionListing,
)
from moldau.hanging_transactions import OpenTransaction, find_hanging
from moldau.protocol.errors import ErrorCode

ZERO, ONE = TopicPartition("t", 0), TopicPartition("t", 1)
NOW_MS, LIMIT_MS = 10_000_000, 900_000
OLD_MS = NOW_MS - LIMIT_MS - 1
HERE = Broker(1, "h", 9, None)

Producers = dict[TopicPartition, list[ProducerState] | KafkaError]


def open_since(last_ms: int = OLD_MS, *, producer_id: int = 5, start: int | None = 40) -> Any:
    return ProducerState(producer_id, 0, 3, last_ms, 0, start)


@dataclass
class Cluster:
    """What `find_hanging` asks; `looks` are the answers of the partitions, the last one stays."""

    looks: list[Producers]
    known: dict[str, TransactionDescription | KafkaError] = field(default_factory=dict)
    asked_ids: list[int] = field(default_factory=list)

    async def describe_partition_producers(
        self, partitions: Collection[TopicPartition], *, broker_id: int | None = None
    ) -> Producers:
        look = self.looks.pop(0) if len(self.looks) > 1 else self.looks[0]
        return {each: look[each] for each in partitions}

    async def list_transactions(self, *, producer_ids: Sequence[int]) -> list[TransactionListing]:
        self.asked_ids = list(producer_ids)
        return [
            TransactionListing(name, 5, "Ongoing", 1) for name in self.known if 5 in producer_ids
        ]

    async def describe_transactions(
        self, ids: Collection[str]
    ) -> dict[str, TransactionDescription | KafkaError]:
        return {each: self.known[each] for each in ids}

    async def search(self) -> tuple[list[OpenTransaction], list[KafkaError]]:
        partitions = list(self.looks[0])
        return await find_hanging(
            cast(Admin, self), partitions, now_ms=NOW_MS, older_than_ms=LIMIT_MS
        )


def described(*partitions: TopicPartition) -> TransactionDescription:
    return TransactionDescription("x", HERE, 5, 0, "Ongoing", 60_000, 1, frozenset(partitions))


async def test_one_that_no_coordinator_knows():
    cluster = Cluster([{ZERO: [open_since()]}])
    [found] = (await cluster.search())[0]
    assert (found.partition, found.producer.current_transaction_start_offset) == (ZERO, 40)
    assert cluster.asked_ids == [5]


@pytest.mark.parametrize("producer", [open_since(OLD_MS + 1), open_since(start=None)])
async def test_young_and_ended_ones_do_not_hang(producer: ProducerState):
    cluster = Cluster([{ZERO: [producer]}])
    assert (await cluster.search())[0] == []
    assert cluster.asked_ids == [], "nobody had to be asked"


async def test_one_that_its_coordinator_is_going_to_end():
    cluster = Cluster([{ZERO: [open_since()], ONE: [open_since()]}], {"x": described(ZERO)})
    assert [each.partition for each in (await cluster.search())[0]] == [ONE]


async def test_an_open_transaction_of_an_expired_id_is_hanging():
    gone = KafkaError("gone", code=ErrorCode.TRANSACTIONAL_ID_NOT_FOUND)
    cluster = Cluster([{ZERO: [open_since()]}], {"x": gone})
    assert len((await cluster.search())[0]) == 1


async def test_a_coordinator_that_does_not_tell_ends_the_search():
    refused = KafkaError("no", code=ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
    cluster = Cluster([{ZERO: [open_since()]}], {"x": refused})
    with pytest.raises(KafkaError, match="no"):
        await cluster.search()


@pytest.mark.parametrize("later", [[open_since(start=None)], [open_since(start=70)], []])
async def test_one_that_was_ended_while_we_asked(later: list[ProducerState]):
    cluster = Cluster([{ZERO: [open_since()]}, {ZERO: later}])
    assert (await cluster.search())[0] == []


async def test_partitions_that_do_not_answer_are_named():
    problem = KafkaError("no leader")
    hanging, errors = await Cluster([{ZERO: problem, ONE: [open_since()]}]).search()
    assert errors == [problem]
    assert len(hanging) == 1
