"""JoinGroup (11) v0-v9: join a classic consumer group.

Versions: 4 hands out the member id before the join, 5 adds static membership. 7 repeats the
protocol type, 8 carries the reason. 9 can tell the leader to skip the assignment.
"""

from moldau.protocol.schema import Message, Request, Struct, field
from moldau.protocol.types import Bool, Bytes, Int16, Int32, String


class JoinGroupRequestProtocol(Struct):
    name: String = ""
    metadata: Bytes = b""


class JoinGroupRequest(Request["JoinGroupResponse"], versions="0-9", flexible="6+"):
    group_id: String = ""
    session_timeout_ms: Int32 = 0
    rebalance_timeout_ms: Int32 = field(-1, since=1, ignorable=True)
    member_id: String = ""
    group_instance_id: String | None = field(None, since=5, nullable="5+")
    protocol_type: String = ""
    protocols: list[JoinGroupRequestProtocol] = field()
    reason: String | None = field(None, since=8, nullable="8+", ignorable=True)


class JoinGroupResponseMember(Struct):
    member_id: String = ""
    group_instance_id: String | None = field(None, since=5, nullable="5+", ignorable=True)
    metadata: Bytes = b""


class JoinGroupResponse(Message, answers=JoinGroupRequest):
    throttle_time_ms: Int32 = field(0, since=2, ignorable=True)
    error_code: Int16 = 0
    generation_id: Int32 = -1
    protocol_type: String | None = field(None, since=7, nullable="7+", ignorable=True)
    protocol_name: String | None = field("", nullable="7+")
    leader: String = ""
    skip_assignment: Bool = field(False, since=9)
    member_id: String = ""
    members: list[JoinGroupResponseMember] = field()
