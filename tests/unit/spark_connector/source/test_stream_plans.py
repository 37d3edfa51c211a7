"""A stream's plan, with a scripted cluster: batches, losses, restarts."""

from __future__ import annotations

import json
import re
import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moldau.protocol.types import TopicPartition
from moldau.spark_connector.core.offsets import to_json, topic_ids_of
from moldau.spark_connector.core.ranges import OffsetRange
from moldau.spark_connector.errors import (
    DataLoss,
    InvalidCheckpoint,
    OffsetsNotFound,
    TopicsNotFound,
)
from moldau.spark_connector.source import planners
from moldau.spark_connector.source.planners import StreamPlanner
from tests.unit.spark_connector.source.scripted_source import Log, ScriptedSource, source_options

P0, P1 = TopicPartition("t", 0), TopicPartition("t", 1)


def offsets_in(value):
    """Offsets as users see them, without the ids beside them."""
    return {name: offsets for name, offsets in value.items() if ":" not in name}


class Clock:
    """Time that passes when a caller sleeps."""

    def __init__(self):
        self.now_ms = 0.0

    def sleep_ms(self, duration_ms):
        self.now_ms += duration_ms


class Query:
    """Spark's part: batches one after the other, and the checkpoint between them."""

    def __init__(self, source, **given):
        self.source = source
        self.clock = Clock()
        self.checkpoint = None
        self.read = []
        self.read_by_id = []
        self.restart(**given)

    def restart(self, **given):
        """A new driver on the same checkpoint."""
        self.given = given
        self.planner = StreamPlanner(
            source_options(**given),
            self.source,
            now_ms=lambda: self.clock.now_ms,
            sleep_ms=self.clock.sleep_ms,
        )
        return self

    def plan(self):
        """Start and end of the next batch, as a checkpoint would hold them."""
        start = self.checkpoint
        if start is None:
            start = self.planner.initial_offset()
        start = json.loads(json.dumps(start))
        end = self.planner.latest_offset(start, everything=False)
        return start, json.loads(json.dumps(end))

    def run(self, planned=None):
        """One batch, from plan to commit; its tasks."""
        start, end = planned or self.plan()
        if planned is not None and self.checkpoint is None:
            start = self.planner.initial_offset()  # Spark looks it up again
        tasks = self.planner.tasks(start, end)
        self.read += tasks
        ids = topic_ids_of(end)
        self.read_by_id += [(ids[each.topic_partition.topic], each) for each in tasks]
        self.checkpoint = end
        return tasks


def test_batches_follow_each_other():
    source = ScriptedSource(t=[Log(0, 10), Log(0, 4)])
    query = Query(source, startingOffsets="earliest")
    assert query.run() == [OffsetRange(P0, 0, 10), OffsetRange(P1, 0, 4)]
    assert query.plan() == (query.checkpoint, query.checkpoint)
    source.topics["t"][1].end = 9
    assert query.run() == [OffsetRange(P1, 4, 9)]
    assert offsets_in(query.planner.report_latest()) == {"t": {"0": 10, "1": 9}}


@pytest.mark.promise("stream-first-batch")
def test_a_first_batch_that_begins_at_the_end_is_empty():
    """See the module `planners`: the interleaving there."""
    source = ScriptedSource(t=[Log(0, 10)])
    query = Query(source, startingOffsets="latest")
    source_grows = source.topics["t"][0]
    start = query.planner.initial_offset()
    source_grows.end = 15
    end = query.planner.latest_offset(start, everything=False)
    assert start == end
    assert offsets_in(end) == {"t": {"0": 10}}
    source_grows.end = 20
    query.restart(startingOffsets="latest")
    assert query.run(planned=(None, end)) == []
    assert query.run() == [OffsetRange(P0, 10, 20)]


def test_a_fixed_start_needs_no_empty_batch():
    source = ScriptedSource(t=[Log(0, 10, {5: 3})])
    assert Query(source, startingOffsets='{"t":{"0":-2}}').run() == [OffsetRange(P0, 0, 10)]
    assert Query(source, startingTimestamp="5").run() == [OffsetRange(P0, 3, 10)]


