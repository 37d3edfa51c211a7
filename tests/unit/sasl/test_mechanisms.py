"""PLAIN and SCRAM on the server's side: the RFC's example, our client, and broken rules."""

from __future__ import annotations

import hashlib
import hmac
from base64 import b64decode, b64encode

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moldau.metadata.scram_users import InventedUsers
from moldau.protocol.scram import KnownKeys, salted_password, scram_keys
from moldau.runtime.authentication import AuthenticationError
from moldau.sasl.mechanism import OTHER_AUTHORIZATION_ID, Accepted, Postponed, SaslRefused
from moldau.sasl.plain import WRONG_PASSWORD, PlainLogin, PlainServer
from moldau.sasl.scram import ScramClient, ScramServer

USERS = {"alice": "a-secret", "Jürgen": "pässwörd", "empty": ""}
INVENTED = InventedUsers()
MECHANISMS = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}
ITERATIONS = 4_096
TEXT = st.text(st.characters(exclude_characters="\0", codec="utf-8"), min_size=1, max_size=20)


@pytest.mark.parametrize("name", ["alice", "Jürgen"])
def test_plain(name: str) -> None:
    assert PlainServer(USERS).step(PlainLogin(name, USERS[name]).first()) == Accepted(name)
    assert PlainServer(USERS).step(f"{name}\0{name}\0{USERS[name]}".encode()) == Accepted(name)


@pytest.mark.parametrize(
    ("token", "told"),
    [
        (b"\0alice\0wrong", WRONG_PASSWORD),
        (b"\0bob\0a-secret", WRONG_PASSWORD),
        (b"\0Alice\0a-secret", WRONG_PASSWORD),
        (b"\0alice\0a-secret\0", WRONG_PASSWORD),
        (b"\0alice\0\xff", WRONG_PASSWORD),
        (b"bob\0alice\0a-secret", OTHER_AUTHORIZATION_ID),
        (b"\0empty\0", None),
        (b"\0\0a-secret", None),
        (b"\0alice", None),
        (b"", None),
    ],
)
def test_what_plain_refuses(token: bytes, told: str | None) -> None:
    with pytest.raises(SaslRefused) as refused:
        PlainServer(USERS).step(token)
    assert refused.value.told == told
    assert "a-secret" not in repr(refused.value)


@given(TEXT, TEXT)
def test_plain_knows_its_users_only(name: str, password: str) -> None:
    token = f"\0{name}\0{password}".encode()
    assert PlainServer({name: password}).step(token) == Accepted(name)
    for users in ({}, {name: password + "x"}, {name + "x": password}):
        with pytest.raises(SaslRefused):
            PlainServer(users).step(token)


def server(
    mechanism: str, name: str, password: str, nonce: str = "of-the-server", salt: bytes = b"salt"
) -> ScramServer:
    hash_name = MECHANISMS[mechanism]
    salted = salted_password(mechanism, password, salt, ITERATIONS)
    known = scram_keys(mechanism, salted, salt, ITERATIONS)

    def keys_of(user: str, is_token: bool) -> KnownKeys:
        if user == name and not is_token:
            return KnownKeys(known, name)
        return KnownKeys(INVENTED.keys(mechanism, user), None)

    return ScramServer(hash_name, keys_of, nonce)


def test_the_rfcs_example() -> None:
    """RFC 7677, section 3."""
    exchange = server(
        "SCRAM-SHA-256",
        "user",
        "pencil",
        "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0",
        b64decode("W22ZaJ0SNY7soEsUEjb6gQ=="),
    )
    assert exchange.step(b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO") == (
        b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
    )
    final = (
        b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,"
        b"p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
    )
    assert exchange.step(final) == Accepted(
        "user", b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="
    )
    with pytest.raises(SaslRefused):
        exchange.step(final)  # a replay


def converse(client: ScramClient, exchange: ScramServer) -> Accepted:
    challenge = exchange.step(client.first())
    assert isinstance(challenge, bytes)
    proof = client.answer(challenge)
    assert proof is not None
    accepted = exchange.step(proof)
    assert isinstance(accepted, Accepted)
    client.answer(accepted.answer)
    assert client.is_complete
    return accepted


@given(st.sampled_from(sorted(MECHANISMS)), TEXT, TEXT)
def test_our_client_and_our_server(mechanism: str, name: str, password: str) -> None:
    hash_name = MECHANISMS[mechanism]
    client = ScramClient(hash_name, name, password, "of-the-client")
    assert converse(client, server(mechanism, name, password)).user == name
    stranger = ScramClient(hash_name, name, password + "x", "of-the-client")
    with pytest.raises(SaslRefused):
        converse(stranger, server(mechanism, name, password))


