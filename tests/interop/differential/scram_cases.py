"""Cases about SCRAM credentials: set, described and deleted, each in every way that is wrong."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

from moldau.protocol.api_keys import ApiKey
from tests.interop.differential.running import Case

SHA_256: Final = 1
SHA_512: Final = 2


def upsertion(name: str, mechanism: int = SHA_256, iterations: int = 4_096) -> dict[str, Any]:
    return {
        "name": name,
        "mechanism": mechanism,
        "iterations": iterations,
        "salt": b"some salt",
        "salted_password": bytes(range(32 * mechanism if mechanism in (1, 2) else 32)),
    }


def deletion(name: str, mechanism: int = SHA_256) -> dict[str, Any]:
    return {"name": name, "mechanism": mechanism}


def _alter(
    name: str, deletions: Sequence[dict[str, Any]] = (), upsertions: Sequence[dict[str, Any]] = ()
) -> Case:
    fields = {"deletions": list(deletions), "upsertions": list(upsertions)}
    api_key = ApiKey.ALTER_USER_SCRAM_CREDENTIALS
    return Case(api_key, name, lambda g: fields, changes=True)


def _describe(name: str, users: Sequence[str] | None) -> Case:
    named = None if users is None else [{"name": user} for user in users]
    api_key = ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS
    return Case(api_key, name, lambda g: {"users": named})


def cases() -> Iterator[Case]:
    """All of them, for clusters whose clients may do everything."""
    yield _describe("nothing there", None)
    yield _describe("a user that is not there", ["alice"])
    yield _alter("nothing")
    for count in (-1, 0, 1, 4_095, 16_385, 2**31 - 1):
        yield _alter(f"{count} iterations", (), [upsertion("bad", SHA_256, count)])
    for count in (4_096, 8_192, 16_384):
        yield _alter(f"{count} iterations", (), [upsertion("alice", SHA_512, count)])
        yield _describe(f"{count} iterations", ["alice"])
    for number in (-1, 0, 3, 127):
        yield _alter(f"set, mechanism {number}", (), [upsertion("bad", number)])
        yield _alter(f"delete, mechanism {number}", [deletion("alice", number)])
    yield _alter("set, no name", (), [upsertion("")])
    yield _alter("delete, no name", [deletion("")])
    yield _alter("delete what is not there", [deletion("alice", SHA_256)])
    yield _alter("set twice", (), [upsertion("twice"), upsertion("twice", SHA_512)])
    yield _alter("delete twice", [deletion("alice", SHA_512), deletion("alice", SHA_512)])
    yield _alter("delete and set", [deletion("alice", SHA_512)], [upsertion("alice", SHA_512)])
    yield _alter("delete, set and set", [deletion("alice", SHA_512)], 2 * [upsertion("alice")])
    yield _alter("bad, then good", [deletion("x")], [upsertion("x")])
    yield _alter("good, bad and good", (), [upsertion("b"), upsertion("c", 7), upsertion("d")])
    for name in ("Jürgen \U0001f600", "a,b=c", " ", "x" * 1_000):
        yield _alter(f"name {name[:12]}", (), [upsertion(name)])
        yield _describe(f"name {name[:12]}", [name])
        yield _alter(f"name {name[:12]} again", [deletion(name)])
    yield _alter("the other mechanism", (), [upsertion("alice", SHA_256)])
    yield _describe("both mechanisms", ["alice"])
    yield _describe("all", None)
    yield _describe("an empty list", [])
    yield _describe("one twice", ["alice", "b", "alice"])
    yield _describe("there and not there", ["alice", "zzz"])
    yield _describe("no name", [""])
    yield _alter("delete one of both", [deletion("alice", SHA_512)])
    yield _describe("what is left", ["alice"])
    yield _describe("all that are left", None)