def test_limits():
    source = ScriptedSource(t=[Log(0, 30), Log(0, 10)])
    query = Query(source, startingOffsets="earliest", maxOffsetsPerTrigger="20")
    assert query.run() == [OffsetRange(P0, 0, 15), OffsetRange(P1, 0, 5)]
    assert query.run() == [OffsetRange(P0, 15, 30), OffsetRange(P1, 5, 10)]
    start, end = query.plan()
    assert start == end


def test_too_little_waits():
    source = ScriptedSource(t=[Log(0, 10)])
    given_options = {"minOffsetsPerTrigger": "5", "maxTriggerDelay": "10s"}
    query = Query(source, startingOffsets="earliest", **given_options)
    query.run()
    source.topics["t"][0].end = 14
    assert query.plan()[1] == query.checkpoint
    query.clock.now_ms += 10_000
    assert query.run() == [OffsetRange(P0, 10, 14)]


def test_new_partitions_begin_at_zero():
    source = ScriptedSource(t=[Log(0, 10)])
    query = Query(source, startingOffsets="latest")
    query.run()
    source.topics["t"].append(Log(0, 3))
    assert query.run() == [OffsetRange(P1, 0, 3)]


@pytest.mark.promise("loss-new-partition")
def test_new_partitions_that_have_lost_records_already():
    source = ScriptedSource(t=[Log(0, 10)])
    query = Query(source, startingOffsets="latest")
    query.run()
    source.topics["t"].append(Log(2, 3))
    with pytest.raises(DataLoss, match="t-1: offset 0 was to be read, but the log begins at 2; th"):
        query.run()
    query.restart(failOnDataLoss="false")
    assert query.run() == [OffsetRange(P1, 2, 3)]


@pytest.mark.promise("loss-retention")
def test_retention_past_the_checkpoint():
    source = ScriptedSource(t=[Log(0, 10)])
    query = Query(source, startingOffsets="earliest")
    query.run()
    source.topics["t"][0] = Log(14, 20)
    with pytest.raises(DataLoss, match="t-0: offset 10 was to be read, but the log begins at 14"):
        query.run()
    query.restart(failOnDataLoss="false")
    assert query.run() == [OffsetRange(P0, 14, 20)]


@pytest.mark.promise("loss-topic-gone")
def test_a_deleted_topic():
    source = ScriptedSource(t=[Log(0, 10)], u=[Log(0, 5)])
    query = Query(source, subscribe="t,u", startingOffsets="earliest")
    query.run()
    source.delete("u")
    with pytest.raises(DataLoss, match="u-0: offset 5 was to be read; the topic or partition does"):
        query.plan()
    query.restart(subscribe="t,u", failOnDataLoss="false")
    query.run()
    assert offsets_in(query.checkpoint) == {"t": {"0": 10}}
    # And it goes on without it, until there is one again.
    assert query.plan()[1] == query.checkpoint
    source.create("u", Log(0, 2))
    assert query.run() == [OffsetRange(TopicPartition("u", 0), 0, 2)]


@pytest.mark.parametrize("new_end", [3, 10, 40])
@pytest.mark.promise("loss-created-again", "loss-known-by-id")
def test_a_topic_that_was_created_again_is_known_by_its_id(new_end):
    source = ScriptedSource(t=[Log(0, 10)])
    query = Query(source, startingOffsets="earliest")
    query.run()
    source.create("t", Log(0, new_end))
    with pytest.raises(DataLoss, match=r"t-0: offset 10 .*was deleted and created again"):
        query.plan()
    query = Query(source, startingOffsets="earliest", failOnDataLoss="false")
    query.run()
    source.create("t", Log(0, new_end))
    query.run()
    assert query.run() == [OffsetRange(P0, 0, new_end)]
    assert query.plan()[1] == query.checkpoint


@pytest.mark.parametrize("new_end", [3, 10, 40])
@pytest.mark.promise("loss-known-by-id")
def test_a_topic_that_was_created_again_is_known_after_a_restart(new_end, caplog):
    source = ScriptedSource(t=[Log(0, 10)])
    query = Query(source, startingOffsets="earliest")
    query.run()
    source.create("t", Log(0, new_end), Log(0, 1))
    with pytest.raises(
        DataLoss, match=r"t-0: offset 10 .*was deleted and created again.* set fail"
    ):
        query.restart().plan()
    query.restart(failOnDataLoss="false").run()
    assert query.checkpoint == {}
    query.restart(failOnDataLoss="false")
    assert query.run() == [OffsetRange(P0, 0, new_end), OffsetRange(P1, 0, 1)]
    assert query.plan()[1] == query.checkpoint
    assert caplog.text.count("t-0: offset 10 was to be read; the topic was deleted") == 1
    assert caplog.text.count("going on without") == 1


