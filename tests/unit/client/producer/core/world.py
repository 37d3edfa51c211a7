"""An accumulator between an application and leaders that fail in every way: steps and checks.

The steps are what the state machine and the injected bugs play; each takes its choices from
outside, so that a run is a list of calls. Everything is checked after every step.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from moldau.client.config.producer import ProducerConfig
from moldau.client.errors import DeliveryTimeout
from moldau.client.producer.core.accumulator import Accumulator, Room
from moldau.client.producer.core.batch import Outcome, ProducerBatch
from moldau.client.producer.core.queues import MAX_NUMBERED_IN_FLIGHT
from moldau.client.producer.core.results import Results
from moldau.client.producer.core.transaction_states import NO_PRODUCER, ProducerIdAndEpoch
from moldau.protocol.errors import ErrorCode
from moldau.protocol.records import BATCH_HEADER_SIZE, Codec, read_batch_header, record_size_bound
from tests.unit.client.producer.core.broker_model import LogModel

TOPIC = "flights"
PARTITIONS = 2
NODES = 2
BATCH_SIZE = 200
BUFFER_MEMORY = 6_000
DELIVERY_TIMEOUT_MS = 1_000.0
LINGER_MS = 5.0
BACKOFF_MS = 50.0


def config_of(**changes: object) -> ProducerConfig:
    """The settings of a producer of small batches, with changes."""
    return ProducerConfig.from_properties(
        {
            "bootstrap_servers": "localhost:9092",
            "batch_size": BATCH_SIZE,
            "linger_ms": int(LINGER_MS),
            "buffer_memory": BUFFER_MEMORY,
            "max_request_size": 600,
            "request_timeout_ms": 500,
            "delivery_timeout_ms": int(DELIVERY_TIMEOUT_MS),
            "max_block_ms": int(DELIVERY_TIMEOUT_MS),
            **changes,
        }
    )


def accumulator_of(
    config: ProducerConfig,
    *,
    identity: Identity | None = None,
    backoff_ms: Callable[[int], float] = lambda attempt: BACKOFF_MS * min(attempt, 4),
    randrange: Callable[[int], int] = lambda count: 0,
) -> Accumulator:
    return Accumulator(config, identity=identity, backoff_ms=backoff_ms, randrange=randrange)


class Given(Exception):
    """A batch failed because the application said so."""


class Identity:
    """A producer id; a new epoch comes at once or when it is granted."""

    def __init__(self, *, transactional: bool, is_known: bool = True) -> None:
        self.pair = ProducerIdAndEpoch(7, 0) if is_known else NO_PRODUCER
        self.transactional_id = "tx" if transactional else None
        self.grants_at_once = True
        self.is_open = True
        self.wanted = False
        self.bump_count = 0
        self.problem: Exception | None = None

    @property
    def producer(self) -> ProducerIdAndEpoch:
        return self.pair

    def admit(self, topic: str, partition: int) -> bool:
        return self.is_open and self.problem is None

    def batch_failed(
        self, topic: str, partition: int, error: Exception, *, may_be_written: bool
    ) -> None:
        if self.transactional_id is not None:
            self.problem = self.problem or error

    def bump_epoch(self) -> None:
        assert self.transactional_id is None
        self.bump_count += 1
        self.wanted = True
        if self.grants_at_once:
            self.grant()

    def grant(self) -> None:
        """The epoch asked for has come."""
        if self.wanted:
            self.wanted = False
            self.pair = ProducerIdAndEpoch(7, self.pair.producer_epoch + 1)


@dataclass
class Wire:
    """Requests to one node on one connection, and the answers that are under way."""

    requests: deque[list[ProducerBatch]] = field(default_factory=deque)
    answers: deque[list[tuple[ProducerBatch, ErrorCode, int]]] = field(default_factory=deque)

    @property
    def in_flight(self) -> int:
        """Requests without an answer that has arrived."""
        return len(self.requests) + len(self.answers)


class World:
    """The accumulator, its application, its leaders.

    `mode` is "plain" (no idempotence), "idempotent" or "transactional".
    """

    def __init__(self, mode: str, codec: Codec = Codec.NONE) -> None:
        self.mode = mode
        self.identity = None if mode == "plain" else Identity(transactional=mode[0] == "t")
        self.config = config_of(compression_type=codec.name.lower())
        self.accumulator = accumulator_of(self.config, identity=self.identity)
        self.results = Results(self.accumulator)
        self.logs = [LogModel() for _ in range(PARTITIONS)]
        self.leader_of = [0, 1]
        self.leader_epoch = 0
        self.wires = [Wire() for _ in range(NODES)]
        self.now_ms = 0.0
        self.appended: list[list[int]] = [[] for _ in range(PARTITIONS)]
        self.ended: dict[int, tuple[Exception | None, int]] = {}
        self.record_count = 0
        self.is_flawless = True
        self._tell_leaders()

    def _tell_leaders(self) -> None:
        self.accumulator.set_leaders(TOPIC, [(node, self.leader_epoch) for node in self.leader_of])

    # -- steps -----------------------------------------------------------------------------------

    def append(self, partition: int, size_bytes: int) -> bool:
        """A record; False when there is no room for it."""
        number = self.record_count
        value = f"{number:0{max(size_bytes, 6)}d}".encode()
        queue = self.accumulator.topics[TOPIC].queues[partition]
        values = (1_000 + number, None, value, ())
        index = queue.appender.append(*values)
        while index < 0:
            bound = record_size_bound(None, value)
            room = self.accumulator.make_room(queue, bound, self.now_ms)
            if room is Room.NO_MEMORY:
                return False
            index = queue.appender.append(*values)
        self.record_count += 1
        self.appended[partition].append(number)
        assert queue.filling is not None

        def ended(outcome: Outcome, at: int) -> None:
            assert number not in self.ended, "a record ends once"
            offset = outcome.base_offset + at if outcome.base_offset >= 0 else -1
            self.ended[number] = (outcome.error, offset)

        queue.filling.when_done(index, ended)
        return True

    def drain(self, max_in_flight: int = 5) -> int:
        """What the sender does in one step; the number of requests that went out."""
        if self.accumulator.expiry_ms() <= self.now_ms:
            self.results.expire(self.now_ms)
        ready = self.accumulator.ready(self.now_ms)
        assert ready.next_ms > self.now_ms
        count = 0
        for node in ready.due:
            if self.wires[node].in_flight >= max_in_flight:
                continue
            batches = self.accumulator.drain(ready.by_leader[node], 600, self.now_ms)
            if batches:
                self._check_request(batches)
                self.wires[node].requests.append(batches)
                count += 1
        return count

    def _check_request(self, batches: list[ProducerBatch]) -> None:
        assert len({batch.partition for batch in batches}) == len(batches)
        assert len(batches) == 1 or sum(batch.size_bytes for batch in batches) <= 600
        for batch in batches:
            assert batch.is_on_wire
            assert batch.encoded is not None
            header = read_batch_header(batch.encoded)
            if self.identity is not None:
                written = (header.producer_id, header.producer_epoch, header.base_sequence)
                assert written == (*batch.pair, batch.base_sequence), "numbered as it says"
            assert header.is_transactional == (self.mode == "transactional")
            on_wire = [
                each
                for wire in self.wires
                for request in wire.requests
                for each in request
                if each.partition == batch.partition
            ]
            limit = 0 if self.identity is None else MAX_NUMBERED_IN_FLIGHT - 1
            assert len(on_wire) <= limit

    def serve(self, node: int, fault: ErrorCode | None, *, after_append: bool = False) -> None:
        """A node works on its oldest request; with a fault, before or after its appends."""
        wire = self.wires[node]
        if not wire.requests:
            return
        self.is_flawless = self.is_flawless and fault is None
        answers = []
        for batch in wire.requests.popleft():
            leads = self.leader_of[batch.partition] == node
            code, offset = ErrorCode.NONE, -1
            if not leads:
                code = ErrorCode.NOT_LEADER_OR_FOLLOWER
            elif fault is None or after_append:
                assert batch.encoded is not None
                code, offset = self.logs[batch.partition].append(bytes(batch.encoded))
                if fault is not None and code is ErrorCode.NONE:
                    code, offset = fault, -1
            else:
                code = fault
            answers.append((batch, code, offset))
        wire.answers.append(answers)

    def answer(self, node: int) -> None:
        """The oldest answer of a node arrives."""
        wire = self.wires[node]
        if not wire.answers:
            return
        for batch, code, offset in wire.answers.popleft():
            if code is ErrorCode.NONE:
                self.results.acknowledged(batch, base_offset=offset)
            else:
                self.results.refused(batch, code, None, self.now_ms)

    def cut(self, node: int, served: int) -> None:
        """The connection breaks after the node has worked on `served` more requests."""
        self.is_flawless = False
        wire = self.wires[node]
        for _ in range(min(served, len(wire.requests))):
            self.serve(node, None)
        lost = [batch for answers in wire.answers for batch, _, _ in answers]
        lost += [batch for request in wire.requests for batch in request]
        self.wires[node] = Wire()
        for batch in lost:
            self.results.refused(batch, ErrorCode.NETWORK_EXCEPTION, None, self.now_ms)

    def move_leader(self, partition: int, node: int, *, told: bool) -> None:
        """Leadership moves; the producer may learn of it later."""
        self.is_flawless = False
        self.leader_of[partition] = node
        self.leader_epoch += 1
        if told:
            self._tell_leaders()

    def learn_leaders(self) -> None:
        """Metadata arrive."""
        self._tell_leaders()

    def pass_time(self, elapsed_ms: float) -> None:
        """Time goes by."""
        self.is_flawless = self.is_flawless and elapsed_ms < DELIVERY_TIMEOUT_MS / 4
        self.now_ms += elapsed_ms

    def give_up_waiting(self) -> None:
        """The application aborts what has not gone out."""
        self.is_flawless = False
        self.results.fail_waiting(Given("aborted"))

    def refuse_node(self, node: int) -> None:
        """A node turns out to be one that will never take anything from this client."""
        self.is_flawless = False
        self.results.fail_node(node, Given("refused"))

    def bump(self) -> None:
        """A new epoch, for whatever reason; transactional: at the end of a transaction."""
        self.is_flawless = False
        identity = self.identity
        if identity is None:
            return
        if identity.transactional_id is None:
            identity.bump_epoch()
            return
        self.results.fail_waiting(identity.problem or Given("aborted"))
        if not self.accumulator.has_in_flight:
            identity.pair = ProducerIdAndEpoch(7, identity.pair.producer_epoch + 1)
            identity.problem = None

    def set_identity(self, *, is_open: bool, grants_at_once: bool) -> None:
        """Partitions may be sent to or not (yet); epochs come at once or later."""
        if self.identity is not None:
            self.identity.is_open = is_open
            self.identity.grants_at_once = grants_at_once
            if grants_at_once:
                self.identity.grant()

    # -- checks ----------------------------------------------------------------------------------

    def announce(self) -> None:
        """Tell the application what has ended."""
        finished, self.accumulator.finished = self.accumulator.finished, []
        self.accumulator.replaced.clear()
        for outcome in finished:
            waiters = outcome.take_waiters()
            # A transaction's other batches end with the error of the first one.
            if isinstance(outcome.error, DeliveryTimeout) and self.mode != "transactional":
                record_count = int(str(outcome.error).split()[0])
                assert record_count == len(waiters), "said to be of so many records"
            for index, waiter in waiters:
                waiter(outcome, index)

    def check(self) -> None:
        """What must always hold."""
        self.announce()
        self._check_memory()
        for partition, log in enumerate(self.logs):
            self._check_log(partition, log)
        if self.is_flawless:
            assert all(error is None for error, _ in self.ended.values()), "an error from nowhere"
            if self.identity is not None:
                assert self.identity.pair.producer_epoch == 0, "a new epoch for no reason"

    def _check_memory(self) -> None:
        accumulator = self.accumulator
        held = {batch for batch in accumulator.incomplete if isinstance(batch, ProducerBatch)}
        held |= {
            batch
            for wire in self.wires
            for batch in (
                *(batch for request in wire.requests for batch in request),
                *(batch for answers in wire.answers for batch, _, _ in answers),
            )
        }
        reserved = sum(batch.reserved_bytes for batch in held)
        assert accumulator.free_bytes + reserved == BUFFER_MEMORY
        split_headers = BATCH_HEADER_SIZE * sum(batch.is_split_part for batch in held)
        assert accumulator.free_bytes >= -split_headers
        for batch in held:
            used = batch.buffer.size_bytes if batch.buffer is not None else batch.size_bytes
            slack = 0 if self.config.codec is Codec.NONE else 40
            assert used <= batch.reserved_bytes + slack, "memory is reserved before it is used"

    def _check_log(self, partition: int, log: LogModel) -> None:
        numbers = log.numbers()
        acknowledged = [
            number
            for number in self.appended[partition]
            if number in self.ended and self.ended[number][0] is None
        ]
        assert set(acknowledged) <= set(numbers), "acknowledged and not in the log"
        if self.mode == "plain":
            # Retries may repeat what comes last, and never anything else.
            deduplicated: list[int] = []
            for number in numbers:
                if deduplicated and number <= deduplicated[-1]:
                    assert number in deduplicated[-40:], "an older record after a newer one"
                    continue
                deduplicated.append(number)
            numbers = deduplicated
        assert numbers == sorted(set(numbers)), f"reordered or twice: {numbers}"
        for number in acknowledged:
            offset = self.ended[number][1]
            if offset >= 0:
                assert log.at(offset) == number, "acknowledged at another offset"

    def finish(self) -> None:
        """All faults end: everything must come to its end, soon, and memory be free again. And
        the producer still works.
        """
        self.set_identity(is_open=True, grants_at_once=True)
        self._tell_leaders()
        self.serve_all()
        self._play_on()
        self._end_transaction()
        first = self.record_count
        for partition in range(PARTITIONS):
            assert self.append(partition, 10)
        self._play_on()
        for number in range(first, self.record_count):
            assert self.ended[number][0] is None, "a flawless cluster, and still an error"

    def serve_all(self) -> None:
        """Everything on the wires is worked on and answered."""
        for node in range(NODES):
            while self.wires[node].requests:
                self.serve(node, None)
            while self.wires[node].answers:
                self.answer(node)

    def _end_transaction(self) -> None:
        """What a transaction manager does at the end of a transaction that went wrong."""
        identity = self.identity
        if identity is None or identity.transactional_id is None:
            return
        if identity.problem is not None or self.accumulator.needs_new_epoch:
            self.bump()

    def _play_on(self) -> None:
        for _ in range(400):
            self._end_transaction()
            self.accumulator.hurries = 1
            while self.drain():
                self.serve_all()
            self.check()
            if not self.accumulator.incomplete:
                break
            self.pass_time(BACKOFF_MS * 4)
        assert not self.accumulator.incomplete, "something never ends"
        assert set(self.ended) == set(range(self.record_count)), "a record without an end"
        assert self.accumulator.free_bytes == BUFFER_MEMORY
        expired = [n for n, (error, _) in self.ended.items() if isinstance(error, DeliveryTimeout)]
        assert not (expired and self.now_ms < DELIVERY_TIMEOUT_MS)
