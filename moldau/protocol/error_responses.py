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
from moldau.protocol.api_keys import ApiKey
from moldau.protocol.errors import ErrorCode
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
    make = _MAKERS.get(request.API_KEY)
    fields = {} if make is None else make(request, kind, failed)
    is_whole = make is None or hasattr(kind, "error_code")
    response = failed(kind, **fields) if is_whole else kind(**fields)
    if api_version is not None:
        fit_version(response, api_version)
    return response


def fit_version(response: Message, api_version: int) -> None:
    """Leave out what a version has no place for: before version 1 an ElectLeaders response has the
    errors of partitions only, before version 3 no response names who asked for a delegation token.
    """
    said: Any = response
    if response.API_KEY == ApiKey.ELECT_LEADERS and api_version < 1:
        said.error_code = ErrorCode.NONE
    elif response.API_KEY == ApiKey.CREATE_DELEGATION_TOKEN and api_version < 3:
        _forget_requester(said)
    elif response.API_KEY == ApiKey.DESCRIBE_DELEGATION_TOKEN and api_version < 3:
        for token in said.tokens:
            _forget_requester(token)


def _forget_requester(part: Any) -> None:
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
_Maker: TypeAlias = Callable[[Any, type[Struct], _Failed], _Fields]
"""Makes the fields of a response, or of a part of one: of the request, or of its part."""


def _part_class(kind: type[Struct], name: str) -> type[Struct]:
    """The class of the parts in a field of a response."""
    [found] = [field.type for field in kind.spec().fields if field.name == name]
    element = found.element if isinstance(found, ArrayType) else None
    assert isinstance(element, StructType), f"{name} has parts"
    return element.struct


def _parts(
    asked: str, answered: str, *same: str, below: _Maker | None = None, **fields: Any
) -> _Maker:
    """Makes the field of a response that has a part for each one of the request's.

    Args:
        asked, answered: the fields of the request and of the response that have the parts.
        same: the fields that a part has of the request's.
        below: makes a field of each part, which then has its errors.
        fields: what else the part says: a value, or a function of the request's part.
    """

    def make(request: Any, kind: type[Struct], failed: _Failed) -> _Fields:
        parts, part_class = [], _part_class(kind, answered)
        for each in getattr(request, asked) or ():
            said = {name: getattr(each, name) for name in same}
            for name, value in fields.items():
                said[name] = value(each) if callable(value) else value
            if below is None:
                parts.append(failed(part_class, **said))
            else:
                parts.append(part_class(**said, **below(each, part_class, failed)))
        return {answered: parts}

    return make


def _delete_topics(request: Any, kind: type[Struct], failed: _Failed) -> _Fields:
    named = [(topic.name, topic.topic_id) for topic in request.topics]
    results = [
        failed(_part_class(kind, "responses"), name=name, topic_id=topic_id)
        for name, topic_id in [*named, *((name, ZERO_UUID) for name in request.topic_names)]
    ]
    return {"responses": results}


def _alter_reassignments(request: Any, kind: type[Struct], failed: _Failed) -> _Fields:
    partitions = _parts("partitions", "partitions", "partition_index")
    topics = _parts("topics", "responses", "name", below=partitions)
    allowed = "allow_replication_factor_change"
    return {allowed: getattr(request, allowed), **topics(request, kind, failed)}


def _alter_scram(request: Any, kind: type[Struct], failed: _Failed) -> _Fields:
    users = dict.fromkeys(each.name for each in (*request.deletions, *request.upsertions))
    return {"results": [failed(_part_class(kind, "results"), user=user) for user in users]}


_RESOURCE: Final = ("resource_type", "resource_name")
_MAKERS: Final[dict[int, _Maker]] = {
    ApiKey.CREATE_TOPICS: _parts("topics", "topics", "name", configs=None),
    ApiKey.DELETE_TOPICS: _delete_topics,
    ApiKey.CREATE_PARTITIONS: _parts("topics", "results", "name"),
    ApiKey.ALTER_CONFIGS: _parts("resources", "responses", *_RESOURCE),
    ApiKey.INCREMENTAL_ALTER_CONFIGS: _parts("resources", "responses", *_RESOURCE),
    ApiKey.DESCRIBE_CONFIGS: _parts("resources", "results", *_RESOURCE),
    ApiKey.ELECT_LEADERS: _parts(
        *("topic_partitions", "replica_election_results", "topic"),
        below=_parts("partitions", "partition_result", partition_id=lambda partition: partition),
    ),
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: _alter_reassignments,
    # Before version 7 a Fetch response has the errors of partitions only.
    ApiKey.FETCH: _parts(
        *("topics", "responses", "topic", "topic_id"),
        below=_parts(
            *("partitions", "partitions"),
            partition_index=attrgetter("partition"),
            high_watermark=-1,
        ),
    ),
    ApiKey.CREATE_ACLS: _parts("creations", "results"),
    ApiKey.ALTER_CLIENT_QUOTAS: _parts("entries", "entries", "entity"),
    ApiKey.DELETE_ACLS: _parts("filters", "filter_results"),
    ApiKey.ALTER_USER_SCRAM_CREDENTIALS: _alter_scram,
}
"""For the APIs whose responses have their errors in parts."""
