"""Apache Kafka's own tools and, where asked for, its own server.

Owns the one JVM that runs all tools. Must not know what the tools are for.
"""

from __future__ import annotations

import shutil
import struct
import subprocess
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO

HERE = Path(__file__).parent
JARS = HERE.parents[2] / ".cache" / "kafka-4.3.0"
JAVA = shutil.which("java")
CLASS_PATH = f"{JARS}/*"
LENGTH = struct.Struct(">i")

#: Short names of Kafka's scripts and what they run.
MAIN_CLASSES = {
    "kafka-topics": "org.apache.kafka.tools.TopicCommand",
    "kafka-configs": "kafka.admin.ConfigCommand",
    "kafka-console-producer": "org.apache.kafka.tools.ConsoleProducer",
    "kafka-console-consumer": "org.apache.kafka.tools.consumer.ConsoleConsumer",
    "kafka-producer-perf-test": "org.apache.kafka.tools.ProducerPerformance",
    "kafka-get-offsets": "org.apache.kafka.tools.GetOffsetShell",
    "kafka-delete-records": "org.apache.kafka.tools.DeleteRecordsCommand",
    "kafka-log-dirs": "org.apache.kafka.tools.LogDirsCommand",
    "kafka-broker-api-versions": "org.apache.kafka.tools.BrokerApiVersionsCommand",
    "kafka-features": "org.apache.kafka.tools.FeatureCommand",
    "kafka-cluster": "org.apache.kafka.tools.ClusterTool",
    "kafka-storage": "kafka.tools.StorageTool",
    "kafka-dump-log": "org.apache.kafka.tools.DumpLogSegments",
}


def missing() -> str:
    """Why the tools cannot run here; empty when they can."""
    if JAVA is None:
        return "java is not installed"
    if not list(JARS.glob("kafka-tools-*.jar")):
        return "Apache Kafka's jars are not in .cache (make setup fetches them with Maven)"
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

    def __init__(self, errors: IO[bytes]) -> None:
        assert JAVA is not None
        self._process = subprocess.Popen(
            [
                JAVA,
                "-Xshare:auto",
                "-XX:TieredStopAtLevel=1",
                "-Xmx256m",
                "-cp",
                CLASS_PATH,
                str(HERE / "ToolServer.java"),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
        )

    def __enter__(self) -> JavaTools:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            pipe.close()

    def run(self, tool: str, *arguments: object, stdin: bytes = b"") -> Outcome:
        """Run a tool to its end, whatever its exit status."""
        strings = [MAIN_CLASSES[tool], *(str(argument) for argument in arguments)]
        message = LENGTH.pack(len(strings))
        for data in [*(string.encode() for string in strings), stdin]:
            message += LENGTH.pack(len(data)) + data
        assert self._process.stdin is not None
        self._process.stdin.write(message)
        self._process.stdin.flush()
        status = LENGTH.unpack(self._read(4))[0]
        output, errors = (self._read(LENGTH.unpack(self._read(4))[0]).decode() for _ in range(2))
        return Outcome(status, output, errors)

    def check(self, tool: str, *arguments: object, stdin: bytes = b"") -> Outcome:
        """Run a tool that must succeed."""
        outcome = self.run(tool, *arguments, stdin=stdin)
        assert outcome.status == 0, f"{tool}: {outcome.output}\n{outcome.errors}"
        return outcome

    def _read(self, size_bytes: int) -> bytes:
        assert self._process.stdout is not None
        data = self._process.stdout.read(size_bytes)
        assert len(data) == size_bytes, "the JVM ended"
        return data
