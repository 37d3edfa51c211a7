"""Planning, writing and committing on a real node, as Spark would call them, without a JVM."""

from __future__ import annotations

import pickle
import uuid
from dataclasses import replace
from typing import Any

import orjson
import pytest
from pyspark.sql.types import BinaryType, StructField, StructType
from typer.testing import CliRunner

from moldau.cli.main import app
from moldau.client import BrokerError, NewTopic, TopicPartition, UnknownTopicOrPartition, sync
from moldau.client.sync import Admin
from moldau.protocol.errors import ErrorCode
from moldau.spark_connector import errors, forget_sink, move_sink, settle_sink
from moldau.spark_connector.core import commit_protocol as steps
from moldau.spark_connector.core.commit_protocol import Role
from moldau.spark_connector.core.ledger import SinkRecord, decode
from moldau.spark_connector.sink import driver, ledger_store, writers
from moldau.spark_connector.sink.driver import (
    StepCarrier,
    abort_batch,
    commit_batch,
    plan_batch,
    slot_id,
)
from moldau.spark_connector.sink.ledger_store import LedgerStore
from moldau.spark_connector.sink.options import SinkOptions, Transactions
from moldau.spark_connector.sink.writers import TaskPlace, write_plain, write_slot
from moldau.testing import Cluster
from tests.interop.java.server import KafkaServer
from tests.spark.conftest import make_topic, options_for
from tests.spark.sink.plain_sink import (
    TASKS,
    Sink,
    batches,
    everything,
    open_rows,
    values_of,
    visible,
    wait_for_markers,
)


@pytest.fixture(params=["prepared", "standard"])
def sink(request: pytest.FixtureRequest, cluster: Cluster, topic: str) -> Sink:
    """A sink, once with each kind of transaction that there is."""
    if request.param == "prepared" and isinstance(cluster, KafkaServer):
        pytest.skip("no released Apache Kafka has two-phase commit (KIP-939)")
    return Sink(cluster, topic, transactions=request.param)


