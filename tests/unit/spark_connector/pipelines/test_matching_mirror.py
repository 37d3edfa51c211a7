"""A mirror of a pattern: when more topics match it goes on with them, after its batch."""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterator

import pytest

from moldau.client import RequestTimeout
from moldau.spark_connector.errors import PipelineFailed
from moldau.spark_connector.pipelines.jobs.streams import MatchingMirror
from moldau.spark_connector.pipelines.running import BatchProgress

DEADLINE_S = 10.0


class FakeQuery:
    """A query that ends one look after it was asked to."""

    def __init__(self, names: Collection[str]) -> None:
        self.names = sorted(names)
        self.asked: list[str] = []
        self.broken: str | None = None
        self.told = [BatchProgress(",".join(self.names), 0, 1, 1, 1.0, None, {})]

    def is_over(self) -> bool:
        return self.broken is not None or len(self.asked) > 1

    def stop_after_batch(self) -> None:
        self.asked.append("after")

    def stop_now(self) -> None:
        self.asked += ["now", "now"]

    def failure(self) -> str | None:
        return self.broken

    def new_progress(self) -> list[BatchProgress]:
        told, self.told = self.told, []
        return told


class Stage:
    """What a mirror is given, and what it has done."""

    def __init__(self) -> None:
        self.found: list[str] = []
        self.prepared = 0
        self.refusal: str | None = None
        self.queries: list[FakeQuery] = []
        self.looked = threading.Semaphore(0)
        self.is_unreachable = False
        self.mirrors: list[MatchingMirror] = []

    def start(self, names: Collection[str]) -> FakeQuery:
        self.queries.append(FakeQuery(names))
        return self.queries[-1]

    def find(self) -> list[str]:
        self.looked.release()
        if self.is_unreachable:
            raise RequestTimeout("nobody answers")
        return list(self.found)

    def prepare(self) -> None:
        if self.refusal is not None:
            raise PipelineFailed(self.refusal)
        self.prepared += 1

    def mirror(self, *topics: str, is_endless: bool = True) -> MatchingMirror:
        self.found = list(topics)
        made = MatchingMirror(
            "m",
            frozenset(topics),
            self.start,  # type: ignore[arg-type]
            self.find,
            self.prepare,
            is_endless=is_endless,
            look_s=0.001,
        )
        self.mirrors.append(made)
        return made

    def look(self) -> None:
        """Wait until the topics were looked for once more, and what was found is known."""
        while self.looked.acquire(blocking=False):
            pass
        for _ in range(2):
            assert self.looked.acquire(timeout=DEADLINE_S)


@pytest.fixture
def stage() -> Iterator[Stage]:
    made = Stage()
    yield made
    for mirror in made.mirrors:
        mirror.stop_now()


@pytest.mark.promise("mirror-new-topics")
def test_more_topics_are_taken_in_after_the_batch(stage: Stage):
    mirror = stage.mirror("a")
    assert not mirror.is_over()
    assert stage.queries[0].asked == []
    stage.found = ["a", "b"]
    stage.look()
    assert not mirror.is_over()
    assert (stage.queries[0].asked, len(stage.queries)) == (["after"], 1)
    assert not mirror.is_over()  # it has ended, and the next one has begun
    assert [each.names for each in stage.queries] == [["a"], ["a", "b"]]
    assert stage.prepared == 1
    assert [each.pipeline for each in mirror.new_progress()] == ["a", "a,b"]
    assert not mirror.is_over()
    assert stage.queries[1].asked == []


def test_a_topic_that_goes_is_the_query_s_own_business(stage: Stage):
    mirror = stage.mirror("a", "b")
    stage.found = ["a"]
    stage.look()
    assert not mirror.is_over()
    assert stage.queries[0].asked == []


def test_a_stop_ends_it_whatever_has_been_found(stage: Stage):
    mirror = stage.mirror("a")
    stage.found = ["a", "b"]
    stage.look()
    mirror.stop_after_batch()
    mirror.stop_after_batch()
    assert mirror.is_over()
    assert mirror.failure() is None
    assert len(stage.queries) == 1


def test_without_a_topic_it_waits_for_one(stage: Stage):
    mirror = stage.mirror()
    assert not mirror.is_over()
    assert list(mirror.new_progress()) == []
    stage.found = ["a"]
    stage.look()
    assert not mirror.is_over()
    assert [each.names for each in stage.queries] == [["a"]]


def test_a_mirror_that_shall_end_is_over_after_the_existing_topics(stage: Stage):
    assert stage.mirror(is_endless=False).is_over()
    mirror = stage.mirror("a", is_endless=False)
    assert not mirror.is_over()
    stage.queries[0].asked += ["", ""]
    assert mirror.is_over()
    assert mirror.failure() is None


def test_a_failure_of_the_query_ends_it(stage: Stage):
    mirror = stage.mirror("a")
    stage.found = ["a", "b"]
    stage.look()
    stage.queries[0].broken = "it broke"
    assert mirror.is_over()
    assert mirror.failure() == "it broke"
    assert len(stage.queries) == 1


def test_topics_that_cannot_be_prepared_end_it(stage: Stage):
    mirror = stage.mirror()
    stage.refusal = "a has 2 partitions, and 3 are wanted"
    stage.found = ["a"]
    stage.look()
    assert mirror.is_over()
    assert mirror.failure() == stage.refusal
    assert stage.queries == []


def test_a_cluster_that_does_not_answer_is_asked_again(stage: Stage):
    mirror = stage.mirror("a")
    stage.is_unreachable = True
    stage.found = ["a", "b"]
    stage.look()
    assert not mirror.is_over()
    assert stage.queries[0].asked == []
    stage.is_unreachable = False
    stage.look()
    assert not mirror.is_over()
    assert stage.queries[0].asked == ["after"]
