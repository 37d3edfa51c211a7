"""Protobuf: messages by `protobuf`, schemas compiled by the `protoc` of `grpcio-tools`.

Owns the way from a schema to message classes: its text, or a serialized FileDescriptorProto, which
Confluent's clients register. Invariant: every schema has its own descriptor pool, so that two
versions of a message never meet; a schema's imports come from its references alone, and name no
file outside.
"""

from __future__ import annotations

import base64
import binascii
import importlib
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from importlib.resources import as_file, files
from pathlib import Path, PurePosixPath
from typing import Any, Final, Generic, TypeVar

from google.protobuf import descriptor_pool, json_format, message_factory
from google.protobuf.descriptor import Descriptor, FileDescriptor
from google.protobuf.descriptor_pb2 import DescriptorProto, FileDescriptorProto, FileDescriptorSet
from google.protobuf.message import DecodeError, EncodeError, Message

from moldau.client.errors import SerializationError
from moldau.schema_registry.codec import Codecs, misfits_told
from moldau.schema_registry.framing import decode_indexes, encode_indexes, framed
from moldau.schema_registry.registry import Schema, SchemaReference, SchemaRegistry
from moldau.schema_registry.subjects import SubjectStrategy, topic_name

MessageT = TypeVar("MessageT", bound=Message)
KIND: Final = "PROTOBUF"
OWN_NAME: Final = "moldau_schema.proto"
WELL_KNOWN: Final = "google/protobuf/"
COMPILER_TIMEOUT_S: Final = 30.0


class ProtobufCodec:
    """Data of one schema's messages.

    Args:
        message: the full name of the message that `encode_json` makes; None for the schema's first.

    Raises:
        SerializationError: the schema cannot be compiled.
    """

    def __init__(
        self, schema: Schema, referenced: Mapping[str, Schema], message: str | None = None
    ) -> None:
        pool = descriptor_pool.DescriptorPool()
        own: FileDescriptorProto | None = None
        with misfits_told("the Protobuf schema"):
            for own in _files(schema, referenced):
                pool.Add(own)
            assert own is not None, "there is the schema itself"
            self._file: FileDescriptor = pool.FindFileByName(own.name)
        if not own.message_type:
            raise SerializationError("the Protobuf schema has no message")
        self._proto = own
        self._indexes = [0] if message is None else self._indexes_of(message)
        self.name: str | None = self._descriptor(self._indexes).full_name

    def of_message(self, message: str) -> ProtobufCodec:
        """The same schema, to encode another of its messages. Raises: SerializationError"""
        other = object.__new__(ProtobufCodec)
        vars(other).update(vars(self))
        other._indexes = self._indexes_of(message)
        other.name = message
        return other

    def encode(self, value: object) -> bytes:
        """The data of a message of the schema's; it may be a dictionary of the message's JSON."""
        if not isinstance(value, Message):
            return self.encode_json(value)
        return encode_message(value)

    def decode(self, data: bytes) -> Message:
        indexes, rest = decode_indexes(data)
        message_class = message_factory.GetMessageClass(self._descriptor(indexes))
        return parsed(message_class, rest)

    def encode_json(self, value: object) -> bytes:
        if not isinstance(value, dict):
            raise SerializationError(f"a Protobuf message is a JSON object, not {value!r}"[:200])
        message = message_factory.GetMessageClass(self._descriptor(self._indexes))()
        try:
            json_format.ParseDict(value, message)
        except json_format.ParseError as error:
            raise SerializationError(f"the value does not fit {self.name}: {error}") from error
        return encode_indexes(self._indexes) + _serialized(message)

    def decode_json(self, data: bytes) -> object:
        with misfits_told("the message has no JSON form"):
            return json_format.MessageToDict(self.decode(data), descriptor_pool=self._file.pool)

    def _descriptor(self, indexes: Sequence[int]) -> Descriptor:
        try:
            kind = self._proto.message_type[indexes[0]]
            found: Descriptor = self._file.message_types_by_name[kind.name]
            for index in indexes[1:]:
                kind = kind.nested_type[index]
                found = found.nested_types_by_name[kind.name]
        except IndexError:
            raise SerializationError(f"the schema has no message at {list(indexes)}") from None
        return found

    def _indexes_of(self, name: str) -> list[int]:
        package = self._proto.package
        known: dict[str, list[int]] = {}
        for inner, indexes in _places(self._proto.message_type):
            known[f"{package}.{inner}" if package else inner] = indexes
        if name not in known:
            raise SerializationError(f"the schema has no message {name}; it has {', '.join(known)}")
        return known[name]


