"""The accumulator under any interleaving of results, timeouts, retries, cancellations, new epochs.

Nothing acknowledged is missing, nothing is twice (with idempotence), nothing overtakes anything
within its partition, everything ends, memory adds up.
"""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from moldau.protocol.errors import ErrorCode
from moldau.protocol.records import Codec
from tests.unit.client.producer.core.world import DELIVERY_TIMEOUT_MS, NODES, PARTITIONS, World

FAULTS_BEFORE = [
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.NOT_ENOUGH_REPLICAS,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ErrorCode.CORRUPT_MESSAGE,
    ErrorCode.MESSAGE_TOO_LARGE,
    ErrorCode.INVALID_RECORD,
    ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    ErrorCode.KAFKA_STORAGE_ERROR,
]
FAULTS_AFTER = [
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
    ErrorCode.REQUEST_TIMED_OUT,
    ErrorCode.UNKNOWN_SERVER_ERROR,
]
partitions = st.integers(0, PARTITIONS - 1)
nodes = st.integers(0, NODES - 1)


class AccumulatorMachine(RuleBasedStateMachine):
    """The steps of `World`, in any order."""

    modes = ("plain", "idempotent", "transactional")

    @initialize(data=st.data(), codec=st.sampled_from([Codec.NONE, Codec.GZIP]))
    def begin(self, data: st.DataObject, codec: Codec) -> None:
        self.world = World(data.draw(st.sampled_from(self.modes)), codec)

    @rule(
        counts=st.tuples(st.integers(0, 6), st.integers(0, 6)),
        size_bytes=st.integers(1, 120),
        drains=st.integers(0, 3),
        served=st.tuples(st.integers(0, 4), st.integers(0, 4)),
        answered=st.tuples(st.integers(0, 4), st.integers(0, 4)),
    )
    def go_on(
        self,
        counts: tuple[int, int],
        size_bytes: int,
        drains: int,
        served: tuple[int, int],
        answered: tuple[int, int],
    ) -> None:
        """Records come, requests go, answers arrive: some of each."""
        self._append(counts, size_bytes)
        self.world.pass_time(6.0)
        for _ in range(drains):
            self.world.drain()
        for node in range(NODES):
            for _ in range(served[node]):
                self.world.serve(node, None)
            for _ in range(answered[node]):
                self.world.answer(node)

    def _append(self, counts: tuple[int, int], size_bytes: int) -> None:
        for partition, count in enumerate(counts):
            for _ in range(count):
                self.world.append(partition, size_bytes)

    @rule(
        node=nodes,
        counts=st.tuples(st.integers(0, 8), st.integers(0, 8)),
        size_bytes=st.integers(1, 120),
        fault=st.one_of(
            st.tuples(st.sampled_from(FAULTS_BEFORE), st.just(False)),
            st.tuples(st.sampled_from(FAULTS_AFTER), st.just(True)),
        ),
        is_answered=st.booleans(),
    )
    def refuse(
        self,
        node: int,
        counts: tuple[int, int],
        size_bytes: int,
        fault: tuple[ErrorCode, bool],
        is_answered: bool,
    ) -> None:
        """A node says no to the oldest of some requests."""
        self._fill_wires(counts, size_bytes)
        for each in (node, 1 - node)[: 1 + is_answered]:
            self.world.serve(each, fault[0], after_append=fault[1])
            if is_answered:
                self.world.answer(each)

    def _fill_wires(self, counts: tuple[int, int], size_bytes: int) -> None:
        if sum(counts) % 4:
            # Mostly what went before has come to its end, and mostly the leaders are known.
            self.world.learn_leaders()
            self.world.serve_all()
        self._append(counts, size_bytes)
        self.world.pass_time(6.0)
        for _ in range(3):
            self.world.drain()

    @rule(
        node=nodes,
        counts=st.tuples(st.integers(0, 8), st.integers(0, 8)),
        size_bytes=st.integers(1, 120),
        served=st.integers(0, 3),
    )
    def cut(self, node: int, counts: tuple[int, int], size_bytes: int, served: int) -> None:
        """A connection breaks with requests on it."""
        self._fill_wires(counts, size_bytes)
        self.world.cut(node, served)

    @rule(
        node=nodes,
        counts=st.tuples(st.integers(0, 8), st.integers(0, 8)),
        is_cut=st.booleans(),
        served=st.integers(0, 3),
    )
    def run_out_of_time(
        self, node: int, counts: tuple[int, int], is_cut: bool, served: int
    ) -> None:
        """`delivery.timeout.ms` is over with requests on the wire, or just lost."""
        self._fill_wires(counts, 60)
        if is_cut:
            self.world.cut(node, served)
        self.world.pass_time(DELIVERY_TIMEOUT_MS)
        self._fill_wires((0, 0), 60)

    @rule(partition=partitions, node=nodes, told=st.booleans())
    def move_leader(self, partition: int, node: int, told: bool) -> None:
        self.world.move_leader(partition, node, told=told)

    @rule()
    def learn_leaders(self) -> None:
        self.world.learn_leaders()

    @rule(elapsed_ms=st.sampled_from([20.0, 100.0, 400.0]))
    def pass_time(self, elapsed_ms: float) -> None:
        self.world.pass_time(elapsed_ms)

    @rule()
    def give_up_waiting(self) -> None:
        self.world.give_up_waiting()

    @rule(node=nodes, counts=st.tuples(st.integers(0, 8), st.integers(0, 8)))
    def refuse_node(self, node: int, counts: tuple[int, int]) -> None:
        """A node will never take what is for it: on the wire, waiting and being filled."""
        self._fill_wires(counts, 60)
        self._append(counts, 60)
        self.world.refuse_node(node)

    @rule()
    def bump(self) -> None:
        self.world.bump()

    @rule(is_open=st.booleans(), grants_at_once=st.booleans())
    def set_identity(self, is_open: bool, grants_at_once: bool) -> None:
        self.world.set_identity(is_open=is_open, grants_at_once=grants_at_once)

    @invariant()
    def holds(self) -> None:
        if hasattr(self, "world"):
            self.world.check()

    def teardown(self) -> None:
        if hasattr(self, "world"):
            self.world.finish()


TestAccumulator = AccumulatorMachine.TestCase
TestAccumulator.settings = settings(
    max_examples=60,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
# A unittest class: pytest runs it as it is.
pytest.mark.timeout(120)(TestAccumulator)
