"""Whether a port that does not understand us speaks something else: TLS, plaintext, SASL.

Owns connections made only to find that out. Invariant: nothing of them is left open, and a probe
that fails says nothing.
"""

from __future__ import annotations

import asyncio
import ssl

from moldau.protocol.errors import ErrorCode, LocalProtocolError, RemoteProtocolError
from moldau.protocol.messages.p17_sasl_handshake import SaslHandshakeRequest
from moldau.runtime.connection import Connection
from moldau.runtime.network import Network


async def speaks_tls(network: Network, host: str, port: int, timeout_ms: int) -> bool:
    """Whether a TLS handshake leads anywhere; who the peer is does not matter."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    try:
        transport, _protocol = await network.connect(
            asyncio.Protocol, host, port, ssl_context=context, timeout_ms=timeout_ms
        )
    except ssl.SSLError as error:
        # Only a TLS peer can refuse us in TLS.
        return "ALERT" in (error.reason or "") or "CERTIFICATE" in (error.reason or "")
    except (OSError, TimeoutError):
        return False
    transport.abort()
    return True


async def speaks_plaintext(network: Network, host: str, port: int, timeout_ms: int) -> bool:
    """Whether Kafka's protocol is answered there without TLS."""
    try:
        connection = await Connection.connect(
            network, host, port, connect_timeout_ms=timeout_ms, request_timeout_ms=timeout_ms
        )
    except (OSError, TimeoutError, RemoteProtocolError):
        return False
    connection.close()
    return True


async def offered_mechanisms(connection: Connection) -> list[str]:
    """The SASL mechanisms that an open connection's listener demands; empty when it has none.

    The connection is of no use afterwards where there are some.
    """
    try:
        response = await connection.send(SaslHandshakeRequest(mechanism="PLAIN"))
    except (OSError, TimeoutError, RemoteProtocolError, LocalProtocolError):
        return []
    code = ErrorCode.of(response.error_code)
    if code in (ErrorCode.NONE, ErrorCode.UNSUPPORTED_SASL_MECHANISM):
        return list(response.mechanisms) or ["?"]
    return []
