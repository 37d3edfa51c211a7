"""The transaction manager under every order of events that hypothesis thinks of, and injected
bugs.
"""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    precondition,
    rule,
    run_state_machine_as_test,
)

from moldau.client.producer.core.transaction_manager import Step, TransactionManager
from moldau.client.producer.core.transaction_requests import Ask
from moldau.client.producer.core.transaction_states import OPEN_STATES, TransactionState
from moldau.protocol.types import TopicPartition
from tests.unit.client.producer.core.transaction_world import PARTITIONS, Fate, World, walk

S = TransactionState
FATES = st.sampled_from([Fate.SERVED] * 6 + [each for each in Fate if each is not Fate.SERVED])


def in_state(*states: TransactionState) -> Any:
    return precondition(lambda machine: machine.world.manager.state in states)


class Machine(RuleBasedStateMachine):
    """An application that does anything at any time, on a bad network."""

    @initialize(version=st.sampled_from([1, 2]), fates=st.lists(FATES, max_size=2))
    def start(self, version: int, fates: list[Fate]) -> None:
        self.world = World(version)
        self.world.initialize()
        for fate in (*fates, Fate.SERVED):
            self.world.step(fate)

    @in_state(S.READY)
    @rule()
    def begin(self) -> None:
        self.world.begin()

    @in_state(S.IN_TRANSACTION)
    @rule(partition=st.sampled_from(PARTITIONS))
    def append(self, partition: TopicPartition) -> None:
        self.world.append(partition)

    @in_state(S.IN_TRANSACTION)
    @rule(partition=st.sampled_from(PARTITIONS), offset=st.integers(0, 50))
    def add_offsets(self, partition: TopicPartition, offset: int) -> None:
        self.world.add_offsets(partition, offset)

    @in_state(S.IN_TRANSACTION)
    @rule()
    def commit(self) -> None:
        self.world.commit()

    @in_state(*OPEN_STATES)
    @rule()
    def abort(self) -> None:
        self.world.abort()

    @precondition(lambda self: bool(self.world.batches))
    @rule(fate=st.sampled_from([Fate.SERVED] * 4 + [Fate.REQUEST_LOST, Fate.ANSWER_LOST]))
    def send(self, fate: Fate) -> None:
        self.world.send(fate)

    @precondition(lambda self: self.world.manager.awaits_batches)
    @rule()
    def settle(self) -> None:
        self.world.settle()

    @precondition(lambda self: self.world.manager.next_ask() is not None)
    @rule(fate=FATES)
    def step(self, fate: Fate) -> None:
        self.world.step(fate)

    @precondition(lambda self: bool(self.world.late))
    @rule()
    def deliver_late(self) -> None:
        self.world.deliver_late()

    def teardown(self) -> None:
        if hasattr(self, "world"):
            self.world.finish()


def check_machine(example_count: int) -> None:
    """The world's own checks raise, and hypothesis prints the steps that lead there."""
    run_state_machine_as_test(  # type: ignore[no-untyped-call]
        Machine,
        settings=settings(max_examples=example_count, stateful_step_count=30, deadline=None),
    )


def test_it_holds_under_any_order_of_events() -> None:
    check_machine(60)


@pytest.mark.parametrize("version", [1, 2])
def test_it_holds_on_long_walks(version: int) -> None:
    for seed in range(150):
        try:
            walk(World(version), Random(seed), 120)
        except AssertionError as error:
            error.add_note(f"walk(World({version}), Random({seed}), 120)")
            raise


# -- injected bugs ------------------------------------------------------------------------------


class SendsBeforeAdded(TransactionManager):
    def admit(self, partition: TopicPartition) -> bool:
        return super().admit(partition) or self.state is S.IN_TRANSACTION


class EndsBeforeSettled(TransactionManager):
    def commit(self) -> Any:
        problem = super().commit()
        self._is_settled = True
        return problem


class TakesLostAnswersForDone(TransactionManager):
    def unanswered(self, ask: Ask) -> Step:
        step = super().unanswered(ask)
        if self._was_asked_to_end and self._state in (S.COMMITTING, S.ABORTING):
            self._after_end()
        return step


class AbortsAnUnknownCommit(TransactionManager):
    @property
    def is_outcome_asked(self) -> bool:
        return False


class KeepsItsEpoch(TransactionManager):
    def _end_answered(self, ask: Ask, response: Any) -> Step:
        response.producer_id = response.producer_epoch = -1
        return super()._end_answered(ask, response)


class NeverBumps(TransactionManager):
    def _make_abortable(self, problem: Any, *, needs_bump: bool) -> None:
        super()._make_abortable(problem, needs_bump=False)


class ForgetsOffsets(TransactionManager):
    def commit(self) -> Any:
        self._commits.clear()
        return super().commit()


class CommitsWhatFailed(TransactionManager):
    def batch_failed(self, *_args: Any, **_kwargs: Any) -> None:
        return


class ForgetsUnansweredAdditions(TransactionManager):
    """An abort that asks no coordinator, though a request to add partitions may have been
    served.
    """

    def unanswered(self, ask: Ask) -> Step:
        self._may_be_known = self._is_known_to_coordinator
        return super().unanswered(ask)


INJECTED_BUGS: list[type[TransactionManager]] = [
    SendsBeforeAdded,
    EndsBeforeSettled,
    TakesLostAnswersForDone,
    AbortsAnUnknownCommit,
    KeepsItsEpoch,
    NeverBumps,
    ForgetsOffsets,
    CommitsWhatFailed,
    ForgetsUnansweredAdditions,
]


@pytest.mark.parametrize("kind", INJECTED_BUGS, ids=lambda kind: kind.__name__)
def test_injected_bugs_are_found(kind: type[TransactionManager]) -> None:
    found = []
    for seed in range(1_000):
        try:
            walk(World(1 + seed % 2, kind), Random(seed), 120)
        except AssertionError as error:
            found.append(error)
            break
    assert found, "no walk finds it"
