"""Users that a cluster is formatted with: how they are written, and what cannot be one."""

from __future__ import annotations

from base64 import b64encode

import pytest

from moldau.node.formatting import FormatError
from moldau.node.initial_users import scram_records
from moldau.protocol.scram import salted_password, scram_keys

SALT = b"salt of the test"
SALT_TEXT = b64encode(SALT).decode()


def fixed(count: int) -> bytes:
    return SALT.ljust(count, b".")


def test_users_with_passwords() -> None:
    first, second = scram_records(
        [
            "SCRAM-SHA-512=[name=admin,password=a-secret]",
            f' SCRAM-SHA-256=[name="al=ice",password="b=secret",iterations=8192,salt={SALT_TEXT}] ',
        ],
        fixed,
    )
    assert (first.name, first.mechanism, first.iterations) == ("admin", 2, 4_096)
    assert (second.name, second.mechanism, second.iterations) == ("al=ice", 1, 8_192)
    for record, mechanism, password in (
        (first, "SCRAM-SHA-512", "a-secret"),
        (second, "SCRAM-SHA-256", "b=secret"),
    ):
        salted = salted_password(mechanism, password, bytes(record.salt), record.iterations)
        keys = scram_keys(mechanism, salted, bytes(record.salt), record.iterations)
        assert (record.stored_key, record.server_key) == (keys.stored_key, keys.server_key)
    assert (first.salt, second.salt) == (fixed(32), SALT)


def test_a_password_that_is_salted_already() -> None:
    salted = salted_password("SCRAM-SHA-256", "a-secret", SALT, 4_096)
    text = b64encode(salted).decode()
    [given] = scram_records(
        [f"SCRAM-SHA-256=[name=a,saltedpassword={text},salt={SALT_TEXT}]"], fixed
    )
    [made] = scram_records([f"SCRAM-SHA-256=[name=a,password=a-secret,salt={SALT_TEXT}]"], fixed)
    assert given == made


@pytest.mark.parametrize(
    ("argument", "reason"),
    [
        ("", "wants MECHANISM="),
        ("SCRAM-SHA-512", "wants MECHANISM="),
        ("SCRAM-SHA-512=name=a,password=s3cret", "wants MECHANISM="),
        ("SCRAM-SHA-512=[name=a,password=s3cret", "wants MECHANISM="),
        ("PLAIN=[name=a,password=s3cret]", "'PLAIN' is none of SCRAM-SHA-256, SCRAM-SHA-512"),
        ("SCRAM-SHA-512=[password=s3cret]", "a name is needed"),
        ("SCRAM-SHA-512=[name=,password=s3cret]", "a name is needed"),
        ("SCRAM-SHA-512=[name=a]", "needs a password"),
        ("SCRAM-SHA-512=[name=a,password=]", "needs a password"),
        ("SCRAM-SHA-512=[name=a,password=b,s3cret]", "as KEY=VALUE with commas between"),
        ("SCRAM-SHA-512=[name=a,password=b,s3cret=c]", "as KEY=VALUE with commas between"),
        ("SCRAM-SHA-512=[name=a,saltedpassword=AAAA]", "needs the salt"),
        ("SCRAM-SHA-512=[name=a,saltedpassword=s3cret!,salt=AAAA]", "saltedpassword is not base64"),
        ("SCRAM-SHA-512=[name=a,password=s3cret,salt=!]", "salt is not base64"),
        ("SCRAM-SHA-512=[name=a,password=s3cret,iterations=many]", "a whole number"),
        ("SCRAM-SHA-512=[name=a,password=s3cret,iterations=4095]", "4095 iterations; from 4096"),
        ("SCRAM-SHA-512=[name=a,password=s3cret,iterations=16385]", "to 16384"),
    ],
)
def test_what_is_no_user(argument: str, reason: str) -> None:
    with pytest.raises(FormatError, match=r"^--add-scram") as refused:
        scram_records([argument], fixed)
    assert reason in str(refused.value)
    assert "s3cret" not in str(refused.value)


def test_a_user_is_given_once_for_a_mechanism() -> None:
    user = "SCRAM-SHA-512=[name=a,password=x]"
    with pytest.raises(FormatError, match="given twice"):
        scram_records([user, user], fixed)
    both = scram_records([user, user.replace("512", "256")], fixed)
    assert [each.mechanism for each in both] == [2, 1]
