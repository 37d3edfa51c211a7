"""ClearElrRecord (type 28, version 0): forgets the eligible leader replicas of one topic, or of
all."""

from moldau.protocol.schema import Message, metadata_record
from moldau.protocol.types import String


@metadata_record(28, versions="0", flexible="0+")
class ClearElrRecord(Message):
    topic_name: String = ""
