"""`format("moldau-observed")`: the source as it ships; what it warns of goes into a file as well.

Owns the lines of that file, both ways. Nothing of what the source does is replaced, but by an
injected bug. Must not judge. Invariant: a line is written at once, and as a whole; all processes of
all drivers append to one file.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from moldau.spark_connector import failures
from moldau.spark_connector.data_source import MoldauDataSource
from moldau.spark_connector.source.options import SourceOptions
from moldau.spark_connector.source.readers import StreamReader
from tests.system.topics.account import LossReport
from tests.system.topics.bugs import BUG_VARIABLE, BUGS

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.streaming.datasource import ReadLimit
    from pyspark.sql.types import StructType

FORMAT: Final = "moldau-observed"
FILE_VARIABLE: Final = "MOLDAU_SOAK_SPARK_WARNINGS"
LOSSES: Final = "going on without records that are lost"
LOST: Final = re.compile(r"([\w.]+)-(\d+): offset (\d+) was to be read[,;] ([^;]*)")
PLANNER: Final = "planner"
TASK: Final = "task"

_is_observed = False


class ObservedSource(MoldauDataSource):
    """The data source, observed."""

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        assert type(super().streamReader(schema)) is StreamReader
        return ObservedReader(SourceOptions.parse(self.options))


class ObservedReader(StreamReader):
    """The streaming reader, on the driver and in workers; each call may be a process's first."""

    def initialOffset(self) -> dict[str, Any]:
        observe()
        return super().initialOffset()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        observe()
        return super().latestOffset(start, limit)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        observe()
        return super().partitions(start, end)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        observe()
        return super().read(partition)


def observe() -> None:
    """Write what this process warns of into the file, from now on."""
    global _is_observed
    if _is_observed:
        return
    _is_observed = True
    failures.MAX_SHOWN = 1_000  # type: ignore[misc]  # each is to be seen
    if bug := os.environ.get(BUG_VARIABLE):
        BUGS[bug].inject_for_good()
    logging.getLogger("moldau").addHandler(Appender(Path(os.environ[FILE_VARIABLE])))


class Appender(logging.Handler):
    """Warnings as lines: who warns, and the text."""

    def __init__(self, path: Path) -> None:
        super().__init__(logging.WARNING)
        self._descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def emit(self, record: logging.LogRecord) -> None:
        """A warning."""
        context = TaskContext.get()
        if context is None:
            who = f"{PLANNER} {os.getpid()}"
        else:
            # The same batch is run again by another driver, whose attempts have other numbers.
            who = f"{TASK} {os.getppid()} {context.taskAttemptId()}"
        text = " ".join(record.getMessage().split())
        os.write(self._descriptor, f"{who}\t{text}\n".encode())


def losses_of(who: str, text: str) -> Iterator[tuple[LossReport, str]]:
    """The losses in a warning, and what each is of; none in any other warning."""
    if text.startswith(LOSSES):
        for topic, partition, offset, reason in LOST.findall(text):
            yield LossReport(topic, int(partition), int(offset), member=who), reason
