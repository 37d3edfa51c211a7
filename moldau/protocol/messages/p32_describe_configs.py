"""DescribeConfigs (32) v1-v4: describe the configuration of topics, brokers and others.

Versions: 1 adds synonyms, 3 types and documentation.
"""

from moldau.protocol.schema import Failable, Request, Struct, ThrottledResponse, field
from moldau.protocol.types import Bool, Int8, String


class DescribeConfigsResource(Struct):
    resource_type: Int8 = 0
    resource_name: String = ""
    configuration_keys: list[String] | None = field(nullable="0+")


class DescribeConfigsRequest(Request["DescribeConfigsResponse"], versions="1-4", flexible="4+"):
    resources: list[DescribeConfigsResource] = field()
    include_synonyms: Bool = False
    include_documentation: Bool = field(False, since=3)


class DescribeConfigsSynonym(Struct):
    name: String = ""
    value: String | None = field("", nullable="0+")
    source: Int8 = 0


class DescribeConfigsResourceResult(Struct):
    name: String = ""
    value: String | None = field("", nullable="0+")
    read_only: Bool = False
    config_source: Int8 = -1
    is_sensitive: Bool = False
    synonyms: list[DescribeConfigsSynonym] = field()
    config_type: Int8 = field(0, since=3, ignorable=True)
    documentation: String | None = field("", since=3, nullable="0+", ignorable=True)


class DescribeConfigsResult(Failable):
    resource_type: Int8 = 0
    resource_name: String = ""
    configs: list[DescribeConfigsResourceResult] = field()


class DescribeConfigsResponse(ThrottledResponse, answers=DescribeConfigsRequest):
    results: list[DescribeConfigsResult] = field()
