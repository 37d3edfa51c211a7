"""The calls of a transactional producer against a scripted coordinator: outcomes, errors, limits,
and cancellation at every step.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import pytest

from moldau.client.cluster.cluster_client import ClusterClient
from moldau.client.config.producer import ProducerConfig
from moldau.client.errors import (
    ClientClosed,
    ConfigurationError,
    InvalidTransactionState,
    KafkaError,
    ProducerFenced,
    RequestTimeout,
    TransactionAbortable,
    TransactionalIdAuthorizationFailed,
)
from moldau.client.producer.core.transaction_requests import RequestKind
from moldau.client.producer.core.transaction_states import TransactionState
from moldau.client.producer.producer import Producer
from moldau.client.producer.transactions import PreparedTransaction, Transactions
from moldau.client.records import ConsumerGroupMetadata, OffsetAndMetadata
from moldau.protocol.errors import ErrorCode
from moldau.protocol.types import TopicPartition
from tests.unit.client.producer.core.transaction_world import PARTITIONS, Fate
from tests.unit.client.producer.scripted_coordinator import ScriptedBatches, ScriptedLink

K = RequestKind
S = TransactionState
P0, P1, _ = PARTITIONS


class ScriptedProducer(Producer):
    """The calls about transactions, without the rest of a producer."""

    def _check_usable(self) -> None:
        """There is nothing to start."""

    def __init__(self, link: ScriptedLink, **settings: Any) -> None:
        settings.setdefault("transactional_id", "tid")
        settings.setdefault("max_block_ms", 5_000)
        settings.setdefault("retry_backoff_ms", 1)
        self.link = link
        self.batches = ScriptedBatches(link.coordinator)
        config = ProducerConfig("nowhere:1", **settings)
        client = ClusterClient(config)
        client.random = random.Random(1)
        self.transactions = self._transactions = self.batches.transactions = Transactions(
            client, config, self.batches, link
        )

    async def reached(self, state: TransactionState) -> None:
        """Wait for the producer's state."""
        await self.transactions._driver.until(lambda: self.transactions.state is state)

    @property
    def visible(self) -> list[int]:
        return sorted(self.link.coordinator.visible())


@asynccontextmanager
async def opened(version: int = 2, **settings: Any) -> AsyncIterator[ScriptedProducer]:
    producer = ScriptedProducer(ScriptedLink(version), **settings)
    try:
        yield producer
    finally:
        await producer.transactions.close(1_000)


both_versions = pytest.mark.parametrize("version", [1, 2])


@both_versions
async def test_a_block_is_committed(version: int) -> None:
    async with opened(version) as producer:
        for number in range(3):
            async with producer.transaction():
                producer.batches.send(P0, 2 * number)
                producer.batches.send(P1, 2 * number + 1)
        assert producer.visible == [0, 1, 2, 3, 4, 5]
        adds = producer.link.asked.count(K.ADD_PARTITIONS)
        assert adds >= 3 if version == 1 else adds == 0


@both_versions
async def test_a_block_that_raises_is_aborted(version: int) -> None:
    async with opened(version) as producer:

        async def block() -> None:
            async with producer.transaction():
                producer.batches.send(P0, 1)
                await producer.batches.flush()
                producer.batches.is_stopped = True
                producer.batches.send(P0, 2)
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            await block()
        assert producer.batches.acknowledged == [1]
        assert producer.batches.aborted_count == 1
        producer.batches.is_stopped = False
        async with producer.transaction():
            producer.batches.send(P0, 3)
        assert producer.visible == [3]


@both_versions
@pytest.mark.parametrize("fate", [Fate.ANSWER_LOST, Fate.REQUEST_LOST, Fate.NOT_COORDINATOR])
@pytest.mark.parametrize("position", range(4))
async def test_no_request_needs_its_first_answer(version: int, fate: Fate, position: int) -> None:
    async with opened(version) as producer:
        producer.link.fates.extend([Fate.SERVED] * position + [fate])
        async with producer.transaction():
            producer.batches.send(P0, 1)
            await producer.send_offsets({P1: OffsetAndMetadata(5)}, "g")
        async with producer.transaction():
            producer.batches.send(P0, 2)
        assert producer.visible == [1, 2]
        assert producer.link.coordinator.offsets == {("g", P1): 5}


