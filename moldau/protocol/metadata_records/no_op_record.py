"""NoOpRecord (type 20, version 0): says nothing; its offset shows that the controller is alive."""

from moldau.protocol.schema import Message, metadata_record


@metadata_record(20, versions="0", flexible="0+")
class NoOpRecord(Message):
    """This record has no fields."""
