"""Apache Kafka itself, one combined node, to write directories for our tools to read."""

from __future__ import annotations

import signal
import socket
import subprocess
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType

from tests.interop.java.jvm import jvm_command
from tests.interop.java.tools import JavaTools
from tests.kit.ports import free_port
from tests.kit.waiting import until

START_DEADLINE_S = 60.0
STOP_DEADLINE_S = 30.0
SMALL = {
    "offsets.topic.replication.factor": "1",
    "offsets.topic.num.partitions": "3",
    "group.initial.rebalance.delay.ms": "0",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "transaction.state.log.num.partitions": "1",
    "log.index.size.max.bytes": "65536",
}
"""Configuration of a lone node that needs little memory."""


class KafkaServer:
    """A running Kafka 4.3 node. Use as a context.

    Args:
        java: formats the data directory, unless that exists already.
        home: where its configuration and its log go.
        data_directory: `home/data` when None.
        config: what the node needs besides its identity.
        system_properties: of its JVM.
    """

    def __init__(
        self,
        java: JavaTools,
        home: Path,
        data_directory: Path | None = None,
        config: Mapping[str, str] = SMALL,
        system_properties: Mapping[str, str] | None = None,
    ) -> None:
        home.mkdir(exist_ok=True)
        self._options = [f"-D{key}={value}" for key, value in (system_properties or {}).items()]
        self.data_directory = data_directory or home / "data"
        self._port = free_port()
        self._log_path = home / "kafka.log"
        self._config_path = home / "server.properties"
        controller_port = free_port()
        self._config_path.write_text(
            "process.roles=broker,controller\n"
            "node.id=1\n"
            f"listeners=PLAINTEXT://127.0.0.1:{self._port},CONTROLLER://127.0.0.1:{controller_port}\n"
            "controller.listener.names=CONTROLLER\n"
            f"controller.quorum.bootstrap.servers=127.0.0.1:{controller_port}\n"
            f"log.dirs={self.data_directory}\n"
            + "".join(f"{key}={value}\n" for key, value in config.items())
        )
        self._process: subprocess.Popen[bytes] | None = None
        if not self.data_directory.exists():
            self._format(java)

    @property
    def bootstrap_server(self) -> str:
        """`host:port`."""
        return f"127.0.0.1:{self._port}"

    def __enter__(self) -> KafkaServer:
        with self._log_path.open("wb") as log:
            self._process = subprocess.Popen(
                jvm_command(
                    "kafka.Kafka", str(self._config_path), heap_mib=384, options=self._options
                ),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        try:
            until(self._listens, what="Apache Kafka listens", deadline_s=START_DEADLINE_S)
        except BaseException:
            self._process.kill()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def stop(self) -> None:
        """An orderly shutdown."""
        assert self._process is not None
        self._process.send_signal(signal.SIGTERM)
        self._process.wait(STOP_DEADLINE_S)

    def _format(self, java: JavaTools) -> None:
        cluster_id = java.check("kafka-storage", "random-uuid").output.strip()
        java.check(
            "kafka-storage", "format", "--standalone", "-t", cluster_id, "-c", self._config_path
        )

    def _listens(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, self._log_path.read_text()[-2000:]
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self._port)) == 0