def _places(
    kinds: Sequence[DescriptorProto], prefix: str = "", indexes: Sequence[int] = ()
) -> Iterator[tuple[str, list[int]]]:
    for index, kind in enumerate(kinds):
        name, at = prefix + kind.name, [*indexes, index]
        yield name, at
        yield from _places(kind.nested_type, f"{name}.", at)


def encode_message(message: Message) -> bytes:
    """Where the message is in its file, and its bytes."""
    indexes: list[int] = []
    descriptor = message.DESCRIPTOR
    while (outer := descriptor.containing_type) is not None:
        indexes.insert(0, list(outer.nested_types).index(descriptor))
        descriptor = outer
    first = list(descriptor.file.message_types_by_name.values()).index(descriptor)
    return encode_indexes([first, *indexes]) + _serialized(message)


def _serialized(message: Message) -> bytes:
    try:
        return message.SerializeToString(deterministic=True)
    except EncodeError as error:  # a required field of proto2 is missing
        raise SerializationError(str(error)) from error


def parsed(message_class: type[MessageT], data: bytes) -> MessageT:
    """Raises: SerializationError: the data are no such message"""
    try:
        return message_class.FromString(data)
    except DecodeError as error:
        name = message_class.DESCRIPTOR.full_name
        raise SerializationError(f"the data are no {name}: {error}") from error


# -- schemas ---------------------------------------------------------------------------------------


def _files(schema: Schema, referenced: Mapping[str, Schema]) -> list[FileDescriptorProto]:
    """The files of a schema, each behind those that it imports; its own is the last."""
    texts = {name: each.text for name, each in referenced.items()}
    texts[OWN_NAME] = schema.text
    given = {name: _serialized_file(text, name) for name, text in texts.items()}
    ready = {name: file for name, file in given.items() if file is not None}
    for file in list(ready.values()):
        _add_well_known(file, ready)
    if len(ready) < len(texts) or OWN_NAME not in ready:
        written = {name: text for name, text in texts.items() if name not in ready}
        for file in _compiled(written, list(ready.values())):
            ready.setdefault(file.name, file)
    ordered: dict[str, FileDescriptorProto] = {}
    _order(OWN_NAME, ready, ordered)
    return list(ordered.values())


def _order(
    name: str, files_: Mapping[str, FileDescriptorProto], ordered: dict[str, FileDescriptorProto]
) -> None:
    if name in ordered:
        return
    if name not in files_:
        raise SerializationError(f"the schema imports {name}, which the registry does not name")
    for each in files_[name].dependency:
        _order(each, files_, ordered)
    ordered[name] = files_[name]


def _serialized_file(text: str, name: str) -> FileDescriptorProto | None:
    """The file, where the schema is one that was serialized; None where it is written out."""
    try:
        file = FileDescriptorProto.FromString(base64.b64decode(text, validate=True))
    except (binascii.Error, ValueError, DecodeError):
        return None
    if not file.name:
        return None
    file.name = name
    return file


def _add_well_known(file: FileDescriptorProto, found: dict[str, FileDescriptorProto]) -> None:
    for name in file.dependency:
        if name.startswith(WELL_KNOWN) and name not in found:
            module = importlib.import_module(name.removesuffix(".proto").replace("/", ".") + "_pb2")
            known = FileDescriptorProto.FromString(module.DESCRIPTOR.serialized_pb)
            found[name] = known
            _add_well_known(known, found)


