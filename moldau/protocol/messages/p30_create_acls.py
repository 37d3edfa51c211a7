"""CreateAcls (30) v1-v3: create access control entries.

Versions: 2 is flexible, 3 adds user resources.
"""

from moldau.protocol.schema import Request, Struct, ThrottledResponse, field
from moldau.protocol.types import Int8, Int16, String


class AclCreation(Struct):
    resource_type: Int8 = 0
    resource_name: String = ""
    resource_pattern_type: Int8 = 3
    principal: String = ""
    host: String = ""
    operation: Int8 = 0
    permission_type: Int8 = 0


class CreateAclsRequest(Request["CreateAclsResponse"], versions="1-3", flexible="2+"):
    creations: list[AclCreation] = field()


class AclCreationResult(Struct):
    error_code: Int16 = 0
    error_message: String | None = field("", nullable="0+")


class CreateAclsResponse(ThrottledResponse, answers=CreateAclsRequest):
    results: list[AclCreationResult] = field()
