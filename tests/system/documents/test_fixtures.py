"""What docs/testing.md and docs/migration.md say about one's own tests runs as it stands there."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from tests.system.documents.terminal import Terminal
from tests.tidy.sources import ROOT

BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
CONFIGURED = """
def test_the_configuration_holds(moldau_cluster):
    assert moldau_cluster.broker_ids == [1, 2, 3]
    assert moldau_cluster.controller_ids == [101]
"""

pytestmark = [pytest.mark.system, pytest.mark.timeout(300)]


def blocks(name: str, language: str) -> list[str]:
    found = BLOCK.findall((ROOT / "docs" / name).read_text(encoding="utf-8"))
    return [text for each, text in found if each == language]


def test_the_plugin_with_its_configuration_and_its_marker(tmp_path: Path) -> None:
    [configuration] = blocks("testing.md", "ini")
    test, secured = [text for text in blocks("testing.md", "python") if "def test_" in text]
    (tmp_path / "pytest.ini").write_text(configuration)
    (tmp_path / "test_orders.py").write_text(test + CONFIGURED)
    (tmp_path / "test_secured.py").write_text(secured)
    with Terminal(tmp_path) as terminal:
        arguments = ("-q", "-p", "no:cacheprovider")
        said = terminal.execute([sys.executable, "-m", "pytest", *arguments])
    assert "3 passed" in said


@pytest.mark.parametrize("name", ["testing.md", "migration.md"])
def test_the_class_in_the_place_of_a_container(name: str, tmp_path: Path) -> None:
    [program] = [text for text in blocks(name, "python") if "MoldauContainer" in text]
    with Terminal(tmp_path) as terminal:
        assert re.search(r":\d+\n$", terminal.program(program))
