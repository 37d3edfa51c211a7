"""Keys and values that mean something: `--key-format` and `--value-format` of produce and consume.

Owns the formats, the options about them, and their JSON forms. Must not read or write records.
Invariants: what cannot be encoded or decoded is one `InputProblem`; the JSON form that `decode`
gives is encoded to an equal value; a format's packages, and the schema registry, are needed only
where the format is used.
"""

from __future__ import annotations

import base64
import binascii
import functools
import json
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Annotated, Any, Final, NamedTuple, TypeVar

import typer

from moldau.cli.output import fail, refusing
from moldau.cli.record_formats import InputProblem
from moldau.client import ConfigurationError, SerializationError
from moldau.config.small_files import read_small_file
from moldau.runtime.fault_words import words_of
from moldau.schema_registry.settings import REGISTERS, STRATEGY, take_registry_settings

if TYPE_CHECKING:
    from moldau.schema_registry import Schema, SchemaRegistry
    from moldau.schema_registry.codec import Codec, Codecs

Encode = Callable[[Any], bytes]
Decode = Callable[[bytes], object]

FLOATING: Final = ("float", "double")
NUMBERS: Final = ("short", "integer", "long", *FLOATING)
SCHEMAS: Final = {"avro": "AVRO", "protobuf": "PROTOBUF", "json-schema": "JSON"}
ANY_SCHEMA: Final = "schema"
FORMATS: Final = ("bytes", "string", "json", "messagepack", *NUMBERS, "uuid", *SCHEMAS)
REGISTRY_URL: Final = "schema.registry.url"
ENVIRONMENT: Final = "MOLDAU_SCHEMA_REGISTRY"
SIDES: Final = ("key", "value")
MAX_SCHEMA_BYTES: Final = 16 * 1024 * 1024
#: Where MessagePack has what JSON has not.
BASE64, EXTENSION, ENTRIES = "$base64", "$extension", "$entries"
TIMESTAMP: Final = -1
#: What JSON has no numbers for.
SPECIAL: Final = {text: float(text) for text in ("NaN", "Infinity", "-Infinity")}

_READ: Final = f"{', '.join(FORMATS)}; schema: as the registry says."
KeyFormat = Annotated[str | None, "--key-format", "What keys are; see --value-format."]
ReadFormat = Annotated[str | None, "--value-format", f"What values are: {_READ}  [default: bytes]"]
WriteFormat = Annotated[
    str | None, "--value-format", f"What values become: {', '.join(FORMATS)}.  [default: bytes]"
]
RegistryUrl = Annotated[
    str | None,
    typer.Option(
        "--schema-registry",
        envvar=ENVIRONMENT,
        help="The schema registry, http://HOST:PORT.",
        show_default=False,
    ),
]


class TypedFormat(NamedTuple):
    """Keys or values of one format."""

    side: str
    name: str
    encoder: Encode
    decoder: Decode
    is_text: bool = False

    def encode(self, value: object) -> bytes:
        """The bytes of a value in its JSON form. Raises: InputProblem, SchemaRegistryError"""
        try:
            return self.encoder(value)
        except SerializationError as error:
            raise InputProblem(f"the {self.side} as {self.name}: {error}") from None

    def encode_text(self, text: bytes) -> bytes:
        """As `encode`, of what a line of text says. Raises: InputProblem, SchemaRegistryError"""
        try:
            is_text = self.is_text or (self.name in FLOATING and text.decode() in SPECIAL)
            given = text.decode() if is_text else _loads(text)
        except ValueError as error:
            words = f"the {self.side} {text[:100]!r} as {self.name}: no "
            raise InputProblem(words + ("UTF-8" if self.is_text else f"JSON: {error}")) from None
        return self.encode(given)

    def decode(self, data: bytes) -> object:
        """The JSON form of a key's or value's bytes. Raises: InputProblem, SchemaRegistryError"""
        try:
            return self.decoder(data)
        except SerializationError as error:
            raise InputProblem(f"the {self.side} as {self.name}: {error}") from None

    def decode_text(self, data: bytes) -> bytes:
        """As `decode`, in a line of text: JSON, but a string without its quotes."""
        value = self.decode(data)
        return value.encode() if isinstance(value, str) else _dumps(value)


Part = TypeVar("Part")
Formats = tuple[TypedFormat | None, TypedFormat | None]
"""The formats of keys and of values; None for bytes as they are."""


def parts_of(
    formats: Formats, part: Callable[[TypedFormat], Part]
) -> tuple[Part | None, Part | None]:
    """That part of both."""
    key, value = formats
    return None if key is None else part(key), None if value is None else part(value)


class _Wanted(NamedTuple):
    """What the options say of keys or of values."""

    side: str
    name: str
    registry: SchemaRegistry | None
    topic: str | None
    schema: str | None
    registers: bool
    strategy: str


