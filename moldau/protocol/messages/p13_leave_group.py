"""LeaveGroup (13) v0-v5: leave a classic consumer group.

Versions: 3 removes many members at once. 5 carries the reason.
"""

from moldau.protocol.schema import Message, Request, Struct, field
from moldau.protocol.types import Int16, Int32, String


class MemberIdentity(Struct):
    member_id: String = field("", since=3)
    group_instance_id: String | None = field(None, since=3, nullable="3+")
    reason: String | None = field(None, since=5, nullable="5+", ignorable=True)


class LeaveGroupRequest(Request["LeaveGroupResponse"], versions="0-5", flexible="4+"):
    group_id: String = ""
    member_id: String = field("", until=2)
    members: list[MemberIdentity] = field(since=3)


class MemberResponse(Struct):
    member_id: String = field("", since=3)
    group_instance_id: String | None = field("", since=3, nullable="3+")
    error_code: Int16 = field(0, since=3)


class LeaveGroupResponse(Message, answers=LeaveGroupRequest):
    throttle_time_ms: Int32 = field(0, since=1, ignorable=True)
    error_code: Int16 = 0
    members: list[MemberResponse] = field(since=3)
