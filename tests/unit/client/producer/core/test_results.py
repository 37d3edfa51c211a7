"""What an answer does to its batch: acknowledged, sent again, split, failed, expired."""

from __future__ import annotations

from collections.abc import Callable
from uuid import UUID

import pytest

from moldau.client.errors import DeliveryTimeout, InvalidRecord, KafkaError
from moldau.client.producer.core.accumulator import NEVER, Accumulator, Room
from moldau.client.producer.core.batch import Outcome, ProducerBatch
from moldau.client.producer.core.queues import PartitionQueue
from moldau.client.producer.core.results import NEVER_WRITTEN, SEQUENCE_ERRORS, Results
from moldau.client.producer.core.transaction_states import NO_PRODUCER, ProducerIdAndEpoch
from moldau.protocol.errors import ErrorCode
from moldau.protocol.records import record_size_bound
from tests.unit.client.producer.core.world import (
    BACKOFF_MS,
    BUFFER_MEMORY,
    DELIVERY_TIMEOUT_MS,
    Identity,
    accumulator_of,
    config_of,
)

E = ErrorCode
REFUSED = KafkaError("refused")


class NotedFailures(Identity):
    """A producer id that notes which batches failed for good."""

    def __init__(self, *, transactional: bool) -> None:
        super().__init__(transactional=transactional)
        self.failures: list[tuple[str, int, Exception, bool]] = []

    def batch_failed(
        self, topic: str, partition: int, error: Exception, *, may_be_written: bool
    ) -> None:
        self.failures.append((topic, partition, error, may_be_written))


class Sent:
    """One partition's batches, and their results."""

    def __init__(self, mode: str = "plain", *, partitions: int = 1, **changes: object) -> None:
        transactional = mode == "transactional"
        self.identity = None if mode == "plain" else NotedFailures(transactional=transactional)
        self.accumulator: Accumulator = accumulator_of(
            config_of(linger_ms=0, **changes), identity=self.identity
        )
        leaders = [(node, 0) for node in range(partitions)]
        self.topic = self.accumulator.set_leaders("t", leaders)
        self.results = Results(self.accumulator)

    def queue(self, partition: int = 0) -> PartitionQueue:
        return self.topic.queues[partition]

    def append(
        self, count: int = 1, *, partition: int = 0, value_bytes: int = 20, now_ms: float = 0.0
    ) -> ProducerBatch:
        """Records of the batch that is being filled."""
        queue = self.queue(partition)
        for _ in range(count):
            values = (0, None, bytes(value_bytes), ())
            while queue.appender.append(*values) < 0:
                bound = record_size_bound(None, bytes(value_bytes))
                assert self.accumulator.make_room(queue, bound, now_ms) is not Room.NO_MEMORY
        assert queue.filling is not None
        return queue.filling

    def send(self, count: int = 1, *, partition: int = 0, now_ms: float = 0.0) -> ProducerBatch:
        """A batch on the wire."""
        self.append(count, partition=partition, now_ms=now_ms)
        (batch,) = self.accumulator.drain([self.queue(partition)], 1_000, now_ms)
        return batch

    def send_known(self) -> None:
        """The log knows the producer: several of its batches may be on the wire."""
        self.results.acknowledged(self.send(), base_offset=0)
        self.accumulator.finished.clear()

    @property
    def reserved_bytes(self) -> int:
        return BUFFER_MEMORY - self.accumulator.free_bytes


def test_an_acknowledged_batch_has_its_place_and_gives_its_memory_back() -> None:
    sent = Sent()
    batch = sent.send()
    assert sent.reserved_bytes == batch.reserved_bytes > 0
    sent.accumulator.is_full = True
    sent.results.acknowledged(batch, base_offset=12, log_append_time_ms=34)
    assert (batch.is_done, batch.error, batch.is_on_wire) == (True, None, False)
    assert (batch.base_offset, batch.log_append_time_ms) == (12, 34)
    assert sent.accumulator.finished == [batch]
    assert not sent.accumulator.incomplete
    assert (sent.reserved_bytes, batch.reserved_bytes) == (0, 0)
    assert not sent.accumulator.is_full
    assert sent.queue().is_empty


def test_an_acknowledgement_may_say_nothing() -> None:
    sent = Sent()
    batch = sent.send()
    sent.results.acknowledged(batch)
    assert (batch.base_offset, batch.log_append_time_ms) == (-1, -1)


