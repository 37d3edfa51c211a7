"""The list of unsteady tests is of its form, and names tests that exist."""

from __future__ import annotations

import pytest

from tests.kit import unsteady
from tests.tidy.sources import ROOT, functions_of, tree_of


def test_every_row_names_a_test_that_exists():
    gone = []
    for row in unsteady.read(ROOT / unsteady.FILE):
        place, _, names = row.test.partition("[")[0].partition("::")
        dotted = names.replace("::", ".")
        path = ROOT / place
        known = {name for name, _ in functions_of(tree_of(path))} if path.is_file() else set()
        if dotted not in known:
            gone.append(row.test)
    assert gone == []


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ('test = "t"\ndate = "2026-01-02"\ncause = ""', "date"),
        ('test = "t"\ndate = 2026-01-02T03:04:05\ncause = ""', "date"),
        ('test = "t"\ndate = 2026-01-02', r"cause \(missing\)"),
        ('test = "t"\ndate = 2026-01-02\ncause = ""\nseed = 7', "seed"),
        ('test = "t"\ndate = 2026-01-02\ncause = ""\nreason = ""', "reason"),
    ],
)
def test_a_row_of_another_form_is_refused(tmp_path, text, wrong):
    path = tmp_path / "unsteady.toml"
    path.write_text(f"[[unsteady]]\n{text}\n", encoding="utf-8")
    with pytest.raises(ValueError, match=f"row 1: {wrong}"):
        unsteady.read(path)


def test_another_table_is_refused(tmp_path):
    path = tmp_path / "unsteady.toml"
    path.write_text("[[steady]]\n", encoding="utf-8")
    with pytest.raises(ValueError, match="only"):
        unsteady.read(path)
