"""The longest texts that a request has room for, and NUL, escapes and line feeds, in every string
of every request: each is answered, and the log has neither an exception nor what a terminal acts
on.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from moldau.protocol.api_keys import ApiKey
from moldau.protocol.messages.p18_api_versions import ApiVersionsRequest
from moldau.protocol.registry import request_class
from moldau.protocol.structs import MAX_STRING_BYTES, ArrayType, Struct, StructType
from tests.interop.differential.asking import CLOSED
from tests.interop.differential.permissions.sides import Session, Side
from tests.system.replication.chaos_cluster import UNEXPECTED
from tests.system.security.nodes import AUTHORIZER, SecuredNode

UNPRINTABLE: Final = "\0\n\x1b[31m\x7f\u009b\u202e"
TEXTS: Final = (
    "x" * MAX_STRING_BYTES,
    UNPRINTABLE * (MAX_STRING_BYTES // len(UNPRINTABLE.encode())),
    "\U0001f30d" * (MAX_STRING_BYTES // 4),
)
SHORT: Final = "a"
#: They have the connection closed when their strings make no sense.
CLOSING: Final = (ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE)
FIXED: Final = {"acks": 1, "timeout_ms": 1, "max_wait_ms": 0, "rebalance_timeout_ms": 1}
MOST_LINE: Final = 8_000
"""A line names a principal, a resource and an entry, each cut, each character escaped."""


def filled(kind: type[Struct], texts: Iterator[str], api_version: int) -> Any:
    """A message with the next text in each string, and one element in each array."""
    values: dict[str, Any] = {}
    for field in kind.spec().fields:
        if api_version not in field.versions:
            continue
        if field.name in FIXED:
            values[field.name] = FIXED[field.name]
        elif (value := value_of(field.type, texts, api_version)) is not None:
            values[field.name] = value
    return kind(**values)


def value_of(kind: Any, texts: Iterator[str], api_version: int) -> Any:
    if isinstance(kind, ArrayType):
        value = value_of(kind.element, texts, api_version)
        return [] if value is None else [value]
    if isinstance(kind, StructType):
        return filled(kind.struct, texts, api_version)
    return next(texts) if "string" in repr(kind).lower() else None


def requests(api_key: int, api_version: int) -> Iterator[Any]:
    kind = request_class(api_key)
    count = 0

    def counted() -> Iterator[str]:
        nonlocal count
        while True:
            count += 1
            yield SHORT

    filled(kind, counted(), api_version)
    for text in TEXTS:
        yield filled(kind, iter([text] * count), api_version)
        for place in range(count if count > 1 else 0):
            alone = [SHORT] * count
            alone[place] = text
            yield filled(kind, iter(alone), api_version)


@pytest.mark.parametrize(
    ("listener", "user"),
    [("PLAINTEXT", ""), ("SASL_PLAINTEXT", "alice"), ("CONTROLLER", "")],
    ids=["broker", "broker, without rights", "controller"],
)
def test_texts_of_any_length_are_answered(tmp_path: Path, listener: str, user: str) -> None:
    rights = {"authorizer.class.name": AUTHORIZER, "super.users": "User:ANONYMOUS"}
    with SecuredNode(tmp_path, rights) as running:
        node = Side("Moldau", running.address(listener), sasl=running.address(listener))
        session = Session(node, user) if user else None

        def ask(request: Any, api_version: int) -> Any:
            if session is None:
                return node.ask(request, api_version)
            session.send([(request, api_version)])
            return session.receive([(request, api_version)])[0]

        served = ask(ApiVersionsRequest(client_software_name="t", client_software_version="1"), 3)
        asked, closed = 0, []
        for each in served.api_keys:
            if each.api_key in CLOSING:
                continue
            first = max(each.min_version, request_class(each.api_key).MIN_VERSION)
            for api_version in {first, each.max_version}:
                for request in requests(each.api_key, api_version):
                    asked += 1
                    if ask(request, api_version) is CLOSED:
                        closed.append(f"{type(request).__name__} v{api_version}")
        node.close()
        if session is not None:
            session.close()
    log = running.log()
    assert not closed, f"{len(closed)} of {asked}: {sorted(set(closed))}"
    assert [line[:300] for line in log.splitlines() if UNEXPECTED.search(line)] == []
    assert log.replace("\n", "").isprintable()
    assert max(map(len, log.splitlines())) <= MOST_LINE
    print(f"{asked} requests at {listener}")
