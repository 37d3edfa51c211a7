"""The tables of error codes and APIs against those of Apache Kafka 4.3.0."""

from __future__ import annotations

import pytest

from moldau.protocol import headers, registry
from moldau.protocol.api_keys import ApiKey, api_name
from moldau.protocol.errors import (
    ErrorCode,
    LocalProtocolError,
    ProtocolError,
    RemoteProtocolError,
)
from tests.protocol.golden_files import load
from tests.protocol.instances import is_spoken

REMOVED = {"LEADER_AND_ISR", "STOP_REPLICA", "UPDATE_METADATA", "CONTROLLED_SHUTDOWN"}


def test_error_codes_are_kafkas() -> None:
    ours = [[e.value, e.name, e.retriable, e.invalidates_metadata] for e in ErrorCode]
    assert ours == load("error_codes")["errors"]


def test_every_error_has_words_of_its_own() -> None:
    messages = [error.message for error in ErrorCode]
    assert all(messages)
    assert len(set(messages)) == len(messages)


def test_an_unknown_code_becomes_the_unknown_error() -> None:
    assert ErrorCode.of(3) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert ErrorCode.of(-1) is ErrorCode.UNKNOWN_SERVER_ERROR
    assert ErrorCode.of(9999) is ErrorCode.UNKNOWN_SERVER_ERROR


def test_both_protocol_errors_are_of_one_family_but_not_each_other() -> None:
    assert issubclass(LocalProtocolError, ProtocolError)
    assert issubclass(RemoteProtocolError, ProtocolError)
    assert not issubclass(LocalProtocolError, RemoteProtocolError)
    assert not issubclass(RemoteProtocolError, LocalProtocolError)


def test_apis_are_kafkas() -> None:
    apis = load("apis")["apis"]
    assert [[key.value, key.name] for key in ApiKey] == [api[:2] for api in apis]
    for number, name, first, last, last_stable, request_headers, response_headers in apis:
        if name in REMOVED or not is_spoken(api_name(number)):
            assert not registry.is_known(number)
            continue
        for message_class in (registry.request_class(number), registry.response_class(number)):
            assert number == message_class.API_KEY
            assert (first, last) == (message_class.MIN_VERSION, message_class.MAX_VERSION)
        assert last_stable == registry.request_class(number).LATEST_STABLE_VERSION
        versions = range(first, last + 1)
        assert [headers.request_header_version(number, v) for v in versions] == request_headers
        assert [headers.response_header_version(number, v) for v in versions] == response_headers


def test_an_api_that_does_not_exist_is_refused() -> None:
    for api_key in (4, -1, 93, 32767):
        assert not registry.is_known(api_key)
        with pytest.raises(RemoteProtocolError, match=f"no API {api_key}"):
            registry.request_class(api_key)
        with pytest.raises(RemoteProtocolError, match=f"no API {api_key}"):
            registry.response_class(api_key)


def test_modules_are_numbered_by_their_api() -> None:
    for key in registry.api_keys():
        module = registry.request_class(key).__module__
        assert module == f"moldau.protocol.messages.p{key:02d}_{key.name.lower()}"
        assert registry.response_class(key).__module__ == module
