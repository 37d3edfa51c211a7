"""`format("moldau-faulty")`: the sink as it ships, and one fault at one place of it.

The fault comes as an option of the write, which reaches every process that a write goes through.
This is the only seam: production code knows nothing of it. What is wrapped is `StepCarrier`, whose
steps are the protocol's own words, and the writer's `write` and `commit`.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pyspark.sql.datasource import DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from moldau.client import sync
from moldau.spark_connector.core import commit_protocol as steps
from moldau.spark_connector.core.commit_protocol import Producer, Step
from moldau.spark_connector.core.ledger import BatchState
from moldau.spark_connector.data_source import MoldauDataSource
from moldau.spark_connector.sink.driver import StepCarrier
from moldau.spark_connector.sink.writers import (
    MoldauStreamWriter,
    SinkMessage,
    make_stream_writer,
)
from tests.kit.waiting import until

FORMAT = "moldau-faulty"
PAUSE_LIMIT_S = 600


@dataclass(frozen=True)
class Fault:
    """What happens, where, once.

    Attributes:
        point: one of "in write", "written" (both in a task), "before decision", "after decision",
            "between ends", "after ends", "after done", "after commit".
        action: "kill driver", "kill executor" (the JVM above this worker), "raise", "pause" (until
            `mark` with `.go` exists), "time out" (abort the tasks' transactions as the coordinator
            does when their time is over).
        batch_id: in which batch; -1 for any.
        mark: a file that says that it has happened.
        task: for the points in tasks: in which of them.
    """

    point: str
    action: str
    batch_id: int
    mark: str
    task: int = 0

    def option(self) -> str:
        """As the value of the option `fault`."""
        return json.dumps(asdict(self))


class Injected(Exception):
    """A fault of the kind "raise"."""


class FaultySource(MoldauDataSource):
    """The data source with a fault in its streaming sink."""

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:
        options = {name: value for name, value in self.options.items() if name != "fault"}
        made = make_stream_writer(options, schema, overwrite)
        given = self.options.get("fault")
        fault = None if given is None else Fault(**json.loads(given))
        return FaultyWriter(made, fault)


class FaultyWriter(MoldauStreamWriter):
    """The sink's writer with a fault in it."""

    def __init__(self, made: MoldauStreamWriter, fault: Fault | None) -> None:
        super().__init__(made.options, made.columns, made.sink_id)
        self.fault = fault

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        batch_id = int(context.getLocalProperty("streaming.sql.batchId") or -1)
        fault = self.fault
        if fault is None or context.partitionId() != fault.task or context.attemptNumber():
            return super().write(iterator)
        happening = Happening(fault, batch_id, self)

        def watched() -> Iterator[Any]:
            for batch in iterator:
                yield batch
                happening.at("in write")

        message = super().write(watched())
        assert isinstance(message, SinkMessage)
        happening.slots = [message.report.slot] if message.report and message.report.slot else []
        happening.at("written")
        return message

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        if self.fault is None:
            super().commit(messages, batchId)
            return
        happening = Happening(self.fault, batchId, self)
        real_step, real_commit = StepCarrier.carry_out, StepCarrier._is_committed

        def carry_out(carrier: StepCarrier, step: Step) -> Any:
            if isinstance(step, steps.CheckOpen):
                happening.slots = list(step.slots)
            is_write = isinstance(step, steps.WriteLedger) and step.record.batch is not None
            is_decision = is_write and step.record.batch.state is BatchState.DECIDED
            if is_decision:
                happening.at("before decision")
            answer = real_step(carrier, step)
            if is_write:
                happening.at("after decision" if is_decision else "after done")
            if isinstance(step, steps.CommitSlots):
                happening.at("after ends")
            return answer

        def is_committed(carrier: StepCarrier, producer: Producer) -> bool:
            done = real_commit(carrier, producer)
            happening.at("between ends")
            return done

        StepCarrier.carry_out, StepCarrier._is_committed = carry_out, is_committed
        try:
            super().commit(messages, batchId)
        finally:
            StepCarrier.carry_out, StepCarrier._is_committed = real_step, real_commit
        happening.at("after commit")


class Happening:
    """A fault in this process."""

    def __init__(self, fault: Fault, batch_id: int, writer: MoldauStreamWriter) -> None:
        self.fault = fault
        self.batch_id = batch_id
        self.writer = writer
        self.slots: list[Any] = []

    def at(self, point: str) -> None:
        """Let it happen if this is the place and it has not happened yet."""
        fault = self.fault
        if point != fault.point or fault.batch_id not in (-1, self.batch_id):
            return
        try:
            os.close(os.open(fault.mark, os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return
        if fault.action in ("kill driver", "kill executor"):
            os.kill(_jvm_id(), signal.SIGKILL)
            # This process ends with the JVM; until then it must not go on.
            until(lambda: False, what="the end of this process", deadline_s=PAUSE_LIMIT_S)
        elif fault.action == "raise":
            raise Injected(f"fault injected {point} of batch {self.batch_id}")
        elif fault.action == "pause":
            resumed = Path(fault.mark + ".go")
            until(resumed.exists, what="being resumed", deadline_s=PAUSE_LIMIT_S)
        elif fault.action == "time out":
            self._time_out()
        else:
            raise AssertionError(fault.action)

    def _time_out(self) -> None:
        """Abort and fence, as a coordinator does at the end of a transaction's time."""
        with sync.Admin(config=self.writer.options.admin_config()) as admin:
            names = [slot.transactional_id for slot in self.slots][:1]
            assert names, "no transaction to time out"
            fenced = admin.fence_producers(names)
            assert not any(isinstance(each, Exception) for each in fenced.values()), fenced


def _jvm_id() -> int:
    """The nearest Java process above this one."""
    process_id = os.getpid()
    while process_id > 1:
        if Path(f"/proc/{process_id}/exe").resolve().name == "java":
            return process_id
        status = Path(f"/proc/{process_id}/stat").read_text()
        process_id = int(status.rpartition(")")[2].split()[1])
    raise AssertionError("no JVM above this process")
