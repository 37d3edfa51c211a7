"""RemoveTopicRecord (type 9, version 0): a topic is deleted."""

from moldau.protocol.schema import Message, metadata_record
from moldau.protocol.types import ZERO_UUID, Uuid


@metadata_record(9, versions="0", flexible="0+")
class RemoveTopicRecord(Message):
    topic_id: Uuid = ZERO_UUID
