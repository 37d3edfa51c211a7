"""What `test_tour.py`, which plays the first page and the quickstarts, leaves: what a secured
cluster says, refuses and keeps, and the targets of `make`.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.system.documents.commands import commands_of, commands_to_run
from tests.system.documents.terminal import Terminal
from tests.tidy.sources import ROOT

QUICKSTARTS = ROOT / "docs" / "quickstart"
README = "README.md"
#: What the mark of its last block leaves to this file.
TARGETS = ("make site", "make help")
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


def test_a_secured_cluster(terminal: Terminal) -> None:
    _, dev, _, *commands = commands_to_run("docs/quickstart/secure.md")
    commands = [each for each in commands if each.text.partition(" ")[0] != "python"]
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


def test_the_targets_of_the_readme() -> None:
    """The site is built without a warning or a dead link."""
    site, targets = (each.text for each in commands_of(README) if each.text in TARGETS)
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
