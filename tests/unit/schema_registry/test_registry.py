"""The registry's client: what it asks, what it keeps, and how it says what went wrong."""

from __future__ import annotations

import base64

import pytest

from moldau.client import ConfigurationError
from moldau.schema_registry import Schema, SchemaReference, SchemaRegistry, SchemaRegistryError
from tests.unit.schema_registry.registry_server import Answer, RegistryServer, registry_server

pytestmark = pytest.mark.real

NUMBER = Schema('{"type": "int"}')


def test_a_schema_is_asked_for_once(server: RegistryServer, registry: SchemaRegistry) -> None:
    schema_id = registry.register("t-value", NUMBER)
    assert registry.register("t-value", NUMBER) == schema_id
    assert registry.schema(schema_id) == registry.schema(schema_id) == NUMBER
    assert registry.lookup("t-value", NUMBER).version == 1
    assert registry.version("t-value", 1).schema == NUMBER
    assert server.paths == [
        "POST /subjects/t-value/versions",
        "GET /schemas/ids/1",
        "POST /subjects/t-value",
        "GET /subjects/t-value/versions/1",
    ]


def test_the_newest_is_asked_for_each_time(
    server: RegistryServer, registry: SchemaRegistry
) -> None:
    registry.register("s", NUMBER)
    assert registry.latest("s").version == 1
    registry.register("s", Schema('"string"'))
    assert registry.latest("s").version == 2
    assert registry.latest("s").schema.text == '"string"'


def test_subjects_may_have_any_name(server: RegistryServer, registry: SchemaRegistry) -> None:
    names = ["a/b c?d#e%2f", "é", ".."]
    for name in names:
        registry.register(name, NUMBER)
    assert registry.subjects() == sorted(names)


def test_references_are_followed_once_each(registry: SchemaRegistry) -> None:
    registry.register("base", Schema('"a"'))
    used = SchemaReference("base.Name", "base", 1)
    registry.register("middle", Schema('"b"', "AVRO", (used,)))
    other = SchemaReference("middle.Name", "middle", 1)
    top = Schema('"c"', "AVRO", (other, used))
    assert [*registry.referenced(top)] == ["base.Name", "middle.Name"]


def test_references_in_a_circle(registry: SchemaRegistry) -> None:
    for index in (0, 1):
        other = SchemaReference(f"n{1 - index}", f"s{1 - index}", 1)
        registry.register(f"s{index}", Schema(f'"{index}"', "AVRO", (other,)))
    circle = Schema('"top"', "AVRO", (SchemaReference("n0", "s0", 1),))
    with pytest.raises(SchemaRegistryError, match="circle"):
        registry.referenced(circle)


@pytest.mark.parametrize(
    ("answer", "words", "status"),
    [
        (Answer(404, b'{"error_code": 40403, "message": "gone"}'), "schema 7: 404 gone", 404),
        (Answer(401, b"<html>"), "401 Unauthorized .basic.auth.user.info", 401),
        (Answer(409, b'{"error_code": 409, "message": "misfit: x"}'), "409 misfit: x", 409),
        (
            Answer(302, b"", {"Location": "http://elsewhere/x"}),
            "redirects to http://elsewhere",
            302,
        ),
        (Answer(200, b"<html>"), "not a schema registry's: '<html>'", 0),
        (Answer(200, b"[1]"), "not a schema registry's", 0),
        (Answer(200, b'{"schema": 5, "references": [{"name": 1}]}'), "not a schema registry's", 0),
        (Answer(500, b"oops"), "500 Internal Server Error", 0),
        (Answer(closes=True), "schema 7: http://127.0.0.1:", 0),
    ],
)
def test_what_a_registry_says_wrong(
    server: RegistryServer, registry: SchemaRegistry, answer: Answer, words: str, status: int
) -> None:
    server.planned.append(answer)
    with pytest.raises(SchemaRegistryError, match=words) as failed:
        registry.schema(7)
    assert failed.value.status == status
    assert "\n" not in str(failed.value)


def test_the_next_address_is_asked_when_one_fails(server: RegistryServer) -> None:
    registry = SchemaRegistry(["http://127.0.0.1:1", server.url + "/"])
    assert registry.register("s", NUMBER) == 1
    with registry_server() as broken:
        broken.planned.append(Answer(503))
        assert SchemaRegistry(f"{broken.url}, {server.url}").latest("s").schema_id == 1


def test_all_addresses_that_failed_are_named() -> None:
    registry = SchemaRegistry("http://127.0.0.1:1,http://127.0.0.1:2")
    with pytest.raises(SchemaRegistryError, match=r":1: .*refused; http://127.0.0.1:2: .*refused"):
        registry.subjects()


@pytest.mark.parametrize(
    "settings",
    [
        {"basic.auth.user.info": "ann:s3cret"},
        {"schema.registry.basic.auth.user.info": "ann:s3cret"},
        {},
    ],
)
def test_credentials(server: RegistryServer, settings: dict[str, str]) -> None:
    url = server.url if settings else server.url.replace("//", "//ann:s3cret@")
    registry = SchemaRegistry.from_properties({"schema.registry.url": url, **settings})
    registry.subjects()
    encoded = base64.b64encode(b"ann:s3cret").decode()
    assert server.requests[0][2]["Authorization"] == f"Basic {encoded}"
    assert "s3cret" not in repr(registry)
    server.planned.append(Answer(403))
    with pytest.raises(SchemaRegistryError) as failed:
        registry.subjects()
    assert "s3cret" not in str(failed.value)


@pytest.mark.parametrize(("source", "who"), [("URL", b"a@b:p:s"), ("USER_INFO", b"ann:s3cret")])
def test_where_credentials_are_from(server: RegistryServer, source: str, who: bytes) -> None:
    url = server.url.replace("//", "//a%40b:p%3As@")
    SchemaRegistry.from_properties(
        {
            "schema.registry.url": url,
            "basic.auth.credentials.source": source,
            "basic.auth.user.info": "ann:s3cret",
        }
    ).subjects()
    sent = server.requests[0][2]["Authorization"]
    assert base64.b64decode(sent.removeprefix("Basic ")) == who


def test_credentials_follow_no_redirection(server: RegistryServer) -> None:
    with registry_server() as elsewhere:
        server.planned.append(Answer(307, headers={"Location": f"{elsewhere.url}/subjects"}))
        with pytest.raises(SchemaRegistryError, match="redirects"):
            SchemaRegistry(server.url, user_info="a:b").subjects()
        assert not elsewhere.requests


@pytest.mark.parametrize(
    ("properties", "words"),
    [
        ({}, "schema.registry.url is needed"),
        ({"schema.registry.url": "localhost:8081"}, "'localhost:8081' is not http://HOST:PORT"),
        ({"schema.registry.url": "http://u:pass@host:x"}, "'http://…@host:x' is not"),
        ({"basic.auth.user.info": "nobody"}, "must be user:password"),
        ({"basic.auth.credentials.source": "SASL_INHERIT"}, "must be one of URL, USER_INFO"),
        ({"schema.registry.request.timeout.ms": "soon"}, "must be a number from 1 on"),
        ({"schema.registry.ssl.ca.location": "/no/such"}, "/no/such: .*No such file"),
    ],
)
def test_settings_that_cannot_be_used(properties: dict[str, str], words: str) -> None:
    given = properties if not properties else {"schema.registry.url": "http://h:1", **properties}
    with pytest.raises(ConfigurationError, match=words):
        SchemaRegistry.from_properties(given)
