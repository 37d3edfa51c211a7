"""The subject under which a registry keeps the schema of a topic's keys or values.

A strategy (`subject.name.strategy`) is a function of the topic, of whether the schema is of keys,
and of the record's full name, which a schema may lack.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from moldau.client.errors import SerializationError

SubjectStrategy: TypeAlias = Callable[[str, bool, str | None], str]


def topic_name(topic: str, is_key: bool, record: str | None) -> str:
    """The topic and what of it: `orders-value`. The default of all of Confluent's clients."""
    return f"{topic}-{'key' if is_key else 'value'}"


def record_name(topic: str, is_key: bool, record: str | None) -> str:
    """The record's full name: one schema in several topics."""
    if record is None:
        raise SerializationError(f"topic {topic}: the schema has no name to be its subject")
    return record


def topic_record_name(topic: str, is_key: bool, record: str | None) -> str:
    """The topic and the record's full name: several kinds of records in one topic."""
    return f"{topic}-{record_name(topic, is_key, record)}"


STRATEGIES: dict[str, SubjectStrategy] = {
    "TopicNameStrategy": topic_name,
    "RecordNameStrategy": record_name,
    "TopicRecordNameStrategy": topic_record_name,
}
"""The strategies by the last part of the names of Confluent's classes."""
