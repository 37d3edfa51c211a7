"""Lists of the console's own resources: searched, sorted and cut into pages.

Owns the parameters that every list takes, and its form: `data`, `next`, `total`. Must not ask a
cluster. Invariants: a page begins behind the row where the one before ended, by what is sorted by
and then by name, so that rows that come and go make no other row appear twice or be left out; rows
of which a figure is not known come last, whichever way they are sorted.
"""

from __future__ import annotations

import base64
import binascii
from bisect import bisect_left
from collections.abc import Collection, Iterable, Mapping
from typing import Any, Final

import orjson

from moldau.console.calls import Call
from moldau.console.problems import Problem
from moldau.console.routes import Parameter
from moldau.console.schemas import INTEGER, STRING, Schema, array, named, nullable, one_of, record

OWN: Final = "/api/v1/clusters/{cluster_id}"
"""What the paths of a cluster's own resources begin with."""
ASCENDING, DESCENDING = "asc", "desc"
USUAL_ROWS: Final = 100
MAX_ROWS: Final = 1_000
MAX_TEXT: Final = 1_000
MAX_CURSOR: Final = 100_000
Row = dict[str, Any]


def list_parameters(fields: Collection[str], *, by: str) -> tuple[Parameter, ...]:
    """What a list takes.

    Args:
        fields: of its rows, by which it can be sorted.
        by: the one by which it is, where nothing is said.
    """
    return (
        Parameter(
            "q",
            "Only rows that have this in a name; capitals count for nothing.",
            {**STRING, "maxLength": MAX_TEXT},
        ),
        Parameter("sort", "The field to sort by.", one_of(*fields), default=by),
        Parameter("order", "Which way.", one_of(ASCENDING, DESCENDING), default=ASCENDING),
        Parameter(
            "limit",
            "At most so many rows.",
            {**INTEGER, "minimum": 1, "maximum": MAX_ROWS},
            default=USUAL_ROWS,
        ),
        Parameter(
            "after",
            "The `next` of the page before.",
            {**STRING, "maxLength": MAX_CURSOR},
        ),
    )


def listed(name: str, row: Schema) -> Schema:
    """The schema of a list's page."""
    return named(name, record({"data": array(row), "next": nullable(STRING), "total": INTEGER}))


def matching(rows: Iterable[Row], text: str | None, fields: Collection[str]) -> list[Row]:
    """The rows that have a text in one of these fields, in capitals or not; all without one."""
    if not text:
        return [*rows]
    wanted = text.casefold()
    return [row for row in rows if any(wanted in str(row[each]).casefold() for each in fields)]


def page(query: Mapping[str, Any], rows: Iterable[Row], *, name: str) -> Row:
    """One page of rows, which are the given ones: what is costly can be put into them afterwards.

    Args:
        query: with values for `list_parameters`.
        rows: all that there are, each with the field that is sorted by.
        name: the field that every row has another value in.

    Raises:
        Problem: `after` is not from such a list.
    """
    field, is_descending = query["sort"], query["order"] == DESCENDING
    ordered = _sorted(rows, field, name, is_descending=is_descending)
    first = 0
    if query["after"] is not None:
        value, last = _opened(query["after"], field, query["order"])
        try:
            first = bisect_left(
                ordered,
                True,
                key=lambda row: _is_behind(
                    (row[field], row[name]), (value, last), is_descending=is_descending
                ),
            )
        except TypeError:
            raise _not_from_here() from None
    data = ordered[first : first + query["limit"]]
    has_more = first + len(data) < len(ordered)
    cursor = _cursor(field, query["order"], data[-1][field], data[-1][name]) if has_more else None
    return {"data": data, "next": cursor, "total": len(ordered)}


def searched(call: Call, rows: Iterable[Row], *, name: str, fields: Collection[str] = ()) -> Row:
    """The page that a call asks for.

    Args:
        name: the field that every row has another value in.
        fields: those that are searched; () for the name.
    """
    return page(call.query, matching(rows, call.query["q"], fields or (name,)), name=name)


def _sorted(rows: Iterable[Row], field: str, name: str, *, is_descending: bool) -> list[Row]:
    by_name = sorted(rows, key=lambda row: row[name])
    known = [row for row in by_name if row[field] is not None]
    known.sort(key=lambda row: row[field], reverse=is_descending)
    return known + [row for row in by_name if row[field] is None]


def _is_behind(row: tuple[Any, Any], other: tuple[Any, Any], *, is_descending: bool) -> bool:
    """Whether a row, by its value and its name, comes behind another one. Raises: TypeError."""
    (value, name), (other_value, other_name) = row, other
    if value is None or other_value is None:
        if (value is None) is not (other_value is None):
            return value is None
    elif value != other_value:
        is_larger: bool = value > other_value
        return is_larger is not is_descending
    is_later: bool = name > other_name
    return is_later


def _cursor(field: str, order: str, value: object, name: object) -> str:
    return base64.urlsafe_b64encode(orjson.dumps([field, order, value, name])).decode()


def _opened(cursor: str, field: str, order: str) -> tuple[Any, Any]:
    """The value and the name of the last row of the page before. Raises: Problem."""
    try:
        given = orjson.loads(base64.urlsafe_b64decode(cursor))
    except (binascii.Error, ValueError):
        raise _not_from_here() from None
    if not isinstance(given, list) or len(given) != 4 or given[:2] != [field, order]:
        raise _not_from_here()
    return given[2], given[3]


def _not_from_here() -> Problem:
    return Problem(422, "the parameter after is not the `next` of a list sorted like this one")
