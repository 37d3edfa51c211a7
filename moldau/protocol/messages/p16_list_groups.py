"""ListGroups (16) v0-v5: list groups.

Versions: 4 filters by state, 5 by type of group.
"""

from moldau.protocol.schema import Message, Request, Struct, field
from moldau.protocol.types import Int16, Int32, String


class ListGroupsRequest(Request["ListGroupsResponse"], versions="0-5", flexible="3+"):
    states_filter: list[String] = field(since=4)
    types_filter: list[String] = field(since=5)


class ListedGroup(Struct):
    group_id: String = ""
    protocol_type: String = ""
    group_state: String = field("", since=4, ignorable=True)
    group_type: String = field("", since=5, ignorable=True)


class ListGroupsResponse(Message, answers=ListGroupsRequest):
    throttle_time_ms: Int32 = field(0, since=1, ignorable=True)
    error_code: Int16 = 0
    groups: list[ListedGroup] = field()
