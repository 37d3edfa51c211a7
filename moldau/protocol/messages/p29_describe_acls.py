"""DescribeAcls (29) v1-v3: list access control entries that match a filter.

Versions: 2 is flexible, 3 adds user resources.
"""

from moldau.protocol.messages.p31_delete_acls import DeleteAclsFilter
from moldau.protocol.schema import ExplainedResponse, Request, Struct, field
from moldau.protocol.types import Int8, String


class DescribeAclsRequest(
    DeleteAclsFilter, Request["DescribeAclsResponse"], versions="1-3", flexible="2+"
):
    """Its fields are those of a filter."""


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


class DescribeAclsResponse(ExplainedResponse, answers=DescribeAclsRequest):
    resources: list[DescribeAclsResource] = field()
