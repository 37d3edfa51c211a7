"""DescribeClientQuotas (48) v0-v1: describe client quotas."""

from moldau.protocol.schema import ExplainedResponse, Request, Struct, field
from moldau.protocol.types import Bool, Float64, Int8, String


class ComponentData(Struct):
    entity_type: String = ""
    match_type: Int8 = 0
    match: String | None = field("", nullable="0+")


class DescribeClientQuotasRequest(
    Request["DescribeClientQuotasResponse"], versions="0-1", flexible="1+"
):
    components: list[ComponentData] = field()
    strict: Bool = False


class EntityData(Struct):
    entity_type: String = ""
    entity_name: String | None = field("", nullable="0+")


class ValueData(Struct):
    key: String = ""
    value: Float64 = 0.0


class EntryData(Struct):
    entity: list[EntityData] = field()
    values: list[ValueData] = field()


class DescribeClientQuotasResponse(ExplainedResponse, answers=DescribeClientQuotasRequest):
    entries: list[EntryData] | None = field(nullable="0+")
