"""Code that a script writes is what the script writes now."""

from __future__ import annotations

import runpy

import pytest

from tests.tidy.sources import ROOT


@pytest.mark.parametrize("name", ["blocking_admin", "client_keywords"])
def test_what_a_script_writes_is_current(name: str):
    script = runpy.run_path(str(ROOT / "tools" / f"{name}.py"))
    assert script["TARGET"].read_text(encoding="utf-8") == script["render"](), "run `make fmt`"