@pytest.mark.parametrize("new_end", [3, 10, 40])
@pytest.mark.promise("loss-ids-come-later")
def test_offsets_without_ids_get_them_with_the_next_batch(new_end):
    """A checkpoint of an older release, or of Spark's own source."""
    source = ScriptedSource(t=[Log(0, 10)])
    query = Query(source)
    query.checkpoint = {"t": {"0": 10}}
    assert query.run() == []
    assert query.checkpoint == to_json({P0: 10}, source.ids)
    assert query.plan()[1] == query.checkpoint
    source.create("t", Log(0, new_end))
    with pytest.raises(DataLoss, match=r"t-0: offset 10 .*was deleted and created again"):
        query.restart().plan()


@pytest.mark.promise("loss-without-ids")
def test_without_ids_only_a_log_that_ends_too_early_shows_another_topic():
    source = ScriptedSource(t=[Log(0, 9)])
    query = Query(source)
    query.checkpoint = {"t": {"0": 10}}
    with pytest.raises(DataLoss, match="the log ends earlier: the topic was created again, or an"):
        query.plan()


@pytest.mark.parametrize("new_end", [3, 10, 40])
@pytest.mark.promise("loss-known-by-id")
def test_a_topic_that_is_created_again_after_the_plan(new_end, caplog):
    """The driver that planned the batch has died: another one runs it."""
    source = ScriptedSource(t=[Log(0, 10)])
    query = Query(source, startingOffsets="earliest")
    query.run()
    source.topics["t"][0].end = 15
    planned = query.plan()
    source.create("t", Log(0, new_end))
    with pytest.raises(DataLoss, match=r"t-0: offset 10 .*was deleted and created again"):
        query.restart().run(planned)
    query.restart(failOnDataLoss="false")
    assert query.run(planned) == []
    query.run()
    assert query.run() == [OffsetRange(P0, 0, new_end)]
    assert caplog.text.count("going on without") == 1


def test_each_partition_of_a_topic_that_was_created_again_is_reported_once(caplog):
    """The new topic has one partition less; another one has nothing new in the batch that meets it.

    1. a batch reads t-0 up to 15 and t-2 up to 6; its driver dies
    2. the topic is created again, with two partitions
    3. another driver runs the batch: t-0 is lost from 10 on, t-2 from 5 on; t-1 was not to be read
    4. the next batch is planned: t-1 is lost from 7 on; t-0 and t-2 are reported already
    """
    source = ScriptedSource(t=[Log(0, 10), Log(0, 7), Log(0, 5)])
    query = Query(source, startingOffsets="earliest")
    query.run()
    source.topics["t"][0].end, source.topics["t"][2].end = 15, 6
    planned = query.plan()
    source.create("t", Log(0, 20), Log(0, 20))
    query.restart(failOnDataLoss="false").run(planned)
    query.run()
    assert query.run() == [OffsetRange(P0, 0, 20), OffsetRange(P1, 0, 20)]
    lost = re.findall(r"t-\d: offset \d+", caplog.text)
    assert lost == ["t-0: offset 10", "t-2: offset 5", "t-1: offset 7"]


@pytest.mark.parametrize("starting", ["earliest", "latest"])
def test_a_first_batch_of_a_topic_that_is_created_again_reads_the_new_topic(starting, caplog):
    """Spark looks up the first offset again to run it, and finds the new topic."""
    source = ScriptedSource(t=[Log(0, 10)])
    query = Query(source, startingOffsets=starting)
    planned = query.plan()
    source.create("t", Log(0, 40))
    query.restart(startingOffsets=starting, failOnDataLoss="false")
    assert query.run(planned) == []
    query.run()
    assert query.run() == [OffsetRange(P0, 0, 40)]
    assert caplog.text.count("going on without") == 1
    assert f"t-0: offset {10 if starting == 'latest' else 0} was to be read" in caplog.text


