"""The runtime over partitions in memory: every order of append, commit, loss and limit."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import pytest

from moldau.broker.coordinator.core.result import (
    CancelTimer,
    CoordinatorResult,
    Producer,
    Reply,
    SetTimer,
    TransactionEnd,
)
from moldau.broker.coordinator.key_partitions import partition_for
from moldau.broker.coordinator.runtime import CoordinatorRuntime
from moldau.broker.coordinator.shard import FAILED_TIMER_MS, LATE_TIMER_MS
from moldau.protocol.coordinator_records import CONSUMER_OFFSETS
from moldau.protocol.errors import ErrorCode
from tests.unit.broker.coordinator.harness import SETTINGS, Caller, MemoryBroker
from tests.unit.broker.coordinator.toy import (
    ToyState,
    commit_record,
    read,
    set_timer,
    wait_inside,
    write,
)

PRODUCER = Producer(77, 3)


class Bench:
    """A memory broker with a toy coordinator."""

    def __init__(self, *, settings: Any = SETTINGS, **options: Any) -> None:
        self.broker = MemoryBroker(CONSUMER_OFFSETS, **options)
        self.states: list[ToyState] = []
        self.commands: list[tuple[int, Any]] = []
        self.runtime: CoordinatorRuntime[ToyState] = CoordinatorRuntime(
            CONSUMER_OFFSETS,
            self._make,
            lambda index, command: self.commands.append((index, command)),
            settings,
            self.broker.ports,
        )
        self.broker.attach(self.runtime)

    def _make(self, partition_index: int) -> ToyState:
        self.states.append(ToyState(partition_index))
        return self.states[-1]

    @property
    def state(self) -> ToyState:
        return self.states[-1]

    def call(self, operation_of: Any, *args: Any, **options: Any) -> Caller:
        caller = Caller(str(args))
        assert self.runtime.call(0, operation_of(caller, *args, **options)) is ErrorCode.NONE
        return caller


def led_bench(**options: Any) -> Bench:
    bench = Bench(**options)
    bench.broker.elect(0)
    return bench


def test_a_write_is_answered_when_it_is_committed() -> None:
    bench = led_bench()
    caller = bench.call(write, "g", 5)
    assert bench.state.offsets == {"g": 5}
    assert not caller.is_answered
    bench.broker.partition().commit()
    assert caller.answer is ErrorCode.NONE


def test_a_read_of_what_is_not_committed_waits_for_it() -> None:
    bench = led_bench()
    bench.call(write, "g", 5)
    reader = bench.call(read, "g")
    other = bench.call(read, "another group")
    assert not reader.is_answered
    assert not other.is_answered
    bench.broker.partition().commit()
    assert reader.answer == (5,)
    assert other.answer == (None,)
    assert bench.call(read, "g").answer == (5,), "all is committed: at once"


def test_answers_come_in_order_and_only_as_far_as_it_is_committed() -> None:
    bench = led_bench()
    callers = [bench.call(write, "g", number) for number in range(4)]
    bench.broker.partition().commit(2)
    assert [caller.is_answered for caller in callers] == [True, True, False, False]
    bench.broker.partition().commit(4)
    assert all(caller.answer is ErrorCode.NONE for caller in callers)


def test_one_replica_commits_at_once() -> None:
    bench = led_bench(is_committing_at_once=True)
    assert bench.call(write, "g", 5).answer is ErrorCode.NONE
    assert bench.call(read, "g").answer == (5,)


@pytest.mark.parametrize(
    ("problem", "told"),
    [
        (ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.COORDINATOR_NOT_AVAILABLE),
        (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.NOT_COORDINATOR),
        (ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.NOT_COORDINATOR),
        (ErrorCode.RECORD_LIST_TOO_LARGE, ErrorCode.MESSAGE_TOO_LARGE),
        (ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.INVALID_PRODUCER_EPOCH),
        (ErrorCode.CORRUPT_MESSAGE, ErrorCode.UNKNOWN_SERVER_ERROR),
    ],
)
def test_what_could_not_be_appended_was_never_replayed(problem: ErrorCode, told: ErrorCode) -> None:
    bench = led_bench()
    bench.broker.partition().append_error = problem
    assert bench.call(write, "g", 5).answer is told
    assert bench.state.replayed == []
    bench.broker.partition().append_error = ErrorCode.NONE
    assert bench.call(read, "g").answer == (None,)


@pytest.mark.parametrize("holds_anyway", [False, True])
def test_what_happens_of_a_result_whose_records_are_refused(*, holds_anyway: bool) -> None:
    bench = led_bench()
    bench.broker.partition().append_error = ErrorCode.NOT_ENOUGH_REPLICAS
    caller = Caller()
    errors: list[ErrorCode] = []

    def after(error: ErrorCode, now_ms: float) -> CoordinatorResult:
        assert caller.is_answered is holds_anyway, "before"
        errors.append(error)
        return CoordinatorResult()

    def operation(state: ToyState, now_ms: float) -> CoordinatorResult:
        return CoordinatorResult(
            records=[commit_record("g", 1)],
            holds_anyway=holds_anyway,
            replies=[Reply(caller, "done")],
            timers=[SetTimer("t", 10)],
            commands=["command"],
            after=after,
        )

    assert bench.runtime.call(0, operation) is ErrorCode.NONE
    bench.broker.advance(100)
    assert errors == [ErrorCode.COORDINATOR_NOT_AVAILABLE]
    assert bench.state.replayed == []
    assert caller.is_answered is holds_anyway
    assert bench.commands == [(0, "command")] * holds_anyway
    assert bench.state.timers_run == ["t"] * holds_anyway


def test_too_much_for_one_batch() -> None:
    bench = led_bench()
    bench.broker.partition().max_batch_bytes = 200
    caller = Caller()

    def operation(state: ToyState, now_ms: float) -> CoordinatorResult:
        return CoordinatorResult.reply_when_committed(
            caller,
            ErrorCode.NONE,
            on_error=lambda error: error,
            records=[commit_record(f"group-{number}", 1) for number in range(10)],
        )

    bench.runtime.call(0, operation)
    assert caller.answer is ErrorCode.MESSAGE_TOO_LARGE
    assert bench.broker.partition().batches == []


NAME_TOO_LONG = "x" * 32_768
"""No record can hold it: the length of a string is an int16."""


def test_records_each_for_itself_go_in_as_many_batches_as_they_need(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """What no batch can hold is left out, counted and reported; all else of the result happens."""
    bench = led_bench()
    bench.broker.partition().max_batch_bytes = 400
    caller, told = Caller(), Caller()
    groups = ["x" * 390, *(f"group-{number}" for number in range(20)), NAME_TOO_LONG, "last"]

    def operation(state: ToyState, now_ms: float) -> CoordinatorResult:
        result = CoordinatorResult.reply_when_committed(
            caller,
            ErrorCode.NONE,
            on_error=lambda error: error,
            records=[commit_record(group, 1) for group in groups],
        )
        result.is_atomic = False
        result.replies = [Reply(told, "at once")]
        return result

    bench.runtime.call(0, operation)
    log = bench.broker.partition()
    assert [group for _, group, _ in bench.state.replayed] == [*groups[1:-2], "last"]
    assert max(map(len, log.batches)) <= 400
    assert (told.answer, caller.is_answered) == ("at once", False)
    log.commit()
    assert caller.answer is ErrorCode.NONE
    assert left_out_count(bench) == 2
    assert "is left out: " in caplog.text


def left_out_count(bench: Bench) -> float:
    (found,) = [
        each.instrument.value  # type: ignore[union-attr]
        for each in bench.broker.registry.collect()
        if each.name.endswith("left-out-record-count")
    ]
    return found


def test_records_each_for_itself_that_are_refused() -> None:
    """Timers are set all the same, and the caller is answered at once."""
    bench = led_bench()
    caller = Caller()
    bench.broker.partition().append_error = ErrorCode.NOT_ENOUGH_REPLICAS

    def operation(state: ToyState, now_ms: float) -> CoordinatorResult:
        result = CoordinatorResult.reply_when_committed(
            caller,
            ErrorCode.NONE,
            on_error=lambda error: error,
            records=[commit_record("g", 1)],
        )
        result.is_atomic = False
        result.timers = [SetTimer("again", 100)]
        return result

    bench.runtime.call(0, operation)
    assert caller.answer is ErrorCode.COORDINATOR_NOT_AVAILABLE
    bench.broker.advance(110)
    assert bench.state.timers_run == ["again"]


def test_a_record_that_cannot_be_encoded_fails_for_its_caller() -> None:
    bench = led_bench()
    assert bench.call(write, NAME_TOO_LONG, 1).answer is ErrorCode.UNKNOWN_SERVER_ERROR
    assert bench.broker.partition().batches == []
    written = bench.call(write, "g", 1)
    bench.broker.partition().commit()
    assert written.answer is ErrorCode.NONE


def test_a_commit_that_takes_too_long() -> None:
    bench = led_bench(settings=SETTINGS._replace(write_timeout_ms=1_000))
    first = bench.call(write, "g", 1)
    bench.broker.advance(600)
    second = bench.call(read, "g")
    bench.broker.advance(500)
    assert first.answer is ErrorCode.REQUEST_TIMED_OUT
    assert not second.is_answered
    bench.broker.advance(600)
    assert second.answer is ErrorCode.REQUEST_TIMED_OUT
    third = bench.call(read, "g")
    bench.broker.partition().commit()
    assert third.answer == (1,), "the record may count all the same, and did"


def test_a_step_that_waits_on_after_its_timeout() -> None:
    bench = led_bench(settings=SETTINGS._replace(write_timeout_ms=1_000))
    seen: list[ErrorCode] = []

    def after(error: ErrorCode, now_ms: float) -> CoordinatorResult:
        seen.append(error)
        if error is ErrorCode.REQUEST_TIMED_OUT:
            return CoordinatorResult(after=after)
        return CoordinatorResult(commands=["go on"])

    bench.runtime.call(
        0, lambda state, now_ms: CoordinatorResult(records=[commit_record("g", 1)], after=after)
    )
    bench.broker.advance(2_500)
    bench.broker.partition().commit()
    assert seen == [ErrorCode.REQUEST_TIMED_OUT] * (len(seen) - 1) + [ErrorCode.NONE]
    assert len(seen) >= 2
    assert bench.commands == [(0, "go on")]


def test_results_of_after_are_carried_out_too() -> None:
    bench = led_bench()
    caller = Caller()

    def second(error: ErrorCode, now_ms: float) -> CoordinatorResult:
        return CoordinatorResult.reply(caller, error)

    def first(error: ErrorCode, now_ms: float) -> CoordinatorResult:
        return CoordinatorResult(records=[commit_record("g", 2)], commands=["x"], after=second)

    bench.runtime.call(
        0, lambda state, now_ms: CoordinatorResult(records=[commit_record("g", 1)], after=first)
    )
    bench.broker.partition().commit()
    assert bench.state.offsets == {"g": 2}
    assert bench.commands == [(0, "x")]
    assert not caller.is_answered
    bench.broker.partition().commit()
    assert caller.answer is ErrorCode.NONE


# -- leadership ----------------------------------------------------------------------------------


def test_lost_leadership_answers_every_waiting_caller() -> None:
    bench = led_bench()
    writer = bench.call(write, "g", 5)
    reader = bench.call(read, "g")
    inside = bench.call(wait_inside)
    bench.runtime.call(0, set_timer("t", 100))
    bench.broker.depose(0, keep=0)
    for caller in (writer, reader, inside):
        assert caller.answer is ErrorCode.NOT_COORDINATOR
    assert bench.state.is_unloaded
    bench.broker.advance(1_000)
    assert bench.state.timers_run == []
    assert bench.runtime.call(0, read(Caller(), "g")) is ErrorCode.NOT_COORDINATOR
    assert bench.runtime.coordinator_epoch(0) == -1
    assert list(bench.runtime.states()) == []


def test_a_new_leader_knows_what_its_log_holds_and_no_more() -> None:
    bench = led_bench()
    bench.call(write, "g", 1)
    bench.broker.partition().commit()
    bench.call(write, "g", 2)
    bench.call(write, "h", 3)
    bench.broker.depose(0, keep=2)
    bench.broker.elect(0)
    reader = bench.call(read, "g")
    assert not reader.is_answered, "offset 1 is not committed yet"
    bench.broker.partition().commit()
    assert reader.answer == (2,)
    assert bench.call(read, "h").answer == (None,)
    assert len(bench.states) == 2


def test_leadership_that_ends_between_the_append_and_the_wake() -> None:
    """1. the high watermark passes the record; 2. before the loop's next turn another broker
    leads; 3. the shard is unloaded: the answer is NOT_COORDINATOR, once.
    """
    bench = led_bench()
    writer = bench.call(write, "g", 1)
    partition = bench.broker.partition()
    partition.settle = lambda: None
    partition.commit()
    assert not writer.is_answered
    bench.broker.depose(0)
    assert writer.answer is ErrorCode.NOT_COORDINATOR


def test_a_partition_that_leads_no_more_before_metadata_says_so() -> None:
    """A log that failed: nothing is answered from its state."""
    bench = led_bench()
    waiting = bench.call(write, "g", 1)
    bench.broker.partition().leader_epoch = -1
    assert bench.runtime.call(0, read(Caller(), "g")) is ErrorCode.NOT_COORDINATOR
    bench.broker.partition().commit()
    assert not waiting.is_answered
    bench.broker.depose(0)
    assert waiting.answer is ErrorCode.NOT_COORDINATOR


def test_a_leader_that_leads_on_keeps_its_state() -> None:
    bench = led_bench()
    waiting = bench.call(write, "g", 1)
    inside = bench.call(wait_inside)
    epoch = bench.broker.elect(0)
    assert len(bench.states) == 1
    assert bench.runtime.coordinator_epoch(0) == epoch
    assert not inside.is_answered
    bench.broker.partition().commit()
    assert waiting.answer is ErrorCode.NONE
    bench.call(write, "g", 2)
    assert bench.broker.partition().log_end_offset == 2


def test_a_leader_that_leads_on_with_another_log_loads_it() -> None:
    """It followed in between, and what it had not committed is gone."""
    bench = led_bench()
    lost = bench.call(write, "g", 1)
    bench.broker.partition().cut(0)
    bench.broker.elect(0)
    assert lost.answer is ErrorCode.NOT_COORDINATOR
    assert len(bench.states) == 2
    assert bench.state.offsets == {}


def test_a_topic_that_is_deleted_and_made_again() -> None:
    bench = led_bench(is_committing_at_once=True)
    bench.call(write, "g", 1)
    inside = bench.call(wait_inside)
    bench.broker.delete_topic()
    assert inside.answer is ErrorCode.NOT_COORDINATOR
    assert bench.runtime.partition_of("g") is None
    assert bench.runtime.call("g", read(Caller(), "g")) is ErrorCode.NOT_COORDINATOR
    assert bench.runtime.call(0, read(Caller(), "g")) is ErrorCode.NOT_COORDINATOR


KEYS = [f"group-{number}" for number in range(40)]


def grown_bench(partition_count: int, grown_count: int) -> Bench:
    """A topic with KEYS where the smaller count puts them, to which partitions were added."""
    bench = Bench(partition_count=partition_count, is_committing_at_once=True)
    bench.broker.elect_all()
    write_keys(bench.runtime)
    bench.broker.add_partitions(grown_count - partition_count)
    return bench


def write_keys(runtime: CoordinatorRuntime[ToyState]) -> None:
    for key in KEYS:
        assert runtime.call(key, write(Caller(), key, 1)) is ErrorCode.NONE


def restarted(bench: Bench) -> CoordinatorRuntime[ToyState]:
    """The runtime of the broker's next life, with everything led."""
    bench.broker.detach(bench.runtime)
    runtime: CoordinatorRuntime[ToyState] = CoordinatorRuntime(
        CONSUMER_OFFSETS,
        ToyState,
        lambda *_: None,
        SETTINGS,
        bench.broker.ports,
    )
    bench.broker.attach(runtime)
    bench.broker.elect_all()
    return runtime


