"""IncrementalAlterConfigs (44) v0-v1: change single configuration values of resources."""

from enum import IntEnum

from moldau.protocol.schema import Failable, Request, Struct, ThrottledResponse, field
from moldau.protocol.types import Bool, Int8, String


class ConfigOperation(IntEnum):
    """How a change applies to a key (KIP-339)."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


class AlterableConfig(Struct):
    name: String = ""
    config_operation: Int8 = 0
    value: String | None = field("", nullable="0+")


class AlterConfigsResource(Struct):
    resource_type: Int8 = 0
    resource_name: String = ""
    configs: list[AlterableConfig] = field()


class IncrementalAlterConfigsRequest(
    Request["IncrementalAlterConfigsResponse"], versions="0-1", flexible="1+"
):
    resources: list[AlterConfigsResource] = field()
    validate_only: Bool = False


class AlterConfigsResourceResponse(Failable):
    resource_type: Int8 = 0
    resource_name: String = ""


class IncrementalAlterConfigsResponse(ThrottledResponse, answers=IncrementalAlterConfigsRequest):
    responses: list[AlterConfigsResourceResponse] = field()
