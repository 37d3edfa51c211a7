"""The commit protocol: exactly once, or a refusal, whatever stops wherever."""

from __future__ import annotations

from collections.abc import Generator
from functools import partial
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from moldau.spark_connector.core import commit_protocol
from moldau.spark_connector.core.commit_protocol import (
    FindOpen,
    LedgerView,
    Plan,
    RefusalKind,
    Refused,
    Role,
    TakeLedger,
    TaskReport,
    WriteLedger,
    committing,
    planning,
)
from moldau.spark_connector.core.ledger import SinkRecord, Slot, decided

from .simulated_sink import SINK, TASKS, Driver, Query, SimulatedCluster

LAST = 3
FINAL = frozenset(
    {
        RefusalKind.REWOUND,
        RefusalKind.REPLAY_DIFFERS,
        RefusalKind.LOST_FOR_GOOD,
        RefusalKind.OUTCOME_UNKNOWN,
    }
)
"""Refusals that a restart does not help against."""


class Failures(RuleBasedStateMachine):
    """Two queries on one sink; whatever can happen to them does."""

    def __init__(self) -> None:
        super().__init__()
        self.cluster = SimulatedCluster()
        self.queries = [Query("a"), Query("b")]
        self.started = 0
        self.drivers: dict[str, Driver] = {}
        self.zombies: list[Driver] = []
        self.is_rewound: set[str] = set()
        for query in self.queries[:1]:
            self.start(query)

    def start(self, query: Query) -> Driver:
        self.started += 1
        made = Driver(self.cluster, query, f"driver-{self.started}", LAST)
        self.drivers[query.name] = made
        return made

    @rule(index=st.integers(0, 1), count=st.integers(1, 40))
    def run_on(self, index: int, count: int) -> None:
        query = self.queries[index]
        driver = self.drivers.get(query.name) or self.start(query)
        if not driver.advance(count) and query.commit_log < LAST:
            self.start(query)

    @rule(index=st.integers(0, 1))
    def kill_driver(self, index: int) -> None:
        self.start(self.queries[index])

    @precondition(lambda self: len(self.zombies) < 4)
    @rule(index=st.integers(0, 1))
    def pause_driver(self, index: int) -> None:
        query = self.queries[index]
        if query.name in self.drivers:
            self.zombies.append(self.drivers[query.name])
        self.start(query)

    @precondition(lambda self: self.zombies)
    @rule(index=st.integers(0, 3), count=st.integers(1, 40))
    def resume_zombie(self, index: int, count: int) -> None:
        zombie = self.zombies[index % len(self.zombies)]
        if not zombie.advance(count):
            self.zombies.remove(zombie)

    @rule(index=st.integers(0, 1))
    def kill_executor(self, index: int) -> None:
        driver = self.drivers.get(self.queries[index].name)
        if driver is not None:
            driver.kill_executor = True

    @rule(index=st.integers(0, 1))
    def fail_job(self, index: int) -> None:
        driver = self.drivers.get(self.queries[index].name)
        if driver is not None:
            driver.fail_commit = True

    @rule(index=st.integers(0, 5))
    def time_out(self, index: int) -> None:
        names = self.cluster.open_ids()
        if names:
            self.cluster.time_out(names[index % len(names)])

    @rule(outcome=st.sampled_from(["applied", "dropped"]))
    def break_ledger_write(self, outcome: str) -> None:
        self.cluster.next_writes.append(outcome)

    @rule(index=st.integers(0, 1), back=st.integers(1, 2), step=st.integers(3, 5))
    def rewind(self, index: int, back: int, step: int) -> None:
        query = self.queries[index]
        self.drivers.pop(query.name, None)
        self.zombies = [each for each in self.zombies if each.query is not query]
        query.rewind(max(0, query.commit_log + 1 - back), step)
        self.is_rewound.add(query.name)
        self.start(query)

    @invariant()
    def nothing_is_there_twice(self) -> None:
        twice = [row for row, count in self.cluster.visible.items() if count > 1]
        assert not twice, twice

    @invariant()
    def what_is_committed_is_visible(self) -> None:
        for query in self.queries:
            if query.commit_log in query.offset_log:
                end = query.offset_log[query.commit_log][1]
                missing = [n for n in range(end) if not self.cluster.visible[(query.name, n)]]
                assert not missing, (query.name, query.commit_log, missing)

    def teardown(self) -> None:
        """When nothing fails any more, one query after the other comes to its end."""
        self.cluster.next_writes.clear()
        self.zombies.clear()
        for query in self.queries:
            refusals = []
            is_over = query.commit_log == LAST
            for _ in range(3):
                driver = self.start(query)
                driver.advance(100_000)
                if query.commit_log == LAST:
                    break
                assert driver.refusal is not None
                refusals.append(driver.refusal.kind)
            if query.commit_log == LAST:
                assert is_over or refusals or not self.cluster.open_ids()
            elif query.name not in self.is_rewound:
                # Only rows of the other query that are lost for good may stand in the way.
                assert refusals[-1] is RefusalKind.LOST_FOR_GOOD, refusals
            else:
                assert refusals[-1] in FINAL, refusals
            self.nothing_is_there_twice()
            self.what_is_committed_is_visible()


