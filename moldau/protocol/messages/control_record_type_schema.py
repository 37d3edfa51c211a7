"""The key of a control record, which follows the key's version: what kind of record it is."""

from moldau.protocol.schema import Message, data
from moldau.protocol.types import Int16


@data(versions="0", flexible="none")
class ControlRecordTypeSchema(Message):
    type: Int16 = 0
