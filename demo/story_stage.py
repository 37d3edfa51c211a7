"""The cluster and the Spark driver of the story, and who is killed.

Owns the processes, and the measuring of how long it takes until work goes on. Must not know what
the work is. Invariants: at most one of them is down at a time; leaving the context ends everything.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Final, NamedTuple, Self

import orjson

from moldau.client import KafkaError
from moldau.client.sync import Admin
from moldau.testing import Cluster, wait_until

FILE: Final = Path(__file__).parent / "story.yaml"
RECOVERY_S: Final = 150.0
SYNC_S: Final = 90.0
STOP_S: Final = 60.0
ANSWER_MS: Final = 5_000
SILENCE_S: Final = 5.0
"""A driver that ends by itself is started again after so long, as an init system would."""


class Batch(NamedTuple):
    """One batch that the driver has reported: when (monotonic), whose, and how many rows."""

    begun: float
    done: float
    pipeline: str
    batch_id: int
    row_count: int
    end_offsets: dict[str, dict[str, int]]


class Driver:
    """`moldau pipeline run` in its own process, started again whenever it has ended."""

    def __init__(self, bootstrap: str, state: Path, say: Callable[[str], None]) -> None:
        self.batches: list[Batch] = []
        self.ended_count = 0
        self._environment = {**os.environ, "BOOTSTRAP": bootstrap, "STATE": str(state)}
        self._say = say
        self.log_path = state / "driver.log"
        self._log = self.log_path.open("ab")
        self._is_over = threading.Event()
        self._changed = threading.Lock()
        self._is_killed = False
        self.status: int | None = None
        self._process = self._spawn()
        self._thread = threading.Thread(target=self._watch, name="driver")
        self._thread.start()

    def kill(self) -> None:
        """`kill -9` to the driver and its Java machine; its Python workers notice by themselves."""
        with self._changed:
            self._is_killed = True
            os.killpg(self._process.pid, signal.SIGKILL)

    def stop(self) -> None:
        """SIGTERM: it ends after its batch. Its end is waited for; a second call does nothing."""
        with self._changed:
            if self._is_over.is_set():
                return
            self._is_over.set()
            with contextlib.suppress(ProcessLookupError):
                self._process.terminate()
        try:
            self._process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self._say(f"the driver did not end within {STOP_S:.0f} s")
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
        self._thread.join()
        self._log.close()

    def log_end(self) -> str:
        """The last lines of what it has written to stderr."""
        return "\n".join(self.log_path.read_text(errors="replace").splitlines()[-15:])

    def _spawn(self) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "moldau.cli.main", "pipeline", "run", str(FILE)]
        return subprocess.Popen(
            [*command, "--json", "--master", "local[2]"],
            env=self._environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=self._log,
            start_new_session=True,
        )

    def _watch(self) -> None:
        while True:
            process = self._process
            assert process.stdout is not None, "a pipe"
            with process.stdout:
                for line in process.stdout:
                    self._take(line)
            self.status = process.wait()
            with self._changed:
                if self._is_over.is_set():
                    return
                was_killed, self._is_killed = self._is_killed, False
            if not was_killed:
                self.ended_count += 1
                self._say(f"the driver has ended with status {self.status}:\n{self.log_end()}")
                if self._is_over.wait(SILENCE_S):
                    return
            with self._changed:
                if self._is_over.is_set():
                    return
                self._process = self._spawn()

    def _take(self, line: bytes) -> None:
        try:
            told: Any = orjson.loads(line)
        except orjson.JSONDecodeError:
            return  # not a whole line: it was killed while it wrote
        now = time.monotonic()
        self.batches.append(
            Batch(
                now - told["duration_ms"] / 1_000,
                now,
                told["pipeline"],
                told["batch_id"],
                told["row_count"],
                told["end_offsets"],
            )
        )


class Recovery(NamedTuple):
    """What was killed, what is back, and after how long."""

    killed: str
    back: str
    seconds: float


class Stage:
    """Use as a context around the story."""

    def __init__(self, cluster: Cluster, state: Path, say: Callable[[str], None]) -> None:
        self.recoveries: list[Recovery] = []
        self._cluster = cluster
        self._say = say
        self._admin = Admin(cluster.bootstrap_server, default_api_timeout_ms=ANSWER_MS)
        self.driver = Driver(cluster.bootstrap_server, state, say)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.driver.stop()
        self._admin.close()

    def kill_broker(
        self, topic: str, commits: list[tuple[float, float]], killed_now: Callable[[], None]
    ) -> None:
        """Kill the broker that leads the topic's first partition; it starts again afterwards."""
        self._wait_in_sync()
        broker_id = self._admin.describe_topics([topic])[topic].partitions[0].leader
        self._say(f"kill -9 broker {broker_id}, which leads {topic}-0")
        killed = time.monotonic()
        self._cluster.kill(broker_id)
        killed_now()
        self._note(f"broker {broker_id}", "the next transaction", killed, lambda: commits)
        self._note(f"broker {broker_id}", "Spark's next batch", killed, self._delay_batches)
        self._cluster.restart(broker_id)
        self._wait_in_sync()
        self._note_now(f"broker {broker_id}", "all replicas in sync (restarted)", killed)

    def kill_controller(
        self, commits: list[tuple[float, float]], killed_now: Callable[[], None]
    ) -> None:
        """Kill the active controller; it starts again afterwards."""
        controller_id = self._cluster.active_controller_id()
        self._say(f"kill -9 controller {controller_id}, which is active")
        killed = time.monotonic()
        self._cluster.kill(controller_id)
        killed_now()
        name = f"controller {controller_id}"
        wait_until(
            lambda: self._active_controller() not in (None, controller_id),
            what="another active controller",
            deadline_s=RECOVERY_S,
        )
        self._note_now(name, f"controller {self._active_controller()} is active", killed)
        self._note(name, "the next transaction", killed, lambda: commits)
        self._cluster.restart(controller_id)

    def kill_driver(self, killed_now: Callable[[], None]) -> None:
        """Kill the Spark driver, in the middle of whatever it does; it starts again at once."""
        self._say("kill -9 the Spark driver")
        killed = time.monotonic()
        self.driver.kill()
        killed_now()
        self._note("Spark driver", "its next batch is committed", killed, self._delay_batches)

    # -- how -------------------------------------------------------------------------------------

    def _delay_batches(self) -> list[tuple[float, float]]:
        return [
            (each.begun, each.done)
            for each in list(self.driver.batches)
            if each.pipeline == "delays" and each.row_count
        ]

    def _note(
        self,
        killed: str,
        back: str,
        since: float,
        done: Callable[[], list[tuple[float, float]]],
    ) -> None:
        """Wait for the first work that has begun after the kill, to its end."""
        wait_until(
            lambda: any(begun > since for begun, _ in list(done())),
            what=f"{back} after {killed} was killed",
            deadline_s=RECOVERY_S,
        )
        seconds = min(end for begun, end in list(done()) if begun > since) - since
        self._add(Recovery(killed, back, seconds))

    def _note_now(self, killed: str, back: str, since: float) -> None:
        self._add(Recovery(killed, back, time.monotonic() - since))

    def _add(self, recovery: Recovery) -> None:
        self.recoveries.append(recovery)
        self._say(f"  {recovery.back}: after {recovery.seconds:.1f} s")

    def _active_controller(self) -> int | None:
        try:
            return self._cluster.active_controller_id()
        except KafkaError:
            return None

    def _wait_in_sync(self) -> None:
        wait_until(self._is_in_sync, what="all replicas in sync", deadline_s=SYNC_S)

    def _is_in_sync(self) -> bool:
        try:
            described = self._admin.describe_topics(self._admin.list_topics())
        except KafkaError:
            return False
        return all(
            partition.leader >= 0 and len(partition.isr) == len(partition.replicas)
            for topic in described.values()
            for partition in topic.partitions
        )
