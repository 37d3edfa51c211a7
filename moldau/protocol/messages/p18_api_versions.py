"""ApiVersions (18) v0-v4: ask a node what it serves.

Versions: 3 names the client's software; the response lists features. 4 may list features whose
lowest version is zero.
"""

from moldau.protocol.schema import Message, Request, Struct, field
from moldau.protocol.types import Bool, Int16, Int32, Int64, String


class ApiVersionsRequest(Request["ApiVersionsResponse"], versions="0-4", flexible="3+"):
    client_software_name: String = field("", since=3, ignorable=True)
    client_software_version: String = field("", since=3, ignorable=True)


class ApiVersion(Struct):
    api_key: Int16 = 0
    min_version: Int16 = 0
    max_version: Int16 = 0


class SupportedFeatureKey(Struct):
    name: String = field("", since=3)
    min_version: Int16 = field(0, since=3)
    max_version: Int16 = field(0, since=3)


class FinalizedFeatureKey(Struct):
    name: String = field("", since=3)
    max_version_level: Int16 = field(0, since=3)
    min_version_level: Int16 = field(0, since=3)


class ApiVersionsResponse(Message, answers=ApiVersionsRequest):
    error_code: Int16 = 0
    api_keys: list[ApiVersion] = field()
    throttle_time_ms: Int32 = field(0, since=1, ignorable=True)
    supported_features: list[SupportedFeatureKey] = field(since=3, tag=0, ignorable=True)
    finalized_features_epoch: Int64 = field(-1, since=3, tag=1, ignorable=True)
    finalized_features: list[FinalizedFeatureKey] = field(since=3, tag=2, ignorable=True)
    zk_migration_ready: Bool = field(False, since=3, tag=3, ignorable=True)
