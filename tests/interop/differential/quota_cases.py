"""Cases about client quotas: altered with good and bad entities, keys and values, and described."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import product
from typing import Any, Final

from moldau.broker.api.p48_describe_client_quotas import DEFAULT, EXACT, SPECIFIED
from moldau.protocol.api_keys import ApiKey
from tests.interop.differential.running import Case

Parts = Mapping[str, str | None]

ENTITIES: Final[tuple[Parts, ...]] = (
    {"user": "alice"},
    {"user": None},
    {"user": "Jürgen \U0001f600 /%"},
    {"client-id": "app"},
    {"client-id": None},
    {"user": "alice", "client-id": "app"},
    {"user": "alice", "client-id": None},
    {"user": None, "client-id": "app"},
    {"user": None, "client-id": None},
)
ADDRESSES: Final[tuple[Parts, ...]] = (
    {"ip": "10.0.0.1"},
    {"ip": "2001:db8::1"},
    {"ip": None},
)
BAD_ENTITIES: Final[tuple[Parts, ...]] = (
    {},
    {"group": "g"},
    {"": "g"},
    {"User": "alice"},
    {"user": ""},
    {"client-id": ""},
    {"user": "alice", "client-id": ""},
    {"user": "alice", "group": "g"},
    {"ip": "10.0.0.1", "user": "alice"},
    {"ip": None, "client-id": None},
    {"ip": "not/an/address"},
    {"ip": "10.0.0.256.1"},
)
CLIENT_KEYS: Final = (
    "producer_byte_rate",
    "consumer_byte_rate",
    "request_percentage",
    "controller_mutation_rate",
)
KEYS: Final = (*CLIENT_KEYS, "connection_creation_rate", "", "Producer_byte_rate", "SCRAM-SHA-256")
VALUES: Final = (
    *(1.0, 1024.0, 1.5, 0.5, 1e-9, 0.0, -0.0, -1.0, 1.0000001, 1.00001, 0.9999999),
    *(2.0**31 - 1, 2.0**31, 2.0**53 + 2, 2.0**63 - 1024, 2.0**63, 2.0**63 + 2048, 1e19, 1e300),
    *(float("inf"), float("-inf")),
)
FAR: Final = 1e6


def _ops(values: Mapping[str, float | None]) -> list[dict[str, Any]]:
    return [
        {"key": key, "value": 0.0 if value is None else value, "remove": value is None}
        for key, value in values.items()
    ]


def _entry(parts: Parts, values: Mapping[str, float | None]) -> dict[str, Any]:
    named = [{"entity_type": kind, "entity_name": name} for kind, name in parts.items()]
    return {"entity": named, "ops": _ops(values)}


def _alter(name: str, *entries: dict[str, Any], **options: Any) -> Case:
    validate_only = options.pop("validate_only", False)
    make = {"entries": list(entries), "validate_only": validate_only}
    return Case(
        ApiKey.ALTER_CLIENT_QUOTAS, name, lambda g: make, changes=not validate_only, **options
    )


def _describe(name: str, *components: tuple[str, int, str | None], strict: bool = False) -> Case:
    make = {
        "components": [
            {"entity_type": kind, "match_type": how, "match": match}
            for kind, how, match in components
        ],
        "strict": strict,
    }
    return Case(ApiKey.DESCRIBE_CLIENT_QUOTAS, name, lambda g: make)


def _bad() -> Iterator[Case]:
    for parts in (*BAD_ENTITIES, {"user": "alice"}, {"ip": "10.0.0.1"}):
        yield _alter(f"of {dict(parts)}", _entry(parts, {"producer_byte_rate": FAR}))
        yield _alter(f"nothing of {dict(parts)}", _entry(parts, {}))
        yield _alter(f"removed of {dict(parts)}", _entry(parts, {"producer_byte_rate": None}))
    for key, value in product(KEYS, VALUES):
        parts: Parts = {"ip": "10.9.9.9"} if key.startswith("connection") else {"user": "v"}
        yield _alter(
            f"{key}={value}", _entry(parts, {key: value}), validate_only=True, versions=(1,)
        )
    for key in KEYS:
        yield _alter(f"{key} for an address", _entry({"ip": "10.0.0.9"}, {key: 5.0}))
        yield _alter(f"{key} for a client", _entry({"client-id": "keys"}, {key: 5.0}))
        yield _alter(f"{key} removed", _entry({"user": "nothing is set"}, {key: None}))
    yield _alter(
        "a host's name", _entry({"ip": "localhost"}, {"connection_creation_rate": 5.0}),
        validate_only=True,
    )  # fmt: skip
    yield _alter(
        "not a number 1", _entry({"user": "nan"}, {"request_percentage": float("nan")}),
        validate_only=True,
    )  # fmt: skip
    yield _alter(
        "not a number 2", _entry({"user": "nan"}, {"producer_byte_rate": float("nan")}),
        validate_only=True,
    )  # fmt: skip
    yield _alter("nobody")
    yield _alter(
        "good, bad and good",
        _entry({"user": "first"}, {"request_percentage": 50.0, "producer_byte_rate": FAR}),
        _entry({"user": "second"}, {"producer_byte_rate": FAR, "request_percentage": -1.0}),
        _entry({"user": "third"}, {"controller_mutation_rate": FAR}),
    )


def _filters() -> Iterator[Case]:
    for strict in (False, True):
        word = "strictly " if strict else ""
        yield _describe(f"{word}everything", strict=strict)
        for kind in ("user", "client-id", "ip"):
            for how, match in (
                *((EXACT, name) for name in ("alice", "app", "10.0.0.1", "v", "", "x")),
                (DEFAULT, None),
                (SPECIFIED, None),
            ):
                yield _describe(f"{word}{kind} {how} {match}", (kind, how, match), strict=strict)
        pairs = product(
            ((EXACT, "alice"), (DEFAULT, None), (SPECIFIED, None), (EXACT, "x")),
            ((EXACT, "app"), (DEFAULT, None), (SPECIFIED, None)),
        )
        for (how, user), (other, client) in pairs:
            yield _describe(
                f"{word}user {how} {user} and client {other} {client}",
                ("user", how, user),
                ("client-id", other, client),
                strict=strict,
            )


def _bad_filters() -> Iterator[Case]:
    for kind, how, match in (
        ("", EXACT, "a"), ("group", EXACT, "a"), ("group", SPECIFIED, None),
        ("User", DEFAULT, None),
        ("user", EXACT, None), ("user", DEFAULT, "a"), ("user", SPECIFIED, "a"),
        ("user", DEFAULT, ""), ("user", 3, None), ("user", 3, "a"), ("user", -1, None),
    ):  # fmt: skip
        yield _describe(f"bad {kind} {how} {match}", (kind, how, match))
    yield _describe("user twice", ("user", EXACT, "a"), ("user", SPECIFIED, None))
    yield _describe("default user twice", ("user", DEFAULT, None), ("user", DEFAULT, None))
    yield _describe("ip and user", ("ip", SPECIFIED, None), ("user", EXACT, "a"))
    yield _describe("client and ip", ("client-id", DEFAULT, None), ("ip", EXACT, "10.0.0.1"))
    yield _describe("ip and garbage", ("ip", SPECIFIED, None), ("group", EXACT, "a"))


def cases() -> Iterator[Case]:
    """All of them; at the end no quotas are left but those that their differences need."""
    yield _describe("nothing is there")
    yield from _bad()
    yield _describe("what the bad ones left")
    values: dict[str, float | None] = {key: FAR + place for place, key in enumerate(CLIENT_KEYS)}
    rate: dict[str, float | None] = {"connection_creation_rate": FAR}
    every = [_entry(parts, values) for parts in ENTITIES]
    every += [_entry(parts, rate) for parts in ADDRESSES]
    yield _alter("all, only validated", *every, validate_only=True)
    yield _describe("after validating")
    yield _alter("all", *every)
    yield from _filters()
    yield from _bad_filters()
    yield _alter("one key changed", _entry({"user": "alice"}, {"producer_byte_rate": 2 * FAR}))
    yield _alter("one removed", _entry({"client-id": "app"}, {"consumer_byte_rate": None}))
    yield _describe("with a change and a removal")
    gone: dict[str, float | None] = dict.fromkeys((*CLIENT_KEYS, "connection_creation_rate"))
    yield _alter("all removed", *(_entry(parts, gone) for parts in (*ENTITIES, *ADDRESSES)))
    yield _describe("what is left")
    twice = _entry({"user": "twice"}, {"producer_byte_rate": FAR})
    yield _alter("an entity twice", twice, _entry({"user": "twice"}, {"consumer_byte_rate": FAR}))
    key_twice = _entry({"user": "key twice"}, {})
    key_twice["ops"] = 2 * _ops({"producer_byte_rate": FAR})
    yield _alter("a key twice", key_twice)
    parts_twice = _entry({"user": "parts"}, {"producer_byte_rate": FAR})
    parts_twice["entity"].append({"entity_type": "user", "entity_name": "parts again"})
    yield _alter("a type twice", parts_twice)
    yield _describe("after naming twice")