TestFailures = Failures.TestCase
TestFailures.settings = settings(
    max_examples=120,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)


# -- each place once ----------------------------------------------------------------------------


def finished_run(cluster: SimulatedCluster, query: Query) -> list[RefusalKind]:
    """Restart until the end; the refusals on the way."""
    refusals = []
    for attempt in range(5):
        driver = Driver(cluster, query, f"restart-{attempt}", LAST)
        driver.advance(100_000)
        if query.commit_log == LAST:
            return refusals
        assert driver.refusal is not None
        refusals.append(driver.refusal.kind)
    return refusals


def step_count(last: int = LAST) -> int:
    driver = Driver(SimulatedCluster(), Query("a"), "count", last)
    count = 1
    while driver.advance(1):
        count += 1
    return count


def check_exactly_once(cluster: SimulatedCluster, query: Query) -> None:
    end = query.offset_log[LAST][1]
    assert cluster.visible == {(query.name, each): 1 for each in range(end)}


@pytest.mark.promise("sink-exactly-once", "sink-killed-driver")
def test_driver_killed_at_every_step() -> None:
    for at in range(step_count()):
        cluster, query = SimulatedCluster(), Query("a")
        Driver(cluster, query, "first", LAST).advance(at)
        assert finished_run(cluster, query) == []
        check_exactly_once(cluster, query)
        assert not cluster.open_ids()


@pytest.mark.promise("sink-task-by-task")
def test_of_each_task_all_rows_are_visible_or_none() -> None:
    """A batch becomes visible transaction by transaction: a killed driver leaves whole ones."""
    halves = 0
    for at in range(step_count()):
        cluster, query = SimulatedCluster(), Query("a")
        Driver(cluster, query, "first", LAST).advance(at)
        for first, end in query.offset_log.values():
            rows = [(query.name, each) for each in range(first, end)]
            seen = [{cluster.visible[row] for row in rows[task::TASKS]} for task in range(TASKS)]
            assert all(len(each) == 1 for each in seen), (at, seen)
            halves += seen[0] != seen[1]
    assert halves, "no driver was killed between two commits"


@pytest.mark.promise("sink-exactly-once", "sink-killed-executor")
def test_executor_killed_at_every_step() -> None:
    """The dead attempt's transaction is aborted within the same batch."""
    killed = 0
    for at in range(step_count()):
        cluster, query = SimulatedCluster(), Query("a")
        driver = Driver(cluster, query, "first", LAST)
        driver.advance(at)
        driver.kill_executor = True
        batch_id = query.commit_log
        while query.commit_log <= batch_id and driver.advance(1):
            continue
        killed += not driver.kill_executor
        assert not cluster.open_ids()
        driver.advance(100_000)
        check_exactly_once(cluster, query)
    assert killed


def test_zombie_resumed_at_every_step_of_its_successor() -> None:
    count = step_count()
    for paused_at in range(2, count, 3):
        for resumed_at in range(1, count, 7):
            cluster, query = SimulatedCluster(), Query("a")
            zombie = Driver(cluster, query, "zombie", LAST)
            zombie.advance(paused_at)
            Driver(cluster, query, "successor", LAST).advance(resumed_at)
            zombie.advance(100_000)
            finished_run(cluster, query)
            check_exactly_once(cluster, query)


