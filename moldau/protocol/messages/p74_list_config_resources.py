"""ListConfigResources (74) v0-v1: list configuration resources.

Versions: 0 lists client metrics subscriptions only, 1 all types.
"""

from moldau.protocol.schema import FailableResponse, Request, Struct, field
from moldau.protocol.types import Int8, String


class ListConfigResourcesRequest(
    Request["ListConfigResourcesResponse"], versions="0-1", flexible="0+"
):
    resource_types: list[Int8] = field(since=1)


class ConfigResource(Struct):
    resource_name: String = ""
    resource_type: Int8 = field(16, since=1, ignorable=True)


class ListConfigResourcesResponse(FailableResponse, answers=ListConfigResourcesRequest):
    config_resources: list[ConfigResource] = field()
