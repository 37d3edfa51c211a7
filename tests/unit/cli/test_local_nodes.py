"""`moldau quorum bootstrap` without running anything: what it writes, prints and refuses."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from moldau.config import NodeConfig


def bootstrap(*arguments: object) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [sys.executable, "-m", "moldau.cli.main", "quorum", "bootstrap", *map(str, arguments)],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert "Traceback" not in done.stderr
    return done


def test_every_node_is_written_and_how_to_start_it_is_told(tmp_path: Path):
    home = tmp_path / "a cluster"
    done = bootstrap(home, "--controllers", 3, "--brokers", 2, "--base-port", 21000)
    assert (done.returncode, done.stderr) == (0, "")
    names = [f"controller-{number}" for number in (101, 102, 103)] + ["broker-1", "broker-2"]
    assert sorted(path.name for path in home.iterdir()) == sorted(names)
    first, *lines, last = done.stdout.splitlines()
    assert re.fullmatch(r"cluster \S{22}: 3 controllers, 2 brokers in .*", first)
    assert lines[1:] == [
        f"  moldau server start '{home / name / 'server.properties'}'" for name in names
    ]
    assert last == "clients connect to localhost:21000,localhost:21001"
    for name in names:
        config = NodeConfig.load(str(home / name / "server.properties"))
        assert config.node_id == int(name.rpartition("-")[2])
        assert (home / name / "data" / "meta.properties").exists()
        servers = [str(each) for each in config.quorum_bootstrap_servers]
        assert servers == ["localhost:21100", "localhost:21101", "localhost:21102"]


def test_a_directory_that_holds_anything_is_left_alone(tmp_path: Path):
    (tmp_path / "mine").write_text("important")
    done = bootstrap(tmp_path)
    assert done.returncode == 1
    assert done.stderr == f"moldau: {tmp_path} is not empty; it is left as it is\n"
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]
    done = bootstrap(tmp_path / "mine")
    assert done.returncode == 1
    assert "Not a directory" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--controllers", 0), "--controllers"),
        (("--brokers", 101), "--brokers"),
        (("--base-port", 65500), "--base-port 65500 leaves no ports for 3 controllers"),
    ],
)
def test_what_cannot_be_laid_out(tmp_path: Path, arguments: tuple[object, ...], said: str):
    done = bootstrap(tmp_path / "new", *arguments)
    assert done.returncode == 2
    assert said in done.stderr
    assert not (tmp_path / "new").exists()
