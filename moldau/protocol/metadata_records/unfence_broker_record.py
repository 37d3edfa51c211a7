"""UnfenceBrokerRecord (type 8, version 0): a broker is unfenced; today
BrokerRegistrationChangeRecord says it."""

from moldau.protocol.schema import Message, metadata_record
from moldau.protocol.types import Int32, Int64


@metadata_record(8, versions="0", flexible="0+")
class UnfenceBrokerRecord(Message):
    id: Int32 = 0
    epoch: Int64 = 0
