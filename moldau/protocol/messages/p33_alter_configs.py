"""AlterConfigs (33) v0-v2: replace the whole configuration of resources."""

from moldau.protocol.messages.p44_incremental_alter_configs import AlterConfigsResourceResponse
from moldau.protocol.schema import Request, Struct, ThrottledResponse, field
from moldau.protocol.types import Bool, Int8, String


class AlterableConfig(Struct):
    name: String = ""
    value: String | None = field("", nullable="0+")


class AlterConfigsResource(Struct):
    resource_type: Int8 = 0
    resource_name: String = ""
    configs: list[AlterableConfig] = field()


class AlterConfigsRequest(Request["AlterConfigsResponse"], versions="0-2", flexible="2+"):
    resources: list[AlterConfigsResource] = field()
    validate_only: Bool = False


class AlterConfigsResponse(ThrottledResponse, answers=AlterConfigsRequest):
    responses: list[AlterConfigsResourceResponse] = field()
