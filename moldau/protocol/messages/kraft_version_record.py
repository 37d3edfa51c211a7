"""The control record that sets the level of `kraft.version`."""

from moldau.protocol.schema import Message, data
from moldau.protocol.types import Int16


@data(versions="0", flexible="0+")
class KRaftVersionRecord(Message):
    version: Int16 = 0
    kraft_version: Int16 = 0