@pytest.mark.parametrize("mode", ["plain", "idempotent"])
def test_a_duplicate_is_a_success_only_of_a_numbered_batch(mode: str) -> None:
    sent = Sent(mode)
    batch = sent.send()
    sent.results.refused(batch, E.DUPLICATE_SEQUENCE_NUMBER, None, 0.0)
    assert batch.is_done
    assert (batch.error is None) == (mode == "idempotent")
    assert batch.base_offset == -1


@pytest.mark.parametrize("mode", ["plain", "idempotent", "transactional"])
def test_what_each_refusal_leads_to(mode: str) -> None:
    """What passes is sent again; numbers start over where they belong to no transaction."""
    successes = {E.NONE} if mode == "plain" else {E.NONE, E.DUPLICATE_SEQUENCE_NUMBER}
    for code in [each for each in E if each not in successes]:
        try:
            check_refusal(mode, code)
        except AssertionError as error:
            error.add_note(code.name)
            raise


def check_refusal(mode: str, code: ErrorCode) -> None:
    sent = Sent(mode)
    batch = sent.send()
    sent.results.refused(batch, code, "its message", 100.0)
    is_sequence_error = code in SEQUENCE_ERRORS and mode != "plain"
    is_sent_again = mode == "idempotent" if is_sequence_error else code.retriable
    assert not batch.is_on_wire
    assert batch.is_done is not is_sent_again
    assert (batch.attempt_count, batch.last_code) == (1, code)
    assert batch.may_be_written == (code not in NEVER_WRITTEN)
    assert sent.queue().is_broken == (is_sequence_error and is_sent_again)
    if is_sent_again:
        assert batch.not_before_ms == 100.0 + BACKOFF_MS
        assert sent.queue().outstanding == [batch]
        assert sent.accumulator.finished == []
        return
    assert isinstance(batch.error, KafkaError)
    assert "its message" in str(batch.error)
    assert batch.error_of is None
    assert sent.reserved_bytes == 0
    if sent.identity is not None:
        assert sent.identity.failures == [("t", 0, batch.error, code not in NEVER_WRITTEN)]


def test_a_batch_waits_longer_each_time_it_comes_back() -> None:
    sent = Sent()
    now_ms = 0.0
    batch = sent.send()
    for attempt in (1, 2, 3):
        sent.results.refused(batch, E.NOT_ENOUGH_REPLICAS, None, now_ms)
        assert batch.not_before_ms == now_ms + attempt * BACKOFF_MS
        assert sent.accumulator.drain([sent.queue()], 1_000, batch.not_before_ms - 1) == []
        now_ms = batch.not_before_ms
        assert sent.accumulator.drain([sent.queue()], 1_000, now_ms) == [batch]


def test_a_number_behind_one_that_is_sent_again_waits_for_it() -> None:
    """The batch before it is missing, as both numbers say: the epoch stays."""
    for mode in ("idempotent", "transactional"):
        sent = Sent(mode)
        sent.send_known()
        first, second = sent.send(), sent.send()
        sent.results.refused(first, E.NOT_ENOUGH_REPLICAS, None, 0.0)
        sent.results.refused(second, E.OUT_OF_ORDER_SEQUENCE_NUMBER, None, 0.0)
        assert sent.queue().outstanding == [first, second]
        assert not sent.queue().is_broken


@pytest.mark.parametrize("code", [E.UNKNOWN_PRODUCER_ID, E.INVALID_PRODUCER_EPOCH])
def test_a_producer_that_a_log_does_not_know_numbers_all_again(code: ErrorCode) -> None:
    sent = Sent("idempotent")
    sent.send_known()
    _, second = sent.send(), sent.send()
    sent.results.refused(second, code, None, 0.0)
    assert sent.queue().is_broken


def test_once_the_numbers_are_broken_nothing_more_counts_as_written() -> None:
    sent = Sent("idempotent")
    sent.send_known()
    first, second = sent.send(), sent.send()
    sent.results.refused(first, E.OUT_OF_ORDER_SEQUENCE_NUMBER, None, 0.0)
    sent.results.refused(second, E.NETWORK_EXCEPTION, None, 0.0)
    assert not first.may_be_written
    assert not second.may_be_written
    assert sent.queue().may_renumber(ProducerIdAndEpoch(7, 1))