async def test_a_commit_that_was_cancelled_goes_on_and_may_be_made_again() -> None:
    async with opened() as producer:
        await producer.init_transactions()
        producer.begin_transaction()
        producer.batches.send(P0, 1)
        producer.link.hold.add(K.END)
        commit = asyncio.create_task(producer.commit_transaction())
        await producer.link.held.wait()
        commit.cancel()
        with pytest.raises(asyncio.CancelledError):
            await commit
        with pytest.raises(InvalidTransactionState, match="commit_transaction"):
            await producer.abort_transaction()
        producer.link.release.set()
        await producer.commit_transaction()
        assert producer.visible == [1]
        assert producer.link.asked.count(K.END) == 1


async def test_a_commit_that_ended_behind_its_cancelled_caller_is_reported_to_the_next() -> None:
    async with opened() as producer:
        await producer.init_transactions()
        producer.begin_transaction()
        producer.batches.send(P0, 1)
        producer.link.hold.add(K.END)
        commit = asyncio.create_task(producer.commit_transaction())
        await producer.link.held.wait()
        commit.cancel()
        producer.link.release.set()
        await producer.reached(S.READY)
        await producer.commit_transaction()
        with pytest.raises(InvalidTransactionState):
            await producer.commit_transaction()


async def test_a_commit_that_was_cancelled_while_flushing_may_become_an_abort() -> None:
    async with opened() as producer:
        await producer.init_transactions()
        producer.begin_transaction()
        producer.batches.is_stopped = True
        producer.batches.send(P0, 1)
        commit = asyncio.create_task(producer.commit_transaction())
        await producer.reached(S.COMMITTING)
        commit.cancel()
        await producer.abort_transaction()
        assert producer.transactions.state is S.READY
        assert producer.batches.aborted_count == 1
        with pytest.raises(asyncio.CancelledError):
            await commit


@both_versions
async def test_cancellation_anywhere_leaves_all_or_nothing(version: int) -> None:
    """The block, its offsets and its commit are cancelled after each number of loop steps."""
    outcomes = set()
    for step_count in range(60):
        async with opened(version) as producer:

            async def block(producer: ScriptedProducer = producer) -> None:
                async with producer.transaction():
                    producer.batches.send(P0, 1)
                    producer.batches.send(P1, 2)
                    await producer.send_offsets({P0: OffsetAndMetadata(7)}, "g")

            task = asyncio.create_task(block())
            for _ in range(step_count):
                await asyncio.sleep(0)
            task.cancel()
            await asyncio.wait({task})
            async with producer.transaction():
                producer.batches.send(P0, 3)
            first = [each for each in producer.visible if each != 3]
            assert 3 in producer.visible
            assert first in ([], [1, 2]), step_count
            assert bool(producer.link.coordinator.offsets) == bool(first), step_count
            if not task.cancelled():
                task.result()
                assert first
            outcomes.add((task.cancelled(), bool(first)))
    assert {(True, False), (False, True)} <= outcomes


@contextmanager
def cut_off(producer: ScriptedProducer) -> Iterator[None]:
    """Nothing leaves, and calls wait only a short time for that."""
    limit_ms, producer.transactions._limit_ms = producer.transactions._limit_ms, 30
    producer.link.is_unreachable = True
    yield
    producer.link.is_unreachable = False
    producer.transactions._limit_ms = limit_ms


async def test_time_runs_out_and_the_same_call_goes_on() -> None:
    async with opened() as producer:
        with cut_off(producer), pytest.raises(RequestTimeout, match="init_transactions"):
            await producer.init_transactions()
        await producer.init_transactions()
        producer.begin_transaction()
        producer.batches.send(P0, 1)
        await producer.batches.flush()
        with cut_off(producer), pytest.raises(RequestTimeout, match="commit_transaction"):
            await producer.commit_transaction()
        await producer.commit_transaction()
        assert producer.visible == [1]


@both_versions
async def test_a_fenced_producer_says_so_from_then_on(version: int) -> None:
    async with opened(version) as producer:
        async with producer.transaction():
            producer.batches.send(P0, 1)
        producer.link.coordinator._bump()
        with pytest.raises(ProducerFenced, match="'tid'"):
            async with producer.transaction():
                await producer.send_offsets({P0: 1}, "g")
        with pytest.raises(ProducerFenced):
            producer.begin_transaction()
        with pytest.raises(ProducerFenced):
            await producer.abort_transaction()
        with pytest.raises(ProducerFenced):
            producer.batches.send(P0, 2)