@pytest.fixture(autouse=True)
def fresh_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is remembered from the test before."""
    monkeypatch.setattr(driver, "_process", driver._Process())


def test_batches_and_their_replays(sink: Sink, admin: Admin) -> None:
    for batch_id in range(2):
        planned = sink.plan()
        reports = sink.write(planned, batch_id)
        assert sink.visible() == everything(*range(batch_id))
        sink.commit(planned, batch_id, reports)
        assert sink.visible() == everything(*range(batch_id + 1))
    assert {each.role for each in sink.batch(1)} == {Role.VERIFY}
    assert sink.visible() == everything(0, 1)
    assert not open_rows(admin, sink.topic)


@pytest.mark.promise("batch-unnamed-standard")
def test_what_auto_is(cluster: Cluster, topic: str) -> None:
    assert Sink(cluster, topic).plan().two_phase != isinstance(cluster, KafkaServer)
    assert not Sink(cluster, topic, transactions="standard").plan().two_phase
    limited = Sink(cluster, topic, **{"kafka.transaction.timeout.ms": "60000"})
    assert not limited.plan().two_phase
    # No driver comes again for what it leaves open.
    single = Sink(cluster, topic)
    planned = plan_batch(single.options, single.id, query_id="once:1", is_single=True)
    assert not planned.two_phase


def test_prepared_transactions_that_are_not_to_be_had(
    cluster: Cluster, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(driver, "serves_two_phase", lambda *_: False)
    with pytest.raises(errors.InvalidOption, match="Use transactions=auto or standard"):
        Sink(cluster, topic, transactions="prepared").plan()


def test_abort(sink: Sink, admin: Admin) -> None:
    planned = sink.plan()
    reports = sink.write(planned, 0)
    assert open_rows(admin, sink.topic)
    abort_batch(sink.options, sink.id, planned, 0, reports, TASKS)
    assert not open_rows(admin, sink.topic)
    # And without a report of any task.
    sink.write(sink.plan(), 0)
    abort_batch(sink.options, sink.id, None, 0, [], TASKS)
    assert not open_rows(admin, sink.topic)
    assert not sink.visible()
    sink.batch(0)
    assert sink.visible() == everything(0)


@pytest.mark.promise("sink-killed-driver")
def test_abort_after_the_decision(
    sink: Sink, monkeypatch: pytest.MonkeyPatch, admin: Admin
) -> None:
    planned = sink.plan()
    reports = sink.write(planned, 0)
    real = StepCarrier.carry_out

    def fails(carrier: StepCarrier, step: steps.Step) -> Any:
        if isinstance(step, steps.CommitSlots):
            raise OSError("cut off")
        return real(carrier, step)

    with monkeypatch.context() as patched:
        patched.setattr(StepCarrier, "carry_out", fails)
        with pytest.raises(OSError, match="cut off"):
            sink.commit(planned, 0, reports)
    abort_batch(sink.options, sink.id, planned, 0, reports, TASKS)
    assert open_rows(admin, sink.topic)
    sink.plan()
    assert sink.visible() == everything(0)
    assert not open_rows(admin, sink.topic)


@pytest.mark.promise("sink-killed-executor")
def test_dead_attempts_are_swept(sink: Sink, admin: Admin) -> None:
    """Within the batch, whatever the decision names goes on."""
    planned = sink.plan()
    sink.task(planned, 0, 0, attempt=0)
    reports = [sink.task(planned, 0, 0, attempt=1), sink.task(planned, 0, 1)]
    sink.commit(planned, 0, reports)
    assert sink.visible() == everything(0)
    assert not open_rows(admin, sink.topic)


@pytest.mark.promise("two-writers")
def test_a_driver_that_was_overtaken(sink: Sink) -> None:
    old = sink.plan()
    reports = sink.write(old, 0)
    driver._process = driver._Process()
    sink.batch(0)
    with pytest.raises(errors.SinkFenced, match="another driver has taken over"):
        sink.commit(old, 0, reports)
    abort_batch(sink.options, sink.id, old, 0, reports, TASKS)
    assert sink.visible() == everything(0)


@pytest.mark.parametrize("committed", [False, True])
def test_a_slot_that_was_used_after_the_decision(
    cluster: Cluster, topic: str, admin: Admin, monkeypatch: pytest.MonkeyPatch, committed: bool
) -> None:
    """EndTxn is refused: whether it had been committed before is seen from its rows."""
    sink = Sink(cluster, topic, transactions="standard")
    planned = sink.plan()
    reports = sink.write(planned, 0)
    real = StepCarrier.carry_out

    def used(carrier: StepCarrier, step: steps.Step) -> Any:
        if isinstance(step, steps.CommitSlots):
            if committed:
                admin.end_transaction(*step.slots[0].producer, commit=True)
            admin.fence_producers([step.slots[0].transactional_id])
        return real(carrier, step)

    with monkeypatch.context() as patched:
        patched.setattr(StepCarrier, "carry_out", used)
        if committed:
            sink.commit(planned, 0, reports)
        else:
            with pytest.raises(errors.RowsLost, match="1 of its 2 transactions"):
                sink.commit(planned, 0, reports)
    if not committed:
        assert sink.visible() == sorted(values_of(0, 1))
        assert [each.role for each in sink.batch(0)] == [Role.REWRITE, Role.VERIFY]
    assert sink.visible() == everything(0)


@pytest.mark.promise("refusal-rows-unseen")
def test_rows_that_were_deleted_before_the_sink_looked_stop_it(
    cluster: Cluster, topic: str, admin: Admin, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether they were committed cannot be known any more: the sink stops, and stays stopped."""
    sink = Sink(cluster, topic, transactions="standard")
    planned = sink.plan()
    reports = sink.write(planned, 0)
    real = StepCarrier.carry_out

    def deleted(carrier: StepCarrier, step: steps.Step) -> Any:
        if isinstance(step, steps.CommitSlots):
            admin.end_transaction(*step.slots[0].producer, commit=True)
            admin.fence_producers([step.slots[0].transactional_id])
            admin.end_transaction(*step.slots[1].producer, commit=True)
            admin.delete_records({TopicPartition(topic, each): -1 for each in range(2)})
        return real(carrier, step)

    with monkeypatch.context() as patched:
        patched.setattr(StepCarrier, "carry_out", deleted)
        with pytest.raises(errors.RowsLost, match="neither be seen nor be seen to be aborted"):
            sink.commit(planned, 0, reports)
    with pytest.raises(errors.RowsLost, match=f"{sink.id}.w.0.0"):
        sink.plan()