def test_a_user_that_does_not_exist_is_refused_at_the_end_as_with_a_wrong_password() -> None:
    refusals = []
    for name in ("nobody", "alice"):
        exchange = server("SCRAM-SHA-256", "alice", "a-secret")
        client = ScramClient("sha256", name, "wrong", "of-the-client")
        challenge = exchange.step(client.first())
        assert isinstance(challenge, bytes)
        proof = client.answer(challenge)
        assert proof is not None
        with pytest.raises(SaslRefused) as refused:
            exchange.step(proof)
        refusals.append((str(refused.value), refused.value.told))
    assert refusals == [
        ("'nobody': there is no such user", None),
        ("'alice': the password is wrong", None),
    ], "the log tells which, the client is not told"


@pytest.mark.parametrize(
    "first",
    [
        b"",
        b"garbage",
        b"y,,n=alice,r=nonce",
        b"p=tls-unique,,n=alice,r=nonce",
        b"n,,m=x,n=alice,r=nonce",
        b"n,,n=alice",
        b"n,,n=,r=nonce",
        b"n,,n=al=ice,r=nonce",
        b"n,,n=alice,r=",
        b"n,,n=alice,r=no\x01nce",
        b"n,a=bob,n=alice,r=nonce",
        b"n,,n=\xff,r=nonce",
    ],
)
def test_first_messages_that_break_the_rules(first: bytes) -> None:
    with pytest.raises(SaslRefused):
        server("SCRAM-SHA-256", "alice", "a-secret").step(first)


def good_final(exchange: ScramServer, gs2: str = "n,,") -> str:
    client = ScramClient("sha256", "alice", "a-secret", "of-the-client")
    challenge = exchange.step(gs2.encode() + client.first()[3:])
    assert isinstance(challenge, bytes)
    proof = client.answer(challenge)
    assert proof is not None
    return proof.decode()


def other(proof: str, before: str, after: str) -> bytes:
    assert before in proof
    return proof.replace(before, after, 1).encode()


def test_final_messages_that_break_the_rules() -> None:
    def refused(before: str, after: str) -> None:
        exchange = server("SCRAM-SHA-256", "alice", "a-secret")
        final = other(good_final(exchange), before, after)
        with pytest.raises(SaslRefused):
            exchange.step(final)

    refused("r=of-the-client", "r=of-a-client")
    refused("of-the-server", "of-another")
    refused("c=biws", f"c={b64encode(b'y,,').decode()}")
    refused("c=biws", "c=b")
    refused(",p=", ",q=")
    refused(",p=", ",p=AAAA")
    refused("c=biws,", "")
    exchange = server("SCRAM-SHA-256", "alice", "a-secret")
    assert isinstance(exchange.step(good_final(exchange).encode()), Accepted)


SPARE = str.maketrans("AEIMQUYcgkosw048", "BFJNRVZdhlptx159")
"""The last character of base64 with two bits to spare, and one that means the same."""


def with_spare_bits(final: str) -> str:
    """The message with a proof that stands for the same bytes, written in another way."""
    before, last, padding = final[:-2], final[-2], final[-1]
    assert padding == "="
    changed = before + last.translate(SPARE) + padding
    proofs = [b64decode(each.rpartition(",p=")[2]) for each in (final, changed)]
    assert changed != final
    assert proofs[0] == proofs[1]
    return changed


def test_a_proof_with_spare_bits_in_its_base64_is_refused() -> None:
    """A message has one text (RFC 4648, 3.5): else its last character could change unseen."""
    exchange = server("SCRAM-SHA-256", "alice", "a-secret")
    final = with_spare_bits(good_final(exchange))
    with pytest.raises(SaslRefused, match="bad base64"):
        exchange.step(final.encode())


def test_a_channel_binding_with_spare_bits_is_refused() -> None:
    def sent(last: str) -> bytes:
        """A message whose proof is right for the binding, of which this is the end."""
        client = ScramClient("sha256", "alice", "a-secret", "of-the-client")
        challenge = exchange.step(b"n,a=alice," + client.first()[3:])
        assert isinstance(challenge, bytes)
        bare, server_first = client.first()[3:].decode(), challenge.decode()
        nonce, salt, _ = server_first.split(",")
        without_proof = f"c={b64encode(b'n,a=alice,').decode()[:-3]}{last},{nonce}"
        signed = f"{bare},{server_first},{without_proof}".encode()
        salted = salted_password("SCRAM-SHA-256", "a-secret", b64decode(salt[2:]), ITERATIONS)
        key = hmac.digest(salted, b"Client Key", "sha256")
        signature = hmac.digest(hashlib.sha256(key).digest(), signed, "sha256")
        proof = bytes(a ^ b for a, b in zip(key, signature, strict=True))
        return f"{without_proof},p={b64encode(proof).decode()}".encode()

    exchange = server("SCRAM-SHA-256", "alice", "a-secret")
    assert isinstance(exchange.step(sent("A==")), Accepted)
    exchange = server("SCRAM-SHA-256", "alice", "a-secret")
    with pytest.raises(SaslRefused, match="bad base64"):
        exchange.step(sent("B=="))


