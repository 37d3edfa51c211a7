"""Lists are searched, sorted and paged without losing or repeating a row."""

from __future__ import annotations

import base64
import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moldau.console.own.lists import (
    ASCENDING,
    DESCENDING,
    MAX_ROWS,
    list_parameters,
    matching,
    page,
)
from moldau.console.problems import Problem
from moldau.console.routes import Route

Row = dict[str, Any]
ROWS = st.lists(
    st.fixed_dictionaries(
        {"name": st.text("abC-", max_size=3), "lag": st.none() | st.integers(0, 3)}
    ),
    unique_by=lambda row: str(row["name"]),
    max_size=12,
)
FIELDS = st.sampled_from(["name", "lag"])
ORDERS = st.sampled_from([ASCENDING, DESCENDING])


def query(**more: Any) -> Row:
    own = {"q": None, "sort": "name", "order": ASCENDING, "limit": 100, "after": None}
    return {**own, **more}


def walk(rows: list[Row], **more: Any) -> list[Row]:
    """All rows, page by page."""
    found: list[Row] = []
    after = None
    while True:
        shown = page(query(after=after, **more), rows, name="name")
        found += shown["data"]
        after = shown["next"]
        assert shown["total"] == len(rows)
        if after is None:
            return found
        assert len(shown["data"]) == more["limit"]


@given(ROWS, FIELDS, ORDERS, st.integers(1, 5))
def test_pages_have_every_row_once_and_in_order(
    rows: list[Row], field: str, order: str, limit: int
) -> None:
    found = walk(rows, sort=field, order=order, limit=limit)
    assert sorted(row["name"] for row in found) == sorted(row["name"] for row in rows)
    values = [row[field] for row in found]
    known = [value for value in values if value is not None]
    assert values == known + [None] * (len(values) - len(known))
    assert known == sorted(known, reverse=order == DESCENDING)
    for first, second in pairwise(found):
        if first[field] == second[field]:
            assert first["name"] < second["name"]


@given(ROWS, FIELDS, ORDERS, st.integers(1, 5), st.integers(0, 11))
def test_a_row_that_goes_between_two_pages_takes_no_other_along(
    rows: list[Row], field: str, order: str, limit: int, gone: int
) -> None:
    first = page(query(sort=field, order=order, limit=limit), rows, name="name")
    left = [row for index, row in enumerate(rows) if index != gone]
    found = first["data"]
    if first["next"] is not None:
        rest = page(query(sort=field, order=order, after=first["next"]), left, name="name")
        found = found + rest["data"]
    names = [row["name"] for row in found]
    assert len(names) == len(set(names))
    assert {row["name"] for row in left} <= set(names)


def test_a_search_takes_no_notice_of_capitals() -> None:
    rows = [
        {"name": "Flights", "host": "x"},
        {"name": "b", "host": "FLY"},
        {"name": "c", "host": ""},
    ]
    assert matching(rows, "fl", ("name",)) == rows[:1]
    assert matching(rows, "FL", ("name", "host")) == rows[:2]
    assert matching(rows, None, ("name",)) == matching(rows, "", ("name",)) == rows


@pytest.mark.parametrize(
    "after",
    [
        "",
        "x",
        "ä",
        "!!!!",
        *(
            base64.urlsafe_b64encode(json.dumps(each).encode()).decode()
            for each in (
                17,
                [],
                ["name", "asc", "a"],
                ["lag", "asc", 1, "a"],
                ["name", "desc", "a", "a"],
                ["name", "asc", 1, "a"],
                ["name", "asc", {}, "a"],
                ["name", "asc", "a", None],
            )
        ),
    ],
)
def test_a_cursor_from_elsewhere_is_refused(after: str) -> None:
    with pytest.raises(Problem, match="after") as found:
        page(query(after=after), [{"name": "a"}, {"name": "b"}], name="name")
    assert found.value.status == 422


@pytest.mark.parametrize(
    "text", ["limit=0", f"limit={MAX_ROWS + 1}", "sort=host", "order=up", "limit=x"]
)
def test_parameters_are_checked(text: str) -> None:
    with pytest.raises(Problem):
        route().parameters(text)


def test_parameters_that_are_left_out() -> None:
    assert route().parameters("") == query(sort="lag")


def route() -> Route:
    async def nothing(_: object) -> Any: ...

    return Route(
        method="GET",
        path="/api/v1/things",
        handler=nothing,
        name="things",
        summary="Things",
        query=list_parameters(("name", "lag"), by="lag"),
    )