@pytest.mark.parametrize(
    ("mode", "record_count", "may_be_written", "is_split"),
    [
        ("plain", 4, False, True),
        ("plain", 2, False, True),
        ("plain", 1, False, False),
        ("plain", 4, True, True),
        ("idempotent", 4, False, True),
        ("idempotent", 4, True, False),
        ("transactional", 2, False, True),
    ],
)
def test_which_batches_are_split_when_they_are_too_large(
    mode: str, record_count: int, may_be_written: bool, is_split: bool
) -> None:
    """The log knows numbered batches by their ends: parts of one that may be there are not."""
    sent = Sent(mode)
    batch = sent.send(record_count)
    batch.may_be_written = may_be_written
    sent.results.refused(batch, E.MESSAGE_TOO_LARGE, None, 0.0)
    assert batch.is_replaced == is_split
    assert batch.is_done is not is_split
    if not is_split:
        return
    parts = batch.parts()
    assert sent.queue().outstanding == parts
    assert sent.accumulator.replaced == [batch]
    assert list(sent.accumulator.incomplete) == parts
    assert sum(part.record_count for part in parts if isinstance(part, ProducerBatch)) == (
        record_count
    )
    assert sent.reserved_bytes == sum(
        part.uncompressed_bytes for part in parts if isinstance(part, ProducerBatch)
    )


def test_after_a_batch_that_was_too_large_others_are_made_as_if_nothing_was_compressed() -> None:
    sent = Sent(compression_type="lz4")
    batch = sent.send(2)
    sent.topic.ratio = 0.3
    sent.results.refused(batch, E.MESSAGE_TOO_LARGE, None, 0.0)
    assert sent.topic.ratio == 1.0


