"""NOTICE names every package that an installation brings, under the licence of its own metadata."""

from __future__ import annotations

import re
from importlib.metadata import PackageNotFoundError, metadata

import pytest

from tests.tidy.requirements import PROJECT, brought_by, named_by
from tests.tidy.sources import ROOT

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


def test_each_extra_is_for_users_or_for_development():
    assert {*EXTRAS, *DEVELOPMENT} == PROJECT["optional-dependencies"].keys()


def test_every_installation_has_its_packages_in_the_notice():
    found = brought_by("moldau")
    rows = {name for name, (_, askers) in notice().items() if askers == "every installation"}
    assert found == rows
    assert len(rows) == 12, "docs/install.md counts them, too"


@pytest.mark.parametrize("extra", EXTRAS)
def test_every_extra_has_its_packages_in_the_notice(extra: str):
    assert brought_by(f"moldau[{extra}]") - notice().keys() == set()
    asking = {name for name, (_, askers) in notice().items() if f"moldau[{extra}]" in askers}
    assert named_by(extra) <= asking


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
