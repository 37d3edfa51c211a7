"""Bodies are checked by the schemas that the OpenAPI document shows."""

from __future__ import annotations

import pytest
from jsonschema import Draft202012Validator

from moldau.console.problems import Problem
from moldau.console.schemas import (
    ANY,
    BOOLEAN,
    INTEGER,
    MAX_DEPTH,
    STRING,
    Schema,
    array,
    check,
    mapping,
    nullable,
    one_of,
    record,
)

TOPIC = record(
    {"topic_name": {"type": "string", "minLength": 1, "maxLength": 5, "pattern": "^[a-z]*$"}},
    {
        "count": {**INTEGER, "minimum": 1, "maximum": 9},
        "configs": array(record({"name": STRING, "value": nullable(STRING)}), most=2),
        "is_open": BOOLEAN,
        "kind": nullable(one_of("a", "b")),
        "more": mapping(INTEGER),
        "any": ANY,
        "ratio": {"type": "number"},
        "either": {"type": ["array", "null"], "items": INTEGER, "minItems": 1},
    },
)


GOOD: list[object] = [
    {"topic_name": "a"},
    {"topic_name": "abcde", "count": 9, "is_open": False, "kind": None, "any": [{}], "else": 1},
    {"topic_name": "a", "configs": [{"name": "x", "value": None}], "more": {"x": 1}},
    {"topic_name": "a", "kind": "b", "ratio": 1.5, "either": None},
    {"topic_name": "a", "ratio": 1, "either": [1]},
]
BAD: list[tuple[object, str]] = [
    ([], "the body is array"),
    (None, "the body is null"),
    ({}, "lacks topic_name"),
    ({"topic_name": 1}, "the body.topic_name is integer"),
    ({"topic_name": ""}, "shorter"),
    ({"topic_name": "abcdef"}, "longer"),
    ({"topic_name": "A"}, "does not match"),
    ({"topic_name": "a", "count": 0}, "limits"),
    ({"topic_name": "a", "count": 10}, "limits"),
    ({"topic_name": "a", "count": True}, "is boolean"),
    ({"topic_name": "a", "count": 1.5}, "is number"),
    ({"topic_name": "a", "configs": [{"name": "x"}]}, "the body.configs[0] lacks value"),
    ({"topic_name": "a", "configs": [{}, {}, {}]}, "longer than 2"),
    ({"topic_name": "a", "is_open": "true"}, "is string"),
    ({"topic_name": "a", "kind": "c"}, "one of a, b"),
    ({"topic_name": "a", "more": {"x": "1"}}, "the body.more.x"),
    ({"topic_name": "a", "either": []}, "shorter than 1"),
]


@pytest.mark.parametrize("value", GOOD)
def test_what_the_schema_has_passes(value: object) -> None:
    check(value, TOPIC)
    Draft202012Validator(TOPIC).validate(value)


@pytest.mark.parametrize(("value", "why"), BAD)
def test_what_the_schema_has_not_is_refused(value: object, why: str) -> None:
    with pytest.raises(Problem) as refused:
        check(value, TOPIC)
    assert refused.value.status == 422
    assert why in refused.value.detail
    assert not Draft202012Validator(TOPIC).is_valid(value)


def test_nesting_has_an_end() -> None:
    deep: Schema = {"type": "array"}
    for _ in range(MAX_DEPTH + 2):
        deep = {"type": "array", "items": deep}
    value: list[object] = []
    for _ in range(MAX_DEPTH + 1):
        value = [value]
    with pytest.raises(Problem) as refused:
        check(value, deep)
    assert "nested" in refused.value.detail