@pytest.mark.parametrize("limit_ms", [60_000.0, 0.0])
def test_rows_behind_an_open_transaction_are_waited_for(
    sink: Sink, admin: Admin, monkeypatch: pytest.MonkeyPatch, limit_ms: float
) -> None:
    slot = sink.batch(0)[0].slot
    assert slot is not None
    wait_for_markers(admin)
    real = sync.Admin.list_offsets
    hidden = iter([True, True])

    def list_offsets(self: Admin, specs: Any, **given: Any) -> Any:
        found = real(self, specs, **given)
        return {
            name: replace(each, offset=0) if next(hidden, False) else each
            for name, each in found.items()
        }

    monkeypatch.setattr(sync.Admin, "list_offsets", list_offsets)
    monkeypatch.setattr(driver, "LOOK_AGAIN_MS", 1)
    sight = driver.sight_of(sink.options, slot, admin, limit_ms)
    assert sight is (steps.Sight.VISIBLE if limit_ms else steps.Sight.UNKNOWN)


def test_transactional_ids_are_few(sink: Sink, admin: Admin) -> None:
    """They are the same ones batch after batch."""
    for batch_id in range(4):
        sink.batch(batch_id)
    listed = [each.transactional_id for each in admin.list_transactions()]
    names = {name.removeprefix(sink.id) for name in listed if name.startswith(sink.id)}
    assert names - {".probe"} == {".ledger", ".w.0.0", ".w.1.0"}


@pytest.mark.promise("time-after-decision")
def test_lost_rows_that_come_again_changed(cluster: Cluster, topic: str, admin: Admin) -> None:
    sink = Sink(cluster, topic, transactions="standard")
    self_planned = sink.plan()
    reports = sink.write(self_planned, 0)
    real = StepCarrier._is_committed
    try:
        StepCarrier._is_committed = _fencing(admin, real)  # type: ignore[method-assign]
        with pytest.raises(errors.RowsLost):
            sink.commit(self_planned, 0, reports)
    finally:
        StepCarrier._is_committed = real  # type: ignore[method-assign]
    servers = sink.options.kafka["bootstrap.servers"]
    with pytest.raises(errors.RowsLost, match="does not come again"):
        settle_sink({"kafka.bootstrap.servers": servers, "sinkId": sink.id})
    planned = sink.plan()
    place = TaskPlace(sink.query_id, 0, 0, 0)
    with pytest.raises(Exception, match="comes again with 1 rows"):
        write_slot(
            sink.options,
            sink.columns,
            planned,
            place,
            batches([b"other"]),
        )
    with pytest.raises(Exception, match="does not come again"):
        sink.task(planned, 1, 0)


def _fencing(admin: Admin, real: Any) -> Any:
    def is_committed(carrier: StepCarrier, producer: steps.Producer) -> bool:
        if producer[0] == slot_id(carrier.sink_id, 0, 0):
            admin.fence_producers([producer[0]])
        done: bool = real(carrier, producer)
        return done

    return is_committed


@pytest.mark.promise("sink-settle")
def test_settling(sink: Sink, admin: Admin) -> None:
    """What no driver will start again holds back no other sink."""
    planned = sink.plan()
    sink.write(planned, 0)
    assert open_rows(admin, sink.topic)
    servers = sink.options.kafka["bootstrap.servers"]
    settle_sink({"kafka.bootstrap.servers": servers, "sinkId": sink.id})
    assert not open_rows(admin, sink.topic)
    assert not sink.visible()


