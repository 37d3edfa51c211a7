"""DescribeAcls (29) v1-v3: list access control entries that match a filter.

Versions: 2 is flexible, 3 adds user resources.
"""

from moldau.protocol.schema import Message, Request, Struct, field
from moldau.protocol.types import Int8, Int16, Int32, String


class DescribeAclsRequest(Request["DescribeAclsResponse"], versions="1-3", flexible="2+"):
    resource_type_filter: Int8 = 0
    resource_name_filter: String | None = field("", nullable="0+")
    pattern_type_filter: Int8 = 3
    principal_filter: String | None = field("", nullable="0+")
    host_filter: String | None = field("", nullable="0+")
    operation: Int8 = 0
    permission_type: Int8 = 0


class AclDescription(Struct):
    principal: String = ""
    host: String = ""
    operation: Int8 = 0
    permission_type: Int8 = 0


class DescribeAclsResource(Struct):
    resource_type: Int8 = 0
    resource_name: String = ""
    pattern_type: Int8 = 3
    acls: list[AclDescription] = field()


class DescribeAclsResponse(Message, answers=DescribeAclsRequest):
    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: String | None = field("", nullable="0+")
    resources: list[DescribeAclsResource] = field()
