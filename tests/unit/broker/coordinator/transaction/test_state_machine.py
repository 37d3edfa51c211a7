"""Random producers of one transactional id, a network that loses, repeats and reorders, leaders
that come and go: what must hold all the same.

The real state machine on the real runtime; partitions are models that take records and markers by
the rules of `storage` (transaction version 2). Epochs are few, so that they are used up often.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from moldau.broker.coordinator.core.result import Producer
from moldau.broker.coordinator.transaction.core import transaction as transaction_module
from moldau.broker.coordinator.transaction.core.state import SendMarkers
from moldau.broker.coordinator.transaction.core.transaction import (
    NO_TIMEOUT_MS,
    Transaction,
    TransactionStatus,
    from_record,
    is_legal,
)
from moldau.protocol.coordinator_records import TRANSACTION_STATE
from moldau.protocol.coordinator_records.transactions import (
    TransactionLogKey,
    TransactionLogValue,
)
from moldau.protocol.errors import ErrorCode
from moldau.protocol.records import decode_records, iter_batches
from moldau.protocol.types import TopicPartition
from tests.unit.broker.coordinator.transaction.bench import P0, P1, P2, Bench, init_request

ID = "t"
SESSIONS = range(3)
LAST_CLIENT_EPOCH = 5
HALF_A_DAY_MS = 12 * 3600 * 1000
ELAPSED_MS = [1_000, 6_000, HALF_A_DAY_MS + 1, 60 * HALF_A_DAY_MS]
Pair = Producer


@dataclass
class Session:
    """One process that uses the id."""

    pair: Pair | None = None
    is_two_phase: bool = False
    is_fenced: bool = False
    """Another one's InitProducerId was answered after this one's."""


@dataclass
class Request:
    """One request on the network, maybe more than once."""

    session: Session
    pair: Pair | None
    operation: Callable[[Any, Any, float], Any]
    on_answer: Callable[[Any], None]
    is_end: bool | None = None


@dataclass
class Partition:
    """What a partition's leader knows of producers, by the rules of transaction version 2."""

    epochs: dict[int, int] = field(default_factory=dict)
    open: dict[int, int] = field(default_factory=dict)
    """The epoch of the open transaction by producer id."""
    outcomes: dict[Pair, set[bool]] = field(default_factory=dict)

    def write(self, pair: Pair) -> None:
        if pair.producer_epoch < self.epochs.get(pair.producer_id, 0):
            return
        assert self.open.get(pair.producer_id, pair.producer_epoch) == pair.producer_epoch, "torn"
        self.epochs[pair.producer_id] = self.open[pair.producer_id] = pair.producer_epoch

    def mark(self, pair: Pair, is_commit: bool) -> ErrorCode:
        producer_id, epoch = pair
        opened = self.open.get(producer_id)
        if epoch < self.epochs.get(producer_id, 0) or (opened is not None and epoch <= opened):
            return ErrorCode.INVALID_PRODUCER_EPOCH
        self.epochs[producer_id] = epoch
        if opened is not None:
            del self.open[producer_id]
            self.outcomes.setdefault(Pair(producer_id, opened), set()).add(is_commit)
        return ErrorCode.NONE


@dataclass
class Marker:
    command: SendMarkers
    partition: TopicPartition
    was_sent: bool = False


def goes_on_as(transaction: Transaction) -> Pair:
    """The pair that the client has to use, once what is settled is done."""
    if transaction.status.is_prepared:
        return transaction.producer_after_end
    return transaction.client_producer