def _compiled(
    texts: Mapping[str, str], ready: Sequence[FileDescriptorProto]
) -> Sequence[FileDescriptorProto]:
    """What `protoc` makes of these files, and of what they import. Raises: SerializationError"""
    with tempfile.TemporaryDirectory(prefix="moldau-protobuf-") as home:
        source, output = Path(home, "source"), Path(home, "compiled")
        for name, text in texts.items():
            path = PurePosixPath(name)
            if path.is_absolute() or ".." in path.parts or name.startswith("-"):
                raise SerializationError(f"an imported file cannot be called {name!r}")
            target = source / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(text, encoding="utf-8")
        with as_file(files("grpc_tools") / "_proto") as standard:
            command = [sys.executable, "-m", "grpc_tools.protoc", f"-I{source}", f"-I{standard}"]
            if ready:
                known = Path(home, "known")
                known.write_bytes(FileDescriptorSet(file=ready).SerializeToString())
                command.append(f"--descriptor_set_in={known}")
            finished = subprocess.run(
                [*command, "--include_imports", f"--descriptor_set_out={output}", *texts],
                cwd=home,
                capture_output=True,
                timeout=COMPILER_TIMEOUT_S,
                check=False,
            )
        if finished.returncode:
            words = " ".join(finished.stderr.decode(errors="replace").split())
            raise SerializationError(f"the Protobuf schema: {words.replace(OWN_NAME, 'line')}")
        return FileDescriptorSet.FromString(output.read_bytes()).file


class ProtobufSerializer(Generic[MessageT]):
    """Messages of a generated class to bytes behind a schema's id. The class's file is registered,
    and the files that it imports, each under its own name.

    Args:
        message_class: made by `protoc`.
        is_key, subject, registers: as of `SchemaWriter`.
    """

    def __init__(
        self,
        registry: SchemaRegistry,
        message_class: type[MessageT],
        *,
        is_key: bool = False,
        subject: SubjectStrategy = topic_name,
        registers: bool = True,
    ) -> None:
        self._registry = registry
        self._class = message_class
        self._is_key = is_key
        self._strategy = subject
        self._registers = registers
        self._ids: dict[str, int] = {}

    def serialize(self, topic: str, value: MessageT) -> bytes:
        """Raises: SerializationError, SchemaRegistryError"""
        if not isinstance(value, self._class):
            wanted = self._class.DESCRIPTOR.full_name
            raise SerializationError(f"topic {topic}: {type(value).__name__} is no {wanted}")
        schema_id = self._ids.get(topic)
        if schema_id is None:
            subject = self._strategy(topic, self._is_key, self._class.DESCRIPTOR.full_name)
            schema_id = self._id(subject, self._class.DESCRIPTOR.file)
            self._ids[topic] = schema_id
        return framed(schema_id, encode_message(value))

    def _id(self, subject: str, file: Any) -> int:
        schema = self._schema(file)
        if self._registers:
            return self._registry.register(subject, schema)
        return self._registry.lookup(subject, schema).schema_id

    def _schema(self, file: Any) -> Schema:
        references = []
        for used in file.dependencies:
            if not used.name.startswith(WELL_KNOWN):
                self._id(used.name, used)
                found = self._registry.lookup(used.name, self._schema(used))
                references.append(SchemaReference(used.name, used.name, found.version))
        text = base64.b64encode(file.serialized_pb).decode()
        return Schema(text, KIND, tuple(references))


class ProtobufDeserializer(Generic[MessageT]):
    """Bytes behind a schema's id to messages.

    Args:
        message_class: which messages are made; its own schema reads what was written. None for
            messages of the writer's schema, which are asked of the registry.
    """

    def __init__(
        self, registry: SchemaRegistry, message_class: type[MessageT] | None = None
    ) -> None:
        self._codecs = Codecs(registry, ProtobufCodec, KIND)
        self._class = message_class

    def deserialize(self, topic: str, data: bytes) -> MessageT:
        """Raises: SerializationError, SchemaRegistryError"""
        codec, rest = self._codecs.of_data(data)
        if self._class is not None:
            return parsed(self._class, decode_indexes(rest)[1])
        message: Any = codec.decode(rest)
        return message  # type: ignore[no-any-return]
