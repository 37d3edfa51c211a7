"""The wire format, and what each format's codec makes of values: ours beside the libraries'."""

from __future__ import annotations

import io
import json
import random
from typing import Any

import fastavro
import pytest
from hypothesis import given
from hypothesis import strategies as st

from moldau.client import SerializationError
from moldau.schema_registry import (
    AvroDeserializer,
    AvroSerializer,
    JsonSchemaDeserializer,
    JsonSchemaSerializer,
    ProtobufDeserializer,
    ProtobufSerializer,
    Schema,
    SchemaReference,
    SchemaRegistry,
    SchemaRegistryError,
    framed,
    record_name,
    topic_record_name,
    unframed,
)
from moldau.schema_registry.avro import AvroCodec
from moldau.schema_registry.codec import Codecs
from moldau.schema_registry.formats import codec_of
from moldau.schema_registry.framing import decode_indexes, encode_indexes
from moldau.schema_registry.json_schema import JsonSchemaCodec
from moldau.schema_registry.protobuf import ProtobufCodec
from tests.unit.schema_registry.registry_server import RegistryServer

pytestmark = pytest.mark.real

USER = {
    "type": "record",
    "name": "User",
    "namespace": "x",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "mail", "type": ["null", "string"], "default": None},
    ],
}


# -- the wire format -------------------------------------------------------------------------------


@given(st.integers(-(2**31), 2**31 - 1), st.binary())
def test_frames(schema_id: int, data: bytes) -> None:
    assert unframed(framed(schema_id, data)) == (schema_id, data)


@pytest.mark.parametrize("data", [b"", b"\0\0\0", b"\1\0\0\0\1x", b"plain text"])
def test_what_is_no_frame(data: bytes) -> None:
    with pytest.raises(SerializationError, match="not written with a schema registry"):
        unframed(data)


@given(st.lists(st.integers(0, 2**20), min_size=1, max_size=5), st.binary())
def test_indexes(indexes: list[int], rest: bytes) -> None:
    assert decode_indexes(encode_indexes(indexes) + rest) == (indexes, rest)


def test_indexes_as_confluent_writes_them() -> None:
    assert encode_indexes([0]) == b"\0"
    assert encode_indexes([1, 0]) == b"\x04\x02\x00"
    assert decode_indexes(b"\x02\x00rest") == ([0], b"rest")


@pytest.mark.parametrize("data", [b"", b"\x04\x02", b"\xff" * 12, b"\x01", b"\xfe\xff\x07"])
def test_damaged_indexes(data: bytes) -> None:
    with pytest.raises(SerializationError):
        decode_indexes(data)


# -- Avro ------------------------------------------------------------------------------------------


def random_schema(dice: random.Random, names: list[str], depth: int = 0) -> Any:
    """Any kind of schema; named types are used again."""
    simple = ["null", "boolean", "int", "long", "float", "double", "bytes", "string"]
    if depth > 3 or dice.random() < 0.3:
        return dice.choice(simple)
    kind = dice.choice(["record", "array", "map", "union", "enum", "fixed", "again", "logical"])
    if kind == "again":
        return dice.choice(names) if names else "string"
    if kind == "logical":
        return {"type": "long", "logicalType": "timestamp-millis"}
    if kind == "union":
        branches: list[Any] = []
        for each in dice.sample([*simple, "array", "record", "enum"], 3):
            if each in simple:
                branches.append(each)
            elif each == "array":
                branches.append({"type": "array", "items": "long"})
            else:
                branches.append(_named(dice, names, each, depth))
        return branches
    if kind == "array":
        return {"type": "array", "items": random_schema(dice, names, depth + 1)}
    if kind == "map":
        return {"type": "map", "values": random_schema(dice, names, depth + 1)}
    return _named(dice, names, kind, depth)


def _named(dice: random.Random, names: list[str], kind: str, depth: int) -> Any:
    name = f"N{dice.getrandbits(40)}"
    full = f"some.space.{name}"
    schema: dict[str, Any] = {"type": kind, "name": name, "namespace": "some.space"}
    if kind == "enum":
        schema["symbols"] = ["A", "B", "C"]
    elif kind == "fixed":
        schema["size"] = dice.randrange(1, 20)
    else:
        schema["fields"] = [
            {"name": f"f{index}", "type": random_schema(dice, names, depth + 1)}
            for index in range(dice.randrange(4))
        ]
    names.append(full)
    return schema


CHOICES: dict[str, list[Any]] = {
    "null": [None],
    "boolean": [True, False],
    "int": [0, -1, 77, 2**31 - 1, -(2**31)],
    "long": [0, -1, 77, 2**63 - 1, -(2**63)],
    "float": [0.0, -1.5, 2.0**127],
    "double": [0.1, -1e300, 5e-324, "NaN", "Infinity", "-Infinity"],
    "string": ["", "a", "é\0\U0001f600"],
}