@pytest.mark.promise("sink-late-task")
def test_a_zombies_prepared_transaction_holds_back_no_reader() -> None:
    """It has no time limit, and after the last batch of a run no driver looks for it."""
    too_late = 0
    for paused_at in range(1, step_count()):
        cluster, query = SimulatedCluster(), Query("a")
        zombie = Driver(cluster, query, "zombie", LAST, is_prepared=True)
        zombie.advance(paused_at)
        Driver(cluster, query, "successor", LAST, is_prepared=True).advance(100_000)
        assert query.commit_log == LAST
        opened = sum(len(found.outcomes) for found in cluster.ids.values())
        zombie.advance(100_000)
        too_late += sum(len(found.outcomes) for found in cluster.ids.values()) - opened
        assert not cluster.open_ids(), paused_at
        check_exactly_once(cluster, query)
    assert too_late, "no zombie has opened a transaction after its successor's last batch"


def test_a_zombies_prepared_transaction_is_found_beside_an_empty_batch() -> None:
    """Which decides nothing, so that only its planning looks for what is open."""
    count = step_count(0)
    for planned in range(count):
        for opened in range(count - planned):
            cluster, empty = SimulatedCluster(), Query("b")
            empty.step = 0
            zombie = Driver(cluster, Query("a"), "zombie", 0, is_prepared=True)
            while not cluster.ids:  # its planning is done, and its first task begins
                zombie.advance(1)
            successor = Driver(cluster, empty, "successor", 0, is_prepared=True)
            successor.advance(planned)
            zombie.advance(opened)
            successor.advance(100_000)
            zombie.advance(100_000)
            assert not cluster.open_ids(), (planned, opened)


@pytest.mark.promise("query-one-sink")
def test_a_query_under_another_sink_id_is_refused_wherever_it_stands() -> None:
    """Its checkpoint was moved or copied, or its sink renamed: a batch might be written twice."""
    refused = 0
    for at in range(step_count()):
        cluster, query = SimulatedCluster(), Query("a")
        Driver(cluster, query, "first", LAST).advance(at)
        is_known = any(b'"query":"a"' in value for value in cluster.ledger.values())
        moved = Driver(cluster, query, "moved", LAST, sink_id="other")
        moved.advance(100_000)
        if query.commit_log == LAST and not is_known:
            check_exactly_once(cluster, query)
            continue
        if moved.refusal is not None:
            refused += 1
            assert moved.refusal.kind is RefusalKind.ELSEWHERE
            assert "'other'" in str(moved.refusal)
            assert f"'{SINK}'" in str(moved.refusal)
            assert not cluster.open_ids("other")
        assert finished_run(cluster, query) == []
        check_exactly_once(cluster, query)
    assert refused


@pytest.mark.promise("query-new")
def test_a_new_query_is_refused_where_it_may_not_follow_another() -> None:
    """Its checkpoint is new, and would write again what is stored: at any time, and both at
    once.
    """
    owners = set()
    for at in range(step_count()):
        for paused_at in (0, 7, 20, 100_000):
            cluster, queries = SimulatedCluster(), (Query("a"), Query("b"))
            drivers = [
                Driver(cluster, query, f"driver of {query.name}", LAST, may_follow=False)
                for query in queries
            ]
            drivers[0].advance(at)
            drivers[1].advance(paused_at)
            for each in drivers:
                each.advance(100_000)
            # Each may have fenced the other one, or lost a transaction: a restart shows which.
            for _ in range(2):
                again = [
                    Driver(cluster, query, "again", LAST, may_follow=False) for query in queries
                ]
                for each in again:
                    each.advance(100_000)
            [owner] = {name for name, _ in cluster.visible}
            owners.add(owner)
            check_exactly_once(cluster, queries[owner == "b"])
            refusal = again[owner == "a"].refusal
            assert refusal is not None
            assert refusal.kind is RefusalKind.NEW_QUERY
            assert f"of query {owner}" in str(refusal)
            assert not cluster.open_ids()
    assert owners == {"a", "b"}


@pytest.mark.promise("query-new")
def test_a_new_query_may_follow_one_that_has_written_nothing() -> None:
    cluster, empty, query = SimulatedCluster(), Query("a"), Query("b")
    empty.filtered = frozenset(range(empty.step))
    Driver(cluster, empty, "first", 0, may_follow=False).advance(100_000)
    assert empty.commit_log == 0
    driver = Driver(cluster, query, "second", LAST, may_follow=False)
    driver.advance(100_000)
    assert driver.refusal is None
    check_exactly_once(cluster, query)


