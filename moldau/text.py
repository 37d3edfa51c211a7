"""Text that others have chosen, as it may be shown: without control characters, and not too long.

Also what is said about a name that is not known. Invariant: what is shown is one line that neither
a terminal nor a reader of lines acts on.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import Final

MAX_NAME_CHARACTERS: Final = 250
"""Shown of a name: what clients send may be 32 KiB long."""
MAX_MESSAGE_CHARACTERS: Final = 1_000
"""The limit of an error's message, which may quote a request: a response has room for 32 KiB."""

_PLAIN: Final = re.compile(r"[\w.:*/@%+-]+", re.ASCII)


def one_line(text: str) -> str:
    """Text with everything that does not print escaped, as in `\\x1b`, `\\n` and `\\u202e`: it
    would let a peer forge lines, colours, or the order of letters.
    """
    if text.isprintable():
        return text
    return "".join(
        character if character.isprintable() else character.encode("unicode_escape").decode()
        for character in text
    )


def quoted(text: str) -> str:
    """Text that cannot be taken for what stands around it: as it is when it is of letters, digits
    and a few other characters, else as a JSON string, everything that does not print escaped.
    """
    if _PLAIN.fullmatch(text):
        return text
    return printable_json(json.dumps(text, ensure_ascii=False))


def printable_json(document: str) -> str:
    """The same JSON, in one line, without characters that a terminal or an editor would act on."""
    if document.isprintable():
        return document
    return "".join(
        character if character.isprintable() else json.dumps(character)[1:-1]
        for character in document
    )


def short_name(name: str) -> str:
    """A name, cut when it is very long."""
    if len(name) <= MAX_NAME_CHARACTERS:
        return name
    return f"{name[:MAX_NAME_CHARACTERS]}… ({len(name)} characters)"


def short_message(message: str) -> str:
    """The message of an error, cut when it is very long."""
    if len(message) <= MAX_MESSAGE_CHARACTERS:
        return message
    return f"{message[:MAX_MESSAGE_CHARACTERS]}…"


def nearest_names(
    name: str, known: Iterable[str], *, most: int = 1, likeness: float = 0.6
) -> list[str]:
    """The known names that `name` resembles most, whatever their case, the nearest first.

    Args:
        most: how many at most.
        likeness: from 0 to 1, how much they have to be alike.
    """
    from difflib import get_close_matches  # Only when there is something to complain about.

    by_folded = {_folded(each): each for each in known}
    found = get_close_matches(_folded(name[:MAX_NAME_CHARACTERS]), by_folded, most, likeness)
    return [by_folded[each] for each in found]


def did_you_mean(
    name: str, known: Iterable[str], otherwise: str = "", *, most: int = 1, likeness: float = 0.6
) -> str:
    """The end of a complaint about a name that is not known: `nearest_names` as a question, or
    `otherwise` where it resembles none.
    """
    found = nearest_names(name, known, most=most, likeness=likeness)
    return f"; did you mean {' or '.join(found)}?" if found else otherwise


def _folded(name: str) -> str:
    return name.lower().replace("_", ".")
