"""Keys and values in the formats of `--key-format` and `--value-format`, there and back."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from moldau.cli.record_formats import InputProblem
from moldau.cli.typed_formats import (
    BASE64,
    ENTRIES,
    EXTENSION,
    NUMBERS,
    TypedFormat,
    typed_formats,
)
from moldau.schema_registry import Schema, SchemaRegistry, SchemaRegistryError
from tests.unit.schema_registry.registry_server import registry_server


def of(name: str, **settings: str) -> TypedFormat:
    given_settings: dict[str, object] = {
        key.replace("_", "."): value for key, value in settings.items()
    }
    _, found = typed_formats((None, name), None, given_settings, topic="t")
    assert found is not None
    assert not given_settings, "none of them is the client's"
    return found


MARKS = (BASE64, EXTENSION, ENTRIES)
"""Maps that have one of these keys are written in another way: see PACKED."""
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.text()
    | st.floats(allow_nan=False, allow_infinity=False),
    lambda inner: st.lists(inner)
    | st.dictionaries(st.text().filter(lambda each: each not in MARKS), inner),
    max_leaves=20,
)  # fmt: skip
PACKED = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.text() | st.binary()
    | st.builds(msgpack.ExtType, st.integers(0, 127), st.binary())
    | st.builds(msgpack.Timestamp, st.integers(0, 2**34), st.integers(0, 10**9 - 1)),
    lambda inner: st.lists(inner)
    | st.dictionaries(st.text() | st.sampled_from(MARKS), inner)
    | st.dictionaries(st.integers(0, 99) | st.binary(), inner),
    max_leaves=20,
)  # fmt: skip


@given(JSON)
def test_json_values(value: Any) -> None:
    for name in ("json", "messagepack"):
        typed = of(name)
        data = typed.encode(value)
        if value is not None:
            assert typed.decode(data) == value
            text = typed.decode_text(data)
            if not isinstance(value, str):
                assert typed.encode_text(text) == data or isinstance(value, float)


@given(PACKED)
def test_what_messagepack_has_and_json_has_not(value: Any) -> None:
    data = msgpack.packb(value)
    typed = of("messagepack")
    shown = typed.decode(data)
    json.dumps(shown)
    assert typed.encode(shown) == data


@pytest.mark.parametrize(
    ("name", "value", "data"),
    [
        ("short", -2, b"\xff\xfe"),
        ("integer", 258, b"\0\0\1\2"),
        ("long", 1, b"\0" * 7 + b"\1"),
        ("float", 1.5, b"\x3f\xc0\0\0"),
        ("double", "NaN", b"\x7f\xf8" + b"\0" * 6),
        ("double", "-Infinity", b"\xff\xf0" + b"\0" * 6),
        ("string", "é", b"\xc3\xa9"),
        ("uuid", "00000000-0000-0000-0000-000000000001", None),
    ],
)
def test_kafkas_serdes(name: str, value: object, data: bytes | None) -> None:
    typed = of(name)
    encoded = typed.encode(value)
    assert data is None or encoded == data
    assert typed.decode(encoded) == value
    text = typed.decode_text(encoded)
    assert text.decode() == str(value)
    assert typed.encode_text(text) == encoded


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("integer", b"2147483648", "does not fit the 4 bytes"),
        ("integer", b"1.5", "needs int, not"),
        ("integer", b"x", "no JSON"),
        ("float", b'"x"', "needs float"),
        ("string", b"\xff", "no UTF-8"),
        ("uuid", b"12", "'12' is no UUID"),
        ("json", b"{", "no JSON"),
        ("messagepack", b'{"$base64": "?"}', "no base64"),
    ],
)
def test_text_that_cannot_be_encoded(name: str, text: bytes, words: str) -> None:
    with pytest.raises(InputProblem, match=words) as refused:
        of(name).encode_text(text)
    assert str(refused.value).startswith("the value ")


@pytest.mark.parametrize("name", [*NUMBERS, "uuid", "json", "messagepack"])
@pytest.mark.parametrize("data", [b"", b"\xc1", b"\xff" * 5, b"\x91" * 2_000])
def test_bytes_that_are_something_else(name: str, data: bytes) -> None:
    with pytest.raises(InputProblem, match=f"the value as {name}: "):
        of(name).decode(data)


@pytest.mark.parametrize("name", ["long", "uuid", "string"])
def test_an_error_of_reading_says_nothing_of_a_topic_that_it_does_not_know(name: str) -> None:
    with pytest.raises(InputProblem) as refused:
        typed_formats((None, name), None, {})[1].decode(b"\xff" * 4)  # type: ignore[union-attr]
    assert "topic" not in str(refused.value)


def test_floats_keep_their_bits() -> None:
    typed = of("double")
    for number in (0.1, -0.0, 5e-324, 1.7e308):
        shown = typed.decode_text(typed.encode(number))
        assert math.copysign(1, float(shown)) == math.copysign(1, number)
        assert typed.encode_text(shown) == typed.encode(number)


SCHEMA = '{"type": "record", "name": "R", "fields": [{"name": "i", "type": "int"}]}'


@pytest.mark.real
def test_schemas_of_a_registry(tmp_path: Path) -> None:
    file = tmp_path / "r.avsc"
    file.write_text(SCHEMA)
    with registry_server() as server:
        settings: dict[str, object] = {"schema.registry.url": server.url, "client.id": "mine"}
        key, value = typed_formats(
            ("avro", "avro"), None, settings, topic="t", schemas=(str(file), str(file))
        )
        assert settings == {"client.id": "mine"}
        assert key is not None
        assert value is not None
        data = value.encode({"i": 5})
        assert key.encode_text(b'{"i": 5}') == data
        assert sorted(server.subjects) == ["t-key", "t-value"]
        _, by_id = typed_formats((None, "avro"), server.url, {}, topic="t", schemas=(None, "id:1"))
        _, newest = typed_formats((None, "avro"), server.url, {}, topic="t")
        _, any_kind = typed_formats((None, "schema"), server.url, {})
        assert by_id is not None
        assert newest is not None
        assert any_kind is not None
        assert by_id.encode({"i": 5}) == newest.encode({"i": 5}) == data
        assert any_kind.decode(data) == {"i": 5}
        with pytest.raises(InputProblem, match=r"the key as avro: .*'x' is not int"):
            key.encode({"i": "x"})
        _, wrong = typed_formats((None, "protobuf"), server.url, {})
        assert wrong is not None
        with pytest.raises(InputProblem, match="schema 1 is of kind AVRO, not PROTOBUF"):
            wrong.decode(data)


@pytest.mark.real
@pytest.mark.parametrize("schema", ["latest", "id:1"])
def test_a_schema_to_write_has_to_be_of_the_format(schema: str) -> None:
    with registry_server() as server:
        SchemaRegistry(server.url).register("t-value", Schema(SCHEMA))
        _, value = typed_formats(
            (None, "json-schema"), server.url, {}, topic="t", schemas=(None, schema)
        )
        assert value is not None
        with pytest.raises(InputProblem, match="schema 1 is of kind AVRO, not JSON"):
            value.encode({"i": 5})


@pytest.mark.real
def test_the_subject_is_named_after_the_message_that_is_written(tmp_path: Path) -> None:
    file = tmp_path / "two.proto"
    file.write_text('syntax = "proto3"; message First {} message Second { int32 b = 1; }')
    settings: dict[str, object] = {"value.subject.name.strategy": "RecordNameStrategy"}
    with registry_server() as server:
        _, value = typed_formats(
            (None, "protobuf"), server.url, settings, topic="t", schemas=(None, f"{file}#Second")
        )
        assert value is not None
        assert value.encode({"b": 1}) == b"\0\0\0\0\1\2\2\x08\1"
        assert server.subjects == {"Second": [1]}


@pytest.mark.real
def test_nothing_is_registered_where_the_settings_forbid_it(tmp_path: Path) -> None:
    file = tmp_path / "r.avsc"
    file.write_text(SCHEMA)
    settings: dict[str, object] = {"auto.register.schemas": "False"}
    with registry_server() as server:
        _, value = typed_formats(
            (None, "avro"), server.url, settings, topic="t", schemas=(None, str(file))
        )
        assert value is not None
        with pytest.raises(SchemaRegistryError, match="find the schema under t-value: 404"):
            value.encode({"i": 5})
        assert not server.subjects


@pytest.mark.parametrize(
    ("value_format", "schema", "settings", "words"),
    [
        ("axro", None, {}, "'axro' is none of bytes, string, json"),
        ("schema", None, {}, "'schema' is none of"),
        ("avro", None, {"schema.registry.url": ""}, "is not http://HOST:PORT"),
        ("json", "x.avsc", {}, "--value-schema is for --value-format avro, protobuf"),
        ("avro", "no/such.avsc", {}, "no/such.avsc: No such file"),
        ("avro", "id:x", {}, "id: and a number"),
        ("avro", "latest#M", {}, "only Protobuf"),
        ("avro", None, {"auto.register.schemas": "no"}, "must be true or false"),
        ("avro", None, {"value.subject.name.strategy": "a.B"}, "must be one of TopicName"),
    ],
)
def test_options_that_do_not_fit(
    value_format: str,
    schema: str | None,
    settings: dict[str, object],
    words: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    given_settings = {"schema.registry.url": "http://localhost:1", **settings}
    with pytest.raises(SystemExit) as ended:
        typed_formats((None, value_format), None, given_settings, topic="t", schemas=(None, schema))
    assert ended.value.code == 2
    shown = capsys.readouterr().err
    assert words in shown
    assert shown.count("\n") == 1


def test_a_registry_is_needed(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        typed_formats((None, "avro"), None, {})
    assert "needs --schema-registry, MOLDAU_SCHEMA_REGISTRY" in capsys.readouterr().err
