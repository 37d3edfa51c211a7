"""The blocks of a document: what its reader types, saves as a file, or is shown.

Owns: finding them, and what the document says about playing them. Must not: run any. Invariant: a
mark belongs to the one block behind it, and a mark that is not in the table of `Mark` is an error.

A mark is a comment of Markdown in front of a block, which readers of the page do not see:

    <!-- tour: not played: REASON -->    the block is left out, for that reason
    <!-- tour: goes on -->               in front of a block of output: when it has come, what was
                                         typed before it goes on, and the reader takes another
                                         terminal
    <!-- tour: Ctrl-C -->                the reader ends what goes on, the latest first
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from enum import StrEnum
from typing import Final, NamedTuple

_FENCE: Final = re.compile(r"^(\s*)```(\w*)\s*$")
_INDENTED: Final = re.compile(r"^(?: {4,}|\t)(\S.*)$")
_MARK: Final = re.compile(r"<!-- tour: ([\w -]*?)(?::\s(.*?))? -->", re.DOTALL)
#: How the text in front of a block names the file that it is: `read.py`, `/etc/x.properties`.
_FILE: Final = re.compile(r"`([\w./-]+\.(?:py|yaml|properties|ini|toml))`")
_ADD: Final = re.compile(r"\b[Aa]dd\b")
SHELL: Final = "sh"
OUTPUT: Final = "text"


class Mark(StrEnum):
    """What a document says about playing a block."""

    NOT_PLAYED = "not played"
    GOES_ON = "goes on"
    CTRL_C = "Ctrl-C"


class WrongMark(Exception):
    """A mark that is none, or that lacks its reason; the text has document and line."""


class Block(NamedTuple):
    """One block of a document, or Ctrl-C, which has no text."""

    document: str
    line: int
    """The first line of its text."""
    language: str
    """As the fence says; an indented block is shell."""
    text: str
    lead: str
    """The paragraph in front of it."""
    mark: Mark | None = None
    reason: str = ""
    is_indented: bool = False

    @property
    def place(self) -> str:
        return f"{self.document}:{self.line}"

    @property
    def file(self) -> str:
        """The file that its reader saves it as, by the paragraph in front of it; empty if none."""
        names = _FILE.findall(self.lead)
        return names[-1] if names else ""

    @property
    def is_added(self) -> bool:
        """It goes behind what the file has already."""
        return _ADD.search(self.lead) is not None


def blocks_of(document: str, text: str) -> list[Block]:
    """Every block in order. Raises: WrongMark."""
    return [*_blocks(document, text.splitlines())]


def _blocks(document: str, lines: list[str]) -> Iterator[Block]:
    marked: tuple[Mark | None, str] = (None, "")
    lead: list[str] = []
    at = 0
    while at < len(lines):
        if found := _MARK.search(_comment(lines, at)):
            marked = _mark(f"{document}:{at + 1}", found)
            if marked[0] is Mark.CTRL_C:
                yield Block(document, at + 1, "", "", "", Mark.CTRL_C)
                marked = (None, "")
            at += _comment(lines, at).count("\n") + 1
            continue
        begin, end, language = _extent(lines, at)
        if end == at:
            if lines[at].strip():
                after_blank = at > 0 and not lines[at - 1].strip()
                lead = [lines[at]] if after_blank else [*lead, lines[at]]
            at += 1
            continue
        body = [line.strip() if language is None else line for line in lines[begin:end]]
        yield Block(
            document,
            begin + 1,
            SHELL if language is None else language,
            "\n".join(body) + "\n",
            "\n".join(lead),
            *marked,
            language is None,
        )
        marked, lead = (None, ""), []
        at = end + (language is not None)


def _comment(lines: list[str], at: int) -> str:
    """The comment that begins in a line, whole; empty if none does."""
    if not lines[at].startswith("<!-- tour:"):
        return ""
    until = next((n for n in range(at, len(lines)) if lines[n].rstrip().endswith("-->")), at)
    return "\n".join(lines[at : until + 1])


def _mark(place: str, found: re.Match[str]) -> tuple[Mark, str]:
    words, reason = found[1], " ".join((found[2] or "").split())
    if words not in {*Mark} or (words == Mark.NOT_PLAYED) != bool(reason):
        raise WrongMark(f"{place}: {found[0]}: tests/system/documents/blocks.py has the marks")
    return Mark(words), reason


def _extent(lines: list[str], at: int) -> tuple[int, int, str | None]:
    """First line, line behind the last, and language (None: indented) of the block that begins in a
    line; nothing (`at, at`) if none does.
    """
    if fence := _FENCE.match(lines[at]):
        end = next(n for n in range(at + 1, len(lines) + 1) if lines[n].strip() == "```")
        return at + 1, end, fence[2]
    is_first = at == 0 or not lines[at - 1].strip()
    if not (is_first and _INDENTED.match(lines[at])):
        return at, at, None
    end = at
    while end < len(lines) and _INDENTED.match(lines[end]):
        end += 1
    return at, end, None