def test_a_topic_that_was_created_again_is_found_without_the_start_of_a_batch(caplog):
    """Spark 4.1, after a restart: the first batch is planned without its start."""
    source = ScriptedSource(t=[Log(0, 10)])
    query = Query(source, startingOffsets="earliest")
    query.run()
    source.create("t", Log(0, 40))
    query.restart(failOnDataLoss="false")
    end = query.planner.unlimited_latest()
    assert query.run((query.checkpoint, end)) == [OffsetRange(P0, 0, 40)]
    assert query.plan()[1] == query.checkpoint
    assert caplog.text.count("going on without") == 1
    query.checkpoint = to_json({P0: 10}, {"t": uuid.uuid4()})
    query.restart()
    with pytest.raises(DataLoss, match=r"t-0: offset 10 .*was deleted and created again"):
        query.run((query.checkpoint, query.planner.unlimited_latest()))


def test_a_broker_that_lags_does_not_make_a_loss():
    """It reports the former id, which this query has never seen, for a moment."""
    source = ScriptedSource(t=[Log(0, 10)])
    query = Query(source, startingOffsets="earliest", fetchOffset__retryIntervalMs="100")
    query.run()
    new_id = source.ids["t"]
    source.ids["t"] = uuid.uuid4()
    looks = source.topology_count

    def recover():
        if source.topology_count == looks + 2:
            source.ids["t"] = new_id

    source.on_topology = recover
    assert query.plan()[1] == query.checkpoint
    assert query.clock.now_ms == 200


@pytest.mark.promise("loss-without-ids")
def test_brokers_without_ids_leave_those_of_the_checkpoint():
    source = ScriptedSource(t=[Log(0, 10)])
    query = Query(source, startingOffsets="earliest")
    query.run()
    source.ids["t"] = uuid.UUID(int=0)
    assert query.plan()[1] == query.checkpoint
    assert ":" not in "".join(Query(source).planner.initial_offset())


@pytest.mark.promise("stream-named-offsets")
def test_named_offsets_may_say_which_topic_they_are_in(caplog):
    source = ScriptedSource(t=[Log(2, 10)])
    named = json.dumps(to_json({P0: 7}, source.ids))
    assert Query(source, startingOffsets=named).run() == [OffsetRange(P0, 7, 10)]
    source.create("t", Log(2, 10))
    with pytest.raises(DataLoss, match=r"t-0: offset 7 .*was deleted and created again"):
        Query(source, startingOffsets=named).plan()
    query = Query(source, startingOffsets=named, failOnDataLoss="false")
    assert query.run() == [OffsetRange(P0, 2, 10)]
    assert caplog.text.count("going on without") == 1


def test_a_replaced_topic_is_not_forgotten_while_a_batch_waits():
    source = ScriptedSource(t=[Log(0, 10)])
    given_options = {"failOnDataLoss": "false", "minOffsetsPerTrigger": "100"}
    query = Query(source, startingOffsets="earliest", **given_options)
    query.run()
    source.create("t", Log(0, 30))
    query.run()
    assert query.checkpoint == {}
    query.clock.now_ms += 1_000_000
    assert query.run() == [OffsetRange(P0, 0, 30)]


def test_an_older_end_is_asked_for_again_before_it_counts():
    source = ScriptedSource(t=[Log(0, 10)])
    query = Query(source, startingOffsets="earliest", fetchOffset__retryIntervalMs="100")
    query.run()
    log = source.topics["t"][0]
    log.end = 8
    looks = source.topology_count

    def recover():
        if source.topology_count == looks + 2:
            log.end = 12

    source.on_topology = recover
    assert query.run() == [OffsetRange(P0, 10, 12)]
    assert query.clock.now_ms == 200


@pytest.mark.promise("loss-log-cut")
def test_a_log_that_was_cut(caplog):
    source = ScriptedSource(t=[Log(0, 10)])
    query = Query(source, startingOffsets="earliest")
    query.run()
    source.topics["t"][0].end = 8
    with pytest.raises(DataLoss, match="t-0: offset 10 was to be read, but the log ends at 8"):
        query.plan()
    assert query.clock.now_ms == 2_000
    # As Spark's own source: from the new end on.
    query.restart(failOnDataLoss="false")
    assert query.run() == []
    assert offsets_in(query.checkpoint) == {"t": {"0": 8}}
    assert caplog.text.count("going on without records that are lost") == 1


