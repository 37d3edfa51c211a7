"""Apache Kafka's own tools and, where asked for, its own server.

Owns the one JVM that runs all tools. Must not know what the tools are for.
"""

from __future__ import annotations

import os
import select
import signal
import struct
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import IO

from tests.interop.java.jvm import JARS, JAVA, jvm_command

LENGTH = struct.Struct(">i")

TOOL_DEADLINE_S = 90.0
"""A tool still running then is shown with all its threads, and its JVM is replaced: the next tool
must not wait behind it."""

THREAD_DUMP_S = 30.0
THREAD_DUMP_END = b"JNI global ref"

#: Short names of Kafka's scripts and what they run.
MAIN_CLASSES = {
    "kafka-topics": "org.apache.kafka.tools.TopicCommand",
    "kafka-acls": "org.apache.kafka.tools.AclCommand",
    "kafka-delegation-tokens": "org.apache.kafka.tools.DelegationTokenCommand",
    "kafka-configs": "kafka.admin.ConfigCommand",
    "kafka-console-producer": "org.apache.kafka.tools.ConsoleProducer",
    "kafka-console-consumer": "org.apache.kafka.tools.consumer.ConsoleConsumer",
    "kafka-consumer-groups": "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand",
    "kafka-producer-perf-test": "org.apache.kafka.tools.ProducerPerformance",
    "kafka-get-offsets": "org.apache.kafka.tools.GetOffsetShell",
    "kafka-delete-records": "org.apache.kafka.tools.DeleteRecordsCommand",
    "kafka-log-dirs": "org.apache.kafka.tools.LogDirsCommand",
    "kafka-broker-api-versions": "org.apache.kafka.tools.BrokerApiVersionsCommand",
    "kafka-features": "org.apache.kafka.tools.FeatureCommand",
    "kafka-cluster": "org.apache.kafka.tools.ClusterTool",
    "kafka-storage": "kafka.tools.StorageTool",
    "kafka-dump-log": "org.apache.kafka.tools.DumpLogSegments",
    "kafka-groups": "org.apache.kafka.tools.GroupsCommand",
    "kafka-consumer-perf-test": "org.apache.kafka.tools.ConsumerPerformance",
    "kafka-transactions": "org.apache.kafka.tools.TransactionsCommand",
    "transactional-message-copier": "org.apache.kafka.tools.TransactionalMessageCopier",
}


def missing() -> str:
    """Why the tools cannot run here; empty when they can."""
    if JAVA is None:
        return "java is not installed"
    if not list(JARS.glob("kafka-tools-*.jar")):
        return "Apache Kafka's jars are not in .cache (make setup-all fetches them with Maven)"
    return ""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a tool left behind."""

    status: int
    output: str
    errors: str

    @property
    def lines(self) -> list[str]:
        """Non-empty lines of the output."""
        return [line for line in self.output.splitlines() if line.strip()]


class JavaTools:
    """One JVM that runs any number of tools, one at a time. Use as a context."""

    def __init__(self, errors: IO[bytes], options: Sequence[str] = ()) -> None:
        """`options` are the JVM's own."""
        self._options = options
        self.deadline_s = TOOL_DEADLINE_S
        self._errors = errors
        self._deadline = 0.0
        self._process = self._start()

    def __enter__(self) -> JavaTools:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._stop()

    def run(self, tool: str, *arguments: object, stdin: bytes = b"") -> Outcome:
        """Run a tool to its end, whatever its exit status."""
        strings = [MAIN_CLASSES[tool], *(str(argument) for argument in arguments)]
        message = LENGTH.pack(len(strings))
        for data in [*(string.encode() for string in strings), stdin]:
            message += LENGTH.pack(len(data)) + data
        assert self._process.stdin is not None
        self._process.stdin.write(message)
        self._deadline = time.monotonic() + self.deadline_s
        try:
            return self._answer()
        except BaseException:
            # Whatever it was, this JVM's next answer would be to a question asked before.
            self._stop()
            self._process = self._start()
            raise

    def check(self, tool: str, *arguments: object, stdin: bytes = b"") -> Outcome:
        """Run a tool that must succeed."""
        outcome = self.run(tool, *arguments, stdin=stdin)
        assert outcome.status == 0, f"{tool}: {outcome.output}\n{outcome.errors}"
        return outcome

    def _answer(self) -> Outcome:
        status = LENGTH.unpack(self._read(4))[0]
        output, errors = (self._read(LENGTH.unpack(self._read(4))[0]).decode() for _ in range(2))
        return Outcome(status, output, errors)

    def _read(self, size_bytes: int) -> bytes:
        data = b""
        while len(data) < size_bytes:
            piece = self._read_some(size_bytes - len(data), self._deadline)
            assert piece is not None, f"a tool does not end; its threads:\n{self._thread_dump()}"
            assert piece, "the JVM ended"
            data += piece
        return data

    def _read_some(self, limit_bytes: int, deadline: float) -> bytes | None:
        """What the JVM writes next; empty at its end, None when there is nothing in time."""
        assert self._process.stdout is not None
        descriptor = self._process.stdout.fileno()
        left = max(0.0, deadline - time.monotonic())
        if not select.select([descriptor], [], [], left)[0]:
            return None
        return os.read(descriptor, min(limit_bytes, 1 << 16))

    def _thread_dump(self) -> str:
        """What a JVM writes to its standard output when asked with SIGQUIT."""
        self._process.send_signal(signal.SIGQUIT)
        dump = b""
        deadline = time.monotonic() + THREAD_DUMP_S
        while THREAD_DUMP_END not in dump and (piece := self._read_some(1 << 16, deadline)):
            dump += piece
        return dump.decode(errors="replace")

    def _start(self) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            jvm_command("ToolServer", heap_mib=256, options=self._options),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            bufsize=0,
        )

    def _stop(self) -> None:
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            pipe.close()