def typed_formats(
    names: tuple[str | None, str | None],
    registry_url: str | None,
    settings: dict[str, object],
    *,
    topic: str | None = None,
    schemas: tuple[str | None, str | None] = (None, None),
) -> Formats:
    """The formats that the options name. Exits with status 2 for options that do not fit.

    Args:
        settings: the client's; those of the schema registry are taken out of them.
        topic: to write; None to read.
        schemas: of keys and of values, for writing.
    """
    given = take_registry_settings(settings)
    if registry_url is not None:
        given[REGISTRY_URL] = registry_url
    registers = given.get(REGISTERS, "true").strip().lower()
    if registers not in ("true", "false"):
        fail(f"{REGISTERS}={given[REGISTERS]}: must be true or false", status=2)
    registry: SchemaRegistry | None = None
    if any(name in (*SCHEMAS, ANY_SCHEMA) for name in names) and REGISTRY_URL in given:
        registry = _registry(given)
    found = []
    for side, name, schema in zip(SIDES, names, schemas, strict=True):
        if schema is not None and name not in SCHEMAS:
            fail(f"--{side}-schema is for --{side}-format {', '.join(SCHEMAS)}", status=2)
        strategy = given.get(f"{side}.{STRATEGY}", "TopicNameStrategy")
        wanted = _Wanted(
            side, name or "bytes", registry, topic, schema, registers == "true", strategy
        )
        try:
            found.append(_format(wanted))
        except (SerializationError, ConfigurationError) as error:
            fail(f"--{side}-format {name}: {error}", status=2)
        except ImportError as error:
            fail(
                f"--{side}-format {name} needs {error.name}: pip install 'moldau[schema-registry]'",
                status=2,
            )
    return found[0], found[1]


def _registry(given: Mapping[str, str]) -> SchemaRegistry:
    from moldau.schema_registry import SchemaRegistry

    with refusing(ConfigurationError):
        return SchemaRegistry.from_properties(given)


def _format(wanted: _Wanted) -> TypedFormat | None:
    name, side = wanted.name, wanted.side
    if name == "bytes":
        return None
    if name in SCHEMAS or (name == ANY_SCHEMA and wanted.topic is None):
        return _of_registry(wanted)
    if name == "json":
        return TypedFormat(side, name, _dumps, _read_json)
    if name == "messagepack":
        import msgpack

        return TypedFormat(
            side, name, lambda value: _packed(msgpack, value), lambda data: _unpacked(msgpack, data)
        )
    if name not in FORMATS:
        known = FORMATS if wanted.topic is not None else (*FORMATS, ANY_SCHEMA)
        fail(f"--{side}-format {name!r} is none of {', '.join(known)}", status=2)
    from moldau.client import serialization

    kind = name.capitalize()
    serializer = getattr(serialization, f"{kind}Serializer")()
    deserializer = getattr(serialization, f"{kind}Deserializer")()
    topic = wanted.topic or ""
    if name == "uuid":
        return TypedFormat(
            side,
            name,
            lambda value: serializer.serialize(topic, _uuid(value)),
            lambda data: str(deserializer.deserialize(topic, data)),
            True,
        )
    if name in FLOATING:
        return TypedFormat(
            side,
            name,
            lambda value: serializer.serialize(
                topic, SPECIAL.get(value, value) if isinstance(value, str) else value
            ),
            lambda data: _plain_number(deserializer.deserialize(topic, data)),
        )
    return TypedFormat(
        side,
        name,
        lambda value: serializer.serialize(topic, value),
        lambda data: deserializer.deserialize(topic, data),
        name == "string",
    )


def _plain_number(number: float) -> object:
    return next((text for text, each in SPECIAL.items() if repr(each) == repr(number)), number)


def _uuid(value: object) -> object:
    import uuid

    try:
        return uuid.UUID(str(value))
    except ValueError:
        raise SerializationError(f"{value!r} is no UUID") from None


# -- JSON ------------------------------------------------------------------------------------------


def _loads(data: bytes) -> object:
    import orjson

    found: object = orjson.loads(data)
    return found


def _dumps(value: object) -> bytes:
    import orjson

    try:
        return orjson.dumps(value)
    except TypeError as error:
        raise SerializationError(str(error)) from None


def _read_json(data: bytes) -> object:
    try:
        return _loads(data)
    except ValueError as error:
        raise SerializationError(f"{data[:100]!r} is no JSON: {error}") from None


# -- MessagePack -----------------------------------------------------------------------------------


def _packed(msgpack: Any, value: object) -> bytes:
    try:
        packed: bytes = msgpack.packb(_for_messagepack(msgpack, value))
    except (ValueError, OverflowError, TypeError) as error:
        raise SerializationError(str(error)) from None
    return packed


def _for_messagepack(msgpack: Any, value: object) -> object:
    if isinstance(value, list):
        return [_for_messagepack(msgpack, each) for each in value]
    if not isinstance(value, dict):
        return value
    match value:
        case {"$base64": str(text), **rest} if not rest:
            return _of_base64(text)
        case {"$extension": [int(code), str(text)], **rest} if not rest:
            data = _of_base64(text)
            if code == TIMESTAMP:
                return msgpack.Timestamp.from_bytes(data)
            return msgpack.ExtType(code, data)
        case {"$entries": list(entries), **rest} if not rest:
            return {
                _for_messagepack(msgpack, key): _for_messagepack(msgpack, each)
                for key, each in entries
            }
    return {key: _for_messagepack(msgpack, each) for key, each in value.items()}