@pytest.mark.promise("query-copies")
def test_copies_of_a_checkpoint_by_turns_with_batches_that_have_no_rows() -> None:
    """One copy's empty batch is a later batch of rows for the other one: both would write them."""
    cluster, query, copy = SimulatedCluster(), Query("a"), Query("a")
    query.filtered = copy.filtered = frozenset(range(3, 6))
    for each in (query, copy):
        Driver(cluster, each, "first", 0).advance(100_000)
    Driver(cluster, query, "second", 1).advance(100_000)
    assert query.offset_log[1] == (3, 6)
    copy.step = 6
    driver = Driver(cluster, copy, "third", 1)
    driver.advance(100_000)
    Driver(cluster, query, "fourth", 2).advance(100_000)
    assert cluster.visible == {("a", each): 1 for each in (0, 1, 2, 6, 7, 8)}
    assert driver.refusal is not None
    assert driver.refusal.kind is RefusalKind.REPLAY_DIFFERS


@pytest.mark.promise("two-writers")
def test_a_driver_that_gives_up_leaves_its_successors_transactions_alone() -> None:
    """It has listed them, under their own epochs, before it sees that it is not in charge."""
    resumed_at, is_running = 0, True
    while is_running:
        resumed_at += 1
        cluster, query = SimulatedCluster(), Query("a")
        zombie = Driver(cluster, query, "zombie", 0)
        zombie.fail_commit = True
        while len(cluster.open_ids()) < TASKS:
            zombie.advance(1)
        successor = Driver(cluster, query, "successor", 0)
        is_running = successor.advance(resumed_at)
        zombie.advance(100_000)
        successor.advance(100_000)
        assert successor.refusal is None, resumed_at
        end = query.offset_log[0][1]
        assert cluster.visible == {("a", each): 1 for each in range(end)}
    assert resumed_at > 10


def test_why_a_batch_was_not_decided() -> None:
    """Its transactions are gone: a successor has aborted them, or their time was over."""
    for has_successor in (True, False):
        cluster, query = SimulatedCluster(), Query("a")
        driver = Driver(cluster, query, "first", 0)
        while len(cluster.open_ids()) < TASKS:
            driver.advance(1)
        if has_successor:
            result_of(driver.carried(planning(SINK, "successor")))
        for name in cluster.open_ids():
            cluster.time_out(name)
        driver.advance(100_000)
        assert driver.refusal is not None
        kinds = (RefusalKind.LOST_BEFORE_DECISION, RefusalKind.FENCED)
        assert driver.refusal.kind is kinds[has_successor]


def test_a_planning_that_is_overtaken_while_it_lists_aborts_nothing() -> None:
    """What it has found may be the other driver's."""
    way = planning(SINK, "token")
    assert isinstance(next(way), TakeLedger)
    assert isinstance(way.send(LedgerView()), WriteLedger)
    assert isinstance(way.send(True), FindOpen)
    assert isinstance(way.send((("s.w.0.0", 1, 1),)), WriteLedger)
    assert isinstance(way.send(False), TakeLedger)


def test_a_decided_batch_that_comes_again_without_a_tasks_rows_is_refused() -> None:
    batch = decided("a", 1, [Slot(0, "s.w.0.0", 1, 1, 2, 5)], 1, 1)
    plan = Plan(SinkRecord(SINK, "token", batch))
    with pytest.raises(Refused, match="2 rows in task 0 and comes again with 0 rows"):
        next(committing(plan, "a", 1, []))


@pytest.mark.parametrize("step", [3, 1])
@pytest.mark.promise("time-before-decision", "time-after-decision")
def test_every_transaction_timed_out_at_every_step(step: int) -> None:
    """With a step of 1 the second task has no rows, and no transaction."""
    rewritten = 0
    for at in range(step_count()):
        cluster, query = SimulatedCluster(), Query("a")
        query.step = step
        driver = Driver(cluster, query, "first", LAST)
        driver.advance(at)
        for name in cluster.open_ids():
            cluster.time_out(name)
        driver.advance(100_000)
        if driver.refusal is not None:
            rewritten += driver.refusal.kind is RefusalKind.LOST_AFTER_DECISION
        assert finished_run(cluster, query) == []
        check_exactly_once(cluster, query)
    assert rewritten, "no transaction was lost between decision and commit"


def test_ledger_write_of_unknown_outcome_at_every_step() -> None:
    for outcome in ("applied", "dropped"):
        for at in range(step_count()):
            cluster, query = SimulatedCluster(), Query("a")
            driver = Driver(cluster, query, "first", LAST)
            driver.advance(at)
            cluster.next_writes.append(outcome)
            driver.advance(100_000)
            assert driver.refusal is None
            check_exactly_once(cluster, query)


