"""The Java client at work: its own JVM, which talks with the test by lines.

Owns the process. Must not know what its lines mean beyond their letters.
"""

from __future__ import annotations

import contextlib
import subprocess
import threading
from pathlib import Path
from types import TracebackType
from typing import Final

from tests.interop.java.jvm import jvm_command
from tests.interop.replication.clients import DEADLINE_S, PAUSE_S, Work

QUIT_S: Final = 60.0


class JavaWork(Work):
    """Apache Kafka's own client: idempotent and acks=all by default."""

    name = "java"
    is_idempotent = True

    def __init__(
        self,
        bootstrap: str,
        topic: str,
        partition_count: int,
        *,
        rack: str | None = None,
        is_writing: bool = True,
        log_path: Path,
    ) -> None:
        super().__init__(bootstrap, topic, partition_count, rack=rack, is_writing=is_writing)
        self._decided = threading.Event()
        pause_ms = int(PAUSE_S * 1000) if is_writing else 0
        arguments = [bootstrap, topic, str(partition_count), str(pause_ms), rack or ""]
        with log_path.open("wb") as log:
            self._process = subprocess.Popen(
                jvm_command("ReplicationClient", *arguments, heap_mib=128),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                bufsize=1,
            )

    def write(self) -> None:
        """The JVM writes; this only asks it to stop."""
        self.stop_writing.wait()
        self._tell("stop")
        self._decided.wait(DEADLINE_S)

    def consume(self) -> None:
        """Hear everything that the JVM says."""
        assert self._process.stdout is not None
        for line in self._process.stdout:
            letter, _, rest = line.rstrip("\n").partition(" ")
            if letter in ("A", "R"):
                partition, offset, number = map(int, rest.split())
                if letter == "A":
                    self.handed[partition] = max(self.handed[partition], number + 1)
                    self.was_acknowledged(partition, number, offset)
                else:
                    self.was_read(partition, offset, b"%d" % number)
            elif letter == "F":
                self.failures.append(rest)
            else:
                self._decided.set()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._tell("quit")
        try:
            self._process.wait(QUIT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
            self.failures.append("the JVM does not end")
        finally:
            self._decided.set()
            super().__exit__(kind, value, traceback)
            for pipe in (self._process.stdin, self._process.stdout):
                assert pipe is not None
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()

    def _tell(self, command: str) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(command + "\n")
            self._process.stdin.flush()
