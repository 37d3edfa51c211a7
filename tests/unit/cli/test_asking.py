"""Commands that destroy: what they ask, when they need `--yes`, and what they refuse before."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from moldau.client import Producer
from moldau.protocol.api_keys import ApiKey
from tests.fake_broker import FakeCluster
from tests.kit.commands import Ended, run_here
from tests.kit.terminals import run_at_terminal

pytestmark = pytest.mark.real

TOPICS = {"flights": 2, "orders": 1, "__consumer_offsets": 3}


@pytest.fixture
async def cluster() -> AsyncIterator[FakeCluster]:
    """Topics, of which one has seven records."""
    async with FakeCluster(topics=TOPICS) as made:
        async with Producer(made.bootstrap_servers) as producer:
            for number in range(7):
                await producer.send("flights", b"%d" % number)
            await producer.flush()
        yield made


async def script(cluster: FakeCluster, *arguments: object) -> Ended:
    """A command without a terminal."""
    environ = {"MOLDAU_BOOTSTRAP_SERVER": cluster.bootstrap_servers}
    return await asyncio.to_thread(run_here, *arguments, environ=environ)


async def person(cluster: FakeCluster, *arguments: object, typed: str) -> Ended:
    """A command at a terminal."""
    environ = {"MOLDAU_BOOTSTRAP_SERVER": cluster.bootstrap_servers}
    return await asyncio.to_thread(run_at_terminal, *arguments, typed=typed, environ=environ)


async def test_a_yes_at_the_terminal_deletes_what_the_question_names(cluster: FakeCluster):
    done = await person(cluster, "topics", "delete", "flights", "orders", typed="y\n")
    assert (done.status, done.output) == (0, "deleted flights\ndeleted orders\n")
    question = "delete 2 topics: flights, orders (3 partitions, about 7 records)? [y/N]"
    assert f"moldau: {question} " in done.errors
    assert [*cluster.topics] == ["__consumer_offsets"]


@pytest.mark.parametrize("typed", ["n\n", "\n", "NO\n", "\x04", "perhaps\nno\n"])
async def test_any_other_answer_deletes_nothing(cluster: FakeCluster, typed: str):
    done = await person(cluster, "topics", "delete", "flights", typed=typed)
    assert (done.status, done.output) == (1, "")
    assert "nothing was changed" in done.errors
    assert done.errors.count("[y/N]") == 1 + typed.startswith("perhaps")
    assert {*cluster.topics} == {*TOPICS}


async def test_a_script_needs_yes_and_is_shown_what_would_go(cluster: FakeCluster):
    done = await script(cluster, "topics", "delete", "flights")
    assert (done.status, done.output) == (2, "")
    assert done.complaint == (
        "moldau: this would delete topic flights (2 partitions, about 7 records); "
        "give --yes if that is what you want"
    )
    assert {*cluster.topics} == {*TOPICS}
    assert await script(cluster, "topics", "delete", "flights", "-y") == Ended(
        0, "deleted flights\n", ""
    )


@pytest.mark.parametrize("yes", [(), ("--yes",)])
async def test_one_wrong_name_of_several_deletes_nothing(
    cluster: FakeCluster, yes: tuple[str, ...]
):
    done = await script(cluster, "topics", "delete", "flights", "ordres", *yes)
    assert (done.status, done.output) == (1, "")
    assert done.complaint == (
        "moldau: nothing was changed: there is no topic 'ordres'; did you mean orders?"
    )
    assert {*cluster.topics} == {*TOPICS}


async def test_internal_topics_are_refused_without_their_option(cluster: FakeCluster):
    both = ("topics", "delete", "flights", "__consumer_offsets", "--yes")
    done = await script(cluster, *both)
    assert (done.status, done.output) == (2, "")
    assert "__consumer_offsets is an internal topic" in done.complaint
    assert "--internal" in done.complaint
    assert {*cluster.topics} == {*TOPICS}
    done = await script(cluster, *both, "--internal")
    assert (done.status, done.errors) == (0, "")
    assert [*cluster.topics] == ["orders"]


async def test_topics_that_need_not_exist_do_not_hide_those_that_do(cluster: FakeCluster):
    command = ("topics", "delete", "gone", "flights", "--if-exists")
    asked = await script(cluster, *command)
    assert asked.status == 2
    assert "delete topic flights (2 partitions" in asked.complaint
    done = await script(cluster, *command, "--yes")
    assert done == Ended(0, "gone does not exist\ndeleted flights\n", "")
    assert await script(cluster, "topics", "delete", "gone", "--if-exists") == Ended(
        0, "gone does not exist\n", ""
    )


async def test_names_given_twice_are_deleted_once(cluster: FakeCluster):
    done = await script(cluster, "topics", "delete", "orders", "orders", "--yes")
    assert done == Ended(0, "deleted orders\n", "")


async def test_a_question_costs_no_request_with_yes(cluster: FakeCluster):
    done = await script(cluster, "topics", "delete", "orders", "--yes")
    assert done == Ended(0, "deleted orders\n", "")
    assert cluster.recorder.count(ApiKey.LIST_OFFSETS) == 0