@both_versions
async def test_a_record_that_fails_spoils_its_transaction_only(version: int) -> None:
    async with opened(version) as producer:
        producer.batches.fail_next = ErrorCode.MESSAGE_TOO_LARGE
        with pytest.raises(TransactionAbortable) as caught:
            async with producer.transaction():
                producer.batches.send(P0, 1)
        assert caught.value.code is ErrorCode.MESSAGE_TOO_LARGE
        assert caught.value.__cause__ is producer.batches.errors[0]
        async with producer.transaction():
            producer.batches.send(P0, 2)
        assert producer.visible == [2]


async def test_a_refused_record_spoils_its_transaction() -> None:
    async with opened() as producer:
        with pytest.raises(TransactionAbortable):
            async with producer.transaction():
                producer.transactions.record_refused(KafkaError("too large"))


async def test_a_group_that_has_moved_on_raises_by_its_code() -> None:
    async with opened() as producer:
        producer.link.fates.extend([Fate.SERVED, ErrorCode.ILLEGAL_GENERATION])
        with pytest.raises(TransactionAbortable) as caught:
            async with producer.transaction():
                await producer.send_offsets(
                    {P0: OffsetAndMetadata(1)}, ConsumerGroupMetadata("g", 3, "m")
                )
        assert caught.value.code is ErrorCode.ILLEGAL_GENERATION
        async with producer.transaction():
            producer.batches.send(P0, 2)


class Positions:
    """As much of a consumer as `send_offsets` looks at."""

    def group_metadata(self) -> ConsumerGroupMetadata:
        return ConsumerGroupMetadata("g", 2, "member")

    def positions(self) -> Mapping[TopicPartition, OffsetAndMetadata]:
        return {P0: OffsetAndMetadata(3, "", 1), P1: OffsetAndMetadata(4)}


async def test_a_consumer_stands_for_its_positions() -> None:
    async with opened() as producer:
        async with producer.transaction():
            await producer.send_offsets(Positions())
        assert producer.link.coordinator.offsets == {("g", P0): 3, ("g", P1): 4}


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        (({P0: OffsetAndMetadata(1)},), TypeError, "need `group`"),
        (({P0: "1"}, "g"), TypeError, "OffsetAndMetadata"),
        (({P0: -1}, "g"), TypeError, "not negative"),
        (({("t", "0"): OffsetAndMetadata(1)}, "g"), TypeError, "TopicPartition"),
        (({P0: OffsetAndMetadata(2**63)}, "g"), ValueError, "cannot be committed"),
        ((Positions(), "g"), TypeError, "leave `group` out"),
        (({P0: OffsetAndMetadata(1)}, ""), ValueError, "empty"),
    ],
)
async def test_bad_offsets_raise_before_anything_happens(
    arguments: tuple[Any, ...], error: type[Exception], words: str
) -> None:
    async with opened() as producer:
        async with producer.transaction():
            with pytest.raises(error, match=words):
                await producer.send_offsets(*arguments)
        assert K.COMMIT_OFFSETS not in producer.link.asked


