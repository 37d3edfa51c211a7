"""UpdateFeatures (57) v0-v2: change finalized feature levels.

Versions: 1 can downgrade and dry-run, 2 answers for the whole request only.
"""

from moldau.protocol.schema import ExplainedResponse, Request, Struct, field
from moldau.protocol.types import Bool, Int8, Int16, Int32, String


class FeatureUpdateKey(Struct):
    feature: String = ""
    max_version_level: Int16 = 0
    allow_downgrade: Bool = field(False, until=0)
    upgrade_type: Int8 = field(1, since=1)


class UpdateFeaturesRequest(Request["UpdateFeaturesResponse"], versions="0-2", flexible="0+"):
    timeout_ms: Int32 = 60000
    feature_updates: list[FeatureUpdateKey] = field()
    validate_only: Bool = field(False, since=1)


class UpdatableFeatureResult(Struct):
    feature: String = ""
    error_code: Int16 = 0
    error_message: String | None = field("", nullable="0+")


class UpdateFeaturesResponse(ExplainedResponse, answers=UpdateFeaturesRequest):
    results: list[UpdatableFeatureResult] = field(until=1, ignorable=True)