def test_a_batch_planned_by_another_driver_is_checked_against_the_logs():
    source = ScriptedSource(t=[Log(0, 10)])
    query = Query(source, startingOffsets="earliest")
    planned = query.plan()
    source.topics["t"][0].end = 7
    query.restart(startingOffsets="earliest")
    with pytest.raises(DataLoss, match="the log ends at 7"):
        query.planner.tasks(*planned)
    query.restart(startingOffsets="earliest", failOnDataLoss="false")
    assert query.planner.tasks(*planned) == [OffsetRange(P0, 0, 7)]
    source.delete("t")
    assert query.planner.tasks(*planned) == []


@pytest.mark.promise("stream-available-now")
def test_available_now_ends_at_what_existed():
    source = ScriptedSource(t=[Log(0, 10)])
    query = Query(source, startingOffsets="earliest", maxOffsetsPerTrigger="8")
    query.planner.set_target()
    source.topics["t"][0].end = 100
    source.topics["t"].append(Log(0, 100))
    assert query.run() == [OffsetRange(P0, 0, 8)]
    assert query.run() == [OffsetRange(P0, 8, 10)]
    start, end = query.plan()
    assert start == end


def test_available_now_with_latest_still_ends():
    source = ScriptedSource(t=[Log(0, 10)])
    query = Query(source, startingOffsets="latest")
    query.planner.set_target()
    source.topics["t"][0].end = 12
    assert query.run() == []
    start, end = query.plan()
    assert start == end
    assert offsets_in(end) == {"t": {"0": 12}}


def test_only_the_first_batch_is_planned_empty():
    """Spark looks up the first offset once more to run that batch; it may be another one then."""
    source = ScriptedSource(t=[Log(0, 10)])
    query = Query(source, startingOffsets="latest")
    planned = query.plan()
    source.topics["t"][0].end = 12
    assert query.run(planned) == []
    assert query.run() == [OffsetRange(P0, 10, 12)]
    source.topics["t"][0].end = 14
    assert query.run() == [OffsetRange(P0, 12, 14)]


def test_a_new_query_needs_its_topics():
    source = ScriptedSource(t=[Log(0, 10)])
    source.named = ("t", "missing")
    with pytest.raises(TopicsNotFound, match="there is no missing"):
        Query(source).plan()
    with pytest.raises(TopicsNotFound, match="there is no missing"):
        Query(source, failOnDataLoss="false").plan()
    query = Query(source)
    query.checkpoint = {"t": {"0": 3}}
    with pytest.raises(TopicsNotFound, match="there is no missing"):
        query.plan()


@pytest.mark.promise("loss-users-offset")
def test_named_offsets_must_lie_in_the_log():
    source = ScriptedSource(t=[Log(5, 10)])
    with pytest.raises(DataLoss, match="offset 2 was to be read, but the log begins at 5"):
        Query(source, startingOffsets='{"t":{"0":2}}').plan()
    with pytest.raises(DataLoss, match=r"offset 12 .*the log ends at 10; no record has that"):
        Query(source, startingOffsets='{"t":{"0":12}}').plan()
    with pytest.raises(OffsetsNotFound, match="t-0"):
        Query(source, startingOffsets='{"t":{"1":7}}').plan()
    query = Query(source, startingOffsets='{"t":{"0":2}}', failOnDataLoss="false")
    assert query.run() == [OffsetRange(P0, 5, 10)]


def test_a_checkpoint_of_something_else():
    query = Query(ScriptedSource(t=[Log(0, 10)]))
    query.checkpoint = {"logOffset": 3}
    with pytest.raises(InvalidCheckpoint, match="goes on with the source it was begun with"):
        query.plan()


def test_a_batch_without_a_start_is_read_from_the_tasks_offsets():
    """Spark 4.1, after a restart."""
    source = ScriptedSource(t=[Log(0, 10)])
    query = Query(source, maxOffsetsPerTrigger="3")
    end = query.planner.unlimited_latest()
    assert offsets_in(end) == {"t": {"0": 10}}
    assert query.planner.tasks({"t": {"0": 4}}, end) == [OffsetRange(P0, 4, 10)]
    end = query.planner.unlimited_latest()
    with pytest.raises(DataLoss, match="t-1: offset 7 was to be read; the topic or partition doe"):
        query.planner.tasks({"t": {"0": 4, "1": 7}}, end)


