"""The users of SCRAM: their keys, and keys for names that do not exist, so that nothing
distinguishes these from users that do.

Owns what a client is shown of a name before it has proved anything: the salt and the iterations.
Invariants of what is invented: a name has the same keys on every node and after a restart,
as long as the cluster's credentials are alike; sizes of salts and iterations are as frequent among
invented users as among real ones; without the cluster's secret they cannot be computed, and no
password fits them; they take the same time for every name.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from bisect import bisect_right
from collections.abc import Callable, Mapping
from itertools import accumulate
from typing import Final

from moldau.metadata.image import MetadataImage
from moldau.metadata.image.security import TEXT_SALT, CredentialShape, ScramKey
from moldau.metadata.scram_secret import scram_secret
from moldau.protocol.scram import (
    HASH_NAMES,
    LEAST_ITERATIONS,
    MECHANISM_NUMBERS,
    KnownKeys,
    ScramKeys,
)

SALT_BYTES: Final = 32
"""The length of salts where there is no real user to learn from, and of delegation tokens."""
DIGITS: Final = "0123456789abcdefghijklmnopqrstuvwxyz"
TEXT_SALT_BITS: Final = 130
_DRAWN_BITS: Final = 64


class InventedUsers:
    """Answers about any name. May be used from any thread.

    Args:
        image: gives the newest one.
    """

    __slots__ = ("_image", "_own_secret", "_tables")

    def __init__(self, image: Callable[[], MetadataImage] = lambda: MetadataImage.EMPTY) -> None:
        self._image = image
        self._own_secret = secrets.token_hex(32)
        """The secret in use until the cluster has one: there is no credential then."""
        self._tables = _Tables({})

    def keys(self, mechanism: str, name: str) -> ScramKeys:
        """Keys for a name, in the shape of some real user's credential for the mechanism."""
        shapes = self._image().scram.shapes
        tables = self._tables
        if tables.shapes is not shapes:
            tables = self._tables = _Tables(shapes)
        number = MECHANISM_NUMBERS[mechanism]
        shape = tables.at(number, self.fraction(f"shape {number} {name}"))
        return self._made(HASH_NAMES[mechanism], "user", name, shape)

    def token_keys(self, mechanism: str, token_id: str) -> ScramKeys:
        """As `keys`, for a delegation token: the salts of real ones come from here, too."""
        shape = CredentialShape(MECHANISM_NUMBERS[mechanism], SALT_BYTES, LEAST_ITERATIONS)
        return self._made(HASH_NAMES[mechanism], "token", token_id, shape)

    def fraction(self, text: str) -> float:
        """A number from 0 to below 1, always the same for a text."""
        drawn = int.from_bytes(self._digest(text)[: _DRAWN_BITS // 8]) >> 11
        return drawn / 2.0 ** (_DRAWN_BITS - 11)

    def _digest(self, text: str) -> bytes:
        secret = scram_secret(self._image().configs) or self._own_secret
        return hmac.digest(secret.encode(), text.encode(), "sha512")

    def _made(self, hash_name: str, kind: str, name: str, shape: CredentialShape) -> ScramKeys:
        mechanism, salt_bytes, iterations = shape
        seed = self._digest(f"{kind} {mechanism} {salt_bytes} {iterations} {name}")
        size = hashlib.new(hash_name).digest_size
        drawn = hashlib.shake_256(seed).digest(2 * size + (salt_bytes or size))
        salt = drawn[2 * size :]
        if salt_bytes == TEXT_SALT:
            salt = _text_salt(int.from_bytes(salt) & (1 << TEXT_SALT_BITS) - 1)
        return ScramKeys(salt, drawn[:size], drawn[size : 2 * size], iterations)


class ScramUsers(InventedUsers):
    """Finds the keys of every user and token: a client cannot tell what does not exist from a wrong
    password.

    Args:
        find_token: the keys of a delegation token (second) for a mechanism (first); None for one
            that is none.
    """

    __slots__ = ("_find_token",)

    def __init__(
        self,
        image: Callable[[], MetadataImage] = lambda: MetadataImage.EMPTY,
        find_token: Callable[[str, str], KnownKeys | None] = lambda mechanism, token_id: None,
    ) -> None:
        super().__init__(image)
        self._find_token = find_token

    def __call__(self, mechanism: str, name: str, is_token: bool) -> KnownKeys:
        # Invented also where the name is known: that must not take another time.
        if is_token:
            unknown = KnownKeys(self.token_keys(mechanism, name), None)
            return self._find_token(mechanism, name) or unknown
        unknown = KnownKeys(self.keys(mechanism, name), None)
        credentials = self._image().scram.credentials
        found = credentials.get(ScramKey(name, MECHANISM_NUMBERS[mechanism]))
        if found is None:
            return unknown
        keys = ScramKeys(found.salt, found.stored_key, found.server_key, found.iterations)
        return KnownKeys(keys, name)


class _Tables:
    """The shapes of real credentials by mechanism, with how many there are up to each."""

    __slots__ = ("_rows", "shapes")

    def __init__(self, shapes: Mapping[CredentialShape, int]) -> None:
        self.shapes = shapes
        self._rows: dict[int, tuple[list[CredentialShape], list[int]]] = {}
        for mechanism in MECHANISM_NUMBERS.values():
            own = sorted(each for each in shapes if each.mechanism == mechanism)
            own = own or [CredentialShape(mechanism, SALT_BYTES, LEAST_ITERATIONS)]
            counts = list(accumulate(shapes.get(each, 1) for each in own))
            self._rows[mechanism] = own, counts

    def at(self, mechanism: int, fraction: float) -> CredentialShape:
        """The shape at a fraction of all credentials: with one more, few names change theirs."""
        shapes, counts = self._rows[mechanism]
        return shapes[bisect_right(counts, int(fraction * counts[-1]))]


def _text_salt(number: int) -> bytes:
    """A salt as Apache Kafka makes it."""
    text = ""
    while number:
        number, digit = divmod(number, len(DIGITS))
        text = DIGITS[digit] + text
    return text.encode()