@pytest.mark.promise("sink-late-task")
def test_a_zombie_leaves_nothing_open_after_the_last_batch(
    sink: Sink, admin: Admin, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No driver would look for a prepared transaction then, and it has no time limit."""
    if sink.options.transactions is not Transactions.PREPARED:
        pytest.skip("standard transactions end by their time limit")
    zombie = sink.plan()
    monkeypatch.setattr(driver, "_process", driver._Process())
    own = sink.plan()
    sink.commit(own, 0, sink.write(own, 0))
    # A task of the driver that was overtaken, and an attempt of this one's that was given up.
    for planned, attempt in ((zombie, 0), (own, 3)):
        with pytest.raises(steps.Refused, match="comes too late"):
            sink.task(planned, 0, 0, attempt)
    assert not open_rows(admin, sink.topic)
    assert sink.visible() == everything(0)


# -- one query, two sink ids --------------------------------------------------------------------


def moldau(sink: Sink, *arguments: str) -> tuple[int, str, str]:
    """Run `moldau pipeline sinks`: status, stdout, stderr."""
    servers = sink.options.kafka["bootstrap.servers"]
    command = ["pipeline", "sinks", *arguments, "-b", servers]
    result = CliRunner().invoke(app, command)
    return result.exit_code, result.stdout, result.stderr


def listed(sink: Sink) -> dict[str, Any]:
    """What `moldau pipeline sinks list` says, by sink id."""
    status, out, err = moldau(sink, "list", "--json")
    assert status == 0, err
    return {each["sink"]: each for each in orjson.loads(out)}


@pytest.mark.promise("query-one-sink", "sinks-in-python")
def test_a_query_goes_on_under_another_sink_id_when_it_is_moved(
    cluster: Cluster, topic: str, admin: Admin
) -> None:
    old, new = Sink(cluster, topic), Sink(cluster, topic)
    new.query_id = old.query_id
    old.batch(0)
    # The same batch, as after a crash, and the next one: this sink id knows neither.
    for batch_id in (0, 1):
        planned = new.plan()
        reports = new.write(planned, batch_id)
        with pytest.raises(errors.QueryMoved, match=f"{old.id}.*pipeline sinks move"):
            new.commit(planned, batch_id, reports)
        abort_batch(new.options, new.id, planned, batch_id, reports, TASKS)
    assert new.visible() == everything(0)
    assert not open_rows(admin, topic)

    assert listed(old)[old.id]["query"] == old.query_id
    assert listed(old)[new.id]["batch"] is None
    assert moldau(old, "move", old.id, new.id)[0] == 0
    assert old.id not in listed(old)
    assert (listed(old)[new.id]["batch"], listed(old)[new.id]["state"]) == (0, "DONE")
    assert {each.role for each in new.batch(0)} == {Role.VERIFY}
    new.batch(1)
    # A query that goes on from a copy of the old checkpoint is refused, too.
    planned = old.plan()
    with pytest.raises(errors.QueryMoved, match=new.id):
        old.commit(planned, 1, old.write(planned, 1))
    assert new.visible() == everything(0, 1)


@pytest.mark.promise("sinks-in-python")
def test_sinks_are_moved_settled_and_forgotten_with_care(
    cluster: Cluster, topic: str, admin: Admin
) -> None:
    one, other = Sink(cluster, topic), Sink(cluster, topic)
    one.batch(0)
    other.batch(0)
    status, _, err = moldau(one, "move", one.id, other.id)
    assert (status, f"sink '{other.id}' has written batches of its own" in err) == (2, True)
    assert moldau(one, "move", one.id, one.id)[0] == 2
    for command in (("move", "absent", "new"), ("forget", "absent", "--yes"), ("settle", "absent")):
        status, _, err = moldau(one, *command)
        assert status in (1, 2)
        assert "absent" in err
    assert listed(one).keys() >= {one.id, other.id}
    one.write(one.plan(), 1)
    assert open_rows(admin, topic)
    assert moldau(one, "settle", one.id)[:2] == (0, f"{one.id}: settled\n")
    assert not open_rows(admin, topic)
    assert moldau(one, "forget", one.id)[0] == 2
    assert one.id in listed(one), "there was no --yes"
    assert moldau(one, "forget", one.id, "--yes")[0] == 0
    assert one.id not in listed(one)
    one.batch(0)  # its batch is written again, as it was said
    assert one.visible() == sorted(everything(0) * 3)


@pytest.mark.promise("query-new")
def test_a_query_that_is_new_to_a_sink(cluster: Cluster, topic: str) -> None:
    """It would write again what is stored, unless that is allowed."""
    sink = Sink(cluster, topic, onNewQuery="fail")
    sink.batch(0)
    first, sink.query_id = sink.query_id, str(uuid.uuid4())
    with pytest.raises(errors.ForeignSink, match=f"query {first}.*newest checkpoint of that query"):
        sink.batch(0)
    assert sink.visible() == everything(0)
    forget_sink(options_for(cluster, sinkId=sink.id))
    sink.batch(0)
    assert sink.visible() == sorted([*everything(0), *everything(0)])


@pytest.mark.promise("sinkid-ledger")
def test_another_ledger_makes_a_new_sink(cluster: Cluster, topic: str) -> None:
    """What the former one knows is not asked for."""
    sink = Sink(cluster, topic)
    sink.batch(0)
    sink.options = replace(sink.options, ledger_topic=f"ledger-{uuid.uuid4().hex[:8]}")
    assert {each.role for each in sink.batch(0)} == {Role.WRITE}


@pytest.mark.promise("sinks-forget-query")
def test_one_query_of_a_sink_is_forgotten(cluster: Cluster, topic: str) -> None:
    """The other queries' batches are known as before."""
    sink = Sink(cluster, topic)
    first = sink.query_id
    sink.batch(0)
    sink.query_id = second = str(uuid.uuid4())
    sink.batch(0)
    status, _, err = moldau(sink, "forget", sink.id, "--query", "nowhere", "--yes")
    assert (status, "knows no query nowhere" in err) == (2, True)
    for forgotten, known in ((second, first), (first, second)):
        assert moldau(sink, "forget", sink.id, "--query", forgotten, "--yes")[0] == 0
        sink.query_id = known
        assert {each.role for each in sink.batch(0)} == {Role.VERIFY}
        sink.query_id = forgotten
        assert {each.role for each in sink.batch(0)} == {Role.WRITE}
    assert sink.visible() == sorted(everything(0) * 4)


@pytest.mark.parametrize("taken", ["old", "new"])
@pytest.mark.promise("sinks-move-running")
def test_a_sink_that_a_query_takes_while_it_is_moved_stays(
    cluster: Cluster, topic: str, monkeypatch: pytest.MonkeyPatch, taken: str
) -> None:
    """It would write without what the move has taken away, or over what that has brought."""
    old, new = Sink(cluster, topic), Sink(cluster, topic)
    old.batch(0)
    real = LedgerStore.whole

    def overtaken(store: LedgerStore) -> Any:
        index = real(store)
        if store._sink_id == old.id:
            driver._process = driver._Process()
            (old if taken == "old" else new).plan()
        return index

    with monkeypatch.context() as patched:
        patched.setattr(LedgerStore, "whole", overtaken)
        status, _, err = moldau(old, "move", old.id, new.id)
    assert status == 1
    assert f"a query writes with the sink id '{(old if taken == 'old' else new).id}' now" in err
    known = listed(old)
    assert known[old.id]["batch"] == 0
    assert new.id not in known or known[new.id]["batch"] is None
    assert moldau(old, "move", old.id, new.id)[0] == 0
    new.query_id = old.query_id
    assert {each.role for each in new.batch(0)} == {Role.VERIFY}
    assert new.visible() == everything(0)


@pytest.mark.promise("sinks-move-again")
def test_a_move_that_was_cut_off_is_made_again(
    cluster: Cluster, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, new = Sink(cluster, topic), Sink(cluster, topic)
    old.batch(0)
    real = LedgerStore.change

    def cut_off(store: LedgerStore, changes: Any) -> bool:
        if store._sink_id == old.id and None in changes.values():
            raise KeyboardInterrupt
        return real(store, changes)

    given = {"kafka.bootstrap.servers": cluster.bootstrap_server, "sinkId": old.id}
    with monkeypatch.context() as patched:
        patched.setattr(LedgerStore, "change", cut_off)
        with pytest.raises(KeyboardInterrupt):
            move_sink(given, new.id)
    assert {old.id, new.id} <= listed(old).keys()
    assert moldau(old, "move", old.id, new.id)[0] == 0
    assert old.id not in listed(old)
    new.query_id = old.query_id
    assert {each.role for each in new.batch(0)} == {Role.VERIFY}


# -- the ledger ---------------------------------------------------------------------------------


def test_the_ledger_topic(cluster: Cluster, topic: str, admin: Admin) -> None:
    ledger = f"ledger-{uuid.uuid4().hex[:8]}"
    sink = Sink(cluster, topic, ledgerTopic=ledger)
    sink.batch(0)
    described = admin.describe_topics([ledger])[ledger]
    assert len(described.partitions) == 1
    newest = decode(visible(cluster.bootstrap_server, ledger)[-1])
    assert newest.sink_id == sink.id


def test_brokers_hear_of_the_ledger_late(
    cluster: Cluster, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the controller has made, another node may not know for a moment."""
    real = sync.Admin.describe_topics
    late = iter([False, True, True, False, True])

    def describe(admin: Admin, names: Any) -> Any:
        if next(late, False):
            raise UnknownTopicOrPartition("not here yet")
        return real(admin, names)

    monkeypatch.setattr(sync.Admin, "describe_topics", describe)
    monkeypatch.setattr(ledger_store, "SPREAD_PAUSE_S", 0.001)
    sink = Sink(cluster, topic, ledgerTopic=f"ledger-{uuid.uuid4().hex[:8]}")
    sink.plan()
    assert next(late, None) is None
    monkeypatch.setattr(ledger_store, "SPREAD_MS", 0)
    late = iter([True])
    with pytest.raises(errors.LedgerUnusable, match="it is gone"):
        sink.plan()


@pytest.mark.parametrize(
    ("partitions", "configs", "problem"),
    [
        (2, {"cleanup_policy": "compact"}, "has 2 partitions"),
        (1, {"cleanup_policy": "delete"}, "cleanup.policy=delete"),
        (1, {"cleanup_policy": "compact,delete"}, "cleanup.policy=compact,delete"),
    ],
)
@pytest.mark.promise("refusal-ledger")
def test_a_topic_that_cannot_be_a_ledger(
    cluster: Cluster,
    topic: str,
    admin: Admin,
    partitions: int,
    configs: dict[str, str],
    problem: str,
) -> None:
    ledger = make_topic(admin, partitions=partitions, **configs)
    with pytest.raises(errors.LedgerUnusable, match=problem):
        Sink(cluster, topic, ledgerTopic=ledger).plan()


@pytest.mark.promise("refusal-ledger")
def test_a_record_of_a_newer_release(cluster: Cluster, topic: str, admin: Admin) -> None:
    sink = Sink(cluster, topic, ledgerTopic=f"ledger-{uuid.uuid4().hex[:8]}")
    sink.plan()
    with sync.Producer(cluster.bootstrap_server) as producer:
        producer.send(sink.options.ledger_topic, b'{"version": 9}', key=sink.id.encode())
    with pytest.raises(errors.LedgerUnusable, match="version 9"):
        sink.plan()


def test_a_write_counts_only_under_the_last_taking(sink: Sink) -> None:
    step = steps.WriteLedger(SinkRecord(sink.id, "token"))
    with StepCarrier(sink.options, sink.id) as one, StepCarrier(sink.options, sink.id) as other:
        one.ledger.prepare_topic()
        assert one.carry_out(steps.TakeLedger()).record is None
        assert not other.carry_out(step)
        other.carry_out(steps.TakeLedger())
        assert not one.carry_out(step)
        assert not one.carry_out(step)
        assert other.carry_out(step)
        assert one.carry_out(steps.TakeLedger(is_fencing=False)).record == step.record


@pytest.mark.parametrize("checkpoint", [None, "/checkpoint"])
def test_one_process_is_one_driver_for_its_checkpoint(
    cluster: Cluster, topic: str, checkpoint: str | None
) -> None:
    """Its plannings write nothing then; a batch write is a separate driver."""
    given = {} if checkpoint is None else {"checkpointLocation": checkpoint}
    sink = Sink(cluster, topic, **given)
    first = sink.plan().plan.record.driver
    assert (sink.plan().plan.record.driver == first) == (checkpoint is not None)
    named = [plan_batch(sink.options, sink.id, query_id="txn:a") for _ in range(2)]
    assert len({first, *(each.plan.record.driver for each in named)}) == 3
    driver._process = driver._Process()
    assert sink.plan().plan.record.driver != first


@pytest.mark.promise("two-writers")
def test_a_ledgers_write_that_another_driver_has_ended(
    cluster: Cluster, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has taken the ledger while the commit was under way: the write is made once more."""
    real = sync.Producer.commit_transaction
    ended = iter([True])

    def commit(producer: sync.Producer) -> None:
        if next(ended, False):
            producer.abort_transaction()
            raise BrokerError("it ended the other way", code=ErrorCode.INVALID_TXN_STATE)
        real(producer)

    monkeypatch.setattr(sync.Producer, "commit_transaction", commit)
    sink = Sink(cluster, topic)
    sink.batch(0)
    assert next(ended, None) is None
    assert sink.visible() == everything(0)


@pytest.mark.promise("refusal-ledger")
def test_a_ledger_that_was_deleted_and_created_again_is_refused(
    cluster: Cluster, topic: str, admin: Admin
) -> None:
    ledger = f"ledger-{uuid.uuid4().hex[:8]}"
    sink = Sink(cluster, topic, ledgerTopic=ledger)
    planned = sink.plan()
    reports = sink.write(planned, 0)
    admin.delete_topics([ledger])
    admin.create_topics([NewTopic(ledger, 1, configs={"cleanup.policy": "compact"})])
    with pytest.raises(errors.LedgerUnusable, match="made anew"):
        sink.commit(planned, 0, reports)


@pytest.mark.promise("refusal-busy")
def test_the_own_record_behind_a_transaction_of_another_sink(
    cluster: Cluster, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What another sink's dead driver has open hides records: reading waits, it does not skip."""
    sink = Sink(cluster, topic)
    sink.batch(0)
    with (
        sync.Producer(cluster.bootstrap_server, transactional_id="dead") as dead,
        monkeypatch.context() as patched,
    ):
        patched.setattr(ledger_store, "admin_limit_ms", lambda _: 500.0)
        dead.init_transactions()
        dead.begin_transaction()
        dead.send(sink.options.ledger_topic, b"{}", key=b"dead")
        with pytest.raises(errors.LedgerBusy, match="has been open"):
            sink.plan()
        dead.abort_transaction()
    assert {each.role for each in sink.batch(0)} == {Role.VERIFY}


@pytest.mark.promise("two-writers-by-turns")
def test_a_query_that_many_others_have_followed_is_known(
    cluster: Cluster, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tasks get the newest queries only, and ask for the others."""
    monkeypatch.setattr(ledger_store, "MAX_TOLD", 2)
    given = options_for(cluster, topic=topic, sinkId=f"many-{uuid.uuid4().hex[:8]}")
    rows = StructType([StructField("value", BinaryType())])
    queries = [str(uuid.uuid4()) for _ in range(5)]
    for query_id in [*queries, queries[0], queries[4]]:
        place = TaskPlace(query_id, 0, 0, 0)
        monkeypatch.setattr(writers, "_place", lambda place=place: place)
        writer = writers.make_stream_writer(given, rows, False)
        writer = pickle.loads(pickle.dumps(writer))
        message = writer.write(batches([query_id.encode()]))
        writers.make_stream_writer(given, rows, False).commit([message], 0)
    assert visible(cluster.bootstrap_server, topic) == sorted(each.encode() for each in queries)


def test_a_write_reads_what_is_new_in_the_ledger_only(
    cluster: Cluster, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Many named writes after one another: each costs the same, with one sink id or several."""
    read = 0
    real = sync.Consumer.poll_arrow

    def counted(consumer: sync.Consumer, **given: Any) -> Any:
        nonlocal read
        found = real(consumer, **given)
        read += found.num_rows
        return found

    monkeypatch.setattr(sync.Consumer, "poll_arrow", counted)
    sink = Sink(cluster, topic, ledgerTopic=f"ledger-{uuid.uuid4().hex[:8]}")
    counts = []
    for number in range(12):
        read = 0
        name = f"txn:{number}"
        sink_id = sink.id if number % 2 else f"{sink.id}-{number}"
        planned = plan_batch(sink.options, sink_id, query_id=name)
        place = TaskPlace(name, 0, 0, 0)
        report = write_slot(sink.options, sink.columns, planned, place, batches([b"v"]))
        commit_batch(sink.options, planned, name, 0, [report])
        counts.append(read)
    assert max(counts[6:]) <= max(counts[:6]), counts


# -- other writes -------------------------------------------------------------------------------


@pytest.mark.promise("batch-named-once", "sinkid-of-batches")
def test_named_batch_writes(cluster: Cluster, topic: str) -> None:
    """Each is made once, also when others have been made since."""
    sink = Sink(cluster, topic)
    for name in ("txn:a", "txn:b", "txn:a", "txn:b"):
        write_named(sink, name)
    assert sink.visible() == [b"txn:a", b"txn:b"]


def test_streams_do_not_remember_named_writes(sink: Sink) -> None:
    """There may be very many; a stream is never asked for one."""
    for name in ("txn:a", "txn:b"):
        write_named(sink, name)
    sink.batch(0)
    write_named(sink, "txn:c")
    assert sink.plan().plan.finished.keys() == {sink.query_id}
    assert plan_batch(sink.options, sink.id, query_id="txn:a").plan.finished.keys() == {"txn:a"}


def write_named(sink: Sink, name: str) -> None:
    planned = plan_batch(sink.options, sink.id, query_id=name)
    report = write_slot(
        sink.options,
        sink.columns,
        planned,
        TaskPlace(name, 0, 0, 0),
        batches([name.encode()]),
    )
    commit_batch(sink.options, planned, name, 0, [report])


@pytest.mark.promise("batch-unnamed")
def test_a_single_write_leaves_nothing_in_the_ledger(cluster: Cluster, topic: str) -> None:
    ledger = f"ledger-{uuid.uuid4().hex[:8]}"
    sink = Sink(cluster, topic, ledgerTopic=ledger)
    planned = plan_batch(sink.options, sink.id, query_id="once:1", is_single=True)
    report = write_slot(
        sink.options,
        sink.columns,
        planned,
        TaskPlace("once:1", 0, 0, 0),
        batches([b"1"]),
    )
    commit_batch(sink.options, planned, "once:1", 0, [report])
    assert sink.visible() == [b"1"]
    assert b"" in visible(cluster.bootstrap_server, ledger)


def test_at_least_once(cluster: Cluster, topic: str) -> None:
    sink = Sink(cluster, topic, semantics="at-least-once")
    assert write_plain(sink.options, sink.columns, batches([b"1", b"2"])) == 2
    assert sink.visible() == [b"1", b"2"]


@pytest.mark.promise("sink-order")
def test_many_pieces(cluster: Cluster, topic: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """More than is held at once: sent while the next rows come, and found again where they lie."""
    monkeypatch.setattr("moldau.spark_connector.sink.writers.SEND_BYTES", 64)
    sink = Sink(cluster, topic)
    planned = sink.plan()
    pieces = [next(batches([b"%d" % each])) for each in range(100)]
    report = write_slot(
        sink.options,
        sink.columns,
        planned,
        TaskPlace(sink.query_id, 0, 0, 0),
        iter(pieces),
    )
    commit_batch(sink.options, planned, sink.query_id, 0, [report])
    assert len(sink.visible()) == 100
    assert report.rows == 100


@pytest.mark.promise("refusal-unreachable")
def test_unreachable_brokers(topic: str) -> None:
    options = SinkOptions.parse(
        {
            "kafka.bootstrap.servers": "127.0.0.1:1",
            "kafka.default.api.timeout.ms": "300",
            "topic": topic,
            "sinkId": "s",
        }
    )
    with pytest.raises(errors.ClusterUnreachable, match=r"kafka\.bootstrap\.servers"):
        plan_batch(options, "s")