def test_a_batch_is_halved_and_its_halves_again() -> None:
    sent = Sent(batch_size=500)
    batch = sent.send(8)
    size_bytes = batch.size_bytes
    sent.results.refused(batch, E.MESSAGE_TOO_LARGE, None, 0.0)
    assert [part.record_count for part in sent.queue().outstanding] == [2, 2, 2, 2]
    assert all(part.size_bytes <= size_bytes // 2 for part in sent.queue().outstanding)
    while sent.queue().outstanding:
        (part,) = sent.accumulator.drain([sent.queue()], 1_000, 0.0)
        sent.results.refused(part, E.MESSAGE_TOO_LARGE, None, 0.0)
    failed = [each for each in sent.accumulator.finished if each.error is not None]
    assert len(failed) == 8, "each record was alone in the end"
    assert sent.reserved_bytes == 0


def test_a_batch_made_elsewhere_is_split_to_the_size_of_batches() -> None:
    made = Sent(batch_size=500).send(8)
    assert made.encoded is not None
    assert made.header is not None
    sent = Sent(batch_size=100)
    assert sent.accumulator.append_encoded(sent.queue(), made.encoded, made.header, 0.0) is not None
    (batch,) = sent.accumulator.drain([sent.queue()], 1_000, 0.0)
    sent.results.refused(batch, E.MESSAGE_TOO_LARGE, None, 0.0)
    assert [part.record_count for part in sent.queue().outstanding] == [1] * 8


def test_records_that_the_broker_names_have_their_own_errors() -> None:
    sent = Sent()
    batch = sent.send(3)
    sent.results.refused(
        batch, E.INVALID_RECORD, "bad batch", 0.0, record_errors={0: "no key", 2: None}
    )
    assert batch.error_of is not None
    errors = [batch.error_of(index) for index in range(3)]
    assert all(isinstance(each, InvalidRecord) for each in errors)
    assert all(getattr(each, "code", None) is E.INVALID_RECORD for each in errors)
    assert str(errors[0]).startswith("the broker refuses the record: no key")
    assert "since other records of its batch are invalid" in str(errors[1])
    assert "bad batch" in str(errors[1])
    assert str(errors[2]).startswith("the broker refuses the record: ")
    assert "bad batch" in str(errors[2])


@pytest.mark.parametrize("mode", ["plain", "idempotent"])
@pytest.mark.parametrize("outcome", ["acknowledged", "refused"])
def test_a_batch_that_expired_on_the_wire_keeps_its_place_and_memory_until_it_is_back(
    outcome: str, mode: str
) -> None:
    sent = Sent(mode)
    batch = sent.send()
    reserved_bytes = sent.reserved_bytes
    sent.results.expire(DELIVERY_TIMEOUT_MS - 1)
    assert not batch.is_done
    sent.results.expire(DELIVERY_TIMEOUT_MS)
    assert isinstance(batch.error, DeliveryTimeout)
    assert "no broker has answered about them" in str(batch.error)
    assert sent.accumulator.finished == [batch]
    assert not sent.accumulator.incomplete
    assert sent.queue().outstanding == [batch]
    assert sent.reserved_bytes == reserved_bytes
    if sent.identity is not None:
        assert sent.identity.failures == [("t", 0, batch.error, True)]
    sent.results.expire(2 * DELIVERY_TIMEOUT_MS)
    if outcome == "acknowledged":
        sent.results.acknowledged(batch, base_offset=3)
    else:
        sent.results.refused(batch, E.NOT_ENOUGH_REPLICAS, None, 0.0)
    assert sent.accumulator.finished == [batch], "it ended once"
    assert isinstance(batch.error, DeliveryTimeout)
    assert sent.queue().is_empty
    assert sent.reserved_bytes == 0


def test_an_expired_batch_says_how_its_last_attempt_ended_and_what_is_wrong() -> None:
    sent = Sent("idempotent")
    batch = sent.send(2)
    sent.results.refused(batch, E.NOT_ENOUGH_REPLICAS, None, 0.0)
    sent.results.trouble = lambda: "no broker can be reached"
    sent.results.expire(DELIVERY_TIMEOUT_MS)
    text = str(batch.error)
    assert text.startswith(
        "2 records for t-0 were not acknowledged within delivery.timeout.ms=1000"
    )
    assert text.endswith(
        "the last attempt ended with NOT_ENOUGH_REPLICAS (no broker can be reached)"
    )
    assert sent.identity is not None
    assert sent.identity.failures == [("t", 0, batch.error, False)]


def test_an_expired_batch_of_a_producer_without_an_id_says_that_it_was_never_sent() -> None:
    sent = Sent("idempotent")
    assert sent.identity is not None
    sent.identity.pair = NO_PRODUCER
    batch = sent.append()
    sent.results.expire(DELIVERY_TIMEOUT_MS)
    assert isinstance(batch.error, DeliveryTimeout)
    assert "no broker has given the producer an id (enable.idempotence)" in str(batch.error)


def test_batches_expire_by_their_own_ages_wherever_they_are() -> None:
    sent = Sent()
    on_wire = sent.send(now_ms=0.0)
    waiting = sent.append(now_ms=10.0)
    sent.accumulator.close_batch(sent.queue())
    filling = sent.append(now_ms=20.0)
    for now_ms, expired in ((999, []), (1_000, [on_wire]), (1_010, [on_wire, waiting])):
        assert sent.accumulator.expiry_ms() == 1_000.0 + 10 * len(
            [each for each in (on_wire, waiting) if each.is_done]
        )
        sent.results.expire(now_ms)
        assert sent.accumulator.finished == expired
        assert not filling.is_done
    sent.results.expire(1_020)
    assert filling.is_done
    assert sent.queue().filling is None


FAILURES: dict[str, Callable[[Results], None]] = {
    "waiting": lambda results: results.fail_waiting(REFUSED),
    "all": lambda results: results.fail_all(REFUSED),
    "node": lambda results: results.fail_node(1, REFUSED),
}


@pytest.mark.parametrize("how", FAILURES)
def test_which_batches_a_decision_ends(how: str) -> None:
    sent = Sent("idempotent", partitions=3)
    places: dict[str, tuple[int, Outcome]] = {}
    for partition in (0, 1):
        places[f"on the wire {partition}"] = partition, sent.send(partition=partition)
        places[f"waiting {partition}"] = partition, sent.append(partition=partition)
        sent.accumulator.close_batch(sent.queue(partition))
        places[f"filling {partition}"] = partition, sent.append(partition=partition)
    places["to be sent again 2"] = 2, sent.send(partition=2)
    back = places["to be sent again 2"][1]
    assert isinstance(back, ProducerBatch)
    sent.results.refused(back, E.NOT_ENOUGH_REPLICAS, None, 0.0)
    FAILURES[how](sent.results)
    failed = {name for name, (_, batch) in places.items() if batch.is_done}
    assert failed == {
        name
        for name, (partition, _) in places.items()
        if (how == "all" or not name.startswith("on the wire"))
        and (how != "node" or partition == 1)
    }
    assert {each.error for each in sent.accumulator.finished} == {REFUSED}
    assert len(sent.accumulator.finished) == len(failed), "each ends once"
    assert sent.identity is not None
    heard = [("t", 1, REFUSED, False)] * 2 if how == "node" else []
    assert sent.identity.failures == heard, "a decision of the transaction is no news to it"
    FAILURES[how](sent.results)
    assert len(sent.accumulator.finished) == len(failed)


def test_an_answer_of_another_topic_of_the_name_does_not_make_the_log_know_the_producer() -> None:
    sent = Sent("idempotent")
    leaders = [(0, 0)]
    sent.accumulator.set_leaders("t", leaders, UUID(int=1))
    batch = sent.send()
    assert batch.sent_topic_id == UUID(int=1)
    sent.accumulator.set_leaders("t", leaders, UUID(int=2))
    sent.results.acknowledged(batch, base_offset=0)
    assert sent.queue().known_to_log == -1
    sent.results.acknowledged(sent.send(), base_offset=0)
    assert sent.queue().known_to_log == 7


def test_a_part_that_expired_on_the_wire_is_not_waited_for() -> None:
    sent = Sent()
    sent.results.refused(sent.send(2), E.MESSAGE_TOO_LARGE, None, 0.0)
    (part,) = sent.accumulator.drain([sent.queue()], 1_000, 0.0)
    sent.results.expire(DELIVERY_TIMEOUT_MS)
    assert part.is_done
    assert sent.accumulator.expiry_ms() == NEVER


def test_a_batch_that_never_went_out_holds_no_bytes_once_it_has_failed() -> None:
    sent = Sent()
    batch = sent.append()
    assert batch.buffer is not None
    sent.results.fail_waiting(REFUSED)
    assert batch.is_done
    assert (batch.buffer, batch.encoded) == (None, None)
    assert sent.reserved_bytes == 0


def test_a_batch_that_fails_while_it_is_admitted_does_not_go_out() -> None:
    sent = Sent("transactional")
    assert sent.identity is not None

    def admit(topic: str, partition: int) -> bool:
        sent.results.fail_waiting(REFUSED)
        return True

    sent.identity.admit = admit  # type: ignore[method-assign]
    batch = sent.append()
    assert sent.accumulator.drain([sent.queue()], 1_000, 0.0) == []
    assert batch.error is REFUSED


def test_broken_numbers_start_over_under_the_next_epoch() -> None:
    sent = Sent("idempotent")
    assert sent.identity is not None
    sent.identity.grants_at_once = False
    sent.send_known()
    batches = [sent.send(), sent.send()]
    sent.results.refused(batches[0], E.OUT_OF_ORDER_SEQUENCE_NUMBER, None, 0.0)
    assert sent.accumulator.due_ms(sent.queue()) == NEVER
    assert sent.identity.bump_count == 1
    sent.identity.grant()
    assert sent.accumulator.due_ms(sent.queue()) == NEVER, "another batch is on the wire"
    sent.results.refused(batches[1], E.OUT_OF_ORDER_SEQUENCE_NUMBER, None, 0.0)
    assert sent.accumulator.due_ms(sent.queue()) == BACKOFF_MS
    assert [(each.pair, each.base_sequence) for each in batches] == [
        (ProducerIdAndEpoch(7, 1), 0),
        (ProducerIdAndEpoch(7, 1), 1),
    ]
    assert sent.identity.bump_count == 1


@pytest.mark.parametrize("mode", ["idempotent", "transactional"])
def test_a_hole_is_followed_by_another_epoch_where_there_is_no_transaction(mode: str) -> None:
    sent = Sent(mode)
    assert sent.identity is not None
    sent.identity.grants_at_once = False
    batch = sent.send()
    batch.attempt_count = sent.accumulator.config.retries
    sent.results.refused(batch, E.NETWORK_EXCEPTION, None, 0.0)
    assert sent.queue().has_hole
    sent.append()
    for _ in range(2):
        assert sent.accumulator.due_ms(sent.queue()) == NEVER
    assert sent.identity.bump_count == (mode == "idempotent")
    if mode == "idempotent":
        sent.identity.pair = ProducerIdAndEpoch(-1, -1)
        assert sent.accumulator.drain([sent.queue()], 1_000, 0.0) == [], "the next id has not come"
        assert sent.queue().has_hole
        sent.identity.pair = ProducerIdAndEpoch(8, 0)
        assert sent.accumulator.due_ms(sent.queue()) == 0.0
        assert (sent.queue().pair, sent.queue().has_hole) == (ProducerIdAndEpoch(8, 0), False)
