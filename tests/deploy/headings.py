"""The headings of a Markdown document, and what links call them.

Owns the rule by which a heading becomes an anchor.
"""

from __future__ import annotations

import re
from pathlib import Path

_HEADING = re.compile(r"^#{1,6} +(.*?)\s*$", re.MULTILINE)


def anchors(path: Path) -> set[str]:
    """Every anchor of a document: lower case, words joined by dashes, no punctuation."""
    return {anchor(text) for text in _HEADING.findall(path.read_text(encoding="utf-8"))}


def anchor(heading: str) -> str:
    """The anchor of one heading."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
