"""The chart's pods and jobs as processes of this machine.

Owns the translation of a rendered chart: each pod's host name becomes an address of the loopback
network, each port a free one, each volume a directory, and a Secret's volume is laid out as a
kubelet does it (files are links to a directory that is replaced whole). Files, variables and
commands are used as they are. Must not need root or Kubernetes; needs Linux, which has the whole of
127.0.0.0/8.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import shutil
import signal
import ssl
import subprocess
import sys
import urllib.error
import urllib.request
from base64 import b64encode
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from moldau.local.layout import PortHolder
from moldau.local.watchdog import Watchdog
from tests.deploy.api_server import ApiServer
from tests.deploy.files import DEPLOY
from tests.deploy.helm_chart import NAMESPACE, Document, named
from tests.deploy.local_nodes import START_DEADLINE_S, STOP_DEADLINE_S
from tests.kit.waiting import until

CONTAINER: Final = DEPLOY / "container"
PROGRAMS: Final = {
    "moldau": [sys.executable, "-m", "moldau.cli.main"],
    "moldau-node": [sys.executable, str(CONTAINER / "moldau_node.py")],
    "moldau-kubernetes": [sys.executable, str(CONTAINER / "moldau_kubernetes.py")],
}
_PLACE: Final = re.compile(r"(?<![\w/.])(/etc/moldau|/var/lib/moldau|/tmp)(?=/|\b)")
PORTS: Final = ("9091", "9092", "9093", "9094", "8080")
BOOTSTRAP: Final = f"demo-moldau-bootstrap.{NAMESPACE}.svc.cluster.local"


@dataclass(slots=True)
class Pod:
    """One pod, or a job's: its root directory, and the process of its container."""

    name: str
    address: str
    home: Path
    spec: dict[str, Any]
    environments: dict[str, dict[str, str]]
    ports: dict[str, str]
    process: subprocess.Popen[bytes] | None = None
    restarts: int = field(default=0)

    def command(self, words: Iterable[str]) -> list[str]:
        program, *rest = words
        return [*PROGRAMS[program], *(rooted(each, self.home) for each in rest)]

    @property
    def container(self) -> Any:
        return self.spec["containers"][0]

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        """`kubectl exec`: run a command beside the node, to its end."""
        return subprocess.run(
            self.command(words),
            env=self.environments[self.container["name"]],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=STOP_DEADLINE_S,
            check=False,
        )

    def get(self, path: str, password: str = "") -> int:
        """The status of a page, asked as `admin` with a password; 0 when nothing answers. The
        certificate is checked as kubelets do: not at all.
        """
        request = urllib.request.Request(f"https://{self.address}:{self.ports['8080']}{path}")
        if password:
            token = b64encode(f"admin:{password}".encode()).decode()
            request.add_header("Authorization", f"Basic {token}")
        context = ssl._create_unverified_context()
        try:
            with urllib.request.urlopen(request, timeout=10, context=context) as answer:
                return int(answer.status)
        except urllib.error.HTTPError as refused:
            return refused.code
        except OSError:
            return 0

    @property
    def log(self) -> str:
        return (self.home / "log").read_text()


def rooted(text: str, home: Path) -> str:
    """A text with a pod's paths, which are below its root directory here."""
    return _PLACE.sub(lambda found: f"{home}{found[1]}", text)