def _of_base64(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise SerializationError(f"{text[:100]!r} is no base64: {error}") from None


class _Pairs(list[tuple[Any, Any]]):
    """A map's entries, whose keys may be anything."""


def _unpacked(msgpack: Any, data: bytes) -> object:
    try:
        value = msgpack.unpackb(data, strict_map_key=False, object_pairs_hook=_Pairs)
        return _of_messagepack(msgpack, value)
    except (ValueError, TypeError, RecursionError, msgpack.UnpackException) as error:
        what = f"{data[:100]!r} is no MessagePack"
        raise SerializationError(f"{what}: {words_of(error)}") from None


def _of_messagepack(msgpack: Any, value: object) -> object:
    if isinstance(value, _Pairs):
        entries = [
            (_of_messagepack(msgpack, key), _of_messagepack(msgpack, each)) for key, each in value
        ]
        names = {key for key, _ in entries if isinstance(key, str)}
        if len(names) == len(entries) and not names & {BASE64, EXTENSION, ENTRIES}:
            return dict(entries)
        return {ENTRIES: [list(each) for each in entries]}
    if isinstance(value, list):
        return [_of_messagepack(msgpack, each) for each in value]
    if isinstance(value, bytes):
        return {BASE64: base64.b64encode(value).decode()}
    if isinstance(value, msgpack.Timestamp):
        return {EXTENSION: [TIMESTAMP, base64.b64encode(value.to_bytes()).decode()]}
    if isinstance(value, msgpack.ExtType):
        return {EXTENSION: [value.code, base64.b64encode(value.data).decode()]}
    return value


# -- schema registries -----------------------------------------------------------------------------


def _of_registry(wanted: _Wanted) -> TypedFormat:
    from moldau.schema_registry.codec import Codecs
    from moldau.schema_registry.formats import codec_of

    if wanted.registry is None:
        raise ConfigurationError(
            f"needs --schema-registry, {ENVIRONMENT} in the environment or {REGISTRY_URL}"
        )
    codecs = Codecs(wanted.registry, codec_of, SCHEMAS.get(wanted.name))

    def decode(data: bytes) -> object:
        codec, rest = codecs.of_data(data)
        return codec.decode_json(rest)

    def refuse(value: object) -> bytes:
        raise SerializationError("it can be read only")

    encode = refuse if wanted.topic is None else _encoder(wanted, codecs, wanted.topic)
    return TypedFormat(wanted.side, wanted.name, encode, decode)


def _encoder(wanted: _Wanted, codecs: Codecs[Codec], topic: str) -> Encode:
    from moldau.schema_registry.framing import framed
    from moldau.schema_registry.serializer import SchemaWriter
    from moldau.schema_registry.subjects import STRATEGIES

    where, _, message = (wanted.schema or "latest").partition("#")
    strategy = STRATEGIES.get(wanted.strategy.rpartition(".")[2])
    if strategy is None:
        raise ConfigurationError(
            f"{wanted.side}.{STRATEGY}={wanted.strategy}: must be one of {', '.join(STRATEGIES)}"
        )
    if message and wanted.name != "protobuf":
        raise ConfigurationError(f"#{message}: only Protobuf schemas have several messages")
    if where.startswith("id:"):
        if not where[3:].isdigit():
            raise ConfigurationError(f"--{wanted.side}-schema {where}: id: and a number")
        schema_id = int(where[3:])

        @functools.cache
        def codec_of_id() -> Codec:
            return _of_message(codecs.of_id(schema_id), message)

        return lambda value: framed(schema_id, codec_of_id().encode_json(value))
    writer = SchemaWriter(
        codecs,
        None if where == "latest" else _file(where, wanted.name),
        part=lambda codec: _of_message(codec, message),
        is_key=wanted.side == "key",
        subject=strategy,
        registers=wanted.registers,
    )
    return lambda value: writer.write_json(topic, value)


def _of_message(codec: Codec, message: str) -> Codec:
    if not message:
        return codec
    from moldau.schema_registry.protobuf import ProtobufCodec

    if not isinstance(codec, ProtobufCodec):
        raise SerializationError(f"#{message}: the schema is no Protobuf schema")
    return codec.of_message(message)


def _file(name: str, kind: str) -> Schema:
    from moldau.schema_registry import Schema

    try:
        text = read_small_file(name, MAX_SCHEMA_BYTES, takes_pipe=True).decode()
    except (OSError, UnicodeDecodeError) as error:
        words = error.strerror or error if isinstance(error, OSError) else error
        raise ConfigurationError(f"{name}: {words}") from None
    if kind != "protobuf":
        try:
            json.loads(text)
        except ValueError as error:
            raise ConfigurationError(f"{name}: no schema of {kind}: not JSON: {error}") from None
    return Schema(text, SCHEMAS[kind])
