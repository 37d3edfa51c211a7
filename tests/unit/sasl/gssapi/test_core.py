"""The order of GSSAPI's messages (RFC 4752), with a security context that is a double."""

from __future__ import annotations

import pytest

from moldau.sasl.gssapi.core import OFFER, GssapiServer
from moldau.sasl.gssapi.local_names import LocalNames
from moldau.sasl.mechanism import Accepted, SaslRefused


class Context:
    """Established by the token `last`, which it answers with `answer`; signs with an `s`."""

    def __init__(self, answer: bytes = b"", name: str = "alice@R") -> None:
        self._answer = answer
        self._name = name
        self.is_established = False

    def accept(self, token: bytes) -> bytes:
        self.is_established = token == b"last"
        return self._answer if self.is_established else b"go on"

    def principal(self) -> str:
        return self._name

    def wrap(self, message: bytes) -> bytes:
        return b"s" + message

    def unwrap(self, token: bytes) -> bytes:
        if not token.startswith(b"s"):
            raise SaslRefused("not signed")
        return token[1:]


def exchange(context: Context) -> GssapiServer:
    return GssapiServer(context, LocalNames(["DEFAULT"], "R"))


def test_a_mutual_context_ends_with_an_empty_message():
    made = exchange(Context(b"proof"))
    assert made.step(b"first") == b"go on"
    assert made.step(b"last") == b"proof"
    assert made.step(b"") == b"s" + OFFER
    assert made.step(b"s" + OFFER) == Accepted("alice")


def test_a_context_without_an_answer_is_followed_by_the_offer():
    made = exchange(Context())
    assert made.step(b"last") == b"s" + OFFER
    assert made.step(b"s\x01\0\0\0somebody@ELSE") == Accepted("alice")


@pytest.mark.parametrize(
    ("messages", "reason"),
    [
        ([b"last", b"more"], "after the end of its security context"),
        ([b"last", b"", b"s\x02\0\0\0"], "layer 2, which was not offered"),
        ([b"last", b"", b"s\x03\0\0\0"], "layer 3, which was not offered"),
        ([b"last", b"", b"s\x01\0\0"], "too short"),
        ([b"last", b"", b"\x01\0\0\0"], "not signed"),
    ],
)
def test_what_is_refused(messages: list[bytes], reason: str):
    made = exchange(Context(b"proof"))
    for message in messages[:-1]:
        assert isinstance(made.step(message), bytes)
    with pytest.raises(SaslRefused, match=reason):
        made.step(messages[-1])


@pytest.mark.parametrize("name", ["alice@OTHER", "a/b/c@R", r"a\@b@R"])
def test_a_principal_without_a_user_name_is_refused(name: str):
    made = exchange(Context(name=name))
    made.step(b"last")
    with pytest.raises(SaslRefused, match="principal") as caught:
        made.step(b"s" + OFFER)
    assert caught.value.told is None
