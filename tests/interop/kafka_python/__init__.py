"""kafka-python, imported here once, for all tests that use it.

Without the warning that its import raises: it reads its schemas with a function of importlib that
is deprecated. And with its sockets closed: version 3.0 leaves one that does not get connected to
the garbage collector, which warns in whatever test it runs then. Nothing else of it is changed.
"""

import warnings
from typing import Any

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)
    import kafka
    import kafka.admin
    from kafka.net.inet import KafkaNetSocket

__all__ = ["kafka"]

_sock_connect = KafkaNetSocket.sock_connect


async def _connect_or_close(
    self: Any, net: Any, sock: Any, sockaddr: Any, timeout_at: float | None = None
) -> Any:
    """A broker refuses or is silent, or the client is closed while it connects."""
    try:
        return await _sock_connect(self, net, sock, sockaddr, timeout_at=timeout_at)
    except BaseException:
        sock.close()
        raise


KafkaNetSocket.sock_connect = _connect_or_close