class ChartPods:
    """A rendered chart's cluster below a directory; use as a context. Its hook has run then."""

    def __init__(self, documents: list[Document], home: Path) -> None:
        self.documents = documents
        self.pods: dict[str, Pod] = {}
        self._home = home
        self._holder = PortHolder("0.0.0.0")
        self._watchdog = Watchdog(None)
        self.ports = dict(zip(PORTS, map(str, self._holder.take(len(PORTS))), strict=True))
        octets = f"127.{7 + os.getpid() % 200}.{secrets.randbelow(250)}"
        self.addresses: dict[str, str] = {}
        for document in self._stateful_sets():
            first, count = (
                document["spec"]["ordinals"]["start"],
                document["spec"]["replicas"],
            )
            for number in range(first, first + count):
                name = f"{document['metadata']['name']}-{number}"
                self.addresses[name] = f"{octets}.{len(self.addresses) + 1}"
        account = home / "account"
        account.mkdir()
        self.api = ApiServer(account)

    def __enter__(self) -> ChartPods:
        try:
            self.run_job("demo-moldau-secrets", role="demo-moldau-secrets-hook")
            for document in self._stateful_sets():
                self._make_pods(document)
            self.start(*self.pods.values())
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def address(self, port: str = "9092") -> str:
        """Clients' bootstrap.servers."""
        return f"{self.addresses['demo-moldau-broker-1']}:{self.ports[port]}"

    def start(self, *pods: Pod) -> None:
        """Run init containers, all pods at once, then the containers; wait until they are ready."""
        for place in range(max(len(pod.spec["initContainers"]) for pod in pods)):
            running = [
                (pod, self._spawn(pod, pod.spec["initContainers"][place]))
                for pod in pods
                if place < len(pod.spec["initContainers"])
            ]
            for pod, process in running:
                assert process.wait(START_DEADLINE_S) == 0, pod.log
                self._watchdog.ended(process.pid)
        for pod in pods:
            pod.process = self._spawn(pod, pod.container)
        for pod in pods:
            self.wait_ready(pod)

    def wait_ready(self, pod: Pod) -> None:
        def is_ready() -> bool:
            assert pod.process is not None
            assert pod.process.poll() is None, f"{pod.name} has ended:\n{pod.log}"
            return pod.get("/readyz") == 200

        until(is_ready, what=f"{pod.name} is ready", deadline_s=START_DEADLINE_S)

    def stop(self, pod: Pod) -> int:
        """SIGTERM, as a kubelet ends a container; the exit status."""
        assert pod.process is not None
        pod.process.send_signal(signal.SIGTERM)
        status = pod.process.wait(STOP_DEADLINE_S)
        self._watchdog.ended(pod.process.pid)
        return status

    def run_job(
        self, name: str, *, role: str = "", documents: list[Document] | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run the container of a job to its end, with the rights of a role."""
        found = self.documents if documents is None else documents
        job = named(found, "Job", name)
        if role:
            self.api.rules = named(found, "Role", role)["rules"]
        home = self._home / f"{name}-{secrets.token_hex(4)}"
        pod = self._pod(name, "127.0.0.1", home, job["spec"]["template"]["spec"])
        pod.environments[pod.container["name"]].update(self.api.environment)
        return pod.run(*pod.container["command"])

    def refresh(self) -> None:
        """What kubelets do in their own time: have volumes show what Secrets hold now."""
        for pod in self.pods.values():
            self._mount(pod.spec, pod.home)

    def close(self) -> None:
        for pod in self.pods.values():
            if pod.process is not None and pod.process.poll() is None:
                pod.process.kill()
                pod.process.wait()
        self._watchdog.close()
        self._holder.close()
        self.api.close()

    def _stateful_sets(self) -> list[Document]:
        return [each for each in self.documents if each["kind"] == "StatefulSet"]

    def _make_pods(self, document: Document) -> None:
        name, spec = document["metadata"]["name"], document["spec"]
        first = spec["ordinals"]["start"]
        for number in range(first, first + spec["replicas"]):
            pod_name = f"{name}-{number}"
            home = self._home / pod_name
            address = self.addresses[pod_name]
            self.pods[pod_name] = self._pod(pod_name, address, home, spec["template"]["spec"])

    def _pod(self, name: str, address: str, home: Path, spec: dict[str, Any]) -> Pod:
        home.mkdir()
        (home / "tmp").mkdir()
        containers = [*spec.get("initContainers", ()), *spec["containers"]]
        pod = Pod(name, address, home, spec, {}, self.ports)
        for container in containers:
            pod.environments[container["name"]] = self._environment(container, name, home)
        self._mount(spec, home)
        return pod

    def _environment(self, container: dict[str, Any], name: str, home: Path) -> dict[str, str]:
        kept = {
            key: text for key, text in os.environ.items() if key[:6] not in ("KAFKA_", "MOLDAU")
        }
        kept |= {"PYTHONUNBUFFERED": "1", "TMPDIR": str(home / "tmp")}
        for variable in container.get("env", ()):
            source = variable.get("valueFrom", {})
            if "fieldRef" in source:
                text = name
            elif "configMapKeyRef" in source:
                reference = source["configMapKeyRef"]
                data = named(self.documents, "ConfigMap", reference["name"])["data"]
                text = data[reference["key"]]
            else:
                text = variable["value"]
            kept[variable["name"]] = self._here(text, name, home)
        return kept

    def _mount(self, spec: dict[str, Any], home: Path) -> None:
        mounts = {
            mount["name"]: mount
            for container in spec["containers"]
            for mount in container.get("volumeMounts", ())
        }
        volumes = {volume["name"]: volume for volume in spec["volumes"]}
        for name, mount in mounts.items():
            target = home / mount["mountPath"].lstrip("/")
            files = self._files(volumes.get(name, {}), home)
            if "subPathExpr" in mount:
                target.parent.mkdir(parents=True, exist_ok=True)
                wanted = mount["subPathExpr"].replace("$(POD_NAME)", home.name)
                target.write_bytes(files[wanted])
            elif files:
                _lay(target, files)
            else:
                target.mkdir(parents=True, exist_ok=True)

    def _files(self, volume: dict[str, Any], home: Path) -> dict[str, bytes]:
        """What a volume shows."""
        if "configMap" in volume:
            data = named(self.documents, "ConfigMap", volume["configMap"]["name"])["data"]
            return {key: self._here(text, home.name, home).encode() for key, text in data.items()}
        if "secret" in volume:
            return self.api.data(volume["secret"]["secretName"])
        files = {}
        for source in volume.get("projected", {}).get("sources", ()):
            data = self.api.data(source["secret"]["name"])
            for item in source["secret"]["items"]:
                files[item["path"]] = data[item["key"]]
        return files

    def _here(self, text: str, name: str, home: Path) -> str:
        """A text with this machine's addresses, ports and directories."""
        own = self.addresses.get(name, "127.0.0.1")
        text = text.replace("0.0.0.0:", f"{own}:")
        for role in ("broker", "controller"):
            pods = [each for pod, each in self.addresses.items() if f"-{role}-" in pod]
            wildcard = f'"*.demo-moldau-{role}.{NAMESPACE}.svc.cluster.local"'
            text = text.replace(wildcard, ",".join(map(json.dumps, [*pods, "localhost"])))
        for pod, address in self.addresses.items():
            service = pod.rpartition("-")[0]
            text = text.replace(f"{pod}.{service}.{NAMESPACE}.svc.cluster.local", address)
        text = text.replace(f"{BOOTSTRAP}:", f"{self.addresses['demo-moldau-broker-1']}:")
        for port, other in self.ports.items():
            text = re.sub(rf"(?<=:){port}\b", other, text)
        return rooted(text, home)

    def _spawn(self, pod: Pod, container: dict[str, Any]) -> subprocess.Popen[bytes]:
        with (pod.home / "log").open("ab") as log:
            process = subprocess.Popen(
                pod.command(container["command"]),
                env=pod.environments[container["name"]],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self._watchdog.started(process.pid)
        return process


def _lay(target: Path, files: dict[str, bytes]) -> None:
    """As a kubelet does it: a separate directory for each state, and one link to swap."""
    target.mkdir(parents=True, exist_ok=True)
    made = target / f"..{secrets.token_hex(4)}"
    made.mkdir()
    for name, content in files.items():
        (made / name).write_bytes(content)
        (made / name).chmod(0o440)
        link = target / name
        if not link.is_symlink():
            link.symlink_to(Path("..data", name))
    before = (target / "..data").resolve() if (target / "..data").is_symlink() else None
    swapped = target / "..data_tmp"
    swapped.symlink_to(made.name)
    swapped.replace(target / "..data")
    if before is not None:
        shutil.rmtree(before)
