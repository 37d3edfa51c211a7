"""Command lines are words of a shell, whatever names are in them."""

from __future__ import annotations

import shlex

import pytest

from moldau.client import TopicPartition
from moldau.console.own.commands import command, option, topic_options
from tests.unit.console.command_lines import parsed

ODD_NAMES = ["plain", "with space", "it's", "$(reboot)", "-x", "--all-groups", "", "a\nb", "ü*"]


@pytest.mark.parametrize("name", ODD_NAMES)
def test_a_name_reaches_the_command_as_it_is(name: str) -> None:
    line = command("groups", "delete", "--yes", names=[name])
    assert parsed(line) == ("groups delete", {"yes": True, "group_ids": (name,)})


@pytest.mark.parametrize("value", ODD_NAMES)
def test_a_value_reaches_its_option_as_it_is(value: str) -> None:
    line = command("quotas", "describe", *option("--user", value))
    assert parsed(line) == ("quotas describe", {"user": value})


def test_an_option_without_a_value_is_left_out() -> None:
    assert command("topics", "list", *option("--limit", None)) == "moldau topics list"
    assert option("--partition", 0) == ("--partition", "0")


def test_partitions_stand_behind_their_topic() -> None:
    partitions = [TopicPartition("b", 2), TopicPartition("a", 1), TopicPartition("b", 0)]
    assert topic_options(partitions) == ("--topic", "a:1", "--topic", "b:0,2")
    assert topic_options([]) == ()


def test_a_plain_line_has_no_quotes() -> None:
    line = command("groups", "delete", names=["flights.eu", "b"])
    assert line == "moldau groups delete flights.eu b"
    assert shlex.split(line)[-2:] == ["flights.eu", "b"]
