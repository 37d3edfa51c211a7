"""FeatureLevelRecord (type 12, version 0): the finalized level of a feature."""

from moldau.protocol.schema import Message, metadata_record
from moldau.protocol.types import Int16, String


@metadata_record(12, versions="0", flexible="0+")
class FeatureLevelRecord(Message):
    name: String = ""
    feature_level: Int16 = 0
