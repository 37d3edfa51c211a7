"""DeleteGroups (42) v0-v2: delete groups."""

from moldau.protocol.schema import Request, Struct, ThrottledResponse, field
from moldau.protocol.types import Int16, String


class DeleteGroupsRequest(Request["DeleteGroupsResponse"], versions="0-2", flexible="2+"):
    groups_names: list[String] = field()


class DeletableGroupResult(Struct):
    group_id: String = ""
    error_code: Int16 = 0


class DeleteGroupsResponse(ThrottledResponse, answers=DeleteGroupsRequest):
    results: list[DeletableGroupResult] = field()