class TransactionalId(RuleBasedStateMachine):
    """Rules are what may happen; invariants and `teardown` say what must hold."""

    def __init__(self) -> None:
        super().__init__()
        self.saved_last_epoch = transaction_module.LAST_CLIENT_EPOCH
        transaction_module.LAST_CLIENT_EPOCH = LAST_CLIENT_EPOCH  # type: ignore[misc]
        self.bench = Bench(
            is_committing_at_once=False,
            two_phase_commit_enabled=True,
            expiration_ms=10**12,
            abort_interval_ms=HALF_A_DAY_MS,
            expiry_interval_ms=HALF_A_DAY_MS,
        )
        self.bench.commands = self  # type: ignore[assignment]
        self.sessions = [Session() for _ in SESSIONS]
        self.network: list[Request] = []
        self.markers: list[Marker] = []
        self.partitions = {name: Partition() for name in (P0, P1, P2)}
        self.granted: list[Pair] = []
        self.told: dict[Pair, bool] = {}
        self.told_fenced: set[Pair] = set()
        self.is_lagging = False

    def append(self, command: SendMarkers) -> None:
        """A command of the state machine (it is its list of commands)."""
        log = self.bench.log
        assert log.high_watermark >= self.end_of_prepare(command), "a marker before the outcome"
        self.markers += [Marker(command, each) for each in sorted(command.remaining)]

    def end_of_prepare(self, command: SendMarkers) -> int:
        for offset, transaction in reversed(self.logged()):
            if (
                transaction.status.is_prepared
                and transaction.producer == command.transaction.producer
            ):
                return offset + 1
        raise AssertionError("markers for what is not in the log")

    # -- what producers do -----------------------------------------------------------------------

    @rule(number=st.sampled_from(SESSIONS), comes_back=st.booleans(), is_two_phase=st.booleans())
    def come(self, number: int, comes_back: bool, is_two_phase: bool) -> None:
        session = self.sessions[number]
        if not comes_back:
            session = self.sessions[number] = Session()
        self._init(session, is_two_phase=is_two_phase, keeps=False)

    @rule(number=st.sampled_from(SESSIONS))
    def take_over(self, number: int) -> None:
        session = self.sessions[number] = Session()
        self._init(session, is_two_phase=True, keeps=True)

    def _init(self, session: Session, *, is_two_phase: bool, keeps: bool) -> None:
        expected = session.pair
        request = init_request(
            ID, expected=expected, enable_two_phase=is_two_phase, keep_prepared=keeps
        )

        def answered(answer: Any) -> None:
            if answer.error is not ErrorCode.NONE:
                return
            if expected is None:
                assert answer.producer not in self.granted, "a pair was given twice"
                for other in self.sessions:
                    # Producers that were answered before; the others have no pair yet.
                    other.is_fenced = other.is_fenced or other.pair is not None
            if self.granted and answer.producer not in self.granted:
                assert answer.producer > max(self.granted), "epochs go back"
            self.granted.append(answer.producer)
            session.pair = answer.producer
            session.is_fenced = False

        self._send(
            session,
            lambda state, caller, now: state.init_producer_id(request, "", caller, now),
            answered,
        )

    @rule(number=st.sampled_from(SESSIONS), partition=st.sampled_from([P0, P1, P2]))
    def add(self, number: int, partition: TopicPartition) -> None:
        session = self.sessions[number]
        pair = session.pair
        if pair is None:
            return

        def answered(answer: Any) -> None:
            if answer[partition] is ErrorCode.NONE:
                self.partitions[partition].write(pair)

        self._send(
            session,
            lambda state, caller, now: state.add_partitions(
                ID, pair, [partition], caller, now, client_version=2
            ),
            answered,
        )

    @rule(number=st.sampled_from(SESSIONS), is_commit=st.booleans())
    def end(self, number: int, is_commit: bool) -> None:
        session = self.sessions[number]
        pair = session.pair
        if pair is None:
            return

        def answered(answer: Any) -> None:
            if answer.error is not ErrorCode.NONE:
                return
            assert self.told.setdefault(pair, is_commit) is is_commit, "ended in two ways"
            assert answer.producer > pair
            if session.pair == pair:
                session.pair = answer.producer
            if answer.producer not in self.granted:
                self.granted.append(answer.producer)

        self._send(
            session,
            lambda state, caller, now: state.end_transaction(
                ID, pair, caller, now, is_commit=is_commit, client_version=2
            ),
            answered,
        )

    @rule(
        number=st.sampled_from(SESSIONS),
        names=st.sets(st.sampled_from([P0, P1, P2]), min_size=1),
        is_commit=st.booleans(),
        is_ended=st.booleans(),
    )
    def transact(
        self, number: int, names: set[TopicPartition], is_commit: bool, is_ended: bool
    ) -> None:
        """A producer that has its way for once."""
        if self.sessions[number].pair is None:
            self.come(number, comes_back=False, is_two_phase=False)
            self._deliver_last()
        for name in sorted(names):
            self.add(number, name)
            self._deliver_last()
        if is_ended:
            self.end(number, is_commit)
            self._deliver_last()

    @rule(number=st.sampled_from(SESSIONS), keeps=st.booleans())
    def replace(self, number: int, keeps: bool) -> None:
        """A process starts, and asks until it has a pair."""
        for _ in range(3):
            if keeps:
                self.take_over(number)
            else:
                self.come(number, comes_back=False, is_two_phase=False)
            self._deliver_last()
            self.deliver_all_markers()

    @rule(
        number=st.sampled_from(SESSIONS),
        act=st.sampled_from(["come back", "add", "commit", "abort"]),
    )
    def act_at_once(self, number: int, act: str) -> None:
        """Any producer, fenced or not."""
        if act == "come back":
            self.come(number, comes_back=True, is_two_phase=False)
        elif act == "add":
            self.add(number, P0)
        else:
            self.end(number, is_commit=act == "commit")
        self._deliver_last()

    def _send(
        self,
        session: Session,
        operation: Callable[[Any, Any, float], Any],
        on_answer: Callable[[Any], None],
    ) -> None:
        self.network.append(Request(session, session.pair, operation, on_answer))

    def _deliver_last(self) -> None:
        if self.network:
            self.deliver(len(self.network) - 1, is_repeated=False, is_answer_lost=False)

    # -- the network -----------------------------------------------------------------------------

    @rule(place=st.integers(0, 30), is_repeated=st.booleans(), is_answer_lost=st.booleans())
    def deliver(self, place: int, is_repeated: bool, is_answer_lost: bool) -> None:
        """Deliver in any order; what is repeated comes again later, as old as it may be by then."""
        if not self.network:
            return
        place = min(place, len(self.network) - 1)
        request = self.network[place] if is_repeated else self.network.pop(place)
        was_fenced = request.session.is_fenced
        pair = request.pair

        class Answered:
            def respond(_, answer: Any) -> None:
                is_by_partition = isinstance(answer, dict)
                errors = set(answer.values()) if is_by_partition else {answer[0]}
                if pair is not None and was_fenced and pair < max(self.granted):
                    assert ErrorCode.NONE not in errors, "a fenced producer was served"
                if pair is not None and ErrorCode.PRODUCER_FENCED in errors:
                    self.told_fenced.add(pair)
                if is_by_partition and ErrorCode.NONE in errors:
                    assert pair not in self.told_fenced, "fenced, and then not"
                if not is_answer_lost:
                    request.on_answer(answer)

        self.bench.runtime.call(
            0, lambda state, now_ms: request.operation(state, Answered(), now_ms)
        )
        self.bench.broker.settle()
        self.bench.log.append_error = ErrorCode.NONE
        self.bench.ids.is_available = True
        if not self.is_lagging:
            self.bench.log.commit()

    @rule()
    def deliver_all_markers(self) -> None:
        for marker in list(self.markers):
            if marker in self.markers:
                place = self.markers.index(marker)
                self.deliver_marker(place, is_repeated=False, is_answer_lost=False)

    @rule(place=st.integers(0, 30), is_repeated=st.booleans(), is_answer_lost=st.booleans())
    def deliver_marker(self, place: int, is_repeated: bool, is_answer_lost: bool) -> None:
        if not self.markers:
            return
        place = min(place, len(self.markers) - 1)
        marker = self.markers[place]
        command = marker.command
        if command.is_cancelled and not marker.was_sent:
            self.markers.pop(place)  # the sender does not send it any more
            return
        marker.was_sent = True
        error = self.partitions[marker.partition].mark(
            command.transaction.producer, command.is_commit
        )
        if not command.is_cancelled:
            assert error is ErrorCode.NONE, "the first marker was refused"
        if not is_repeated and (not is_answer_lost or command.is_cancelled):
            self.markers.pop(place)
        if not is_answer_lost and error is ErrorCode.NONE:
            self.bench.runtime.call(
                0,
                lambda state, now_ms: state.markers_written(command, [marker.partition], now_ms),
            )
            self.bench.broker.settle()
        if not self.is_lagging:
            self.bench.log.commit()

    # -- the coordinator's partition -------------------------------------------------------------

    @rule()
    def commit(self) -> None:
        self.bench.log.commit()

    @rule(is_lagging=st.booleans())
    def followers_lag(self, is_lagging: bool) -> None:
        self.is_lagging = is_lagging

    @rule(kept=st.integers(0, 5))
    def fail_over(self, kept: int) -> None:
        """The next leader has what is committed, and some of the rest."""
        log = self.bench.log
        end_offset = min(log.high_watermark + kept, log.log_end_offset)
        self.bench.fail_over(keep=end_offset)

    @rule(fails=st.booleans())
    def not_for_the_next_one(self, fails: bool) -> None:
        """The next request finds too few replicas, or no producer id."""
        if fails:
            self.bench.log.append_error = ErrorCode.NOT_ENOUGH_REPLICAS
        else:
            self.bench.ids.is_available = False

    @rule(elapsed_ms=st.sampled_from(ELAPSED_MS))
    def time_goes_by(self, elapsed_ms: int) -> None:
        before = self.bench.state.transactions.get(ID)
        log = self.bench.log
        if elapsed_ms >= HALF_A_DAY_MS:
            # Nothing waits, or tries again every moment, for days.
            log.append_error = ErrorCode.NONE
            log.commit()
            log.is_committing_at_once = True
        self.bench.advance(elapsed_ms)
        log.is_committing_at_once = False
        if not self.is_lagging:
            self.bench.log.commit()
        if before is not None and before.timeout_ms == NO_TIMEOUT_MS:
            after = self.bench.state.transactions[ID]
            assert (before.status is TransactionStatus.ONGOING) == (
                after.status is TransactionStatus.ONGOING
            ), "a two-phase commit was timed out"

    # -- what must hold --------------------------------------------------------------------------

    def logged(self) -> list[tuple[int, Transaction]]:
        found = []
        for batch in self.bench.log.batches:
            for position, _ in iter_batches(batch):
                for record in decode_records(batch, position):
                    key = TRANSACTION_STATE.decode_key(record.key)
                    if key == TRANSACTION_STATE.unused_key:
                        continue  # proves the leadership for a refusal
                    value, _ = TRANSACTION_STATE.decode_value(key, record.value)
                    assert isinstance(key, TransactionLogKey)
                    assert isinstance(value, TransactionLogValue)
                    found.append((record.offset, from_record(key, value)))
        return found

    @invariant()
    def the_log_tells_one_story(self) -> None:
        transactions = [transaction for _, transaction in self.logged()[-4:]]
        for before, after in pairwise(transactions):
            assert is_legal(before.status, after.status)
            assert goes_on_as(after) >= goes_on_as(before), "epochs go back"
            if before.status.is_prepared:
                assert after.producer == before.producer_after_end
        if transactions:
            assert self.bench.state.transactions[ID] == transactions[-1]
        kept = self.bench.state.transactions.values()
        used_bytes = self.bench.state._memory.limit.used_bytes
        assert used_bytes == sum(each.size_bytes for each in kept)

    @invariant()
    def a_transaction_ends_everywhere_alike(self) -> None:
        outcomes: dict[Pair, set[bool]] = {}
        for partition in self.partitions.values():
            for pair, found in partition.outcomes.items():
                outcomes.setdefault(pair, set()).update(found)
        for pair, found in outcomes.items():
            assert len(found) == 1, f"{pair} ended in two ways"
            assert self.told.get(pair, *found) in found, f"{pair} ended, but not as was told"

    @invariant()
    def complete_means_everywhere(self) -> None:
        transaction = self.bench.state.transactions.get(ID)
        if transaction is None or not transaction.status.is_at_rest:
            return
        for name, partition in self.partitions.items():
            assert partition.open == {}, f"{name} has a transaction that nobody will end"

    def teardown(self) -> None:
        """Everything works again: whatever was begun to be ended is ended."""
        try:
            self.bench.log.append_error = ErrorCode.NONE
            self.bench.ids.is_available = True
            self.network.clear()
            if len(self.logged()) % 2:
                self.bench.fail_over()
            for _ in range(3):
                self.bench.advance(1_000)
                self.bench.log.commit()
                while self.markers:
                    self.deliver_marker(0, is_repeated=False, is_answer_lost=False)
                    self.bench.log.commit()
            self.the_log_tells_one_story()
            self.a_transaction_ends_everywhere_alike()
            self.complete_means_everywhere()
            transaction = self.bench.state.transactions.get(ID)
            assert transaction is None or not transaction.status.is_prepared, "it hangs"
            for name, partition in self.partitions.items():
                for pair in partition.open.items():
                    assert transaction is not None
                    assert transaction.producer == pair, f"{name}: {pair} hangs"
                    assert name in transaction.partitions
        finally:
            transaction_module.LAST_CLIENT_EPOCH = self.saved_last_epoch  # type: ignore[misc]


