"""Runs the pipelines of a file together, until they are done, fail, or are asked to stop.

Owns the loop, the signals and the order of ending. Must not know what a pipeline does. Invariants:
SIGTERM or SIGINT ends every pipeline after the batch it is at; a second one ends them at once; when
one pipeline fails the others end after their batch, and the failure is raised when all have ended.
"""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FrameType
from typing import TYPE_CHECKING, Final

from moldau.spark_connector.errors import PipelineFailed
from moldau.spark_connector.pipelines.model import Pipeline, PipelineFile
from moldau.spark_connector.pipelines.running import ProgressObserver, Running, failure_line

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LOOK_S: Final = 0.25
"""How often progress and signals are looked at."""


@dataclass(slots=True)
class RunOptions:
    """How to run, beside what the file says.

    `settings` are Spark's keys that win over the file's; `master` says where to run; `observer`
    gets each batch; `say` gets a line about what happens otherwise.
    """

    master: str | None = None
    settings: Mapping[str, str] = field(default_factory=dict)
    observer: ProgressObserver | None = None
    say: Callable[[str], None] | None = None


class StopRequest:
    """A request to stop; a signal's handler only notes it."""

    def __init__(self) -> None:
        self.count = 0
        self._happened = threading.Event()

    def handle(self, _number: int = 0, _frame: FrameType | None = None) -> None:
        """Ask to stop; the second time at once."""
        self.count += 1
        self._happened.set()

    def wait(self, seconds: float) -> None:
        """Return after so long, or as soon as a stop is requested."""
        if self._happened.wait(seconds):
            self._happened.clear()


@contextmanager
def signals_handled(request: StopRequest) -> Iterator[None]:
    """Signals ask to stop while the block runs. Outside of the main thread nothing is changed."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    with contextlib.ExitStack() as undo:
        for number in (signal.SIGTERM, signal.SIGINT):
            undo.callback(signal.signal, number, signal.signal(number, request.handle))
        yield


def run_pipelines(
    file: PipelineFile, options: RunOptions | None = None, stop: StopRequest | None = None
) -> None:
    """Run all pipelines of a file in one Spark application, and return when they have ended.

    Args:
        stop: lets another thread ask to stop; signals do so in any case.

    Raises:
        PipelineFailed: a pipeline could not start, or has ended by an error.
        JavaNotFound: Spark cannot run here.
    """
    from moldau.spark_connector.pipelines.embedded_spark import has_session, spark_session
    from moldau.spark_connector.pipelines.topics import prepare_topics

    options = options or RunOptions()
    request = stop or StopRequest()
    for pipeline in file.pipelines:
        prepare_topics(pipeline)
    name = "moldau " + " ".join(each.name for each in file.pipelines)
    is_ours = not has_session()
    with signals_handled(request):
        spark = spark_session(name, {**file.spark, **options.settings}, master=options.master)
    # PySpark sets its own handler for SIGINT while it starts; it would raise in here.
    try:
        with signals_handled(request):
            _run(spark, file.pipelines, options, request)
    finally:
        if is_ours:
            with contextlib.suppress(OSError):  # when Spark has ended there is nothing to stop
                spark.stop()


def _run(
    spark: SparkSession, pipelines: Sequence[Pipeline], options: RunOptions, request: StopRequest
) -> None:
    from py4j.protocol import Py4JError, Py4JNetworkError

    from moldau.spark_connector.pipelines.jobs import start_job

    running: list[Running] = []
    failures: list[str] = []
    try:
        for pipeline in pipelines:
            if request.count:
                break
            running.append(start_job(spark, pipeline))
        _follow(running, options, request, failures)
    except Py4JNetworkError as error:
        raise PipelineFailed(f"Spark's Java machine has ended: {error}") from error
    except Py4JError as error:
        raise PipelineFailed(failure_line(str(error))) from error
    finally:
        with contextlib.suppress(Py4JError, OSError):
            for each in running:
                if not each.is_over():
                    each.stop_now()
    if failures:
        raise PipelineFailed("; ".join(failures))


def _follow(
    running: Sequence[Running], options: RunOptions, request: StopRequest, failures: list[str]
) -> None:
    say = options.say or (lambda _text: None)
    waiting = list(running)
    is_told = False
    while waiting:
        for each in list(waiting):
            is_over = each.is_over()  # asked first: its last batches are reported below
            for progress in each.new_progress():
                if options.observer is not None:
                    options.observer(progress)
            if not is_over:
                continue
            waiting.remove(each)
            failure = each.failure()
            if failure is not None and request.count < 2:
                failures.append(f"{each.name}: {failure}")
        if not waiting:
            return
        if request.count > 1:
            say("stopping at once")
            for each in waiting:
                each.stop_now()
        elif request.count or failures:
            if not is_told:
                why = "" if request.count else " (another pipeline has failed)"
                say(f"stopping after the batch at work{why}")
                is_told = True
            for each in waiting:
                each.stop_after_batch()
        request.wait(LOOK_S)
