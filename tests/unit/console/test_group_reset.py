"""Where a group shall go on, and the command that says the same."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moldau.cli.group_offsets import GoalOptions
from moldau.cli.options import parse_topics
from moldau.console.own.group_reset import (
    LAST_MS,
    TO,
    chosen_partitions,
    goal_of,
    reset_command,
)
from moldau.console.problems import Problem
from moldau.offset_plans import MAX_INT64, Goal, Scenario
from tests.unit.console.command_lines import parsed

NOW_MS = 1_700_000_000_000
DURATION_MS = 90_061_500
PLACES = st.one_of(
    st.sampled_from(["earliest", "latest"]),
    st.integers(0, MAX_INT64).map(lambda n: f"offset:{n}"),
    st.integers(-MAX_INT64, MAX_INT64).map(lambda n: f"by:{n:+}"),
    st.integers(0, LAST_MS).map(lambda n: f"timestamp:{n}"),
)
TOPICS = st.dictionaries(
    st.text("ab.-_", min_size=1, max_size=4),
    st.none() | st.lists(st.integers(0, 9), min_size=1, max_size=3, unique=True).map(sorted),
    min_size=1,
    max_size=3,
)


def options(line: str) -> dict[str, Any]:
    words, given = parsed(line)
    assert words == "groups reset-offsets"
    return given


@given(PLACES, TOPICS, st.text(max_size=5).filter(lambda text: "\0" not in text))
def test_the_command_means_the_same(
    place: str, topics: dict[str, list[int] | None], group_id: str
) -> None:
    assert re.search(TO, place)
    line = options(reset_command(group_id, place, topics))
    assert line.pop("group_ids") == (group_id,)
    assert line.pop("execute") is True
    wanted = {name: None if each is None else {*each} for name, each in topics.items()}
    assert parse_topics(line.pop("topics")) == wanted
    assert GoalOptions(**line).goal() == goal_of(place, NOW_MS)


def test_a_duration_counts_back_from_now() -> None:
    place = "duration:P1DT1H1M1.5S"
    assert re.search(TO, place)
    assert goal_of(place, NOW_MS) == Goal(Scenario.TIMESTAMP, NOW_MS - DURATION_MS)
    assert goal_of("duration:-PT1S", NOW_MS).number == NOW_MS + 1_000
    assert goal_of("duration:P99999999D", NOW_MS).number == 0
    line = options(reset_command("g", place, {"a": None}))
    assert line["by_duration"] == "P1DT1H1M1.5S"


@pytest.mark.parametrize(
    "place",
    [
        f"offset:{MAX_INT64 + 1}",
        f"by:-{MAX_INT64 + 1}",
        f"timestamp:{LAST_MS + 1}",
        "duration:P",
        "duration:PT",
        "duration:P1Y",
        "offset:5\n",
        "earliest\n",
        "offset:٣",
        "latest:1",
        "offset",
    ],
)
def test_what_says_nothing_is_refused(place: str) -> None:
    with pytest.raises(Problem) as found:
        goal_of(place, NOW_MS)
    assert found.value.status == 422


@pytest.mark.parametrize(
    "place", ["", "start", "offset:", "offset:-1", "by:5", "by:", "timestamp:x", "duration:1h"]
)
def test_the_schema_refuses_other_forms(place: str) -> None:
    assert not re.search(TO, place)


def test_partitions_are_chosen_by_topic() -> None:
    chosen = chosen_partitions(
        [
            {"topic": "b", "partitions": [2, 0, 2]},
            {"topic": "a"},
            {"topic": "c", "partitions": None},
        ]
    )
    assert chosen == {"b": [0, 2], "a": None, "c": None}
    with pytest.raises(Problem, match="twice"):
        chosen_partitions([{"topic": "a"}, {"topic": "a", "partitions": [1]}])
