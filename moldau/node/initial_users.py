"""The users that a cluster is formatted with: `--add-scram` as kafka-storage takes it (KIP-900).

Invariant: no error shows a password, salted or not.
"""

from __future__ import annotations

import re
from base64 import b64decode
from binascii import Error as Base64Error
from collections.abc import Callable, Iterable
from typing import Final

from moldau.node.formatting import FormatError
from moldau.protocol.metadata_records import UserScramCredentialRecord
from moldau.protocol.scram import (
    HASH_NAMES,
    LEAST_ITERATIONS,
    MECHANISM_NUMBERS,
    MOST_ITERATIONS,
    salted_password,
    scram_keys,
)

OPTION: Final = "--add-scram"
EXAMPLE: Final = "'SCRAM-SHA-512=[name=admin,password=…]'"
SALT_BYTES: Final = 32
_ARGUMENT: Final = re.compile(r"\s*([^=]*)=\[(.*)\]\s*", re.DOTALL)
_KEYS: Final = ("name", "password", "saltedpassword", "salt", "iterations")


def scram_records(
    arguments: Iterable[str], random_bytes: Callable[[int], bytes]
) -> tuple[UserScramCredentialRecord, ...]:
    """The records of `MECHANISM=[name=…,password=…]` arguments; `iterations` and `salt` (base64)
    may be given, and `saltedpassword` (base64) with a `salt` in place of `password`. Takes
    milliseconds for each.

    Raises:
        FormatError: one is malformed, or names a user twice for a mechanism.
    """
    records: dict[tuple[str, int], UserScramCredentialRecord] = {}
    for argument in arguments:
        record = _record_of(argument, random_bytes)
        if records.setdefault((record.name, record.mechanism), record) is not record:
            raise FormatError(f"{OPTION}: user {record.name!r} is given twice for a mechanism")
    return tuple(records.values())


def _record_of(argument: str, random_bytes: Callable[[int], bytes]) -> UserScramCredentialRecord:
    found = _ARGUMENT.fullmatch(argument)
    if found is None:
        raise FormatError(f"{OPTION} wants MECHANISM=[name=NAME,password=…], such as {EXAMPLE}")
    mechanism, given = found[1], _components(found[2])
    if mechanism not in HASH_NAMES:
        raise FormatError(f"{OPTION}: {mechanism!r} is none of {', '.join(HASH_NAMES)}")
    name = given.get("name")
    if not name:
        raise FormatError(f"{OPTION}: a name is needed, such as {EXAMPLE}")
    iterations = _iterations(given.get("iterations"))
    salt = _decoded("salt", given["salt"]) if "salt" in given else random_bytes(SALT_BYTES)
    if given.get("password"):
        salted = salted_password(mechanism, given["password"], salt, iterations)
    elif "saltedpassword" in given:
        if "salt" not in given:
            raise FormatError(f"{OPTION}: saltedpassword needs the salt that it was made with")
        salted = _decoded("saltedpassword", given["saltedpassword"])
    else:
        raise FormatError(f"{OPTION}: user {name!r} needs a password, or a saltedpassword")
    keys = scram_keys(mechanism, salted, salt, iterations)
    return UserScramCredentialRecord(
        name=name, mechanism=MECHANISM_NUMBERS[mechanism], **keys._asdict()
    )


def _components(text: str) -> dict[str, str]:
    given: dict[str, str] = {}
    for part in text.split(","):
        key, separator, value = part.partition("=")
        key = key.strip()
        if not separator or key not in _KEYS:
            # What it is instead may be the end of a password with a comma.
            raise FormatError(
                f"{OPTION} takes {', '.join(_KEYS)}, as KEY=VALUE with commas between"
            )
        if len(value) >= 2 and value[0] == value[-1] == '"':
            value = value[1:-1]
        given[key] = value
    return given


def _iterations(text: str | None) -> int:
    if text is None:
        return LEAST_ITERATIONS
    if not (text.isascii() and text.isdigit() and len(text) < 9):
        raise FormatError(f"{OPTION}: iterations are a whole number")
    if not LEAST_ITERATIONS <= int(text) <= MOST_ITERATIONS:
        raise FormatError(
            f"{OPTION}: {int(text)} iterations; from {LEAST_ITERATIONS} to {MOST_ITERATIONS}"
        )
    return int(text)


def _decoded(key: str, text: str) -> bytes:
    try:
        return b64decode(text, validate=True)
    except (Base64Error, ValueError):
        raise FormatError(f"{OPTION}: {key} is not base64") from None
