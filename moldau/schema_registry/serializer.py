"""What the serializers of all formats share: which schema is written, under which id.

Owns what `auto.register.schemas` means. Must not know a format. Invariant: a registry is asked once
for each subject, not for each record.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import ClassVar, Generic, TypeVar

from moldau.schema_registry.codec import Codec, Codecs, Format
from moldau.schema_registry.framing import framed
from moldau.schema_registry.registry import Schema, SchemaReference, SchemaRegistry
from moldau.schema_registry.subjects import SubjectStrategy, topic_name

Value = TypeVar("Value")


class SchemaWriter:
    """Writes one schema, or each subject's newest.

    Args:
        codecs: of the registry.
        schema: None for the newest that the subject has at the first record.
        part: makes of a schema's codec that of what is written, such as one of its messages.
        is_key: whether it is for keys.
        subject: under which subject the schema is, by topic.
        registers: whether a schema that the subject lacks is registered; without it that fails.
    """

    def __init__(
        self,
        codecs: Codecs[Codec],
        schema: Schema | None,
        *,
        part: Callable[[Codec], Codec] = lambda codec: codec,
        is_key: bool = False,
        subject: SubjectStrategy = topic_name,
        registers: bool = True,
    ) -> None:
        self._registry = codecs.registry
        self._schema = schema
        self._part = part
        self._is_key = is_key
        self._strategy = subject
        self._registers = registers
        self._codecs = codecs
        self._own: Codec | None = None
        self._ids: dict[str, tuple[int, Codec]] = {}

    def chosen(self, topic: str) -> tuple[int, Codec]:
        """The id and the codec of a topic's schema. Raises: SchemaRegistryError,
        SerializationError
        """
        known = self._ids.get(topic)
        if known is None:
            known = self._ids[topic] = self._choose(topic)
        return known

    def write(self, topic: str, value: object) -> bytes:
        """A value's bytes. Raises: SchemaRegistryError, SerializationError"""
        schema_id, codec = self.chosen(topic)
        return framed(schema_id, codec.encode(value))

    def write_json(self, topic: str, value: object) -> bytes:
        """As `write`, of the value's JSON form."""
        schema_id, codec = self.chosen(topic)
        return framed(schema_id, codec.encode_json(value))

    def _choose(self, topic: str) -> tuple[int, Codec]:
        schema = self._schema
        if schema is None:
            found = self._registry.latest(self._strategy(topic, self._is_key, None))
            return found.schema_id, self._part(self._codecs.of_id(found.schema_id))
        if self._own is None:
            self._own = self._part(self._codecs.make(schema, self._registry.referenced(schema)))
        subject = self._strategy(topic, self._is_key, self._own.name)
        if self._registers:
            return self._registry.register(subject, schema), self._own
        return self._registry.lookup(subject, schema).schema_id, self._own


class SchemaSerializer(Generic[Value]):
    """What serializers of formats are whose schemas are JSON.

    Args:
        schema: as text or as a dictionary; None for the newest that the registry has for the topic.
        to_dict: makes what JSON has of a value, where values are not that already.
        references: schemas that the schema uses, as the registry has them.
        is_key, subject, registers: as of `SchemaWriter`.
    """

    format: ClassVar[Format]

    def __init__(
        self,
        registry: SchemaRegistry,
        schema: str | Mapping[str, object] | None = None,
        *,
        to_dict: Callable[[Value], object] | None = None,
        references: tuple[SchemaReference, ...] = (),
        is_key: bool = False,
        subject: SubjectStrategy = topic_name,
        registers: bool = True,
    ) -> None:
        given: Schema | None = None
        if schema is not None:
            text = schema if isinstance(schema, str) else json.dumps(schema)
            given = Schema(text, self.format.kind, references)
        self._to_dict = to_dict
        codecs = Codecs(registry, self.format.codec, self.format.kind)
        self._writer = SchemaWriter(
            codecs, given, is_key=is_key, subject=subject, registers=registers
        )

    def serialize(self, topic: str, value: Value) -> bytes:
        """Raises: SerializationError, SchemaRegistryError"""
        return self._writer.write(topic, value if self._to_dict is None else self._to_dict(value))
