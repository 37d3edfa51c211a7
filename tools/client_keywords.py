"""Writes the types of the clients' settings from the table of their keys (part of `make fmt`).

Owns moldau/client/config/keywords.pyi: of each kind of client the keyword arguments that it takes,
and the values that its configuration has. Invariant: the result depends on `client_keys.tsv` alone;
tests/tidy checks that the file is current.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from moldau.config.client_keys import CLIENT, FILE, KINDS, areas_of, attribute, client_keys
from moldau.config.rows import read_rows

TARGET = Path(__file__).resolve().parent.parent / "moldau" / "client" / "config" / "keywords.pyi"
CONSTRUCTOR = "bootstrap.servers"
"""The one key that a constructor takes by position, and not among its keyword settings."""

HEAD = '''\
"""The types of clients' settings. Written by tools/client_keywords.py (`make fmt`): do not edit.

`…Settings` are the keyword arguments of a client and of its configuration, `…Values` that
configuration's constructor and attributes; times are in milliseconds unless named otherwise, sizes
in bytes.
"""

import ssl
from collections.abc import Awaitable, Callable, Sequence
from typing import Literal, TypeAlias, TypedDict, Unpack

from moldau.sasl.oauthbearer.tokens import OAuthBearerToken

TokenProvider: TypeAlias = Callable[
    [], OAuthBearerToken | str | Awaitable[OAuthBearerToken] | Awaitable[str]
]
"""Returns a token each time one is needed: a plain or an async function, run on the event loop."""
'''

SETTINGS = "\nclass {name}Settings({base}, total=False):\n"
VALUES = """
class {name}Values:
    def __init__(
        self, bootstrap_servers: str | Sequence[str] = (), **settings: Unpack[{name}Settings]
    ) -> None: ...
"""

_TYPES = {"int": "int", "long": "int", "double": "float", "boolean": "bool"}


def render() -> str:
    """The text of the module."""
    parts = [HEAD]
    for kind in (CLIENT, *KINDS):
        name = kind.split()[0].capitalize()
        base = "TypedDict" if kind == CLIENT else "ClientSettings"
        rows = list(_own_rows(kind))
        given = [row for row in rows if row["key"] != CONSTRUCTOR]
        parts.append(SETTINGS.format(name=name, base=base))
        parts += [f"    {attribute(row['key'])}: {_types(row)[0]}\n" for row in given]
        parts.append(VALUES.format(name=name))
        parts += [f"    {attribute(row['key'])}: {_types(row)[-1]}\n" for row in rows]
    return "".join(parts)


def _own_rows(kind: str) -> Iterator[Mapping[str, str]]:
    """Those of the keys that this kind of client serves, and not every client."""
    of_all = client_keys(CLIENT) if kind != CLIENT else {}
    for row in read_rows(FILE):
        is_own = kind in areas_of(row) and attribute(row["key"]) not in of_all
        if is_own and row["status"] == "served":
            yield row


def _types(row: Mapping[str, str]) -> list[str]:
    """What is taken, and what is kept where it differs."""
    if row["annotation"] == "Literal":
        words = row["limits"].removeprefix("any case: ").split("|")
        return ["Literal[{}]".format(", ".join(f'"{word}"' for word in words))]
    if row["annotation"]:
        return row["annotation"].split("; ")
    if row["type"] == "list":
        return ["Sequence[str] | str", "tuple[str, ...]"]
    nullable = " | None" if row["default"] == "null" else ""
    return [_TYPES.get(row["type"].split()[0], "str") + nullable]


FILES = {TARGET: render()}

if __name__ == "__main__":
    TARGET.write_text(FILES[TARGET], encoding="utf-8")