TransactionalId.TestCase.settings = settings(
    max_examples=40,
    stateful_step_count=40,
    deadline=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)
TestTransactionalId = TransactionalId.TestCase


def walk(seed: int, step_count: int) -> TransactionalId:
    """Many steps that mostly succeed: deeper than what hypothesis builds up."""
    machine = TransactionalId()
    dice = random.Random(seed)

    def yes(probability: float) -> bool:
        return dice.random() < probability

    def number() -> int:
        return dice.choice(list(SESSIONS))

    name = [P0, P1, P2]
    steps: list[tuple[int, Callable[[], object]]] = [
        (12, lambda: machine.transact(number(), {dice.choice(name)}, yes(0.6), yes(0.6))),
        (12, lambda: machine.act_at_once(number(), dice.choice(["add", "commit", "abort"]))),
        (3, lambda: machine.act_at_once(number(), "come back")),
        (3, lambda: machine.replace(number(), yes(0.3))),
        (2, lambda: machine.come(number(), yes(0.5), yes(0.3))),
        (2, lambda: machine.take_over(number())),
        (4, lambda: machine.add(number(), dice.choice(name))),
        (4, lambda: machine.end(number(), yes(0.6))),
        (10, lambda: machine.deliver(dice.randrange(31), yes(0.4), yes(0.2))),
        (10, lambda: machine.deliver_marker(dice.randrange(31), yes(0.4), yes(0.3))),
        (6, machine.deliver_all_markers),
        (6, machine.commit),
        (3, lambda: machine.followers_lag(yes(0.4))),
        (2, lambda: machine.fail_over(dice.randrange(6))),
        (2, lambda: machine.not_for_the_next_one(yes(0.6))),
        (2, lambda: machine.time_goes_by(dice.choice(ELAPSED_MS))),
    ]
    weights = [weight for weight, _ in steps]
    try:
        for _ in range(step_count):
            (step,) = dice.choices([step for _, step in steps], weights)
            step()
            machine.the_log_tells_one_story()
            machine.a_transaction_ends_everywhere_alike()
            machine.complete_means_everywhere()
    finally:
        machine.teardown()
    return machine


@pytest.mark.parametrize("seed", range(12))
def test_a_long_walk(seed: int) -> None:
    """The seed is the test's name; another one: `walk(seed, steps)`."""
    machine = walk(seed, step_count=200)
    statuses = {transaction.status for _, transaction in machine.logged()}
    assert len(statuses) >= 4, "it has gone nowhere"
