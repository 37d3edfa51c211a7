"""What the serializers of all formats share: which schema is written, under which id.

Must not know a format. Invariant: a registry is asked once for each subject, not for each record.
"""

from __future__ import annotations

from moldau.schema_registry.codec import Codec, Codecs, codec_of
from moldau.schema_registry.framing import framed
from moldau.schema_registry.registry import Schema, SchemaRegistry
from moldau.schema_registry.subjects import SubjectStrategy, topic_name


class SchemaWriter:
    """Writes one schema, or each subject's newest.

    Args:
        schema: None for the newest that the subject has at the first record.
        is_key: whether it is for keys.
        subject: under which subject the schema is, by topic.
        registers: whether a schema that the subject lacks is registered; without it that fails.
    """

    def __init__(
        self,
        registry: SchemaRegistry,
        schema: Schema | None,
        *,
        is_key: bool = False,
        subject: SubjectStrategy = topic_name,
        registers: bool = True,
    ) -> None:
        self._registry = registry
        self._schema = schema
        self._is_key = is_key
        self._strategy = subject
        self._registers = registers
        self._codecs = Codecs(registry)
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
            return found.schema_id, self._codecs.of_id(found.schema_id)
        if self._own is None:
            self._own = codec_of(schema, self._registry.referenced(schema))
        subject = self._strategy(topic, self._is_key, self._own.name)
        if self._registers:
            return self._registry.register(subject, schema), self._own
        return self._registry.lookup(subject, schema).schema_id, self._own
