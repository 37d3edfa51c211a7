"""DescribeGroups (15) v0-v6: describe classic consumer groups.

Versions: 3 can list the operations that the caller may do. 4 adds static membership, 6 reports
a missing group as an error.
"""

from moldau.constants import MIN_INT32
from moldau.protocol.schema import Message, Request, Struct, field
from moldau.protocol.types import Bool, Bytes, Int16, Int32, String


class DescribeGroupsRequest(Request["DescribeGroupsResponse"], versions="0-6", flexible="5+"):
    groups: list[String] = field()
    include_authorized_operations: Bool = field(False, since=3)


class DescribedGroupMember(Struct):
    member_id: String = ""
    group_instance_id: String | None = field(None, since=4, nullable="4+", ignorable=True)
    client_id: String = ""
    client_host: String = ""
    member_metadata: Bytes = b""
    member_assignment: Bytes = b""


class DescribedGroup(Struct):
    error_code: Int16 = 0
    error_message: String | None = field(None, since=6, nullable="6+")
    group_id: String = ""
    group_state: String = ""
    protocol_type: String = ""
    protocol_data: String = ""
    members: list[DescribedGroupMember] = field()
    authorized_operations: Int32 = field(MIN_INT32, since=3)


class DescribeGroupsResponse(Message, answers=DescribeGroupsRequest):
    throttle_time_ms: Int32 = field(0, since=1, ignorable=True)
    groups: list[DescribedGroup] = field()
