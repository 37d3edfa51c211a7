"""The site of the documents: its navigation, its links, and the commands and configurations in it.

`make site` builds it; these tests find the same mistakes without MkDocs.
"""

from __future__ import annotations

import importlib.util
import posixpath
import re
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml

from moldau.config import NodeConfig, parse_properties
from tests.deploy.command_lines import NotTaken, check, in_markdown
from tests.deploy.headings import anchors
from tests.tidy.sources import ROOT, name_of, repository_files

DOCS = ROOT / "docs"
GENERATED = DOCS / "reference" / "commands.md"
_LINK = re.compile(r"\]\((?!https?:|mailto:)([^)#\s]*)#([^)\s]+)\)")
_PROPERTIES = re.compile(r"^```properties\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@pytest.fixture(scope="module")
def hooks() -> ModuleType:
    path = DOCS / "site_hooks.py"
    spec = importlib.util.spec_from_file_location("moldau_site_hooks", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def documents() -> list[Path]:
    return [path for path in repository_files() if path.suffix == ".md"]


def pages(navigation: Any) -> list[str]:
    """Every page that a navigation names."""
    if isinstance(navigation, str):
        return [navigation]
    inner = navigation.values() if isinstance(navigation, dict) else navigation
    return [page for each in inner for page in pages(each)]


def test_the_navigation_has_every_page_once(hooks: ModuleType):
    site = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))
    named = pages([hooks._expanded(each) for each in site["nav"]])
    inside = {path.relative_to(DOCS).as_posix() for path in documents() if DOCS in path.parents}
    assert sorted(named) == sorted(inside | {hooks.PREFIX + name for name in hooks.OUTSIDE})
    assert [name for name in hooks.OUTSIDE if not (ROOT / name).exists()] == []


def test_links_to_headings_lead_somewhere():
    dead = [
        f"{name_of(path)}: {target}#{anchor}"
        for path in documents()
        for target, anchor in _LINK.findall(path.read_text(encoding="utf-8"))
        if anchor not in anchors((path.parent / target) if target else path)
    ]
    assert dead == []


@pytest.mark.parametrize(
    ("page", "link", "expected"),
    [
        ("client.md", "[a](spark.md#b)", "[a](spark.md#b)"),
        ("quickstart/local.md", "[a](../spark.md)", "[a](../spark.md)"),
        ("operations.md", "[a](../deploy/README.md#b)", "[a](outside/deploy/README.md#b)"),
        ("outside/README.md", "![a](docs/a.svg)", "![a](../a.svg)"),
        ("outside/deploy/README.md", "[a](../docs/spark.md)", "[a](../../spark.md)"),
        ("outside/deploy/README.md", "[a](#b)", "[a](#b)"),
        ("benchmarks.md", "[bare.py](../benchmarks/bare.py)", "`bare.py`"),
        ("outside/CONTRIBUTING.md", "[`adr`](docs/adr)", "`adr`"),
        ("faq.md", "[a](https://example.org)", "[a](https://example.org)"),
    ],
)
def test_links_lead_to_the_same_in_the_site(hooks: ModuleType, page: str, link: str, expected: str):
    assert hooks._LINK.sub(lambda found: hooks._in_site(page, found), link) == expected


def test_every_link_of_a_page_is_to_a_page_or_a_file_of_the_site(hooks: ModuleType):
    for path in documents():
        name = name_of(path)
        if path == GENERATED or not (name.startswith("docs/") or name in hooks.OUTSIDE):
            continue
        own = name.removeprefix("docs/") if name.startswith("docs/") else hooks.PREFIX + name
        for found in hooks._LINK.finditer(path.read_text(encoding="utf-8")):
            link = hooks._LINK.fullmatch(hooks._in_site(own, found))
            if link is None:
                continue  # its name alone
            there = posixpath.normpath(posixpath.join(posixpath.dirname(own), link[3]))
            source = ROOT / there.removeprefix(hooks.PREFIX)
            assert (DOCS / there).exists() or (there != own and source.exists()), (name, there)


def test_every_command_is_taken_by_the_command_line():
    refused, count = [], 0
    for path in documents():
        for command in in_markdown(path) if path != GENERATED else ():
            count += 1
            try:
                check(command)
            except NotTaken as problem:
                refused.append(str(problem))
    assert refused == []
    assert count > 200


def test_every_configuration_is_one_of_a_node_without_a_complaint():
    found = [
        (path, text)
        for path in documents()
        for text in _PROPERTIES.findall(path.read_text(encoding="utf-8"))
    ]
    whole = [(path, text) for path, text in found if "process.roles=" in text]
    assert len(whole) >= 2
    for path, text in whole:
        assert NodeConfig(parse_properties(text)).warnings == (), name_of(path)