async def test_authorization_may_come_later() -> None:
    async with opened() as producer:
        producer.link.fates.append(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
        with pytest.raises(TransactionalIdAuthorizationFailed):
            await producer.init_transactions()
        await producer.init_transactions()
        assert producer.transactions.state is S.READY


async def test_a_coordinator_that_may_not_be_found_raises_its_own_error() -> None:
    async with opened() as producer:
        refusal = TransactionalIdAuthorizationFailed(
            "find coordinator: no", code=ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
        )
        producer.link.fates.append(refusal)
        with pytest.raises(TransactionalIdAuthorizationFailed) as caught:
            await producer.init_transactions()
        assert caught.value.__cause__ is refusal


async def test_a_mistake_of_this_program_raises_instead_of_waiting() -> None:
    async with opened() as producer:
        await producer.init_transactions()
        producer.begin_transaction()
        producer.batches.send(P0, 1)
        await producer.batches.flush()

        async def fails(*_: Any) -> None:
            raise ZeroDivisionError("a mistake")

        producer.link.ask = fails  # type: ignore[method-assign]
        with pytest.raises(KafkaError, match="a mistake") as caught:
            await producer.commit_transaction()
        assert isinstance(caught.value.__cause__, ZeroDivisionError)


async def test_closing_aborts_what_is_open() -> None:
    producer = ScriptedProducer(ScriptedLink(2))
    await producer.init_transactions()
    producer.begin_transaction()
    producer.batches.send(P0, 1)
    await producer.batches.flush()
    await producer.transactions.close(1_000)
    assert producer.link.coordinator.outcome is False
    for call in every_call(producer):
        with pytest.raises(ClientClosed):
            await call()


async def test_closing_leaves_what_was_handed_over() -> None:
    producer = ScriptedProducer(ScriptedLink(2))
    async with producer.transaction():
        producer.batches.send(P0, 1)
        handed_over = await producer.hand_over_transaction()
    await producer.transactions.close(1_000)
    assert producer.link.coordinator.is_ongoing
    assert producer.link.coordinator.pair == handed_over


async def test_closing_at_once_asks_no_coordinator() -> None:
    producer = ScriptedProducer(ScriptedLink(2))
    await producer.init_transactions()
    producer.begin_transaction()
    producer.batches.send(P0, 1)
    await producer.batches.flush()
    await producer.transactions.close(0)
    assert producer.link.coordinator.is_ongoing


async def test_closing_ends_in_time_with_a_coordinator_that_is_gone() -> None:
    producer = ScriptedProducer(ScriptedLink(2))
    await producer.init_transactions()
    producer.begin_transaction()
    producer.batches.send(P0, 1)
    await producer.batches.flush()
    producer.link.is_unreachable = True
    await producer.transactions.close(20)
    assert producer.link.coordinator.is_ongoing


def every_call(producer: ScriptedProducer) -> list[Callable[[], Coroutine[Any, Any, Any]]]:
    async def begin() -> None:
        producer.begin_transaction()

    async def enter() -> None:
        async with producer.transaction():
            pass

    return [
        producer.init_transactions,
        begin,
        enter,
        producer.commit_transaction,
        producer.abort_transaction,
        producer.prepare_transaction,
        producer.hand_over_transaction,
        lambda: producer.complete_transaction(PreparedTransaction(1, 1)),
        lambda: producer.send_offsets({P0: OffsetAndMetadata(1)}, "g"),
    ]


async def test_a_producer_without_transactional_id_says_what_it_lacks() -> None:
    async with opened(transactional_id=None) as producer:
        for call in every_call(producer):
            with pytest.raises(InvalidTransactionState, match=r"transactional\.id"):
                await call()


async def test_an_idempotent_producer_gets_its_id_by_itself() -> None:
    async with opened(transactional_id=None) as producer:
        producer.link.fates.extend([Fate.REQUEST_LOST, Fate.LOADING])
        producer.transactions.start()
        assert producer.transactions.refusal is None
        await producer.reached(S.READY)
        assert producer.transactions.admit("t", 0)
        assert producer.transactions.producer.is_known
        assert producer.link.asked == [K.INITIALIZE] * 3


async def test_an_idempotent_producer_that_is_not_permitted_fails_what_waits() -> None:
    async with opened(transactional_id=None) as producer:
        producer.link.fates.append(ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
        producer.batches.send(P0, 1)
        await producer.batches.flush()
        [error] = producer.batches.errors
        assert isinstance(error, KafkaError)
        assert error.code is ErrorCode.CLUSTER_AUTHORIZATION_FAILED
        producer.batches.send(P0, 2)
        await producer.batches.flush()
        assert producer.batches.acknowledged == [2]


async def test_two_phase_commit_needs_a_transactional_id() -> None:
    with pytest.raises(ConfigurationError, match=r"transactional\.id"):
        ScriptedProducer(
            ScriptedLink(2), transactional_id=None, transaction_two_phase_commit_enable=True
        )


async def test_a_prepared_transaction_is_completed_by_what_was_stored() -> None:
    settings = {"transaction_two_phase_commit_enable": True}
    async with opened(**settings) as producer:
        for is_commit in (True, False):
            async with producer.transaction():
                producer.batches.send(P0, int(is_commit))
                prepared = await producer.prepare_transaction()
            assert producer.transactions.state is S.PREPARED
            stored = prepared if is_commit else PreparedTransaction.parse("1:1")
            assert await producer.complete_transaction(stored) is is_commit
            with pytest.raises(InvalidTransactionState):
                await producer.complete_transaction(stored)
        assert producer.visible == [1]
