"""Generated and cross-referring documents are current."""

from __future__ import annotations

import importlib.util
import re
from types import ModuleType

from moldau.config import BROKER_KEYS, TOPIC_KEYS
from tests.tidy.bounds import limits_of, reviewed
from tests.tidy.sources import ROOT, name_of, repository_files

_LINK = re.compile(r"\]\((?!https?:|mailto:|#)([^)#\s]+)")
_TABLE = re.compile(r"^(\w*TRANSITIONS|\w*LEGAL_PREDECESSORS)\b.*=", re.MULTILINE)
_CELL = re.compile(r"(?<!\\)\|")

#: The longest cell of a table, in characters: a longer thought is a section.
MAX_CELL = 300
_TARGET = re.compile(r"`make ([a-z-]+)")


def _generator() -> ModuleType:
    path = ROOT / "docs" / "generate.py"
    spec = importlib.util.spec_from_file_location("moldau_docs_generate", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_compatibility_tables_are_current():
    text = (ROOT / "docs" / "compatibility.md").read_text(encoding="utf-8")
    assert text == _generator().current_text(text), "run `make docs`"


def test_the_table_of_shares_is_current():
    text = (ROOT / "docs" / "security.md").read_text(encoding="utf-8")
    assert text == _generator().current_security(text), "run `make docs`"


def test_every_limit_of_a_container_is_in_the_table_of_shares():
    """`bounds.toml` has the limits of what requests can fill; the table says who has how much."""
    rows = (ROOT / "docs" / "resource_shares.toml").read_text(encoding="utf-8")
    named = {
        each for found in re.findall(r"\{([^{}]+)\}", rows) for each in re.split("[:.]", found)
    }
    named |= set(re.findall(r"\{([a-z.]+)\}", rows))
    missing = {
        f"{name} of {file}: {', '.join(limits)}"
        for file, containers in reviewed()["containers"].items()
        for name, row in containers.items()
        if (limits := limits_of(row)) and not named.intersection(limits)
    }
    assert missing == set(), "without a row in docs/resource_shares.toml"


def test_state_diagrams_are_current():
    generator = _generator()
    for page in generator.state_diagrams.PAGES:
        text = page.read_text(encoding="utf-8")
        assert text == generator.current_diagrams(page, text), "run `make docs`"


def test_every_table_of_transitions_is_drawn_once():
    tables = [
        f"{name_of(path).removesuffix('.py').replace('/', '.')}:{name}"
        for path in repository_files()
        if name_of(path).startswith("moldau/") and path.suffix == ".py"
        for name in _TABLE.findall(path.read_text(encoding="utf-8"))
    ]
    pages = _generator().state_diagrams.PAGES
    drawn = [machine.table for machines in pages.values() for machine in machines]
    assert sorted(drawn) == sorted(tables)
    assert len(tables) >= 12


def test_the_command_reference_is_current():
    reference = _generator().command_reference
    assert reference.PAGE.read_text(encoding="utf-8") == reference.render(), "run `make docs`"


def test_the_badges_are_current():
    badges = _generator().badges
    pictures = badges.pictures()
    assert {path: path.read_text(encoding="utf-8") for path in pictures} == pictures, "`make docs`"
    assert sorted(pictures) == sorted(badges.FOLDER.glob("*"))
    assert badges.row() in (ROOT / "README.md").read_text(encoding="utf-8").splitlines()


def test_every_key_is_in_the_compatibility_tables():
    text = (ROOT / "docs" / "compatibility.md").read_text(encoding="utf-8")
    assert [name for name in [*BROKER_KEYS, *TOPIC_KEYS] if f"| `{name}` |" not in text] == []


def test_links_between_documents_lead_somewhere():
    dead = [
        f"{name_of(path)}: {target}"
        for path in repository_files()
        if path.suffix == ".md"
        for target in _LINK.findall(path.read_text(encoding="utf-8"))
        if not (path.parent / target).exists()
    ]
    assert dead == []


def test_cells_of_tables_are_short():
    long = [
        f"{name_of(path)}:{number}: {len(cell.strip())} characters: {cell.strip()[:60]}"
        for path in repository_files()
        if path.suffix == ".md"
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1)
        if line.startswith("|")
        for cell in _CELL.split(line)
        if len(cell.strip()) > MAX_CELL
    ]
    assert long == [], "write sections below the table; of generated tables, change what makes them"


def test_documents_name_only_make_targets_that_exist():
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-z-]+):", makefile, re.MULTILINE))
    unknown = {
        f"{name_of(path)}: {target}"
        for path in repository_files()
        if path.suffix == ".md"
        for target in _TARGET.findall(path.read_text(encoding="utf-8"))
        if target not in targets
    }
    assert unknown == set()


def test_every_make_target_explains_itself():
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for target in re.search(r"^\.PHONY: (.*)$", makefile, re.MULTILINE)[1].split():
        assert re.search(rf"^{target}:.*## \w", makefile, re.MULTILINE), target


def test_continuous_integration_runs_the_readmes_test_command():
    script = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    commands = [line for line in script.splitlines() if line.startswith("exec ")]
    assert commands == ["exec make test-all"]


def test_decision_records_have_context_decision_and_consequences():
    records = sorted((ROOT / "docs" / "adr").glob("[0-9]*.md"))
    assert len(records) >= 4
    for number, record in enumerate(records, start=1):
        text = record.read_text(encoding="utf-8")
        assert record.name.startswith(f"{number:04d}-")
        assert re.findall(r"^## (.*)$", text, re.MULTILINE) == [
            "Context",
            "Decision",
            "Consequences",
        ]
        assert len(text.splitlines()) <= 60
