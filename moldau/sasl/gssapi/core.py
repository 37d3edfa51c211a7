"""The server's side of GSSAPI (RFC 4752): Kerberos 5 proves the client's name.

Owns the order of its messages: tokens of the security context, then the server's offer of security
layers and the client's choice. Must not know what is in a token of the context, or make one: the
context comes from outside. Invariants: the only layer offered and taken is none, as TLS is what
protects a connection; the client is who Kerberos says it is, whatever authorization id it sends.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from moldau.sasl.gssapi.local_names import KerberosPrincipal, LocalNames, NoLocalName
from moldau.sasl.mechanism import Accepted, SaslRefused

if TYPE_CHECKING:
    from moldau.sasl.gssapi.library import AcceptedContext

NO_LAYER: Final = 1
"""The bit of "no security layer"."""

OFFER: Final = bytes((NO_LAYER, 0, 0, 0))
"""The server's offer: that layer, and so no size of messages."""


class GssapiServer:
    """One exchange: tokens until the context is established → offer → choice.

    A mutual context ends with a token to the client, which answers it with an empty message before
    the offer comes. The client's authorization id is not looked at, as in Apache Kafka: clients in
    Python send the broker's name there.

    Args:
        context: its methods may block for long; what they raise is for the owner of the exchange.
    """

    __slots__ = ("_context", "_has_offered", "_names")

    def __init__(self, context: AcceptedContext, names: LocalNames) -> None:
        self._context = context
        self._names = names
        self._has_offered = False

    def step(self, token: bytes) -> bytes | Accepted:
        context = self._context
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
