"""The nodes of compose.yaml as processes of this machine.

Owns the translation: each host name becomes an address of the loopback network, each port a free
one, each volume a directory. Everything else, files, environment and commands, is used as it is.
Must not need root or a container engine; needs Linux, which has the whole of 127.0.0.0/8.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from moldau.config import read_properties_file
from moldau.local.layout import PortHolder
from moldau.local.watchdog import Watchdog
from tests.deploy.files import DEPLOY, compose
from tests.kit.waiting import until

PROGRAMS: Final = {
    "moldau": [sys.executable, "-m", "moldau.cli.main"],
    "moldau-node": [sys.executable, str(DEPLOY / "container" / "moldau_node.py")],
    "moldau-secrets": [sys.executable, str(DEPLOY / "container" / "moldau_secrets.py")],
}
CONFIGURATION: Final = "/etc/moldau/server.properties"
DATA: Final = "/var/lib/moldau"
SECRETS: Final = "/run/moldau-secrets"
PORTS: Final = ("9092", "9091", "9093", "9094", "8080")
START_DEADLINE_S: Final = 90.0
STOP_DEADLINE_S: Final = 60.0


@dataclass(slots=True)
class LocalNode:
    """One service of compose.yaml. States: made → started → stopped → started …"""

    name: str
    address: str
    home: Path
    environment: dict[str, str]
    service: dict[str, Any]
    http_port: int
    process: subprocess.Popen[bytes] | None = None

    @property
    def data(self) -> Path:
        """Its volume."""
        return self.home / "volume"

    def here(self, words: list[str]) -> list[str]:
        """Words of a command in the container, with the paths that are here."""
        paths = {
            CONFIGURATION: str(self.home / "server.properties"),
            DATA: str(self.data),
            SECRETS: str(self.home.parent / "secrets"),
        }
        return [paths.get(each, each) for each in words]

    def command(self, words: list[str]) -> list[str]:
        """A command of the container, to be run here."""
        return [*PROGRAMS[words[0]], *self.here(words[1:])]

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        """`docker compose exec`: run a command beside the node, to its end."""
        return subprocess.run(
            self.command(list(words)),
            env=self.environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=STOP_DEADLINE_S,
            check=False,
        )

    def get(self, path: str) -> tuple[int, str]:
        """A page of its HTTP listener, 0 when nothing answers."""
        try:
            url = f"http://{self.address}:{self.http_port}{path}"
            with urllib.request.urlopen(url, timeout=10) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as refused:
            return refused.code, ""
        except OSError:
            return 0, ""

    @property
    def log(self) -> str:
        """What it has said on standard error."""
        return (self.home / "log").read_text()


class LocalNodes:
    """All nodes of compose.yaml below a directory; use as a context."""

    def __init__(self, home: Path) -> None:
        self._home = home
        self._ports = PortHolder("0.0.0.0")
        self._watchdog = Watchdog(None)
        self.nodes: dict[str, LocalNode] = {}

    def __enter__(self) -> LocalNodes:
        try:
            self._lay_out()
            made = self.certificates.run(*self.certificates.service["command"])
            assert made.returncode == 0, made.stderr
            for node in self.nodes.values():
                self.start(node)
            for node in self.nodes.values():
                self.wait_ready(node)
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def bootstrap_server(self) -> str:
        """`HOST:PORT,…` of the brokers' inner listeners."""
        port = self._moved["9092"]
        brokers = [node for node in self.nodes.values() if node.name.startswith("broker")]
        return ",".join(f"{node.address}:{port}" for node in brokers)

    @property
    def bootstrap_controllers(self) -> str:
        """`HOST:PORT,…` of the controllers."""
        port = self._moved["9093"]
        nodes = [node for node in self.nodes.values() if node.name.startswith("controller")]
        return ",".join(f"{node.address}:{port}" for node in nodes)

    @property
    def client_properties(self) -> dict[str, str]:
        """The super user's settings, as containers have them."""
        return read_properties_file(str(self.secrets / "client/profiles/admin.properties"))

    @property
    def controller_properties(self) -> dict[str, str]:
        """Its settings for controllers, where it shows a certificate."""
        return read_properties_file(str(self.secrets / "client/profiles/controllers.properties"))

    @property
    def secrets(self) -> Path:
        """The volume with what nodes and clients read."""
        return self._home / "secrets"

    def start(self, node: LocalNode) -> None:
        """Run the service's command."""
        with (node.home / "log").open("ab") as log:
            node.process = subprocess.Popen(
                node.command(node.service["command"]),
                env=node.environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self._watchdog.started(node.process.pid)

    def wait_ready(self, node: LocalNode) -> None:
        """Wait until /readyz says so."""

        def is_ready() -> bool:
            assert node.process is not None
            assert node.process.poll() is None, f"{node.name} has ended:\n{node.log}"
            return node.get("/readyz")[0] == 200

        until(is_ready, what=f"{node.name} is ready", deadline_s=START_DEADLINE_S)

    def stop(self, node: LocalNode) -> int:
        """The image's stop signal; the exit status."""
        assert node.process is not None
        node.process.send_signal(signal.SIGTERM)
        return self._ended(node.process)

    def close(self) -> None:
        """End everything, brokers first."""
        processes = [
            (node.name.startswith("controller"), node.process)
            for node in self.nodes.values()
            if node.process is not None and node.process.poll() is None
        ]
        for is_controller in (False, True):
            ours = [process for kind, process in processes if kind is is_controller]
            for process in ours:
                process.kill()
            for process in ours:
                process.wait()
        self._watchdog.close()
        self._ports.close()

    def _ended(self, process: subprocess.Popen[bytes]) -> int:
        status = process.wait(STOP_DEADLINE_S)
        self._watchdog.ended(process.pid)
        return status

    def _lay_out(self) -> None:
        services = {
            name: service
            for name, service in compose()["services"].items()
            if service["image"].startswith("moldau:")
        }
        moved = [str(port) for port in self._ports.take(len(PORTS))]
        self._moved = dict(zip(PORTS, moved, strict=True))
        # Away from 127.0.0.1, where all other nodes are.
        octets = f"127.{7 + os.getpid() % 200}.{os.getpid() // 200 % 250}"
        self._addresses = {
            name: f"{octets}.{place}" for place, name in enumerate(sorted(services), start=1)
        }
        self.secrets.mkdir()
        self.certificates = self._node("certificates", services.pop("certificates"))
        for name, service in services.items():
            self.nodes[name] = self._node(name, service)

    def _node(self, name: str, service: dict[str, Any]) -> LocalNode:
        home = self._home / name
        (home / "volume").mkdir(parents=True)
        for text in service["volumes"]:
            if f":{CONFIGURATION}" in text:
                source = DEPLOY / "compose" / text.partition(":")[0]
                (home / "server.properties").write_text(self._here(source.read_text(), name))
        own = {key: self._here(value, name) for key, value in service["environment"].items()}
        environment = {key: value for key, value in os.environ.items() if key[:6] != "KAFKA_"}
        return LocalNode(
            name,
            self._addresses[name],
            home,
            {**environment, **own, "PYTHONUNBUFFERED": "1"},
            service,
            int(self._moved["8080"]),
        )

    def _here(self, text: str, name: str) -> str:
        """A text with this machine's addresses, ports and directories."""
        text = text.replace("0.0.0.0:", f"{self._addresses[name]}:")
        for host, address in self._addresses.items():
            text = re.sub(rf"\b{host}(?=:\d)", address, text)
            # In the list of a certificate's hosts.
            text = re.sub(rf"(?<=\[)\"{host}\"", f'"{address}"', text)
        for port, other in self._moved.items():
            text = re.sub(rf"(?<=:){port}\b", other, text)
        text = text.replace(SECRETS, str(self.secrets))
        return text.replace(DATA, str(self._home / name / "volume"))
