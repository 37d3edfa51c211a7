"""Code that a script writes is what the script writes now."""

from __future__ import annotations

import runpy

from tests.tidy.sources import ROOT


def test_the_blocking_admin_client_is_current():
    script = runpy.run_path(str(ROOT / "tools" / "blocking_admin.py"))
    assert script["TARGET"].read_text(encoding="utf-8") == script["render"](), "run `make fmt`"