@pytest.mark.promise("refusal-rows-unseen")
def test_rows_that_no_reader_can_see_stop_the_sink() -> None:
    kinds = set()
    for at in range(step_count()):
        cluster, query = SimulatedCluster(), Query("a")
        cluster.can_look = False
        driver = Driver(cluster, query, "first", LAST)
        driver.advance(at)
        for name in cluster.open_ids():
            cluster.time_out(name)
        driver.advance(100_000)
        kinds |= set(finished_run(cluster, query))
        assert max(cluster.visible.values(), default=0) <= 1
    assert RefusalKind.OUTCOME_UNKNOWN in kinds


@pytest.mark.parametrize("step", [3, 4])
@pytest.mark.promise("refusal-rewound", "refusal-replay")
def test_rewound_checkpoint(step: int) -> None:
    """One batch back with the same rows is a replay; anything else is refused."""
    cluster, query = SimulatedCluster(), Query("a")
    assert finished_run(cluster, query) == []
    before = dict(cluster.visible)
    query.rewind(LAST, step)
    refusals = finished_run(cluster, query)
    assert set(refusals) == (set() if step == 3 else {RefusalKind.REPLAY_DIFFERS})
    query.rewind(LAST - 1, step)
    assert set(finished_run(cluster, query)) == {RefusalKind.REWOUND}
    assert dict(cluster.visible) == before


@pytest.mark.promise("two-writers", "refusal-fenced")
def test_two_queries_fence_each_other() -> None:
    cluster = SimulatedCluster()
    one, other = Query("a"), Query("b")
    first = Driver(cluster, one, "one", LAST)
    first.advance(20)
    assert SINK in cluster.ledger
    Driver(cluster, other, "other", LAST).advance(20)
    first.advance(100_000)
    assert first.refusal is not None
    assert first.refusal.kind is RefusalKind.FENCED
    assert finished_run(cluster, one) == []
    assert finished_run(cluster, other) == []
    for query in (one, other):
        end = query.offset_log[LAST][1]
        assert all(cluster.visible[(query.name, each)] == 1 for each in range(end))


def test_a_single_write_of_no_rows_is_forgotten() -> None:
    """No driver asks for it again, and many of them would fill the ledger."""
    cluster = SimulatedCluster()
    driver = Driver(cluster, Query("once:1"), "token", 0)
    plan = result_of(driver.carried(planning(SINK, "token", query_id="once:1", is_single=True)))
    assert SINK in cluster.ledger
    report = TaskReport(0, 0, Role.WRITE, 0, 0)
    result_of(driver.carried(committing(plan, "once:1", 0, [report])))
    assert cluster.ledger == {}


@pytest.mark.parametrize("outcome", ["known", "applied", "dropped"])
@pytest.mark.promise("batch-unnamed")
def test_a_single_write_is_forgotten_whatever_is_known_of_the_last_write(outcome: str) -> None:
    cluster = SimulatedCluster()
    driver = Driver(cluster, Query("once:1"), "token", 0)
    plan = result_of(driver.carried(planning(SINK, "token", query_id="once:1", is_single=True)))
    report = result_of(driver.attempts(plan, 0, 0, [("once:1", 0)]))
    cluster.next_writes = ["known", outcome]
    result_of(driver.carried(committing(plan, "once:1", 0, [report])))
    assert cluster.ledger == {}
    assert cluster.visible == {("once:1", 0): 1}


def result_of(way: Generator[None, None, Any]) -> Any:
    """Let a procedure go on to its end."""
    while True:
        try:
            next(way)
        except StopIteration as end:
            return end.value


# -- the checks find what they are for ----------------------------------------------------------


def _forgetful(*_: Any) -> tuple[Any, ...]:
    return ()


@pytest.mark.parametrize("broken", ["no token", "no look", "no sweep"])
def test_a_broken_protocol_is_found(broken: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without one of its rules the protocol fails one of the tests above."""
    if broken == "no token":
        monkeypatch.setattr(commit_protocol, "_in_charge", lambda _plan, view, _batch: view.record)
        found: Any = test_zombie_resumed_at_every_step_of_its_successor
    elif broken == "no look":
        monkeypatch.setattr(SimulatedCluster, "sight", lambda *_: commit_protocol.Sight.VISIBLE)
        found = partial(test_every_transaction_timed_out_at_every_step, 3)
    else:
        monkeypatch.setattr(commit_protocol, "_not_named", _forgetful)
        found = test_executor_killed_at_every_step
    with pytest.raises((AssertionError, AttributeError, KeyError)):
        found()
