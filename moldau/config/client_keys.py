"""The keys of clients: what each kind of client serves of the rows of `client_keys.tsv`.

Must not load the nodes' keys: a client starts without them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache
from types import MappingProxyType
from typing import Final

from moldau.config.definition import ConfigKey, Status
from moldau.config.rows import key_of_row, read_rows

CLIENT: Final = "client"
"""The area of the keys that every client has."""
KINDS: Final = ("producer", "consumer", "admin client")
FILE: Final = "client_keys.tsv"


def areas_of(row: Mapping[str, str]) -> list[str]:
    """The kinds of clients that a row is for, or `CLIENT`."""
    return row["area"].split(", ")


@cache
def _keys() -> tuple[tuple[list[str], ConfigKey], ...]:
    return tuple((areas_of(row), key_of_row(row)) for row in read_rows(FILE))


@cache
def client_keys(kind: str) -> Mapping[str, ConfigKey]:
    """The keys that a kind of client serves, or every client, by the names of their attributes."""
    return MappingProxyType(
        {
            attribute(key.name): key
            for areas, key in _keys()
            if key.status is Status.SERVED and (CLIENT in areas or kind in areas)
        }
    )


@cache
def unserved_client_keys() -> Mapping[str, ConfigKey]:
    """The keys of Kafka's Java clients that are not served, by their names. The refused ones would
    silently behave otherwise than they say, unless their value is within their limits. The others
    only concern the Java process around the client, or how a broker checks a token, and get one
    warning where their value is not Java's default.
    """
    return MappingProxyType(
        {key.name: key for _, key in _keys() if key.status is not Status.SERVED}
    )


def served_by(name: str) -> Mapping[str, ConfigKey]:
    """The declarations of a setting, by the kinds of clients that serve it."""
    keys = {kind: client_keys(kind).get(attribute(name)) for kind in KINDS}
    return {kind: key for kind, key in keys.items() if key is not None}


def served_names() -> Iterable[str]:
    """The names of all keys that a client serves."""
    return {key.name for kind in KINDS for key in client_keys(kind).values()}


def attribute(name: str) -> str:
    """`linger_ms` of `linger.ms`."""
    return name.replace(".", "_")