def random_value(dice: random.Random, schema: Any, named: dict[str, Any]) -> Any:
    """A value in Avro's JSON."""
    if isinstance(schema, str) and schema in named:
        schema = named[schema]
    if isinstance(schema, list):
        branch = dice.choice(schema)
        full = named.get(branch, branch) if isinstance(branch, str) else branch
        if full == "null":
            return None
        name = full if isinstance(full, str) else full.get("name", full["type"])
        return {name: random_value(dice, branch, named)}
    kind = schema if isinstance(schema, str) else schema["type"]
    if isinstance(schema, dict) and "logicalType" in schema:
        return dice.randrange(10**12)
    some = range(dice.randrange(4))
    if kind == "array":
        return [random_value(dice, schema["items"], named) for _ in some]
    if kind == "map":
        return {f"é{index}": random_value(dice, schema["values"], named) for index in some}
    if kind == "record":
        return {
            field["name"]: random_value(dice, field["type"], named) for field in schema["fields"]
        }
    if kind in ("bytes", "fixed"):
        size = schema["size"] if kind == "fixed" else len(some)
        return dice.randbytes(size).decode("latin-1")
    return dice.choice(schema["symbols"] if kind == "enum" else CHOICES[kind])


@pytest.mark.parametrize("seed", range(60))
def test_avros_json_of_any_schema_there_and_back(seed: int) -> None:
    print(f"seed {seed}")
    dice = random.Random(seed)
    schema = random_schema(dice, [])
    codec = AvroCodec(Schema(json.dumps(schema)), {})
    named: dict[str, Any] = {}
    parsed = fastavro.parse_schema(schema, named_schemas=named)
    for _ in range(20):
        value = random_value(dice, parsed, named)
        data = codec.encode_json(value)
        assert codec.decode_json(data) == value
        # The library reads the same bytes to their end.
        source = io.BytesIO(data)
        fastavro.schemaless_reader(source, parsed, None)
        assert source.tell() == len(data)


@pytest.mark.parametrize("seed", range(20))
def test_cut_and_damaged_data_are_misfits(seed: int) -> None:
    print(f"seed {seed}")
    dice = random.Random(seed)
    schema = random_schema(dice, [])
    codec = AvroCodec(Schema(json.dumps(schema)), {})
    named: dict[str, Any] = {}
    parsed = fastavro.parse_schema(schema, named_schemas=named)
    refused = 0
    for _ in range(50):
        data = bytearray(codec.encode_json(random_value(dice, parsed, named)))
        for _ in range(dice.randrange(1, 4)):
            if data and dice.random() < 0.5:
                data[dice.randrange(len(data))] = dice.randrange(256)
            elif data and dice.random() < 0.5:
                del data[dice.randrange(len(data)) :]
            else:
                data += dice.randbytes(2)
        for decode in (codec.decode_json, codec.decode):
            try:
                decode(bytes(data))
            except SerializationError:  # and nothing else
                refused += 1
    assert refused


def test_a_few_bytes_are_never_very_many_values() -> None:
    codec = AvroCodec(Schema('{"type": "array", "items": "null"}'), {})
    with pytest.raises(SerializationError, match="elements"):
        codec.decode_json(b"\xfe\xff\xff\xff\xff\x7f\0")


def test_unions_may_go_without_marks_and_defaults_be_left_out() -> None:
    codec = AvroCodec(Schema(json.dumps(USER)), {})
    assert codec.encode_json({"id": 1, "mail": "a"}) == codec.encode_json(
        {"id": 1, "mail": {"string": "a"}}
    )
    assert codec.decode_json(codec.encode_json({"id": 1})) == {"id": 1, "mail": None}
    assert codec.name == "x.User"


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ({"mail": "a"}, r"\$: the field 'id' is missing"),
        ({"id": "1"}, r"\$\.id: '1' is not long"),
        ({"id": 2**63}, r"\$\.id: .* is not long"),
        ({"id": True}, r"\$\.id: True is not long"),
        ({"id": 1, "mail": 5}, r"\$\.mail: 5 is not a string"),
        ({"id": 1, "mial": "a"}, r"no field 'mial'; there are id, mail"),
        ([], r"\$: \[\] is not an object, for x.User"),
    ],
)
def test_values_that_do_not_fit_say_where(value: object, words: str) -> None:
    codec = AvroCodec(Schema(json.dumps(USER)), {})
    with pytest.raises(SerializationError, match=words):
        codec.encode_json(value)
    with pytest.raises(SerializationError):
        codec.encode({"id": "x"})


