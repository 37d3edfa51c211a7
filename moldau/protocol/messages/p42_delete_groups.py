"""DeleteGroups (42) v0-v2: delete groups."""

from moldau.protocol.schema import Message, Request, Struct, field
from moldau.protocol.types import Int16, Int32, String


class DeleteGroupsRequest(Request["DeleteGroupsResponse"], versions="0-2", flexible="2+"):
    groups_names: list[String] = field()


class DeletableGroupResult(Struct):
    group_id: String = ""
    error_code: Int16 = 0


class DeleteGroupsResponse(Message, answers=DeleteGroupsRequest):
    throttle_time_ms: Int32 = 0
    results: list[DeletableGroupResult] = field()
