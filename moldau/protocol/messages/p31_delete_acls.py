"""DeleteAcls (31) v1-v3: delete access control entries that match filters.

Versions: 2 is flexible, 3 adds user resources.
"""

from moldau.protocol.schema import Failable, Request, Struct, ThrottledResponse, field
from moldau.protocol.types import Int8, String


class DeleteAclsFilter(Struct):
    resource_type_filter: Int8 = 0
    resource_name_filter: String | None = field("", nullable="0+")
    pattern_type_filter: Int8 = 3
    principal_filter: String | None = field("", nullable="0+")
    host_filter: String | None = field("", nullable="0+")
    operation: Int8 = 0
    permission_type: Int8 = 0


class DeleteAclsRequest(Request["DeleteAclsResponse"], versions="1-3", flexible="2+"):
    filters: list[DeleteAclsFilter] = field()


class DeleteAclsMatchingAcl(Failable):
    resource_type: Int8 = 0
    resource_name: String = ""
    pattern_type: Int8 = 3
    principal: String = ""
    host: String = ""
    operation: Int8 = 0
    permission_type: Int8 = 0


class DeleteAclsFilterResult(Failable):
    matching_acls: list[DeleteAclsMatchingAcl] = field()


class DeleteAclsResponse(ThrottledResponse, answers=DeleteAclsRequest):
    filter_results: list[DeleteAclsFilterResult] = field()
