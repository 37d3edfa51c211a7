"""A whole Apache Kafka cluster on the directories, and with the very configuration files, of ours.

Owns the JVMs, and the nodes' ports, which no other process gets while a JVM is not there yet or is
down. Must not format or change anything. Invariant: leaving the context ends them all.
"""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Collection
from pathlib import Path
from typing import Any, Final, Self

from confluent_kafka.admin import AdminClient

from moldau.config import read_properties_file
from moldau.local.layout import PROPERTIES, PortHolder
from tests.interop.java.jvm import jvm_command
from tests.kit.waiting import until

START_DEADLINE_S: Final = 240.0
STOP_DEADLINE_S: Final = 120.0
ASK_S: Final = 10.0


class KafkaNodes:
    """Use as a context; ready when all brokers have joined.

    Args:
        home: of the cluster: `broker-1` … and `controller-101` with their `server.properties`.
        names: which of these nodes are Kafka's; all when None.
        broker_count: how many brokers there are to wait for, Kafka's and ours.
    """

    def __init__(
        self,
        home: Path,
        bootstrap: str,
        names: Collection[str] | None = None,
        *,
        broker_count: int = 3,
    ) -> None:
        self.bootstrap = bootstrap
        homes = sorted([*home.glob("controller-*"), *home.glob("broker-*")])
        self._homes = [each for each in homes if names is None or each.name in names]
        self._wanted_count = broker_count
        self._processes: dict[int, subprocess.Popen[bytes]] = {}
        self._ports = PortHolder("127.0.0.1")

    def __enter__(self) -> Self:
        try:
            for home in self._homes:
                listeners = read_properties_file(str(home / PROPERTIES))["listeners"]
                for listener in listeners.split(","):
                    self._ports.hold(int(listener.rpartition(":")[2]))
            # The controllers first, so that no broker waits for them in vain for long.
            for home in sorted(self._homes, reverse=True):
                self._start(home)
            self._admin = AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 0})
            until(
                lambda: self._broker_count() == self._wanted_count,
                what="all Kafka brokers",
                deadline_s=START_DEADLINE_S,
            )
        except BaseException:
            self._kill()
            raise
        return self

    def __exit__(self, *exception: Any) -> None:
        self._kill()

    def stop(self) -> None:
        """Brokers in order, one after the other, then the controllers."""
        for node_id in sorted(self._processes):
            process = self._processes[node_id]
            process.send_signal(signal.SIGTERM)
            process.wait(STOP_DEADLINE_S)

    def restart(self, broker_id: int) -> None:
        """A controlled shutdown and a new start; the caller knows which brokers to wait for."""
        process = self._processes.pop(broker_id)
        process.send_signal(signal.SIGTERM)
        process.wait(STOP_DEADLINE_S)
        self.start(broker_id)

    def start(self, broker_id: int) -> None:
        """Start one that is down, and do not wait for it."""
        [home] = [home for home in self._homes if home.name == f"broker-{broker_id}"]
        self._start(home)

    def kill(self, broker_id: int) -> None:
        """`kill -9` one."""
        process = self._processes.pop(broker_id)
        process.kill()
        process.wait()

    def pause(self, broker_id: int) -> None:
        """SIGSTOP one: it keeps its connections and answers nothing."""
        self._processes[broker_id].send_signal(signal.SIGSTOP)

    def resume(self, broker_id: int) -> None:
        """Let a paused one go on."""
        self._processes[broker_id].send_signal(signal.SIGCONT)

    def _start(self, home: Path) -> None:
        node_id = int(home.name.rpartition("-")[2])
        with (home / "kafka.log").open("ab") as log:
            self._processes[node_id] = subprocess.Popen(
                jvm_command("kafka.Kafka", str(home / "server.properties"), heap_mib=256),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    def _broker_count(self) -> int:
        for node_id, process in self._processes.items():
            if process.poll() is not None:
                [home] = [each for each in self._homes if each.name.endswith(f"-{node_id}")]
                raise RuntimeError(f"{home.name} ended: {(home / 'kafka.log').read_text()[-3000:]}")
        try:
            return len(self._admin.list_topics(timeout=ASK_S).brokers)
        except Exception:  # noqa: BLE001 - whatever it is, they are not there yet
            return 0

    def _kill(self) -> None:
        for process in self._processes.values():
            process.kill()
            process.wait()
        self._ports.close()