@pytest.mark.parametrize("text", ["", "{", '{"type": "record"}', '"no.such.Type"', "5"])
@pytest.mark.parametrize("kind", ["AVRO", "PROTOBUF", "JSON"])
def test_broken_schemas(kind: str, text: str) -> None:
    if kind == "JSON" and text in ('{"type": "record"}', '"no.such.Type"', "5", "", "{"):
        text = '{"type": "record"}'
    with pytest.raises(SerializationError):
        codec_of(Schema(text, kind), {})


def test_a_kind_that_is_not_known() -> None:
    with pytest.raises(SerializationError, match="XML is none of AVRO"):
        codec_of(Schema("<a/>", "XML"), {})


def test_avro_for_the_client(server: RegistryServer, registry: SchemaRegistry) -> None:
    serializer = AvroSerializer[dict[str, object]](registry, USER)
    data = serializer.serialize("t", {"id": 5, "mail": "m"})
    assert AvroDeserializer[Any](registry).deserialize("t", data) == {"id": 5, "mail": "m"}
    newer = json.loads(json.dumps(USER))
    newer["fields"].append({"name": "age", "type": "int", "default": 7})
    resolved = AvroDeserializer[Any](registry, newer).deserialize("t", data)
    assert resolved == {"id": 5, "mail": "m", "age": 7}
    newest = AvroSerializer[dict[str, object]](registry)
    assert newest.serialize("t", {"id": 5, "mail": "m"}) == data
    assert server.subjects == {"t-value": [1]}
    count = len(server.requests)
    for _ in range(10):
        serializer.serialize("t", {"id": 5})
    assert len(server.requests) == count


def test_the_newest_has_to_be_of_the_serializers_kind(registry: SchemaRegistry) -> None:
    registry.register("t-value", Schema('{"type": "object"}', "JSON"))
    with pytest.raises(SerializationError, match="schema 1 is of kind JSON, not AVRO"):
        AvroSerializer[Any](registry).serialize("t", {"id": 1})


def test_subjects_by_strategy(server: RegistryServer, registry: SchemaRegistry) -> None:
    for options in (
        {"is_key": True},
        {"subject": record_name},
        {"subject": topic_record_name},
    ):
        AvroSerializer[Any](registry, USER, **options).serialize("t", {"id": 1})
    assert [*server.subjects] == ["t-key", "x.User", "t-x.User"]
    with pytest.raises(SerializationError, match="no name"):
        AvroSerializer[Any](registry, '"int"', subject=record_name).serialize("t", 1)


def test_nothing_is_registered_without_leave(
    server: RegistryServer, registry: SchemaRegistry
) -> None:
    careful = AvroSerializer[Any](registry, USER, registers=False)
    with pytest.raises(SchemaRegistryError, match="find the schema under t-value: 404"):
        careful.serialize("t", {"id": 1})
    assert not server.subjects
    AvroSerializer[Any](registry, USER).serialize("t", {"id": 1})
    assert careful.serialize("t", {"id": 1})[:5] == b"\0\0\0\0\1"


def test_avros_references(registry: SchemaRegistry) -> None:
    registry.register("user", Schema(json.dumps(USER)))
    both = {"type": "array", "items": "x.User"}
    references = (SchemaReference("x.User", "user", 1),)
    serializer = AvroSerializer[Any](registry, both, references=references)
    data = serializer.serialize("t", [{"id": 1}, {"id": 2, "mail": "m"}])
    codec, rest = Codecs(registry, codec_of).of_data(data)
    assert codec.decode_json(rest) == [
        {"id": 1, "mail": None},
        {"id": 2, "mail": {"string": "m"}},
    ]


# -- Protobuf --------------------------------------------------------------------------------------

ADDRESS = 'syntax = "proto3"; package common; message Address { string street = 1; }'
PERSON = """
syntax = "proto3";
package people;
import "common/address.proto";
import "google/protobuf/timestamp.proto";
message Team { string name = 1; }
message Person {
  message Phone { string number = 1; }
  int64 id = 1;
  optional string nick = 2;
  common.Address address = 3;
  repeated Phone phones = 4;
  map<string, int32> scores = 5;
  google.protobuf.Timestamp born = 6;
}
"""
VALUE = {
    "id": "9007199254740993",
    "nick": "",
    "address": {"street": "s"},
    "phones": [{"number": "1"}, {}],
    "scores": {"a": 1},
    "born": "2000-01-01T00:00:00.000000001Z",
}


@pytest.fixture(scope="module")
def person() -> ProtobufCodec:
    return ProtobufCodec(
        Schema(PERSON, "PROTOBUF"), {"common/address.proto": Schema(ADDRESS, "PROTOBUF")}
    )