def test_partitions_that_were_added_move_no_key(caplog: pytest.LogCaptureFixture) -> None:
    bench = grown_bench(3, 5)
    assert [bench.runtime.partition_of(key) for key in KEYS] == [
        partition_for(key, 3) for key in KEYS
    ]
    bench.broker.elect_all()
    for key in KEYS:
        caller = Caller()
        assert bench.runtime.call(key, read(caller, key)) is ErrorCode.NONE
        assert caller.answer == (1,)
    (said,) = [each.message for each in caplog.records if each.levelname == "ERROR"]
    assert "has 5 partitions now" in said


def test_a_topic_that_is_made_again_has_the_partitions_it_has() -> None:
    bench = grown_bench(3, 5)
    bench.broker.recreate_topic()
    assert [bench.runtime.partition_of(key) for key in KEYS] == [
        partition_for(key, 5) for key in KEYS
    ]


def test_after_a_restart_no_key_is_looked_for_where_it_is_not(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Only the log shows that there were fewer partitions; the added ones are empty."""
    bench = grown_bench(3, 5)
    runtime = restarted(bench)
    for key in KEYS:
        assert runtime.call(key, read(Caller(), key)) is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert runtime.call(0, read(Caller(), KEYS[0])) is ErrorCode.NONE, "what has begun goes on"
    assert "has 5 partitions, but its keys lie where 3 put them" in caplog.text
    bench.broker.recreate_topic()
    bench.broker.elect_all()
    write_keys(runtime)


def test_a_topic_that_grew_long_ago_is_served(caplog: pytest.LogCaptureFixture) -> None:
    """Keys were written to the added partitions since: what was left behind is lost already."""
    bench = grown_bench(3, 5)
    for key in KEYS:
        index = partition_for(key, 5)
        bench.broker.elect(index)
        assert bench.runtime.call(index, write(Caller(), key, 2)) is ErrorCode.NONE
    runtime = restarted(bench)
    for key in KEYS:
        caller = Caller()
        assert runtime.call(key, read(caller, key)) is ErrorCode.NONE
        assert caller.answer == (2,)
    assert "were left behind" in caplog.text


def test_keys_where_they_belong_are_served_after_a_restart(
    caplog: pytest.LogCaptureFixture,
) -> None:
    bench = grown_bench(5, 5)
    runtime = restarted(bench)
    write_keys(runtime)
    assert caplog.text == ""


def test_no_topic_yet() -> None:
    bench = Bench(has_topic=False)
    assert bench.runtime.partition_of("g") is None
    assert bench.runtime.call("g", read(Caller(), "g")) is ErrorCode.NOT_COORDINATOR
    bench.broker.create_topic()
    assert bench.runtime.call("g", read(Caller(), "g")) is ErrorCode.NOT_COORDINATOR
    bench.broker.elect(0)
    caller = Caller()
    assert bench.runtime.call("g", read(caller, "g")) is ErrorCode.NONE
    assert caller.answer == (None,)


def test_keys_go_where_kafka_puts_them() -> None:
    bench = Bench(partition_count=50)
    # By java.lang.String.hashCode, its absolute value, % 50.
    assert bench.runtime.partition_of("my-group") == 12
    assert bench.runtime.partition_of("console-consumer-12345") == KAFKA_PARTITIONS[0]
    assert bench.runtime.partition_of("grüße-🦀") == KAFKA_PARTITIONS[1]
    assert bench.runtime.partition_of("") == 0
    assert bench.runtime.partition_of("polygenelubricants") == KAFKA_PARTITIONS[2]


KAFKA_PARTITIONS = (6, 30, 0)


# -- failures ------------------------------------------------------------------------------------


def test_a_partition_whose_replay_failed_refuses_every_call() -> None:
    bench = led_bench()
    waiting = bench.call(write, "g", 1)
    inside = bench.call(wait_inside)
    bench.state.fails_on = "poison"
    with pytest.raises(ValueError, match="poison"):
        bench.runtime.call(0, write(Caller(), "poison", 1))
    assert waiting.answer is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert inside.is_answered
    refused = bench.runtime.call(0, read(Caller(), "g"))
    assert refused is ErrorCode.COORDINATOR_NOT_AVAILABLE
    bench.broker.depose(0)
    bench.broker.elect(0)
    assert bench.runtime.call(0, read(Caller(), "g")) is ErrorCode.NONE


def test_an_answer_that_fails_takes_no_other_with_it() -> None:
    bench = led_bench()

    def breaks(error: ErrorCode, now_ms: float) -> CoordinatorResult:
        raise ValueError("a bug in an answer")

    bench.call(write, "g", 1)
    bench.runtime.call(0, lambda state, now_ms: CoordinatorResult(after=breaks))
    last = bench.call(read, "g")
    with pytest.raises(ValueError, match="a bug"):
        bench.broker.partition().commit()
    bench.broker.settle()
    assert last.answer == (1,)


# -- timers --------------------------------------------------------------------------------------


def test_a_timer_whose_event_raises_runs_out_again(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = led_bench()
    bench.runtime.call(0, set_timer("expiry", 100))
    state = bench.state
    on_timer = state.on_timer
    failures = iter([KeyError("expiry")])

    def failing(key: Hashable, now_ms: float) -> CoordinatorResult:
        for error in failures:
            raise error
        return on_timer(key, now_ms)

    monkeypatch.setattr(state, "on_timer", failing)
    with pytest.raises(KeyError):
        bench.broker.advance(110)
    assert state.timers_run == []
    bench.broker.advance(FAILED_TIMER_MS + 10)
    assert state.timers_run == ["expiry"]
    bench.broker.advance(2 * FAILED_TIMER_MS)
    assert state.timers_run == ["expiry"]


def test_a_timer_whose_last_step_raises_runs_out_again() -> None:
    bench = led_bench()
    failures = iter([KeyError("expiry")])

    def second(error: ErrorCode, now_ms: float) -> CoordinatorResult:
        for problem in failures:
            raise problem
        return CoordinatorResult()

    bench.state.timer_result = CoordinatorResult(
        records=[commit_record("g", 1)],
        after=lambda _error, _now_ms: CoordinatorResult(
            records=[commit_record("g", 2)], after=second
        ),
    )
    bench.runtime.call(0, set_timer("expiry", 100))
    bench.broker.advance(110)
    bench.broker.partition().commit()
    with pytest.raises(KeyError):
        bench.broker.partition().commit()
    assert bench.state.timers_run == ["expiry"]
    bench.broker.advance(FAILED_TIMER_MS + 10)
    for _ in range(2):
        bench.broker.partition().commit()
    bench.broker.advance(2 * FAILED_TIMER_MS)
    assert bench.state.timers_run == ["expiry", "expiry"]


def test_a_state_machine_that_cannot_begin_refuses_every_call(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bench = led_bench()
    bench.broker.depose(0)
    monkeypatch.setattr(ToyState, "loaded", lambda _state, _now_ms: {}["timers"])
    with pytest.raises(KeyError):
        bench.broker.elect(0)
    refused = bench.runtime.call(0, read(Caller(), "g"))
    assert refused is ErrorCode.COORDINATOR_NOT_AVAILABLE


def test_after_a_standstill_what_came_during_it_is_read_before_timers_run_out() -> None:
    bench = led_bench()
    bench.runtime.call(0, set_timer("session", 6_000))
    bench.runtime.call(0, set_timer("silent", 6_000))
    bench.broker.clock.stand_still(20_000)
    bench.broker.advance(5)
    assert bench.state.timers_run == []
    bench.runtime.call(0, set_timer("session", 6_000))
    bench.broker.advance(LATE_TIMER_MS)
    assert bench.state.timers_run == ["silent"]
    bench.broker.advance(6_000)
    assert bench.state.timers_run == ["silent", "session"]


def test_a_timer_that_is_late_again_waits_no_more() -> None:
    bench = led_bench()
    bench.runtime.call(0, set_timer("session", 6_000))
    bench.broker.clock.stand_still(20_000)
    bench.broker.advance(5)
    bench.broker.clock.stand_still(20_000)
    bench.broker.advance(5)
    assert bench.state.timers_run == ["session"]


def test_timers_run_once_and_are_replaced_and_cancelled() -> None:
    bench = led_bench()
    bench.runtime.call(0, set_timer("a", 100))
    bench.runtime.call(0, set_timer("b", 100))
    bench.broker.advance(60)
    bench.runtime.call(0, set_timer("a", 100))
    bench.runtime.call(0, lambda state, now_ms: CoordinatorResult(timers=[CancelTimer("b")]))
    bench.runtime.call(0, lambda state, now_ms: CoordinatorResult(timers=[CancelTimer("none")]))
    bench.broker.advance(60)
    assert bench.state.timers_run == []
    bench.broker.advance(60)
    assert bench.state.timers_run == ["a"]
    bench.broker.advance(1_000)
    assert bench.state.timers_run == ["a"]


def test_what_a_timer_leads_to_is_carried_out() -> None:
    bench = led_bench(is_committing_at_once=True)
    caller = Caller()
    bench.state.timer_result = CoordinatorResult(
        records=[commit_record("g", None)], replies=[Reply(caller, "late")]
    )
    bench.call(write, "g", 1)
    bench.runtime.call(0, set_timer("expiry", 10))
    bench.broker.advance(20)
    assert bench.state.offsets == {}
    assert caller.answer == "late"


# -- limits --------------------------------------------------------------------------------------


def test_only_so_many_wait_for_their_commit() -> None:
    bench = led_bench(settings=SETTINGS._replace(max_waiting_count=3))
    callers = [bench.call(write, "g", number) for number in range(3)]
    refused = bench.runtime.call(0, write(Caller(), "g", 9))
    assert refused is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    assert bench.runtime.call(0, read(Caller(), "g")) is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    member = Caller()
    assert bench.runtime.call(0, write(member, "g", 3), passes_limit=True) is ErrorCode.NONE
    bench.broker.partition().commit(2)
    assert callers[0].is_answered
    bench.call(write, "g", 4)
    bench.broker.partition().commit()
    assert member.answer is ErrorCode.NONE


def test_only_so_many_bytes_wait_for_their_commit() -> None:
    bench = led_bench(settings=SETTINGS._replace(max_waiting_bytes=10_000))

    def big(state: ToyState, now_ms: float) -> CoordinatorResult:
        return CoordinatorResult.reply_when_committed(
            Caller(), None, on_error=str, records=[commit_record("g", 1, "x" * 6_000)]
        )

    assert bench.runtime.call(0, big) is ErrorCode.NONE
    assert bench.runtime.call(0, big) is ErrorCode.NONE
    assert bench.runtime.call(0, big) is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    bench.broker.partition().commit()
    assert bench.runtime.call(0, big) is ErrorCode.NONE


# -- transactions --------------------------------------------------------------------------------


@pytest.mark.parametrize("is_commit", [True, False])
def test_records_of_a_transaction_count_with_its_marker(is_commit: bool) -> None:
    bench = led_bench()
    bench.call(write, "g", 5, producer=PRODUCER)
    assert bench.state.offsets == {}
    outcomes: list[ErrorCode] = []
    bench.runtime.complete_transaction(
        0, TransactionEnd(PRODUCER, is_commit, 1, 1), outcomes.append
    )
    assert outcomes == []
    assert bench.state.offsets == ({"g": 5} if is_commit else {})
    bench.broker.partition().commit()
    assert outcomes == [ErrorCode.NONE]
    bench.broker.depose(0)
    bench.broker.elect(0)
    assert bench.state.offsets == ({"g": 5} if is_commit else {})
    assert bench.state.markers == [(PRODUCER, is_commit)]


def test_markers_where_they_cannot_be_written() -> None:
    bench = Bench()
    outcomes: list[ErrorCode] = []

    def complete() -> ErrorCode:
        bench.runtime.complete_transaction(0, TransactionEnd(PRODUCER, True, 1, 2), outcomes.append)
        return outcomes.pop()

    assert complete() is ErrorCode.NOT_COORDINATOR
    bench.broker.is_loading_held = True
    bench.broker.elect(0)
    assert complete() is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    bench.broker.load_on()
    bench.broker.partition().append_error = ErrorCode.TRANSACTION_COORDINATOR_FENCED
    assert complete() is ErrorCode.TRANSACTION_COORDINATOR_FENCED
    assert bench.state.markers == []
    bench.broker.partition().append_error = ErrorCode.NONE
    bench.runtime.complete_transaction(0, TransactionEnd(PRODUCER, True, 1, 2), outcomes.append)
    bench.broker.depose(0)
    assert outcomes == [ErrorCode.NOT_COORDINATOR]


async def test_close_answers_every_waiting_caller() -> None:
    bench = led_bench()
    waiting = bench.call(write, "g", 1)
    inside = bench.call(wait_inside)
    await bench.runtime.close()
    assert waiting.answer is ErrorCode.NOT_COORDINATOR
    assert inside.answer is ErrorCode.NOT_COORDINATOR
    bench.broker.elect(0)
    assert bench.runtime.call(0, read(Caller(), "g")) is ErrorCode.NOT_COORDINATOR
