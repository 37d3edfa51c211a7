"""The data files of keys: one key a row, with the names of the columns in the first line.

A key's `limits` are a name in `validators.NAMED`, a range as in `1..9` or `0..`, or an enumeration
as in `a|b` or `any case: a|b`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Final

from moldau.config.definition import ConfigKey, ConfigType, Importance, Scope, Status
from moldau.config.validators import NAMED, Validator, one_of, within
from moldau.config.values import parse_value, value_of
from moldau.constants import MAX_INT32, MAX_INT64

_ANY_CASE: Final = "any case: "
_BUT: Final = " but "


def read_rows(file_name: str) -> Iterator[dict[str, str]]:
    """The rows of a file beside this module, by column."""
    path = os.path.join(os.path.dirname(__file__), file_name)
    with open(path, encoding="utf-8") as file:
        columns = next(file).rstrip("\n").split("\t")
        for line in file:
            yield dict(zip(columns, line.rstrip("\n").split("\t"), strict=True))


def key_of_row(row: Mapping[str, str]) -> ConfigKey:
    """The key that a row declares. In a file without the column `changeable` it is a client's: its
    type may name a unit, as in `long ms`, and its limits may leave out a value and say why, as in
    `-1..9 but 0: a reason`.
    """
    kind, _, unit = row["type"].partition(" ")
    limits, _, but = row["limits"].partition(_BUT)
    refused, _, refusal = but.partition(": ")
    scope = Scope(row.get("changeable", "client"))
    is_clients = scope is Scope.CLIENT
    key = ConfigKey(
        row["key"],
        ConfigType[kind.upper()],
        None,
        _clients_validator(kind, unit, limits) if is_clients else _validator(limits),
        Importance(row.get("importance", "medium")),
        scope,
        row.get("meaning", ""),
        Status(row["status"]),
        row["reason"],
        tuple(filter(None, row.get("synonyms", "").split(","))),
        (refused,) if refused else (),
        refusal,
        internal=bool(row.get("internal")),
        unit=unit,
    )
    if row["default"] == "null":
        return key
    parse = value_of if is_clients else parse_value
    return key._replace(default=parse(key, row["default"]))


@cache
def _validator(limits: str) -> Validator | None:
    if not limits:
        return None
    if limits in NAMED:
        return NAMED[limits]
    lowest, is_range, highest = limits.partition("..")
    if is_range:
        return within(_number(lowest), _number(highest) if highest else None)
    values = limits.removeprefix(_ANY_CASE)
    return one_of(*values.split("|"), any_case=values != limits)


@cache
def _clients_validator(kind: str, unit: str, limits: str) -> Validator | None:
    """As `_validator`; a range of whole numbers ends with those of the type at the latest."""
    lowest, is_range, highest = limits.partition("..")
    if not is_range:
        return _validator(limits)
    highest = highest or str(MAX_INT64 if kind == "long" else MAX_INT32)
    whole = "" if kind == "double" else "whole "
    of_unit = f" of {unit}" if unit else ""
    return Validator(
        within(_number(lowest), _number(highest)).accepts,
        f"a {whole}number{of_unit} from {lowest} to {highest}",
    )


def _number(text: str) -> float:
    return float(text) if "." in text else int(text)
