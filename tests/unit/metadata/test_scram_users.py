"""Keys of users that do not exist: what they have in common with those of users that do."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable

import pytest

from moldau.metadata.image import MetadataDelta, MetadataImage, Provenance
from moldau.metadata.image.security import TEXT_SALT, CredentialShape, ScramKey
from moldau.metadata.scram_secret import scram_secret_record
from moldau.metadata.scram_users import InventedUsers
from moldau.protocol.metadata_records import (
    RemoveUserScramCredentialRecord,
    UserScramCredentialRecord,
)
from moldau.protocol.schema import Message

SHA_256, SHA_512 = "SCRAM-SHA-256", "SCRAM-SHA-512"
SECRET, _ = scram_secret_record("of the cluster")
NAMES = [f"name-{number}" for number in range(1_000)]


def user(
    name: str, salt: bytes = bytes(32), iterations: int = 4_096, mechanism: int = 2
) -> UserScramCredentialRecord:
    return UserScramCredentialRecord(
        name=name,
        mechanism=mechanism,
        salt=salt,
        stored_key=b"stored",
        server_key=b"server",
        iterations=iterations,
    )


def image_of(*records: Message, before: MetadataImage = MetadataImage.EMPTY) -> MetadataImage:
    delta = MetadataDelta(before)
    for record in records:
        delta.replay(record)
    return delta.apply(Provenance())


def shown(
    image: MetadataImage, names: Iterable[str] = NAMES, mechanism: str = SHA_512
) -> dict[str, tuple[bytes, int]]:
    """What a new process shows of each name to a client that has proved nothing."""
    invented = InventedUsers(lambda: image)
    keys = {name: invented.keys(mechanism, name) for name in names}
    return {name: (each.salt, each.iterations) for name, each in keys.items()}


def test_every_node_shows_the_same_of_a_name_and_a_restart_changes_nothing() -> None:
    image = image_of(SECRET, user("alice"))
    assert shown(image) == shown(image)
    assert len(set(shown(image).values())) == len(NAMES)
    other, _ = scram_secret_record("of another cluster")
    differing = shown(image_of(other, user("alice")))
    assert not differing.items() & shown(image).items(), "the cluster's secret is in all of them"


@pytest.mark.parametrize("mechanism", [SHA_256, SHA_512])
def test_without_users_salts_are_as_long_as_those_of_new_users(mechanism: str) -> None:
    assert {(len(salt), count) for salt, count in shown(image_of(), NAMES, mechanism).values()} == {
        (32, 4_096)
    }


def test_another_mechanism_has_other_keys_of_its_own_length() -> None:
    invented = InventedUsers(lambda: image_of(SECRET))
    short, long = invented.keys(SHA_256, "alice"), invented.keys(SHA_512, "alice")
    assert (len(short.stored_key), len(short.server_key)) == (32, 32)
    assert (len(long.stored_key), len(long.server_key)) == (64, 64)
    assert len({short.salt, long.salt, invented.token_keys(SHA_256, "alice").salt}) == 3
    parts = {short.salt, short.stored_key, short.server_key}
    assert len(parts) == 3


def test_shapes_are_as_frequent_as_those_of_real_users() -> None:
    records = [user(f"cheap-{number}") for number in range(60)]
    records += [user(f"dear-{number}", iterations=16_384) for number in range(30)]
    records += [user(f"long-{number}", bytes(64), 8_192) for number in range(10)]
    records += [user(f"other-{number}", bytes(16), mechanism=1) for number in range(50)]
    found = Counter(
        (len(salt), count) for salt, count in shown(image_of(SECRET, *records)).values()
    )
    assert found.keys() == {(32, 4_096), (32, 16_384), (64, 8_192)}
    assert 540 < found[32, 4_096] < 660
    assert 240 < found[32, 16_384] < 360
    of_256 = shown(image_of(SECRET, *records), NAMES, SHA_256)
    assert {(len(salt), count) for salt, count in of_256.values()} == {(16, 4_096)}


def test_salts_in_the_form_of_apache_kafkas_tools() -> None:
    dice = random.Random(39)
    digits = "0123456789abcdefghijklmnopqrstuvwxyz"

    def text_salt() -> bytes:
        number, text = dice.getrandbits(130), ""
        while number:
            number, digit = divmod(number, 36)
            text = digits[digit] + text
        return text.encode()

    real = [text_salt() for _ in range(200)]
    image = image_of(SECRET, *(user(f"u{number}", salt) for number, salt in enumerate(real)))
    assert image.scram.shapes == {CredentialShape(2, TEXT_SALT, 4_096): 200}
    invented = [salt for salt, _ in shown(image).values()]
    assert set(b"".join(invented).decode()) == set(digits)
    assert {len(salt) for salt in invented} >= {25, 26}
    long = [salt for salt in invented if len(salt) == 26]
    assert {salt[:1] for salt in long} == {b"1"} == {s[:1] for s in real if len(s) == 26}


def test_with_one_more_user_few_names_change() -> None:
    """A name that changes when another user comes does not exist."""
    users = [user(f"u{number}", iterations=4_096 + number % 3) for number in range(100)]
    image = image_of(SECRET, *users)
    before = shown(image)
    alike = shown(image_of(user("one more", iterations=4_097), before=image))
    assert sum(before[name] != alike[name] for name in NAMES) < 20
    only = image_of(SECRET, user("u1"), user("u2"))
    assert shown(only) == shown(image_of(user("u3"), before=only)), "of the same shape: none does"


def test_shapes_follow_changes_and_snapshots() -> None:
    image = image_of(user("a"), user("b", iterations=8_192), user("c", b"1" * 25))
    image = image_of(
        user("a", bytes(16)),
        RemoveUserScramCredentialRecord(name="b", mechanism=2),
        before=image,
    )
    expected = {CredentialShape(2, 16, 4_096): 1, CredentialShape(2, TEXT_SALT, 4_096): 1}
    assert image.scram.shapes == expected
    again = image_of(*(record for record, _ in image.write()))
    assert again.scram.shapes == expected
    delta = MetadataDelta(image)
    delta.finish_snapshot()
    empty = delta.apply(Provenance())
    assert (empty.scram.credentials, empty.scram.shapes) == ({}, {})
    assert set(again.scram.credentials) == {ScramKey("a", 2), ScramKey("c", 2)}


def test_without_the_cluster_s_secret_each_process_has_one_of_its_own() -> None:
    """A constant one would let a client tell an invented salt from a real one."""
    first, second = InventedUsers(), InventedUsers()
    for mechanism in (SHA_256, SHA_512):
        assert first.keys(mechanism, "alice") == first.keys(mechanism, "alice")
        assert first.keys(mechanism, "alice").salt != second.keys(mechanism, "alice").salt
        tokens = [each.token_keys(mechanism, "t").salt for each in (first, first, second)]
        assert tokens[0] == tokens[1] != tokens[2]
        assert len(tokens[0]) >= 16
