"""NOTICE names every package that an installation brings, under the licence of its own metadata."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable
from functools import cache
from importlib.metadata import PackageNotFoundError, metadata, requires

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.tidy.sources import ROOT

with (ROOT / "pyproject.toml").open("rb") as file:
    PROJECT = tomllib.load(file)["project"]
#: What users ask for; the other extras are for development.
EXTRAS = (
    "server",
    "tls",
    "gssapi",
    "arrow",
    "spark",
    "spark-java",
    "results",
    "schema-registry",
)
DEVELOPMENT = ("test", "lint", "demo", "examples", "dev", "dev-all", "docs", "release")

_ROW = re.compile(r"^  ([a-z0-9-]+) {2,}(\S.*?) {2,}(\S.*)$", re.MULTILINE)
_FAMILY = re.compile(
    r"\b(LGPL|GPL|MPL|MIT|BSD|ISC|PSF)|\b(Apache|Mozilla|Lesser|Python Software Foundation)\b"
)
_SAME = {"Mozilla": "MPL", "Lesser": "LGPL", "Python Software Foundation": "PSF"}


def notice() -> dict[str, tuple[str, str]]:
    """Licence and askers by package."""
    text = (ROOT / "NOTICE").read_text(encoding="utf-8")
    return {name: (licence, askers) for name, licence, askers in _ROW.findall(text)}


def families(text: str) -> set[str]:
    """What kinds of licences a text names: packages write the same one in many ways."""
    found = {first or second for first, second in _FAMILY.findall(text)}
    return {_SAME.get(each, each) for each in found}


def declared(name: str) -> str:
    """What a package says: its expression, else its field and its classifiers."""
    fields = metadata(name)
    expression = fields.get("License-Expression")
    if expression:
        return str(expression)
    classifiers = [each for each in fields.get_all("Classifier") or () if "License" in each]
    return " ".join([(fields.get("License") or "")[:100], *classifiers])


@cache
def needed(requirement: str) -> frozenset[str]:
    """The packages that a requirement brings on this Python, as far as they are installed."""
    found: set[str] = set()
    waiting = [Requirement(requirement)]
    while waiting:
        each = waiting.pop()
        name = canonicalize_name(each.name)
        if name == "moldau":
            waiting += _of_extras(each.extras)
        elif name not in found:
            found.add(name)
            waiting += _of_package(name, each.extras)
    return frozenset(found)


def _of_extras(names: set[str]) -> list[Requirement]:
    extras = PROJECT["optional-dependencies"]
    return _in_force((each for name in names for each in extras[name]), set())


def _of_package(name: str, extras: set[str]) -> list[Requirement]:
    try:
        return _in_force(requires(name) or (), extras)
    except PackageNotFoundError:
        return []


def _in_force(texts: Iterable[str], extras: set[str]) -> list[Requirement]:
    """The requirements that this Python, or one of the extras, makes hold."""
    environments = [{"extra": each} for each in ("", *extras)]
    return [
        each
        for text in texts
        if (each := Requirement(text)).marker is None
        or any(each.marker.evaluate(environment) for environment in environments)
    ]


def test_each_extra_is_for_users_or_for_development():
    assert {*EXTRAS, *DEVELOPMENT} == PROJECT["optional-dependencies"].keys()


def test_every_installation_has_its_packages_in_the_notice():
    found = {name for each in PROJECT["dependencies"] for name in needed(each)}
    rows = {name for name, (_, askers) in notice().items() if askers == "every installation"}
    assert found == rows
    assert len(rows) == 12, "docs/install.md counts them, too"


@pytest.mark.parametrize("extra", EXTRAS)
def test_every_extra_has_its_packages_in_the_notice(extra: str):
    found = {
        name for each in PROJECT["optional-dependencies"][extra] for name in needed(each)
    } - notice().keys()
    assert found == set()
    asking = {name for name, (_, askers) in notice().items() if f"moldau[{extra}]" in askers}
    assert {canonicalize_name(each.name) for each in _of_extras({extra})} - {"moldau"} <= asking


def test_each_licence_is_what_the_package_declares():
    wrong = {}
    for name, (licence, _) in notice().items():
        try:
            said = declared(name)
        except PackageNotFoundError:
            continue  # an extra that is not installed here
        if families(licence) != (families(said) or families(licence)):
            wrong[name] = (licence, said)
    assert wrong == {}


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("LGPL-2.1-or-later", "GNU Lesser General Public License v2 or later (LGPLv2+)"),
        ("GPL-2.0-only WITH Classpath-exception-2.0", "GNU General Public License v2 (GPLv2)"),
        ("MPL-2.0 AND MIT", "Mozilla Public License 2.0 (MPL 2.0) MIT License"),
        ("PSF-2.0", "Python Software Foundation License"),
        ("BSD-3-Clause", "3-Clause BSD License"),
    ],
)
def test_the_same_licence_in_other_words_is_the_same(one: str, other: str):
    assert families(one) == families(other) != set()


def test_another_licence_is_another_one():
    assert families("LGPL-2.1-or-later") != families("GPL-2.0-only")
    assert families("MIT OR Apache-2.0") != families("Apache-2.0")