def test_protobufs_json_there_and_back(person: ProtobufCodec) -> None:
    codec = person.of_message("people.Person")
    data = codec.encode_json(VALUE)
    assert data[:2] == b"\x02\x02"
    assert person.decode_json(data) == VALUE
    assert codec.encode(person.decode(data)) == data
    assert person.name == "people.Team"
    inner = person.of_message("people.Person.Phone").encode_json({"number": "5"})
    assert person.decode_json(inner) == {"number": "5"}


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ({"id": "x"}, "does not fit people.Person: .*id"),
        ({"ident": 1}, "no field named .ident"),
        ([], "is a JSON object, not"),
    ],
)
def test_messages_that_do_not_fit(person: ProtobufCodec, value: object, words: str) -> None:
    with pytest.raises(SerializationError, match=words):
        person.of_message("people.Person").encode_json(value)


def test_messages_that_are_not_there(person: ProtobufCodec) -> None:
    with pytest.raises(SerializationError, match=r"it has people\.Team, people\.Person"):
        person.of_message("people.Nobody")
    with pytest.raises(SerializationError, match=r"no message at \[7\]"):
        person.decode(b"\x02\x0e")
    with pytest.raises(SerializationError, match="no message at"):
        person.decode(b"\x04\x00\x00")


def test_data_that_are_no_message(person: ProtobufCodec) -> None:
    with pytest.raises(SerializationError, match=r"the data are no people\.Team"):
        person.decode(b"\0\xff\xff")


@pytest.mark.parametrize(
    ("schema", "used", "words"),
    [
        ('syntax = "proto3"; message A { strng s = 1; }', {}, '"strng" is not defined'),
        ('syntax = "proto3"; import "gone.proto"; message A {}', {}, "gone.proto"),
        ('syntax = "proto3";', {}, "has no message"),
        ('syntax = "proto3"; message A {}', {"../../x.proto": ADDRESS}, "cannot be called"),
        ('syntax = "proto3"; message A {}', {"/tmp/x.proto": ADDRESS}, "cannot be called"),
    ],
)
def test_protobuf_schemas_that_cannot_be(schema: str, used: dict[str, str], words: str) -> None:
    referenced = {name: Schema(text, "PROTOBUF") for name, text in used.items()}
    with pytest.raises(SerializationError, match=words):
        ProtobufCodec(Schema(schema, "PROTOBUF"), referenced)


def test_protobuf_for_the_client(
    server: RegistryServer, registry: SchemaRegistry, person: ProtobufCodec
) -> None:
    message: Any = person.decode(person.of_message("people.Person").encode_json(VALUE))
    serializer = ProtobufSerializer[Any](registry, type(message))
    data = serializer.serialize("t", message)
    assert [*server.subjects] == ["common/address.proto", "t-value"]
    assert ProtobufDeserializer[Any](registry, type(message)).deserialize("t", data) == message
    codec, rest = Codecs(registry, codec_of).of_data(data)
    assert codec.decode_json(rest) == VALUE
    with pytest.raises(SerializationError, match=r"dict is no people\.Person"):
        serializer.serialize("t", {})


# -- JSON Schema -----------------------------------------------------------------------------------

ORDER = {
    "title": "Order",
    "type": "object",
    "properties": {"count": {"type": "integer", "minimum": 1}, "buyer": {"$ref": "user.json"}},
    "required": ["count"],
}
BUYER = {"type": "object", "required": ["name"]}


def test_json_schema_for_the_client(registry: SchemaRegistry) -> None:
    registry.register("buyer", Schema(json.dumps(BUYER), "JSON"))
    references = (SchemaReference("user.json", "buyer", 1),)
    serializer = JsonSchemaSerializer[Any](registry, ORDER, references=references)
    value = {"count": 1, "buyer": {"name": "n"}}
    data = serializer.serialize("t", value)
    assert JsonSchemaDeserializer[Any](registry).deserialize("t", data) == value
    for bad, words in (
        ({"count": 0}, r"\$\.count: 0 is less than"),
        ({}, "'count' is a required property"),
        ({"count": 1, "buyer": {}}, r"\$\.buyer: 'name' is a required property"),
    ):
        with pytest.raises(SerializationError, match=words):
            serializer.serialize("t", bad)
    wrong = framed(unframed(data)[0], b'{"count": 0}')
    with pytest.raises(SerializationError, match="less than"):
        JsonSchemaDeserializer[Any](registry).deserialize("t", wrong)
    lenient = JsonSchemaDeserializer[Any](registry, validates=False)
    assert lenient.deserialize("t", wrong) == {"count": 0}


def test_a_reference_is_never_fetched_from_elsewhere(server: RegistryServer) -> None:
    schema = {"$ref": f"{server.url}/subjects"}
    codec = JsonSchemaCodec(Schema(json.dumps(schema), "JSON"), {})
    with pytest.raises(SerializationError, match="the registry does not name"):
        codec.encode({})
    assert not server.requests
