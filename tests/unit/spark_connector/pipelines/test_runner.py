"""How pipelines end together: done, failed, asked to stop, stopped at once."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Sequence

import pytest

from moldau.spark_connector.errors import PipelineFailed
from moldau.spark_connector.pipelines import jobs, runner
from moldau.spark_connector.pipelines.model import (
    ParquetSink,
    Pipeline,
    TopicSource,
)
from moldau.spark_connector.pipelines.runner import RunOptions, StopRequest, signals_handled
from moldau.spark_connector.pipelines.running import BatchProgress

pytestmark = pytest.mark.usefixtures("quick")


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "LOOK_S", 0.001)


class FakeRun:
    """A pipeline of so many looks; endless ones end when they are asked to."""

    def __init__(self, name: str, looks: int | None = None, failure: str | None = None) -> None:
        self.name = name
        self.asked: list[str] = []
        self._looks = looks
        self._failure = failure
        self._told = False
        self.on_look: Callable[[], None] = lambda: None

    def is_over(self) -> bool:
        self.on_look()
        if self._looks is None:
            return bool(self.asked) and not (self.asked[-1] == "after" and self.stays)
        self._looks -= 1
        return self._looks < 0

    stays = False

    def new_progress(self) -> Sequence[BatchProgress]:
        if self._told:
            return ()
        self._told = True
        return (BatchProgress(self.name, 0, 1, 1, 1.0, None, {}),)

    def stop_after_batch(self) -> None:
        self.asked.append("after")

    def stop_now(self) -> None:
        self.asked.append("now")

    def failure(self) -> str | None:
        return self._failure


def run(
    monkeypatch: pytest.MonkeyPatch, fakes: list[FakeRun], request: StopRequest | None = None
) -> list[str]:
    """Run them; what was said and seen."""
    seen: list[str] = []
    by_name = {each.name: each for each in fakes}
    monkeypatch.setattr(jobs, "start_job", lambda _spark, pipeline: by_name[pipeline.name])
    source = TopicSource({"kafka.bootstrap.servers": "x:1", "subscribe": "in"})
    pipelines = [
        Pipeline(each.name, "archive", source, ParquetSink("/x"), "/c", None) for each in fakes
    ]
    options = RunOptions(observer=lambda batch: seen.append(batch.pipeline), say=seen.append)
    runner._run(None, pipelines, options, request or StopRequest())  # type: ignore[arg-type]
    return seen


def test_all_run_until_they_are_done(monkeypatch: pytest.MonkeyPatch):
    assert run(monkeypatch, [FakeRun("a", 3), FakeRun("b", 0)]) == ["a", "b"]


def test_a_failure_ends_the_others_after_their_batch(monkeypatch: pytest.MonkeyPatch):
    endless = FakeRun("b")
    with pytest.raises(PipelineFailed, match=r"^a: it broke$"):
        run(monkeypatch, [FakeRun("a", 2, "it broke"), endless])
    assert set(endless.asked) == {"after"}


def test_a_stop_ends_all_after_their_batch(monkeypatch: pytest.MonkeyPatch):
    request = StopRequest()
    request.handle()
    waiting = [FakeRun("a"), FakeRun("b")]
    request.count = 0
    waiting[0].on_look = lambda: setattr(request, "count", max(request.count, 1))
    seen = run(monkeypatch, waiting, request)
    assert seen.count("stopping after the batch at work") == 1
    assert [set(each.asked) for each in waiting] == [{"after"}, {"after"}]


def test_a_second_stop_ends_them_at_once(monkeypatch: pytest.MonkeyPatch):
    request = StopRequest()
    stubborn = FakeRun("a", failure="interrupted")
    stubborn.stays = True

    def press() -> None:
        if request.count < 1 or "after" in stubborn.asked:
            request.handle()

    stubborn.on_look = press
    run(monkeypatch, [stubborn], request)
    assert stubborn.asked[-1] == "now"


def test_a_stop_before_the_start_starts_nothing(monkeypatch: pytest.MonkeyPatch):
    request = StopRequest()
    request.handle()
    assert run(monkeypatch, [FakeRun("a")], request) == []


def test_what_runs_is_ended_when_another_cannot_start(monkeypatch: pytest.MonkeyPatch):
    started = FakeRun("a")
    monkeypatch.setattr(jobs, "start_job", _second_refused(started))
    source = TopicSource({"kafka.bootstrap.servers": "x:1", "subscribe": "in"})
    pipelines = [Pipeline(name, "archive", source, ParquetSink("/x"), "/c", None) for name in "ab"]
    with pytest.raises(PipelineFailed, match="b cannot"):
        runner._run(None, pipelines, RunOptions(), StopRequest())  # type: ignore[arg-type]
    assert started.asked == ["now"]


def _second_refused(first: FakeRun) -> Callable[[object, Pipeline], FakeRun]:
    def start(_spark: object, pipeline: Pipeline) -> FakeRun:
        if pipeline.name == "b":
            raise PipelineFailed("b cannot")
        return first

    return start


def test_signals_ask_and_are_given_back():
    request = StopRequest()
    before = signal.getsignal(signal.SIGTERM)
    with signals_handled(request):
        os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGINT)
    assert request.count == 2
    assert signal.getsignal(signal.SIGTERM) is before
