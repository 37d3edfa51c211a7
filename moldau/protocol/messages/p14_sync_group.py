"""SyncGroup (14) v0-v5: hand out the assignment of a classic group's generation.

Versions: 3 adds static membership, 5 repeats the protocol's type and name.
"""

from moldau.protocol.schema import Message, Request, Struct, field
from moldau.protocol.types import Bytes, Int16, Int32, String


class SyncGroupRequestAssignment(Struct):
    member_id: String = ""
    assignment: Bytes = b""


class SyncGroupRequest(Request["SyncGroupResponse"], versions="0-5", flexible="4+"):
    group_id: String = ""
    generation_id: Int32 = 0
    member_id: String = ""
    group_instance_id: String | None = field(None, since=3, nullable="3+")
    protocol_type: String | None = field(None, since=5, nullable="5+", ignorable=True)
    protocol_name: String | None = field(None, since=5, nullable="5+", ignorable=True)
    assignments: list[SyncGroupRequestAssignment] = field()


class SyncGroupResponse(Message, answers=SyncGroupRequest):
    throttle_time_ms: Int32 = field(0, since=1, ignorable=True)
    error_code: Int16 = 0
    protocol_type: String | None = field(None, since=5, nullable="5+", ignorable=True)
    protocol_name: String | None = field(None, since=5, nullable="5+", ignorable=True)
    assignment: Bytes = b""