def test_an_authorization_id_that_is_the_user() -> None:
    exchange = server("SCRAM-SHA-256", "alice", "a-secret")
    assert isinstance(exchange.step(good_final(exchange, "n,a=alice,").encode()), Accepted)


def test_a_server_without_the_keys_is_found_out_by_the_client() -> None:
    exchange = server("SCRAM-SHA-256", "alice", "a-secret")
    client = ScramClient("sha256", "alice", "a-secret", "of-the-client")
    client.answer(exchange.step(client.first()))  # type: ignore[arg-type]
    with pytest.raises(AuthenticationError):
        client.answer(b"v=AAAA")


@given(st.lists(st.binary(max_size=300), max_size=4), st.sampled_from(["plain", "scram"]))
def test_no_bytes_do_more_than_be_refused(tokens: list[bytes], kind: str) -> None:
    exchange = (
        PlainServer(USERS) if kind == "plain" else server("SCRAM-SHA-256", "alice", "a-secret")
    )
    for token in tokens:
        try:
            assert not isinstance(exchange.step(token), Accepted)
        except SaslRefused:
            continue


@given(st.data())
def test_a_final_message_with_any_change_is_refused(data: st.DataObject) -> None:
    exchange = server("SCRAM-SHA-256", "alice", "a-secret")
    final = good_final(exchange).encode()
    at = data.draw(st.integers(0, len(final) - 1))
    byte = data.draw(st.integers(0, 255).filter(lambda each: each != final[at]))
    changed = final[:at] + bytes([byte]) + final[at + 1 :]
    with pytest.raises(SaslRefused):
        exchange.step(changed)


def test_keys_are_never_shown() -> None:
    keys = scram_keys("SCRAM-SHA-256", b"salted", b"salt", ITERATIONS)
    assert repr(keys) == f"{keys}" == "ScramKeys([hidden])"


@pytest.mark.parametrize("way", ["another client's", "the server's alone", "twice", "longer"])
def test_the_whole_nonce_has_to_come_back(way: str) -> None:
    """Its end alone proves nothing: that is the server's part."""
    exchange = server("SCRAM-SHA-256", "alice", "a-secret")
    final = good_final(exchange)
    nonce = final.split(",")[1].removeprefix("r=")
    own = nonce.removesuffix("of-the-server")
    assert own
    wrong = {
        "another client's": "x" * len(own) + "of-the-server",
        "the server's alone": "of-the-server",
        "twice": own + nonce,
        "longer": nonce + "x",
    }[way]
    with pytest.raises(SaslRefused, match="has another nonce") as refused:
        exchange.step(final.replace(f"r={nonce}", f"r={wrong}").encode())
    assert ("its own twice" in str(refused.value)) is (way == "twice")


@pytest.mark.parametrize(("iterations", "is_enough"), [(4_095, False), (4_096, True)])
def test_a_credential_that_is_hashed_too_little_is_of_no_use(
    iterations: int, is_enough: bool
) -> None:
    keys = INVENTED.keys("SCRAM-SHA-256", "user")._replace(iterations=iterations)
    server = ScramServer("sha256", lambda _name, _is_token: KnownKeys(keys, "user"), "s")
    if is_enough:
        assert server.step(b"n,,n=user,r=c").endswith(b",i=4096")  # type: ignore[union-attr]
    else:
        with pytest.raises(SaslRefused, match="the credential of 'user' has too few iterations"):
            server.step(b"n,,n=user,r=c")


def test_a_last_message_whose_keys_are_not_there_yet_is_taken_again() -> None:
    name = "SCRAM-SHA-256"
    made = scram_keys(name, salted_password(name, "pencil", b"salt", 4_096), b"salt", 4_096)
    asked: list[str] = []

    async def wait(_: object) -> bool:
        return True

    def keys_of(name: str, is_token: bool) -> KnownKeys:
        asked.append(name)
        if len(asked) == 2:
            raise Postponed(wait)
        return KnownKeys(made, "bob", 5.0)

    client = ScramClient("sha256", "token", "pencil", "c", {"tokenauth": "true"})
    server = ScramServer("sha256", keys_of, "s")
    challenge = server.step(client.first())
    assert isinstance(challenge, bytes)
    last = client.answer(challenge)
    assert last is not None
    with pytest.raises(Postponed):
        server.step(last)
    accepted = server.step(last)
    assert isinstance(accepted, Accepted)
    assert (accepted.user, accepted.left_ms, accepted.is_token) == ("bob", 5.0, True)
    assert asked == ["token"] * 3
