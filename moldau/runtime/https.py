"""HTTP and HTTPS requests by the standard library, for threads that may wait.

Owns: what the token endpoint's client and the schema registry's have in common. Must not: be
imported by a node that needs none of it, as it brings MIME along. Invariant: no request goes to
another URL than the one that was given, so that no secret does.
"""

from __future__ import annotations

import ssl
from http.client import HTTPConnection, HTTPResponse, HTTPSConnection
from typing import Any
from urllib.request import HTTPRedirectHandler, HTTPSHandler, OpenerDirector, Request, build_opener

from moldau.addresses import tls_name


def opener(context: ssl.SSLContext | None) -> OpenerDirector:
    """Opens URLs, and follows no redirect: one is an `HTTPError` with its status.

    Args:
        context: of TLS; None: the system's trusted authorities, no certificate of one's own.
    """
    return build_opener(_Https(context or ssl.create_default_context()), _NoRedirects())


class _NoRedirects(HTTPRedirectHandler):
    def redirect_request(self, *_: object) -> None:
        return None


class _Https(HTTPSHandler):
    def __init__(self, context: ssl.SSLContext) -> None:
        super().__init__()
        self._tls = context

    def https_open(self, request: Request) -> HTTPResponse:
        def connection(host: str, **options: Any) -> HTTPSConnection:
            return _HttpsConnection(host, self._tls, **options)

        return self.do_open(connection, request)


class _HttpsConnection(HTTPSConnection):
    """The standard library's checks the certificate against the name as it is in the URL, with a
    final dot if it has one.
    """

    def __init__(self, host: str, tls: ssl.SSLContext, **options: Any) -> None:
        super().__init__(host, context=tls, **options)
        self._tls = tls

    def connect(self) -> None:
        HTTPConnection.connect(self)
        beyond_proxy: str | None = getattr(self, "_tunnel_host", None)
        name = tls_name(beyond_proxy or self.host)
        self.sock = self._tls.wrap_socket(self.sock, server_hostname=name)
