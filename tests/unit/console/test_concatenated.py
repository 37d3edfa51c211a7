"""JSON objects one after the other, however the parts fall."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moldau.console.concatenated import JsonObjects, NotObjects

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=8) | st.sampled_from(
    ['"', "\\", '\\"', "{", "}", '{"', "}}", "\\\\"]
)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=6,
)
OBJECTS = st.dictionaries(TEXTS, VALUES, max_size=3)
GAPS = st.sampled_from(["", " ", "\n", "\r\n\t", ", "])


def split(data: bytes, sizes: list[int]) -> list[bytes]:
    parts, start = [], 0
    for size in sizes:
        parts.append(data[start : start + size])
        start += size
    return [*parts, data[start:]]


@given(st.lists(OBJECTS, max_size=5), GAPS, st.booleans(), st.lists(st.integers(0, 9), max_size=30))
def test_objects_are_found_in_any_parts(
    objects: list[dict[str, Any]], gap: str, is_ascii: bool, sizes: list[int]
) -> None:
    text = gap + gap.join(json.dumps(each, ensure_ascii=is_ascii) for each in objects) + gap
    found: list[Any] = []
    splitter = JsonObjects(1_000_000)
    for part in split(text.encode(), sizes):
        found += [json.loads(each) for each in splitter.feed(part)]
    splitter.end()
    assert found == objects


@pytest.mark.parametrize("body", [b"[]", b"1", b'"x"', b"null", b"}", b"x", b"\xff", b'{"a":1} x'])
def test_other_bodies_are_refused(body: bytes) -> None:
    with pytest.raises(NotObjects):
        [*JsonObjects(1_000).feed(body)]


def test_what_came_before_is_good() -> None:
    found = JsonObjects(1_000).feed(b'{"a": 1}{"b": 2} oops')
    assert [next(found), next(found)] == [b'{"a": 1}', b'{"b": 2}']
    with pytest.raises(NotObjects):
        next(found)


@pytest.mark.parametrize("body", [b"{", b'{"a', b'{"a": "}', b'{"a\\', b'{"a\\"', b'{"a": {}'])
def test_a_body_ends_behind_an_object(body: bytes) -> None:
    splitter = JsonObjects(1_000)
    assert [*splitter.feed(body)] == []
    with pytest.raises(NotObjects):
        splitter.end()


def test_an_object_has_a_limit() -> None:
    splitter = JsonObjects(100)
    assert len([*splitter.feed(b'{"a": 1}' * 100)]) == 100
    for _ in range(9):
        assert [*splitter.feed(b'{"a": "xxx')] == []
    with pytest.raises(NotObjects):
        [*splitter.feed(b'{"a": "xxxx')]
