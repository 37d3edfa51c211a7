"""AlterClientQuotas (49) v0-v1: change client quotas."""

from moldau.protocol.messages.p48_describe_client_quotas import EntityData
from moldau.protocol.schema import Failable, Request, Struct, ThrottledResponse, field
from moldau.protocol.types import Bool, Float64, String


class OpData(Struct):
    key: String = ""
    value: Float64 = 0.0
    remove: Bool = False


class EntryData(Struct):
    entity: list[EntityData] = field()
    ops: list[OpData] = field()


class AlterClientQuotasRequest(Request["AlterClientQuotasResponse"], versions="0-1", flexible="1+"):
    entries: list[EntryData] = field()
    validate_only: Bool = False


class EntryDataResponse(Failable):
    entity: list[EntityData] = field()


class AlterClientQuotasResponse(ThrottledResponse, answers=AlterClientQuotasRequest):
    entries: list[EntryDataResponse] = field()
