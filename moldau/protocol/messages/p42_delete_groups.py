"""DeleteGroups (42) v0-v2: delete groups."""

from moldau.protocol.api_keys import ApiKey
from moldau.protocol.schema import Message, Request, Struct, field, request
from moldau.protocol.types import Int16, Int32, String


@request(ApiKey.DELETE_GROUPS, versions="0-2", flexible="2+")
class DeleteGroupsRequest(Request["DeleteGroupsResponse"]):
    groups_names: list[String] = field()


class DeletableGroupResult(Struct):
    group_id: String = ""
    error_code: Int16 = 0


class DeleteGroupsResponse(Message, answers=DeleteGroupsRequest):
    throttle_time_ms: Int32 = 0
    results: list[DeletableGroupResult] = field()
