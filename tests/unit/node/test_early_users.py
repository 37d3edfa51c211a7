"""The users of SCRAM that a controller lets in before it knows what is committed."""

from __future__ import annotations

from moldau.metadata.image import MetadataDelta, MetadataImage
from moldau.metadata.image.metadata_image import Provenance
from moldau.metadata.image.security import ScramKey
from moldau.metadata.scram_secret import scram_secret, scram_secret_record
from moldau.node.early_users import EarlyUsers
from moldau.protocol.metadata_records import (
    FeatureLevelRecord,
    RemoveUserScramCredentialRecord,
    UserScramCredentialRecord,
)

EMPTY = MetadataImage()


def user(name: str, salt: bytes = b"salt") -> UserScramCredentialRecord:
    return UserScramCredentialRecord(
        name=name, mechanism=1, salt=salt, stored_key=b"s", server_key=b"k", iterations=4096
    )


def image_of(*records: UserScramCredentialRecord, last_offset: int) -> MetadataImage:
    delta = MetadataDelta(EMPTY)
    for record in records:
        delta.replay(record)
    return delta.apply(Provenance(last_offset, 1, 0))


def salt_of(users: EarlyUsers, image: MetadataImage, name: str) -> bytes | None:
    found = users.image(image).scram.credentials.get(ScramKey(name, 1))
    return None if found is None else found.salt


def test_a_new_cluster_has_the_users_it_was_formatted_with() -> None:
    users = EarlyUsers([FeatureLevelRecord(), user("node")])
    users.take_log([], 0)
    assert salt_of(users, EMPTY, "node") == b"salt"
    assert ScramKey("node", 2) not in users.image(EMPTY).scram.credentials
    assert salt_of(users, EMPTY, "other") is None


def test_a_log_that_has_records_is_all_that_counts() -> None:
    users = EarlyUsers([user("node"), user("formatted")])
    gone = RemoveUserScramCredentialRecord(name="gone", mechanism=1)
    users.take_log([user("node", b"old"), user("gone"), user("node", b"new"), gone], 4)
    assert salt_of(users, EMPTY, "node") == b"new"
    assert salt_of(users, EMPTY, "gone") is None
    assert salt_of(users, EMPTY, "formatted") is None


def test_the_metadata_decide_as_soon_as_they_reach_the_end_of_the_log() -> None:
    users = EarlyUsers()
    users.take_log([user("node"), user("removed")], 10)
    behind = image_of(user("node", b"behind"), last_offset=8)
    assert salt_of(users, behind, "node") == b"salt"
    there = image_of(user("node", b"there"), last_offset=9)
    assert salt_of(users, there, "node") == b"there"
    assert salt_of(users, there, "removed") is None


def test_the_secret_on_disk_counts_until_the_metadata_do() -> None:
    users = EarlyUsers([user("node")])
    secret, _ = scram_secret_record("of the cluster")
    users.take_log([user("node"), secret], 10)
    assert scram_secret(users.image(EMPTY).configs) == "of the cluster"
    assert scram_secret(users.image(image_of(last_offset=9)).configs) is None
