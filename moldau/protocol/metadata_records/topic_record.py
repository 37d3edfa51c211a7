"""TopicRecord (type 2, version 0): a topic is created."""

from moldau.protocol.schema import Message, metadata_record
from moldau.protocol.types import ZERO_UUID, String, Uuid


@metadata_record(2, versions="0", flexible="0+")
class TopicRecord(Message):
    name: String = ""
    topic_id: Uuid = ZERO_UUID
