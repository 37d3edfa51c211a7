"""The server's side of GSSAPI (RFC 4752): Kerberos 5 proves the client's name.

Owns the order of its messages: tokens of the security context, then the server's offer of security
layers and the client's choice. Must not know what is in a token of the context, or make one: the
context comes from outside. Invariants: the only layer offered and taken is none, as TLS is what
protects a connection; the client is who Kerberos says it is, whatever authorization id it sends.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol

from moldau.server.authentication.core.kerberos_names import (
    KerberosPrincipal,
    LocalNames,
    NoLocalName,
)
from moldau.server.authentication.core.mechanism import Accepted, SaslRefused

NO_LAYER: Final = 1
"""The bit of "no security layer"."""

OFFER: Final = bytes((NO_LAYER, 0, 0, 0))
"""The server's offer: that layer, and so no size of messages."""


class AcceptedContext(Protocol):
    """The acceptor's side of a security context of Kerberos 5. Its methods may block for long; what
    they raise is for the owner of the exchange.
    """

    @property
    def is_established(self) -> bool: ...

    def accept(self, token: bytes) -> bytes:
        """The answer to the initiator's token, which may be empty."""

    def principal(self) -> str:
        """The initiator's name, once the context is established."""

    def wrap(self, message: bytes) -> bytes:
        """Sign a message."""

    def unwrap(self, token: bytes) -> bytes:
        """The message of a token that is signed."""


class Gssapi:
    """One exchange: tokens until the context is established → offer → choice.

    A mutual context ends with a token to the client, which answers it with an empty message before
    the offer comes. The client's authorization id is not looked at, as in Apache Kafka: clients in
    Python send the broker's name there.
    """

    __slots__ = ("_context", "_has_offered", "_names", "_open_context")

    def __init__(self, open_context: Callable[[], AcceptedContext], names: LocalNames) -> None:
        self._open_context = open_context
        self._context: AcceptedContext | None = None
        self._names = names
        self._has_offered = False

    def step(self, token: bytes) -> bytes | Accepted:
        context = self._context
        if context is None:
            context = self._context = self._open_context()
        if self._has_offered:
            return self._chosen(context, token)
        if not context.is_established:
            answer = context.accept(token)
            if answer or not context.is_established:
                return answer
        elif token:
            raise SaslRefused("the client goes on after the end of its security context")
        self._has_offered = True
        return context.wrap(OFFER)

    def _chosen(self, context: AcceptedContext, token: bytes) -> Accepted:
        choice = context.unwrap(token)
        if len(choice) < len(OFFER):
            raise SaslRefused("the client's choice of a security layer is too short")
        if choice[0] != NO_LAYER:
            raise SaslRefused(f"the client chose security layer {choice[0]}, which was not offered")
        name = context.principal()
        try:
            return Accepted(self._names.user_name(KerberosPrincipal.parse(name)))
        except (ValueError, NoLocalName) as error:
            raise SaslRefused(f"principal {name!r}: {error}") from None
