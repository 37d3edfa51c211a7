"""The response that says a whole request has failed, and the error codes found in a response.

There is one for every API that the controller listener serves, or that a broker forwards, so that a
request never goes unanswered.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from operator import attrgetter
from typing import Any, Final, NamedTuple, TypeAlias, TypeVar

from moldau.protocol import registry
from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages import p30_create_acls as creation
from moldau.protocol.messages import p31_delete_acls as deletion
from moldau.protocol.messages import p32_describe_configs as describe
from moldau.protocol.messages import p33_alter_configs as legacy
from moldau.protocol.messages import p43_elect_leaders as election
from moldau.protocol.messages import p44_incremental_alter_configs as incremental
from moldau.protocol.messages import p45_alter_partition_reassignments as reassignment
from moldau.protocol.messages import p49_alter_client_quotas as quotas
from moldau.protocol.messages import p51_alter_user_scram_credentials as scram
from moldau.protocol.messages.p01_fetch import FetchableTopicResponse, FetchRequest
from moldau.protocol.messages.p01_fetch import PartitionData as FetchedPartition
from moldau.protocol.messages.p19_create_topics import CreatableTopicResult, CreateTopicsRequest
from moldau.protocol.messages.p20_delete_topics import DeletableTopicResult, DeleteTopicsRequest
from moldau.protocol.messages.p37_create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsTopicResult,
)
from moldau.protocol.messages.p38_create_delegation_token import CreateDelegationTokenResponse
from moldau.protocol.messages.p41_describe_delegation_token import (
    DescribedDelegationToken,
    DescribeDelegationTokenResponse,
)
from moldau.protocol.schema import Message
from moldau.protocol.structs import ArrayType, Struct, StructType
from moldau.protocol.types import ZERO_UUID
from moldau.text import short_message


def error_response(
    request: Message, error: ErrorCode, message: str, *, api_version: int | None = None
) -> Message:
    """The response to `request` that says it failed as a whole.

    Args:
        api_version: the version it will be encoded as; None for the latest. Some versions have no
            place for an error of the whole request.
    """
    failed = _Failed(error, message)
    kind = registry.response_class(request.API_KEY)
    make = _MAKERS.get(type(request))
    fields = {} if make is None else make(request, failed)
    is_whole = make is None or hasattr(kind, "error_code")
    response = failed(kind, **fields) if is_whole else kind(**fields)
    if api_version is not None:
        fit_version(response, api_version)
    return response


def fit_version(response: Message, api_version: int) -> None:
    """Leave out what a version has no place for: before version 1 an ElectLeaders response has the
    errors of partitions only, before version 3 no response names who asked for a delegation token.
    """
    if isinstance(response, election.ElectLeadersResponse) and api_version < 1:
        response.error_code = ErrorCode.NONE
    elif isinstance(response, CreateDelegationTokenResponse) and api_version < 3:
        _forget_requester(response)
    elif isinstance(response, DescribeDelegationTokenResponse) and api_version < 3:
        for token in response.tokens:
            _forget_requester(token)


def _forget_requester(part: CreateDelegationTokenResponse | DescribedDelegationToken) -> None:
    part.token_requester_principal_type = part.token_requester_principal_name = ""


def error_codes(message: Struct) -> Iterator[int]:
    """Every error code in a response, those of its parts included."""
    for name, is_code in _ways_to_codes(type(message)):
        value = getattr(message, name)
        if is_code:
            yield value
        elif type(value) is list:
            for each in value:
                yield from error_codes(each)
        elif value is not None:
            yield from error_codes(value)


_Ways: TypeAlias = tuple[tuple[str, bool], ...]
_ways_by_kind: Final[dict[type[Struct], _Ways]] = {}


def _ways_to_codes(kind: type[Struct]) -> _Ways:
    """The fields that are error codes (True), and the fields whose parts have error codes (False).
    A response about a thousand topics has tens of thousands of parts without any.
    """
    known = _ways_by_kind.get(kind)
    if known is not None:
        return known
    ways: list[tuple[str, bool]] = []
    for field in kind.spec().fields:
        part = field.type.element if isinstance(field.type, ArrayType) else field.type
        if field.name.endswith("error_code"):
            ways.append((field.name, True))
        elif isinstance(part, StructType) and _ways_to_codes(part.struct):
            ways.append((field.name, False))
    return _ways_by_kind.setdefault(kind, tuple(ways))


def has_error(message: Message, error: ErrorCode) -> bool:
    """Whether the response says `error` anywhere."""
    return _have_code(type(message), [message], int(error))


def _have_code(kind: type[Struct], structs: Sequence[Struct], code: int) -> bool:
    """Whether one of these structs of one kind has the code. There is no step of Python for each
    struct, since a response may have 100,000.
    """
    for name, is_code in _ways_to_codes(kind):
        values = map(attrgetter(name), structs)
        if is_code:
            if code in values:
                return True
            continue
        found = list(filter(None, values))
        parts = list(chain.from_iterable(found)) if found and type(found[0]) is list else found
        if parts and _have_code(type(parts[0]), parts, code):
            return True
    return False


StructT = TypeVar("StructT", bound=Struct)


class _Failed(NamedTuple):
    """Makes responses and parts of them that say the error, and its text where there is a field."""

    error: ErrorCode
    text: str

    def __call__(self, kind: type[StructT], **fields: Any) -> StructT:
        if hasattr(kind, "error_message"):
            fields["error_message"] = short_message(self.text)
        return kind(error_code=self.error, **fields)


_Fields: TypeAlias = dict[str, Any]


def _parts(
    asked: str,
    answered: str,
    part_class: type[Struct],
    *same: str,
    below: Callable[[Any, _Failed], _Fields] | None = None,
    **fields: Any,
) -> Callable[[Any, _Failed], _Fields]:
    """Makes the field of a response that has a part for each one of the request's.

    Args:
        asked, answered: the fields of the request and of the response that have the parts.
        same: the fields that a part has of the request's.
        below: makes a field of each part, which then has its errors.
        fields: what else the part says: a value, or a function of the request's part.
    """

    def make(request: Any, failed: _Failed) -> _Fields:
        parts: list[Struct] = []
        for each in getattr(request, asked) or ():
            said = {name: getattr(each, name) for name in same}
            for name, value in fields.items():
                said[name] = value(each) if callable(value) else value
            if below is None:
                parts.append(failed(part_class, **said))
            else:
                parts.append(part_class(**said, **below(each, failed)))
        return {answered: parts}

    return make


def _delete_topics(request: DeleteTopicsRequest, failed: _Failed) -> _Fields:
    named = [(topic.name, topic.topic_id) for topic in request.topics]
    results = [
        failed(DeletableTopicResult, name=name, topic_id=topic_id)
        for name, topic_id in [*named, *((name, ZERO_UUID) for name in request.topic_names)]
    ]
    return {"responses": results}


_reassigned: Final = _parts(
    *("topics", "responses", reassignment.ReassignableTopicResponse, "name"),
    below=_parts(
        *("partitions", "partitions", reassignment.ReassignablePartitionResponse), "partition_index"
    ),
)
_RESOURCE: Final = ("resource_type", "resource_name")
_MAKERS: Final[dict[type[Message], Callable[[Any, _Failed], _Fields]]] = {
    CreateTopicsRequest: _parts("topics", "topics", CreatableTopicResult, "name", configs=None),
    DeleteTopicsRequest: _delete_topics,
    CreatePartitionsRequest: _parts("topics", "results", CreatePartitionsTopicResult, "name"),
    legacy.AlterConfigsRequest: _parts(
        "resources", "responses", incremental.AlterConfigsResourceResponse, *_RESOURCE
    ),
    incremental.IncrementalAlterConfigsRequest: _parts(
        "resources", "responses", incremental.AlterConfigsResourceResponse, *_RESOURCE
    ),
    describe.DescribeConfigsRequest: _parts(
        "resources", "results", describe.DescribeConfigsResult, *_RESOURCE
    ),
    election.ElectLeadersRequest: _parts(
        *("topic_partitions", "replica_election_results", election.ReplicaElectionResult, "topic"),
        below=_parts(
            *("partitions", "partition_result", election.PartitionResult),
            partition_id=lambda partition: partition,
        ),
    ),
    reassignment.AlterPartitionReassignmentsRequest: lambda request, failed: {
        "allow_replication_factor_change": request.allow_replication_factor_change,
        **_reassigned(request, failed),
    },
    # Before version 7 a Fetch response has the errors of partitions only.
    FetchRequest: _parts(
        *("topics", "responses", FetchableTopicResponse, "topic", "topic_id"),
        below=_parts(
            *("partitions", "partitions", FetchedPartition),
            partition_index=attrgetter("partition"),
            high_watermark=-1,
        ),
    ),
    creation.CreateAclsRequest: _parts("creations", "results", creation.AclCreationResult),
    quotas.AlterClientQuotasRequest: _parts(
        "entries", "entries", quotas.EntryDataResponse, "entity"
    ),
    deletion.DeleteAclsRequest: _parts(
        "filters", "filter_results", deletion.DeleteAclsFilterResult
    ),
    scram.AlterUserScramCredentialsRequest: lambda request, failed: {
        "results": [
            failed(scram.AlterUserScramCredentialsResult, user=user)
            for user in dict.fromkeys(
                each.name for each in (*request.deletions, *request.upsertions)
            )
        ]
    },
}
"""For the APIs whose responses have their errors in parts."""
