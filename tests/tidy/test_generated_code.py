"""Code that a script writes is what the script writes now."""

from __future__ import annotations

import runpy

import pytest

from tests.tidy.sources import ROOT


@pytest.mark.parametrize("name", ["blocking_admin", "client_keywords", "package_names"])
def test_what_a_script_writes_is_current(name: str):
    script = runpy.run_path(str(ROOT / "tools" / f"{name}.py"))
    for path, text in script["FILES"].items():
        assert path.read_text(encoding="utf-8") == text, "run `make fmt`"
