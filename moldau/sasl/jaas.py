"""The grammar of `sasl.jaas.config`, as Java users write it, for clients and listeners."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Final

from moldau.runtime.authentication import SecuritySettingError

FLAGS: Final = ("required", "requisite", "sufficient", "optional")

_PIECE: Final = re.compile(
    r"""\s*(?:
        "(?P<double>(?:[^"\\]|\\.)*)"
      | '(?P<single>(?:[^'\\]|\\.)*)'
      | (?P<sign>[=;])
      | (?P<word>[^\s"'=;]+)
    )""",
    re.VERBOSE | re.DOTALL,
)
_ESCAPE: Final = re.compile(r"\\(.)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class JaasEntry:
    """The one login module of a `sasl.jaas.config`, as the last part of its class name."""

    module: str
    options: dict[str, str] = field(repr=False)


def parse_jaas(text: str) -> JaasEntry:
    """Parse `sasl.jaas.config` as Java users write it: a login module, its flag and its options.

        org.apache.kafka.common.security.scram.ScramLoginModule required username="a" password="b";

    Raises:
        SecuritySettingError: it is something else. The error shows none of the text, since it holds
            secrets.
    """
    pieces = _pieces(text)
    wrong = 'sasl.jaas.config: it is LoginModule required name="value" …; and nothing else'
    if len(pieces) < 3 or pieces[0][0] != "word" or pieces[-1] != ("sign", ";"):
        raise SecuritySettingError(wrong)
    if pieces[1][0] != "word" or pieces[1][1].lower() not in FLAGS:
        raise SecuritySettingError(f"{wrong}; the second word is one of {', '.join(FLAGS)}")
    options: dict[str, str] = {}
    rest = pieces[2:-1]
    if len(rest) % 3:
        raise SecuritySettingError(wrong)
    for at in range(0, len(rest), 3):
        (name_kind, name), sign, (value_kind, value) = rest[at : at + 3]
        if name_kind != "word" or sign != ("sign", "=") or value_kind == "sign":
            raise SecuritySettingError(wrong)
        options[name] = value
    return JaasEntry(pieces[0][1].rpartition(".")[2], options)


def _pieces(text: str) -> list[tuple[str, str]]:
    text = text.strip()
    pieces: list[tuple[str, str]] = []
    at = 0
    while at < len(text):
        found = _PIECE.match(text, at)
        if found is None:
            raise SecuritySettingError("sasl.jaas.config: a quote is opened and not closed")
        at = found.end()
        kind = found.lastgroup or ""
        value = found.group(kind)
        if kind in ("double", "single"):
            pieces.append(("quoted", _ESCAPE.sub(r"\1", value)))
        else:
            pieces.append((kind, value))
    return pieces
