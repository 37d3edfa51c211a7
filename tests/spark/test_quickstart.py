"""docs/quickstart/spark.md does what it says: its commands, its programs and its pipeline run."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from moldau.client.sync import Consumer
from moldau.testing import Cluster, wait_until
from tests.tidy.sources import ROOT

BLOCK = re.compile(r"^```(sh|python|yaml)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
ADDRESS = "localhost:9092"
DEADLINE_S = 240.0
#: What runs a cluster or installs: the test has both already.
LEFT_OUT = ("pip install", "moldau dev", "moldau pipeline run")


@pytest.mark.thorough
@pytest.mark.timeout(300)
def test_the_quickstart(tmp_path: Path) -> None:
    if shutil.which("java") is None and "JAVA_HOME" not in os.environ:
        pytest.skip("Spark needs Java, and there is none")
    text = (ROOT / "docs" / "quickstart" / "spark.md").read_text(encoding="utf-8")
    found = BLOCK.findall(text)
    command = tmp_path / "moldau"
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -m moldau "$@"\n')
    command.chmod(0o755)
    with Cluster() as cluster:
        environ = {
            **os.environ,
            "PATH": f"{tmp_path}:{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT),
            "PYSPARK_PYTHON": sys.executable,
            "MOLDAU_BOOTSTRAP_SERVER": cluster.bootstrap_server,
        }

        def run(*words: str) -> str:
            done = subprocess.run(
                words,
                cwd=tmp_path,
                env=environ,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=DEADLINE_S,
                check=False,
            )
            assert done.returncode == 0, done.stdout + done.stderr
            return done.stdout

        of: dict[str, list[str]] = {"sh": [], "python": [], "yaml": []}
        for language, block in found:
            of[language].append(block.replace(ADDRESS, cluster.bootstrap_server))
        lines = [line for block in of["sh"] for line in block.splitlines()]
        shell = [line for line in lines if not line.startswith(LEFT_OUT)]
        run("bash", "-euo", "pipefail", "-c", "\n".join(shell))
        said = run(sys.executable, "-c", "\n".join(of["python"]))
        assert re.search(r"\|\s*UA\|\s*9\.5\|", said), said
        assert re.search(r"\|\s*AA\|\s*2\.0\|", said), said
        with Consumer(
            cluster.bootstrap_server,
            auto_offset_reset="earliest",
            isolation_level="read_committed",
            group_id="g",
        ) as consumer:
            consumer.subscribe(["copy"])
            copied = sorted((consumer.getone().value or b"") for _ in range(3))
        assert copied == [b"12", b"2", b"7"]
        [pipeline] = of["yaml"]
        (tmp_path / "archive.yaml").write_text(pipeline)
        [line] = [each for each in lines if each.startswith("moldau pipeline run")]
        archived(line, tmp_path, environ)


def archived(command: str, home: Path, environ: dict[str, str]) -> None:
    """Run the pipeline until there is a file, and end it."""
    with (home / "pipeline.log").open("wb") as log:
        running = subprocess.Popen(
            ["bash", "-c", f"exec {command}"],
            cwd=home,
            env=environ,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )
        try:
            wait_until(
                lambda: list((home / "archive").rglob("*.parquet")) != [],
                what="the archive has a file",
                deadline_s=DEADLINE_S,
            )
            running.send_signal(signal.SIGINT)
            running.wait(60)
        finally:
            running.kill()
            running.wait()
    assert "Traceback" not in (home / "pipeline.log").read_text()
