"""The quickstarts do what they say: their commands and programs run, in order."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.system.documents.commands import commands_to_run
from tests.system.documents.terminal import Terminal
from tests.tidy.sources import ROOT

QUICKSTARTS = ROOT / "docs" / "quickstart"
README = "README.md"
ADDRESS = "localhost:9092"
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)

pytestmark = [pytest.mark.system, pytest.mark.timeout(600)]


@pytest.fixture
def terminal(tmp_path: Path) -> Iterator[Terminal]:
    with Terminal(tmp_path) as opened:
        yield opened


def blocks(name: str, language: str) -> list[str]:
    """The text of each block of a quickstart that is in that language."""
    found = BLOCK.findall((QUICKSTARTS / name).read_text(encoding="utf-8"))
    return [text for each, text in found if each == language]


def test_a_cluster_on_your_machine(terminal: Terminal) -> None:
    dev, *commands, replicated = commands_to_run("docs/quickstart/local.md")
    serving = terminal.serve(dev.text, "--port 0")
    address = serving.wait_said(r"ready: (\S+)")[1]
    terminal.environ["MOLDAU_BOOTSTRAP_SERVER"] = address
    said = "".join(terminal.run(each.text) for each in commands)
    assert said.count("1545 on time") >= 2, "read with and without a group"
    assert "board" in said
    terminal.instead[ADDRESS] = address
    [program] = blocks("local.md", "python")
    assert "b'" in terminal.program(program)
    serving.interrupt()
    three = terminal.serve(replicated.text, "--port 0")
    assert three.wait_said(r"ready: (\S+)")[1].count(",") == 2
    three.interrupt()
    assert (terminal.home / "cluster").is_dir(), "--data keeps it"


def test_a_secured_cluster(terminal: Terminal) -> None:
    dev, *commands = commands_to_run("docs/quickstart/secure.md")
    serving = terminal.serve(dev.text, "--port 0")
    address = serving.wait_said(r"ready: (\S+)")[1]
    told = serving.wait_said(r"(?s)try\n  (.*)\n  (.*)\n  (.*)\n").groups()
    assert [each.partition(" --command-config ")[0] for each in told] == [
        each.text.partition(" --command-config ")[0] for each in commands[:3]
    ]
    [settings] = blocks("secure.md", "properties")
    settings = settings.replace(ADDRESS, address.partition(",")[0])
    (terminal.home / "alice.properties").write_text(settings)
    said = {each.text: terminal.run(each.text) for each in commands}
    assert [text for text in said.values() if text == "Prague\n"] == ["Prague\n"] * 2
    assert "CN=broker-3,OU=nodes" in said["moldau certificates show secured"]
    client, own_cluster = blocks("secure.md", "python")
    assert "offset=1" in terminal.program(client)
    assert terminal.program(own_cluster)
    refusals = {
        f"moldau topics list -b {address}": "speaks TLS",
        "moldau topics create more --command-config alice.properties": "TOPIC_AUTHORIZATION_FAILED",
    }
    for command, why in refusals.items():
        assert why in terminal.run(f"{command} 2>&1", status=1)
    serving.interrupt()
    password = (terminal.home / "secured" / "admin.properties").read_text()
    again = terminal.serve(dev.text, "--port 0")
    assert again.wait_said(r"ready: (\S+)")[1] == address
    assert (terminal.home / "secured" / "admin.properties").read_text() == password
    assert "UA1545" in terminal.run(told[2])
    again.interrupt()


def test_kafka_in_your_tests(terminal: Terminal) -> None:
    first, second = blocks("tests.md", "python")
    (terminal.home / "test_it.py").write_text(first)
    arguments = ["-q", "-p", "no:cacheprovider"]
    said = terminal.execute([sys.executable, "-m", "pytest", *arguments, "test_it.py"])
    assert "1 passed" in said
    assert terminal.program(second).count(",") == 2
    assert commands_to_run("docs/quickstart/tests.md") == []


def test_before_the_quickstarts(terminal: Terminal) -> None:
    """What the first page and the installation tell to type."""
    [dev] = commands_to_run("docs/index.md")
    terminal.serve(dev.text, "--port 0").wait_said("ready: ")
    [version] = commands_to_run("docs/install.md")
    assert re.match(r"moldau \d", terminal.run(version.text))


# -- the README ------------------------------------------------------------------------------------


def test_the_tour_of_the_readme(terminal: Terminal, base_port: int) -> None:
    commands = [each.text for each in commands_to_run(README)]
    dev, bootstrap, *tour = (each for each in commands if not each.startswith("make "))
    terminal.serve(dev, "--port 0").wait_said("ready: ")
    cluster = terminal.serve(bootstrap, f"--base-port {base_port}")
    terminal.environ["MOLDAU_BOOTSTRAP_SERVER"] = cluster.wait_said(r"ready: (\S+)")[1]
    (terminal.home / "flights.txt").write_text("UA:1545 on time\nAA:1141 late\n")
    for command in tour:
        if "consume" in command:
            following = terminal.serve(command)
            following.wait_said("1141 late")
            following.interrupt(status=130)
        else:
            terminal.run(command)
    assert cluster.interrupt().endswith("stopped\n")


def test_the_targets_of_the_readme() -> None:
    """The site is built without a warning or a dead link."""
    site, targets = (each.text for each in commands_to_run(README) if each.text[:5] == "make ")
    page = ROOT / "build" / "site" / "index.html"
    page.unlink(missing_ok=True)
    make(site)
    assert page.exists()
    assert "test-all" in make(targets)


def make(command: str) -> str:
    """A command of `make` in the project; what it wrote to standard output."""
    done = subprocess.run(
        command.split(), cwd=ROOT, capture_output=True, text=True, timeout=590, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
