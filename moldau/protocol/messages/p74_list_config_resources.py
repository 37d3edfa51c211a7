"""ListConfigResources (74) v0-v1: list configuration resources.

Versions: 0 lists client metrics subscriptions only, 1 all types.
"""

from moldau.protocol.schema import Message, Request, Struct, field
from moldau.protocol.types import Int8, Int16, Int32, String


class ListConfigResourcesRequest(
    Request["ListConfigResourcesResponse"], versions="0-1", flexible="0+"
):
    resource_types: list[Int8] = field(since=1)


class ConfigResource(Struct):
    resource_name: String = ""
    resource_type: Int8 = field(16, since=1, ignorable=True)


class ListConfigResourcesResponse(Message, answers=ListConfigResourcesRequest):
    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    config_resources: list[ConfigResource] = field()
