"""SCRAM against the examples of RFC 5802 and RFC 7677, and against servers that cheat."""

from __future__ import annotations

import pytest

from moldau.runtime.authentication import AuthenticationError
from moldau.runtime.authentication.sasl import ScramClient

VECTORS = {
    # RFC 5802, section 5
    "sha1": (
        "fyko+d2lbbFgONRv9qkxdawL",
        "r=fyko+d2lbbFgONRv9qkxdawL3rfcNHYJY1ZVvWVs7j,s=QSXCR+Q6sek8bf92,i=4096",
        "c=biws,r=fyko+d2lbbFgONRv9qkxdawL3rfcNHYJY1ZVvWVs7j,p=v0X8v3Bz2T0CJGbJQyF0X+HI4Ts=",
        "v=rmF9pqV8S7suAoZWja4dJRkFsKQ=",
    ),
    # RFC 7677, section 3
    "sha256": (
        "rOprNGfwEbeRWgbNEkqO",
        "r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096",
        "c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,"
        "p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=",
        "v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=",
    ),
}


@pytest.mark.parametrize("hash_name", list(VECTORS))
def test_the_rfcs_examples(hash_name: str):
    nonce, server_first, client_final, server_final = VECTORS[hash_name]
    client = ScramClient(hash_name, "user", "pencil", nonce)
    assert client.first() == f"n,,n=user,r={nonce}".encode()
    assert client.answer(server_first.encode()) == client_final.encode()
    assert not client.is_complete
    assert client.answer(server_final.encode()) is None
    assert client.is_complete


def test_names_are_escaped_and_extensions_sent():
    client = ScramClient("sha256", "a=b,c", "x", "nonce", {"tokenauth": "true"})
    assert client.first() == b"n,,n=a=3Db=2Cc,r=nonce,tokenauth=true"


@pytest.mark.parametrize(
    ("server_first", "reason"),
    [
        ("r=other,s=QSXCR+Q6sek8bf92,i=4096", "does not continue ours"),
        ("r=nonce,s=QSXCR+Q6sek8bf92,i=4096", "does not continue ours"),
        ("r=nonce1,s=,i=4096", "salt is not base64"),
        ("r=nonce1,s=%%%,i=4096", "salt is not base64"),
        ("r=nonce1,s=QSXCR+Q6sek8bf9=,i=4096", "salt is not base64"),  # its last bits are spare
        ("r=nonce1,s=QSXCR+Q6sek8bf92,i=many", "not a number"),
        ("r=nonce1,s=QSXCR+Q6sek8bf92", "not a number"),
        ("r=nonce1,s=QSXCR+Q6sek8bf92,i=4095", "from 4096"),
        ("r=nonce1,s=QSXCR+Q6sek8bf92,i=999999999", "from 4096"),
        ("m=x,r=nonce1,s=QSXCR+Q6sek8bf92,i=4096", "extension"),
        ("", "does not continue ours"),
    ],
)
def test_a_first_message_that_breaks_the_rules(server_first: str, reason: str):
    client = ScramClient("sha256", "user", "pencil", "nonce")
    client.first()
    with pytest.raises(AuthenticationError, match=reason):
        client.answer(server_first.encode())


def test_a_server_that_does_not_know_the_password():
    nonce, server_first, _, server_final = VECTORS["sha256"]
    for last, reason in (
        ("v=" + "A" * 43 + "=", "could not prove"),
        (server_final[:-2] + "5=", "could not prove"),  # the same bytes, with spare bits
        ("", "could not prove"),
        ("e=invalid-proof", "invalid-proof"),
    ):
        client = ScramClient("sha256", "user", "pencil", nonce)
        client.first()
        client.answer(server_first.encode())
        with pytest.raises(AuthenticationError, match=reason):
            client.answer(last.encode())
        assert not client.is_complete
    client = ScramClient("sha256", "user", "pencil", nonce)
    client.first()
    with pytest.raises(AuthenticationError, match="UTF-8"):
        client.answer(b"\xff")
    client.answer(server_first.encode())
    client.answer(server_final.encode())
    with pytest.raises(AuthenticationError, match="after the end"):
        client.answer(b"")