def test_the_end_of_the_query_closes_the_client():
    source = ScriptedSource(t=[Log(0, 10)])
    Query(source).planner.close()
    assert source.is_closed


STEPS = st.lists(
    st.tuples(st.just("write"), st.integers(0, 1), st.integers(1, 30))
    | st.tuples(st.just("batch"))
    | st.tuples(st.just("die"))
    | st.tuples(st.just("partition")),
    max_size=30,
)
RECREATIONS = st.lists(
    st.tuples(st.just("write"), st.integers(0, 1), st.integers(1, 30))
    | st.tuples(st.just("recreate"), st.integers(0, 40), st.integers(0, 40))
    | st.tuples(st.sampled_from(["batch", "die"])),
    max_size=30,
)


@given(RECREATIONS, st.sampled_from(["earliest", "latest"]), st.none() | st.integers(1, 25))
@pytest.mark.promise("loss-told-once")
def test_the_topic_that_there_is_is_read_whole_and_no_loss_goes_untold(steps, starting, limit):
    """Topics are deleted and created again, at any length; drivers die and run batches again."""
    source = ScriptedSource(t=[Log(0, 7), Log(0, 0)])
    options = {"startingOffsets": starting, "failOnDataLoss": "false"}
    if limit is not None:
        options["maxOffsetsPerTrigger"] = str(limit)
    told = []
    first_id = source.ids["t"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(planners, "report", lambda losses, **_: told.extend(map(str, losses)))
        query = Query(source, **options)
        planned = query.plan()
        for step, *rest in steps:
            if step == "write":
                source.topics["t"][rest[0]].end += rest[1]
            elif step == "recreate":
                source.create("t", Log(0, rest[0]), Log(0, rest[1]))
            elif step == "die":
                query.restart(**options)
            elif step == "batch":
                query.run(planned)
                planned = query.plan()
        for _ in range(400):
            query.run(planned)
            planned = query.plan()
            if planned[0] == planned[1]:
                break
    there = source.ids["t"]
    found = [
        (each.topic_partition, offset)
        for topic_id, each in query.read_by_id
        if topic_id == there
        for offset in range(each.start_offset, each.end_offset)
    ]
    expected = {
        (TopicPartition("t", number), offset)
        for number, log in enumerate(source.topics["t"])
        for offset in range(
            7 if (starting, number, there) == ("latest", 0, first_id) else 0, log.end
        )
    }
    assert len(found) == len(set(found))
    assert set(found) == expected
    assert bool(told) == (there != first_id)
    assert all("was deleted and created again" in each for each in told)


@given(STEPS, st.sampled_from(["earliest", "latest"]), st.none() | st.integers(1, 25))
@pytest.mark.promise("stream-batch-again")
def test_every_record_is_read_once_whatever_drivers_do(steps, starting, limit):
    """Drivers die between plan and commit and run the same batch again; nothing is deleted."""
    source = ScriptedSource(t=[Log(0, 7), Log(0, 0)])
    options = {"startingOffsets": starting}
    if limit is not None:
        options["maxOffsetsPerTrigger"] = str(limit)
    query = Query(source, **options)
    planned = query.plan()  # the query begins here
    for step, *rest in steps:
        if step == "write":
            source.topics["t"][rest[0]].end += rest[1]
        elif step == "partition":
            source.topics["t"].append(Log(0, 2))
        elif step == "die":
            query.restart(**options)
        else:
            query.run(planned)
            planned = query.plan()
    for _ in range(400):
        query.run(planned)
        planned = query.plan()
        if planned[0] == planned[1]:
            break
    found = [
        (each.topic_partition, offset)
        for each in query.read
        for offset in range(each.start_offset, each.end_offset)
    ]
    expected = {
        (TopicPartition("t", number), offset)
        for number, log in enumerate(source.topics["t"])
        for offset in range(7 if (starting, number) == ("latest", 0) else 0, log.end)
    }
    assert len(found) == len(set(found))
    assert set(found) == expected
