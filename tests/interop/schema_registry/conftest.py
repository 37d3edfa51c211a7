"""Apicurio Registry, a registry of the ecosystem that serves Confluent's API, in memory. Tests skip
visibly where there is no Java, or Maven could not fetch it.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from moldau.schema_registry import SchemaRegistry, SchemaRegistryError
from moldau.testing import Cluster
from tests.kit.ports import free_port
from tests.kit.waiting import until

ROOT = Path(__file__).parents[3]
START_DEADLINE_S = 90.0


@pytest.fixture(scope="session")
def registry_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    archives = sorted((ROOT / ".cache").glob("apicurio-*/*-all.tar.gz"))
    java = shutil.which("java")
    if java is None or not archives:
        pytest.skip("Apicurio Registry needs Java and Maven (`make setup-all` fetches it)")
    home = tmp_path_factory.mktemp("apicurio")
    with tarfile.open(archives[-1]) as archive:
        archive.extractall(home, filter="data")
    port = free_port()
    url = f"http://127.0.0.1:{port}/apis/ccompat/v7"
    with (home / "registry.log").open("wb") as log:
        process = subprocess.Popen(
            [java, "-Xmx384m", "-XX:TieredStopAtLevel=1", "-cp", "*:lib/*",
             "io.quarkus.runner.GeneratedMain"],
            cwd=home,
            env={**os.environ, "QUARKUS_HTTP_PORT": str(port), "QUARKUS_HTTP_HOST": "127.0.0.1"},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )  # fmt: skip
        try:
            registry = SchemaRegistry(url)

            def serves() -> bool:
                assert process.poll() is None, (home / "registry.log").read_text()[-2_000:]
                try:
                    registry.subjects()
                except SchemaRegistryError:
                    return False
                return True

            until(serves, what="the registry serves", deadline_s=START_DEADLINE_S)
            yield url
        finally:
            process.kill()
            process.wait()
            shutil.rmtree(home, ignore_errors=True)


@pytest.fixture(scope="session")
def bootstrap() -> Iterator[str]:
    with Cluster() as cluster:
        yield cluster.bootstrap_server
