"""The image, built from the Containerfile, and a cluster of three brokers that runs from it.

The official image of Python cannot be fetched everywhere; a root file system of Debian packages
with the same Python stands for it here. Builder and nodes share this machine's network.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from moldau.client.sync import Consumer, Producer
from tests.deploy import local_nodes
from tests.deploy.files import ROOT
from tests.deploy.local_nodes import LocalNode, LocalNodes
from tests.deploy.test_container import CONTAINERFILE

TOOLS: Final = ("buildah", "debootstrap")
PACKAGES: Final = "python3,python3-dev,python3-venv,ca-certificates"
IMAGE: Final = "localhost/moldau:test"
BUILD_TIMEOUT_S: Final = 1800.0
STOP_DEADLINE_S: Final = 330.0

pytestmark = [
    pytest.mark.long,
    pytest.mark.timeout(3600),
    pytest.mark.skipif(
        sys.platform != "linux" or os.geteuid() != 0, reason="images are built as root on Linux"
    ),
    pytest.mark.skipif(
        not all(map(shutil.which, TOOLS)),
        reason=f"{' and '.join(TOOLS)} are not here: no image is built",
    ),
]


class Builder:
    """buildah with its own store."""

    def __init__(self, home: Path) -> None:
        self._home = home
        self._command = ["buildah", "--storage-driver", "vfs"]
        self._command += ["--root", str(home / "store"), "--runroot", str(home / "run")]

    def command(self, *arguments: str) -> list[str]:
        return [*self._command, *arguments]

    def __call__(self, *arguments: str) -> str:
        done = subprocess.run(
            self.command(*arguments),
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=BUILD_TIMEOUT_S,
            check=False,
        )
        assert done.returncode == 0, f"{arguments}: {done.stdout[-3000:]}{done.stderr[-3000:]}"
        return done.stdout.strip()

    def make_base(self, name: str) -> None:
        """Debian's Python under the name of the image that the Containerfile begins with."""
        root = self._home / "debian"
        suite = name.rpartition("-")[2]
        subprocess.run(
            ["debootstrap", "--variant=minbase", f"--include={PACKAGES}", suite, str(root)],
            check=True,
            capture_output=True,
            timeout=BUILD_TIMEOUT_S,
        )
        (root / "usr" / "local" / "bin" / "python").symlink_to("/usr/bin/python3")
        settings = {
            variable.removeprefix("PIP_").lower().replace("_", "-"): value
            for variable, value in os.environ.items()
            if variable in ("PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "PIP_TRUSTED_HOST")
        }
        lines = ["[global]", *(f"{key} = {value}" for key, value in settings.items())]
        (root / "etc" / "pip.conf").write_text("\n".join(lines) + "\n")
        for own in ("/etc/resolv.conf", "/etc/ssl/certs/ca-certificates.crt"):
            shutil.copyfile(own, str(root) + own)
        container = self("from", "scratch")
        self("add", container, str(root), "/")
        self("commit", container, f"docker.io/library/{name}")
        self("rm", container)
        shutil.rmtree(root)


@pytest.fixture(scope="module")
def builder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Builder]:
    """With the image of a node in its store."""
    home = tmp_path_factory.mktemp("images")
    builder = Builder(home)
    [base] = set(re.findall(r"^FROM (python:\S+)", CONTAINERFILE.read_text(), re.MULTILINE))
    builder.make_base(base)
    ignored = str(CONTAINERFILE) + ".dockerignore"
    builder(
        *("build", "--isolation", "chroot", "--network", "host", "--pull-never"),
        *("--ignorefile", ignored, "--file", str(CONTAINERFILE), "--target", "node"),
        *("--tag", IMAGE, "."),
    )
    yield builder
    builder("rm", "--all")
    shutil.rmtree(home)


def test_the_image_has_a_native_codec_and_no_java(builder: Builder):
    container = builder("from", "--pull-never", IMAGE)
    run = ("run", "--isolation", "chroot", container, "--")
    assert "(native record codec)" in builder(*run, "moldau", "--version")
    assert builder(*run, "id", "-u") == "10001"
    assert builder(*run, "sh", "-c", "command -v java gcc || echo none") == "none"


def test_a_cluster_of_three_brokers_runs_from_the_image(
    builder: Builder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    tmp_path.chmod(0o755)

    def in_container(node: LocalNode, words: list[str]) -> list[str]:
        """A command of a node, in a container that has the node's files where they are here."""
        container = builder("from", "--pull-never", IMAGE)
        given = [f"--env={name}={value}" for name, value in node.environment.items() if named(name)]
        homes = node.home.parent
        return builder.command(
            *("run", "--isolation", "chroot", "--volume", f"{homes}:{homes}", *given),
            *(container, "--", *node.here(words)),
        )

    def named(variable: str) -> bool:
        return variable.startswith(("KAFKA_", "MOLDAU_"))

    lay_out = LocalNodes._lay_out

    def laid_out_for_the_images_user(nodes: LocalNodes) -> None:
        lay_out(nodes)
        os.chown(nodes.secrets, 10001, 10001)
        for node in (nodes.certificates, *nodes.nodes.values()):
            for path in (node.home, node.data):
                os.chown(path, 10001, 10001)

    monkeypatch.setattr(local_nodes, "START_DEADLINE_S", 300.0)
    monkeypatch.setattr(LocalNode, "command", in_container)
    monkeypatch.setattr(LocalNodes, "_lay_out", laid_out_for_the_images_user)
    with LocalNodes(tmp_path) as cluster:
        broker = cluster.nodes["broker-1"]
        status = broker.run("moldau", "quorum", "status")
        assert status.returncode == 0, status.stderr
        made = broker.run("moldau", "topics", "create", "flights", "--partitions", "6")
        assert made.returncode == 0, made.stderr
        described = broker.run("moldau", "topics", "describe", "flights", "--json")
        assert described.stdout.count('"replicas"') == 6, described.stdout
        sent = [b"%d" % number for number in range(60)]
        settings = cluster.client_properties
        with Producer(config={**settings, "acks": "all"}) as producer:
            for value in sent:
                producer.send("flights", value)
        reading = {**settings, "group.id": "board", "auto.offset.reset": "earliest"}
        with Consumer(config=reading) as consumer:
            consumer.subscribe(["flights"])
            assert sorted(consumer.getone().value or b"" for _ in sent) == sorted(sent)
        for node in cluster.nodes.values():
            assert node.process is not None
            os.killpg(node.process.pid, signal.SIGTERM)
        for node in cluster.nodes.values():
            assert node.process is not None
            node.process.wait(STOP_DEADLINE_S)
