"""The systemd units and what belongs to them: systemd takes them, and nodes are what they say."""

from __future__ import annotations

import configparser
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from moldau.config import NodeConfig
from tests.deploy.command_lines import CommandLine, check
from tests.deploy.files import DEPLOY

pytestmark = pytest.mark.real

SYSTEMD = DEPLOY / "systemd"
UNIT = SYSTEMD / "moldau@.service"
PIPELINES = SYSTEMD / "moldau-pipeline@.service"
UNITS = pytest.mark.parametrize("path", [UNIT, PIPELINES], ids=lambda path: path.name)
INSTANCES = ("broker-1", "controller-101")
CONTROLLED_SHUTDOWN_S = 300
WRONG_CONFIGURATION = "2"


def unit(path: Path = UNIT) -> configparser.ConfigParser:
    parser = configparser.ConfigParser(interpolation=None, strict=True, delimiters=("=",))
    parser.optionxform = str  # type: ignore[assignment, method-assign]
    parser.read(path)
    return parser


@UNITS
def test_systemd_takes_the_unit(path: Path, tmp_path: Path):
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not here")
    command = unit(path)["Service"]["ExecStart"].split()[0]
    (tmp_path / path.name).write_text(path.read_text().replace(command, sys.executable))
    instance = tmp_path / path.name.replace("@", f"@{INSTANCES[0]}")
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(instance)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


def test_systemd_takes_the_users():
    if shutil.which("systemd-sysusers") is None:
        pytest.skip("systemd-sysusers is not here")
    command = ["systemd-sysusers", "--dry-run", str(SYSTEMD / "sysusers.conf")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    users = {unit(path)["Service"]["User"] for path in (UNIT, PIPELINES)}
    assert {each for each in users if f"'{each}'" in done.stdout + done.stderr} == users


@UNITS
def test_the_command_is_one(path: Path):
    program, *words = unit(path)["Service"]["ExecStart"].split()
    assert program == "/opt/moldau/bin/moldau"
    check(CommandLine(path.name, tuple(words), may_be_a_name=False))
    assert words[-1] == unit(path)["Unit"]["AssertPathExists"]


def test_a_pipeline_ends_after_its_batch_and_its_java_may_compile():
    service = unit(PIPELINES)["Service"]
    assert (service["KillMode"], service["KillSignal"]) == ("mixed", "SIGTERM")
    assert service["RestartPreventExitStatus"] == WRONG_CONFIGURATION
    assert "MemoryDenyWriteExecute" not in service


@pytest.mark.parametrize("name", INSTANCES)
def test_the_nodes_configuration_has_no_complaint_and_lies_where_the_unit_allows(name: str):
    path = SYSTEMD / f"{name}.properties"
    config = NodeConfig.load(str(path))
    service = unit()["Service"]
    assert config.warnings == ()
    assert config.node_id == int(name.rpartition("-")[2])
    assert path.read_text().startswith(
        f"# {unit()['Unit']['AssertPathExists'].replace('%i', name)}:"
    )
    state = "/var/lib/" + service["StateDirectory"].replace("%i", name)
    assert all(each.startswith(f"{state}/") for each in config.log_directories)
    assert service["ProtectSystem"] == "strict"


def test_controllers_have_what_they_decide_for_topics():
    configs = [NodeConfig.load(str(SYSTEMD / f"{name}.properties")) for name in INSTANCES]
    assert {config["min.insync.replicas"] for config in configs} == {2}
    assert {config["default.replication.factor"] for config in configs} == {3}


def test_a_node_has_the_time_that_it_may_take_to_stop():
    service = unit()["Service"]
    assert int(service["TimeoutStopSec"]) > CONTROLLED_SHUTDOWN_S
    assert (service["KillMode"], service["KillSignal"]) == ("mixed", "SIGTERM")
    assert service["RestartPreventExitStatus"] == WRONG_CONFIGURATION


def test_kernel_settings_exist():
    lines = (SYSTEMD / "sysctl.conf").read_text().splitlines()
    settings = [line.partition("=")[0].strip() for line in lines if line and line[0] not in "#;"]
    assert "vm.dirty_background_bytes" in settings
    proc = Path("/proc/sys")
    if not proc.exists():
        pytest.skip("no /proc/sys here")
    # A container has its own network, with less in it.
    asked = [name for name in settings if name.startswith("vm.")]
    assert [name for name in asked if not (proc / name.replace(".", "/")).exists()] == []


def test_bytes_and_ratios_are_not_mixed():
    text = (SYSTEMD / "sysctl.conf").read_text()
    values = {name: int(value) for name, value in re.findall(r"^([\w.]+) = (\d+)$", text, re.M)}
    assert values["vm.dirty_background_bytes"] * 2 < values["vm.dirty_bytes"]
    assert not [name for name in values if name.endswith("_ratio")]
