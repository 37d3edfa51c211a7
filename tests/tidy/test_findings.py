"""A red rule of this directory says what to do and names every place."""

from __future__ import annotations

from tests.tidy.findings import listed


def test_the_message_has_every_place_in_a_line():
    assert listed(["b.py:2 later", "a.py:1 first"], "needs a docstring") == (
        "needs a docstring:\n  a.py:1 first\n  b.py:2 later"
    )
    assert listed({"a.py": 801}, "at most 800 lines") == "at most 800 lines:\n  a.py: 801"
