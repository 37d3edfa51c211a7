"""Envelopes: what goes in comes out, in every version; what cannot be read is refused by name."""

from __future__ import annotations

import pytest

from moldau.metadata.steps import at_once
from moldau.protocol.api_keys import ApiKey
from moldau.protocol.envelope import (
    EnvelopeRefused,
    decode_envelope,
    decode_principal,
    encode_envelope,
    encode_enveloped_response,
    encode_principal,
)
from moldau.protocol.error_responses import error_codes, error_response, fit_version, has_error
from moldau.protocol.errors import ErrorCode, RemoteProtocolError
from moldau.protocol.messages.p01_fetch import FetchPartition, FetchRequest, FetchTopic
from moldau.protocol.messages.p19_create_topics import (
    CreatableTopic,
    CreatableTopicConfigs,
    CreatableTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from moldau.protocol.messages.p43_elect_leaders import ElectLeadersRequest, TopicPartitions
from moldau.protocol.messages.p58_envelope import EnvelopeRequest, EnvelopeResponse
from moldau.protocol.messages.p80_add_raft_voter import AddRaftVoterResponse
from moldau.protocol.registry import api_keys, request_class, response_class
from moldau.protocol.structs import ArrayType, Struct, StructType
from moldau.server.apis import FORWARDABLE_APIS
from tests.kit.envelopes import decode_enveloped_response

# Made by the classes of kafka-clients 4.3.0: Envelope request and response around CreateTopics
# v7, correlation id 42, client id "client-1", principal by DefaultKafkaPrincipalBuilder.serialize.
KAFKAS_REQUEST = bytes.fromhex(
    "2b001300070000002a0008636c69656e742d310002076f7264657273000000030002010100000004d2000015000005"
    "557365720b434e3d612c4f3d623a630000050a01020300"
)
KAFKAS_RESPONSE = bytes.fromhex(
    "340000002a000000000002076f726465727300000000000000000000000000000000002407657869737473ffffffff"
    "ffff000000000000"
)


def test_the_bytes_are_apache_kafkas() -> None:
    topic = CreatableTopic(name="orders", num_partitions=3, replication_factor=2)
    request = CreateTopicsRequest(topics=[topic], timeout_ms=1234)
    envelope = encode_envelope(
        request,
        api_version=7,
        correlation_id=42,
        client_id="client-1",
        principal="User:CN=a,O=b:c",
        client_host="10.1.2.3",
    )
    assert envelope.to_bytes(0) == KAFKAS_REQUEST
    forwarded = at_once(
        decode_envelope(EnvelopeRequest.decode(KAFKAS_REQUEST, 0)[0], FORWARDABLE_APIS)
    )
    assert forwarded.message == request
    assert (forwarded.principal, forwarded.client_host) == ("User:CN=a,O=b:c", "10.1.2.3")
    result = CreatableTopicResult(
        name="orders",
        error_code=ErrorCode.TOPIC_ALREADY_EXISTS,
        error_message="exists",
        configs=None,
    )
    response = CreateTopicsResponse(topics=[result])
    assert encode_enveloped_response(response, forwarded.header).to_bytes(0) == KAFKAS_RESPONSE
    answered = EnvelopeResponse.decode(KAFKAS_RESPONSE, 0)[0]
    decoded = decode_enveloped_response(
        answered, api_key=ApiKey.CREATE_TOPICS, api_version=7, correlation_id=42
    )
    assert decoded == response


@pytest.mark.parametrize("api_key", sorted(FORWARDABLE_APIS), ids=lambda key: key.name)
@pytest.mark.parametrize(
    ("host", "told"), [("10.1.2.3",) * 2, ("fe80::1",) * 2, ("::ffff:10.1.2.3", "10.1.2.3")]
)
def test_round_trip_in_every_version(api_key: ApiKey, host: str, told: str) -> None:
    kind, answer_kind = request_class(api_key), response_class(api_key)
    for version in range(kind.MIN_VERSION, kind.MAX_VERSION + 1):
        envelope = encode_envelope(
            kind(),
            api_version=version,
            correlation_id=5,
            client_id="c",
            principal="User:CN=a,O=b:c",
            client_host=host,
        )
        sent, _ = EnvelopeRequest.decode(envelope.to_bytes(0), 0)
        principal, client_host, header, message, _by_token = at_once(
            decode_envelope(sent, FORWARDABLE_APIS)
        )
        assert (principal, client_host, message) == ("User:CN=a,O=b:c", told, kind())
        assert (header.api_key, header.api_version, header.correlation_id, header.client_id) == (
            api_key,
            version,
            5,
            "c",
        )
        answered, _ = EnvelopeResponse.decode(
            encode_enveloped_response(answer_kind(), header).to_bytes(0), 0
        )
        assert (
            decode_enveloped_response(
                answered, api_key=api_key, api_version=version, correlation_id=5
            )
            == answer_kind()
        )


def test_an_invalid_client_address_becomes_an_unknown_one() -> None:
    envelope = encode_envelope(
        request_class(ApiKey.UNREGISTER_BROKER)(),
        api_version=0,
        correlation_id=1,
        client_id=None,
        principal="User:a",
        client_host="/tmp/socket",
    )
    assert at_once(decode_envelope(envelope, FORWARDABLE_APIS)).client_host == "0.0.0.0"


@pytest.mark.parametrize("data", [b"", b"\0", b"\0\1\2\2\0\0", b"\xff\xff", b"\0\0\x05a"])
def test_principals_that_cannot_be_read(data: bytes) -> None:
    assert decode_principal(encode_principal("User:x")) == ("User:x", False)
    by_token = encode_principal("User:a:b", token_authenticated=True)
    assert decode_principal(by_token) == ("User:a:b", True)
    with pytest.raises(EnvelopeRefused) as refusal:
        decode_principal(data)
    assert refusal.value.error is ErrorCode.PRINCIPAL_DESERIALIZATION_FAILURE


def test_an_answer_to_something_else_is_the_peers_fault() -> None:
    response = EnvelopeResponse(response_data=b"\0\0\0\x07\0" + AddRaftVoterResponse().to_bytes(1))
    ask = {"api_key": ApiKey.ADD_RAFT_VOTER, "api_version": 1}
    assert decode_enveloped_response(response, correlation_id=7, **ask) == AddRaftVoterResponse()
    with pytest.raises(RemoteProtocolError, match="answers request 7 where 8"):
        decode_enveloped_response(response, correlation_id=8, **ask)
    with pytest.raises(RemoteProtocolError, match="neither"):
        decode_enveloped_response(EnvelopeResponse(), correlation_id=8, **ask)


def test_old_versions_have_errors_only_where_they_have_room() -> None:
    election = ElectLeadersRequest(topic_partitions=[TopicPartitions(topic="t", partitions=[3])])
    response = error_response(election, ErrorCode.NOT_CONTROLLER, "why", api_version=0)
    assert list(error_codes(response)) == [0, 41]
    response.to_bytes(0)
    latest = error_response(election, ErrorCode.NOT_CONTROLLER, "why")
    assert list(error_codes(latest)) == [41, 41]
    fit_version(latest, 1)
    assert latest.error_code == 41
    fetch = FetchRequest(topics=[FetchTopic(topic="t", partitions=[FetchPartition()])])
    fetched = error_response(fetch, ErrorCode.NOT_LEADER_OR_FOLLOWER, "")
    for version in (4, 7, 17):
        decoded, _ = type(fetched).decode(fetched.to_bytes(version), version)
        assert has_error(decoded, ErrorCode.NOT_LEADER_OR_FOLLOWER)


def test_error_codes_are_found_without_a_look_at_parts_that_have_none() -> None:
    topics = [
        CreatableTopicResult(name="a", error_code=36, topic_config_error_code=29),
        CreatableTopicResult(name="b", error_code=0, configs=None),
    ]
    [config] = topics[0].configs = [CreatableTopicConfigs(name="retention.ms")]
    del config.name  # a reader of all of it fails
    with pytest.raises(AttributeError):
        repr(config)
    response = CreateTopicsResponse(topics=topics)
    assert list(error_codes(response)) == [36, 29, 0, 0]
    assert has_error(response, ErrorCode.TOPIC_ALREADY_EXISTS)
    assert not has_error(response, ErrorCode.NOT_CONTROLLER)


@pytest.mark.parametrize("api_key", api_keys())
def test_error_codes_of_every_response_are_those_that_a_walk_finds(api_key: ApiKey) -> None:
    response = _filled(response_class(api_key))
    found = list(error_codes(response))
    assert found == _walked(response)
    assert found or "error_code" not in repr(response)


def _filled(kind: type[Struct]) -> Struct:
    """An instance in which every list has one element, and every error code is 7."""
    values: dict[str, object] = {}
    for field in kind.spec().fields:
        if field.name.endswith("error_code"):
            values[field.name] = 7
        elif isinstance(field.type, StructType):
            values[field.name] = _filled(field.type.struct)
        elif isinstance(field.type, ArrayType) and isinstance(field.type.element, StructType):
            values[field.name] = [_filled(field.type.element.struct)]
    return kind(**values)


def _walked(value: object) -> list[int]:
    """What a walk over everything finds."""
    if isinstance(value, list):
        return [code for each in value for code in _walked(each)]
    if not isinstance(value, Struct):
        return []
    return [
        code
        for field in value.spec().fields
        for code in (
            [getattr(value, field.name)]
            if field.name.endswith("error_code")
            else _walked(getattr(value, field.name))
        )
    ]
