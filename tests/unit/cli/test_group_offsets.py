"""What `moldau groups` is made of: files, times, targets, plans and rows."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from moldau.cli.group_offsets import offsets_csv, parse_offsets, read_offsets
from moldau.cli.groups import DescribedGroup, document, offset_rows
from moldau.cli.options import parse_topics
from moldau.client import (
    Admin,
    Broker,
    CommittedOffset,
    GroupDescription,
    GroupMember,
    KafkaError,
    PartitionOffset,
    TopicPartition,
)
from moldau.moments import parse_datetime
from moldau.offset_plans import (
    Goal,
    NoPlan,
    PlannedOffset,
    Scenario,
    parse_duration,
    plan_offsets,
)
from moldau.protocol.api_keys import ApiKey
from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages import p02_list_offsets as offsets
from tests.unit.client.scripted_broker import ScriptedBroker

ZERO, ONE = TopicPartition("t", 0), TopicPartition("t", 1)
EARLIEST, LATEST, NOON = 10, 90, 1_000
DAY_MS = 86_400_000


def test_offsets_there_and_back():
    one = {"g": {ONE: 2, ZERO: 1}}
    assert offsets_csv(one) == "t,0,1\nt,1,2\n"
    assert parse_offsets(offsets_csv(one)) == {None: one["g"]}
    two = {"g": {ZERO: 1}, 'a,"b"': {ZERO: 2}}
    assert parse_offsets(offsets_csv(two)) == two


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "no lines"),
        ("\n \n", "no lines"),
        ("t,0\n", "line 1 has 2 columns"),
        ("t,0,1\nt,zero,1\n", "line 2 is not"),
        ("t,0,-1\n", "line 1 is not"),
        (",0,1\n", "line 1 is not"),
        ("t,0,1\nt,0,2\n", "t-0 is named twice"),
        ("t,0,1\ng,t,1,1\n", "some lines name a group"),
        ("t,0,9223372036854775808\n", "too big"),
        ("t,2147483648,1\n", "too big"),
    ],
)
def test_files_that_are_no_offsets(text: str, said: str):
    with pytest.raises(ValueError, match=said):
        parse_offsets(text)


@pytest.mark.parametrize("content", [b"t,0", b"\xff", b'"t,0,1\n'])
def test_a_bad_file_is_wrong_usage(tmp_path: Path, content: bytes, capsys: Any):
    path = tmp_path / "offsets.csv"
    path.write_bytes(content)
    with pytest.raises(SystemExit) as ended:
        read_offsets(path)
    assert ended.value.code == 2
    assert str(path) in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        ("P1D", DAY_MS),
        ("PT90M", 5_400_000),
        ("P1DT2H3M4.5S", DAY_MS + 2 * 3_600_000 + 3 * 60_000 + 4_500),
        ("pt1h", 3_600_000),
        ("-PT1H", -3_600_000),
        ("PT0S", 0),
    ],
)
def test_durations(text: str, ms: int):
    assert parse_duration(text) == ms


@pytest.mark.parametrize("text", ["", "P", "PT", "P1DT", "1D", "P1W", "PT1D", "P-1D", "PT1.S"])
def test_what_is_no_duration(text: str):
    with pytest.raises(ValueError, match="PnDTnHnMnS"):
        parse_duration(text)


def test_times_are_utc_unless_they_say():
    noon = 1_767_268_800_000
    assert parse_datetime("2026-01-01T12:00:00.000") == noon
    assert parse_datetime("2026-01-01T13:00:00+01:00") == noon
    assert parse_datetime("2026-01-01T12:00:00Z") == noon
    assert parse_datetime("2026-01-01") == noon - 12 * 3_600_000
    for text in ("20260101", "noon", "2026-13-01T00:00:00", "2026-01-32", "2026-01"):
        with pytest.raises(ValueError, match=r"."):
            parse_datetime(text)


def test_topics_with_and_without_partitions():
    assert parse_topics(["a", "b:1,0", "b:2", "c:1", "c"]) == {"a": None, "b": {0, 1, 2}, "c": None}
    for text in ("", ":1", "a:", "a:x", "a:1,"):
        with pytest.raises(SystemExit):
            parse_topics([text])


@pytest.fixture
async def admin() -> AsyncIterator[Admin]:
    """Logs from 10 to 90, in which record 50 was written at noon; partition 7 cannot be asked."""
    by_time = {-1: LATEST, -2: EARLIEST, NOON: 50}

    def answer(request: Any) -> offsets.ListOffsetsResponse:
        [topic] = request.topics
        entries = [
            offsets.ListOffsetsPartitionResponse(
                partition_index=each.partition_index,
                offset=by_time.get(each.timestamp, -1),
                error_code=ErrorCode.TOPIC_AUTHORIZATION_FAILED
                if each.partition_index == 7
                else ErrorCode.NONE,
            )
            for each in topic.partitions
        ]
        return offsets.ListOffsetsResponse(
            topics=[offsets.ListOffsetsTopicResponse(name=topic.name, partitions=entries)]
        )

    async with ScriptedBroker() as broker:
        broker.topics = {"t": 8}
        broker.script(ApiKey.LIST_OFFSETS, answer)
        async with Admin(broker.address, retry_backoff_ms=1) as client:
            yield client


@pytest.mark.real
@pytest.mark.parametrize(
    ("goal", "news", "noted"),
    [
        (Goal(Scenario.EARLIEST), (10, 10), ""),
        (Goal(Scenario.LATEST), (90, 90), ""),
        (Goal(Scenario.OFFSET, 42), (42, 42), ""),
        (Goal(Scenario.OFFSET, 5), (10, 10), "before the log's start"),
        (Goal(Scenario.OFFSET, 500), (90, 90), "behind the log's end"),
        (Goal(Scenario.SHIFT, -5), (15, 25), ""),
        (Goal(Scenario.SHIFT, 65), (85, 90), ""),
        (Goal(Scenario.CURRENT), (20, 30), ""),
        (Goal(Scenario.TIMESTAMP, NOON), (50, 50), ""),
        (Goal(Scenario.TIMESTAMP, 2_000), (90, 90), "no record at or after"),
        (Goal(Scenario.FILE, offsets={ZERO: 11, ONE: 1}), (11, 10), ""),
    ],
)
async def test_where_offsets_go(admin: Admin, goal: Goal, news: tuple[int, int], noted: str):
    committed = {ZERO: CommittedOffset(20, 1, "m"), ONE: CommittedOffset(30)}
    plan = await plan_offsets(admin, goal, [ZERO, ONE], committed)
    assert [each.current for each in plan] == [20, 30]
    assert tuple(each.new.offset for each in plan if each.new) == news
    assert noted in plan[0].note
    assert bool(plan[0].note) == bool(noted)


@pytest.mark.real
async def test_where_it_is_keeps_what_was_committed_with_it(admin: Admin):
    committed = CommittedOffset(20, 1, "m")
    plan = await plan_offsets(admin, Goal(Scenario.CURRENT), [ZERO, ONE], {ZERO: committed})
    assert plan[0] == PlannedOffset(ZERO, 20, committed)
    assert plan[1].new == CommittedOffset(LATEST)
    assert "nothing committed" in plan[1].note


@pytest.mark.real
async def test_nothing_can_be_shifted_that_is_not_there(admin: Admin):
    with pytest.raises(NoPlan, match=r"t-1: nothing is committed"):
        await plan_offsets(admin, Goal(Scenario.SHIFT, 1), [ZERO, ONE], {ZERO: CommittedOffset(20)})


@pytest.mark.real
async def test_a_log_that_cannot_be_asked(admin: Admin):
    with pytest.raises(NoPlan, match=r"t-7: .*TOPIC_AUTHORIZATION_FAILED"):
        await plan_offsets(admin, Goal(Scenario.LATEST), [TopicPartition("t", 7)], {})


def test_rows_of_what_is_committed_and_what_is_assigned():
    member = GroupMember("m", None, "app", "/h", frozenset({ONE}))
    group = GroupDescription(
        "g", "classic", "consumer", "Stable", "range", Broker(1, "h", 9, None), (member,)
    )
    committed = {ZERO: CommittedOffset(20, 4), TopicPartition("gone", 0): CommittedOffset(3)}
    ends: Mapping[TopicPartition, PartitionOffset | KafkaError] = {
        ZERO: PartitionOffset(90, -1, 1),
        ONE: PartitionOffset(5, -1, 1),
        TopicPartition("gone", 0): KafkaError("no such topic"),
    }
    rows = tuple(offset_rows(group, committed, ends))
    assert [(str(row.partition), row.lag, row.log_end_offset) for row in rows] == [
        ("gone-0", None, None),
        ("t-0", 70, 90),
        ("t-1", None, 5),
    ]
    assert [row.member for row in rows] == [None, None, member]
    shown = document(DescribedGroup(group, rows))
    assert shown["lag"] == 70
    assert shown["members"][0]["assignment"] == {"t": [1]}
    assert [each["leader_epoch"] for each in shown["offsets"]] == [None, 4, None]
