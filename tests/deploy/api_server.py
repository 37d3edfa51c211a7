"""Kubernetes' API server, as far as the container's scripts ask it: machines' labels and Secrets.

Owns the Secrets that are made, and a service account's files. Invariants: what no rule allows is
answered 403; a Secret is replaced only by one with its resourceVersion, as etcd's are.
"""

from __future__ import annotations

import json
import ssl
import threading
from base64 import b64decode
from collections.abc import Mapping, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final

import trustme

from tests.deploy.helm_chart import NAMESPACE

SECRETS: Final = f"/api/v1/namespaces/{NAMESPACE}/secrets"
NODES: Final = "/api/v1/nodes/"
TOKEN: Final = "the-token"
VERBS: Final = {"GET": "get", "POST": "create", "PUT": "update"}


class ApiServer:
    """Serves until `close`.

    Args:
        account: a directory, which becomes the service account's.
        rules: of its Role; None: it may do everything.
        machines: by their names.
    """

    def __init__(
        self,
        account: Path,
        rules: Sequence[Mapping[str, Any]] | None = None,
        machines: Mapping[str, Any] | None = None,
    ) -> None:
        self.rules = rules
        self.machines = machines or {}
        self.secrets: dict[str, dict[str, Any]] = {}
        self.changed: list[str] = []
        self._account = account
        authority = trustme.CA()
        authority.cert_pem.write_to_path(str(account / "ca.crt"))
        (account / "token").write_text(f"{TOKEN}\n")
        (account / "namespace").write_text(NAMESPACE)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        authority.issue_cert("127.0.0.1").configure_cert(context)
        api = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self._answer(None)

            def do_POST(self) -> None:
                self._answer(self._body())

            do_PUT = do_POST

            def _body(self) -> Any:
                return json.loads(self.rfile.read(int(self.headers["Content-Length"])))

            def _answer(self, document: Any) -> None:
                if self.headers["Authorization"] != f"Bearer {TOKEN}":
                    status, found = 403, None
                else:
                    status, found = api.answer(self.command, self.path, document)
                body = json.dumps(found or {"message": "no"}).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_arguments: object) -> None:
                """Nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self._thread.start()

    @property
    def environment(self) -> dict[str, str]:
        """What a pod has of it."""
        return {
            "MOLDAU_SERVICE_ACCOUNT": str(self._account),
            "KUBERNETES_SERVICE_HOST": "127.0.0.1",
            "KUBERNETES_SERVICE_PORT": str(self._server.server_port),
        }

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def data(self, secret: str) -> dict[str, bytes]:
        """What is in a Secret."""
        return {key: b64decode(text) for key, text in self.secrets[secret]["data"].items()}

    def answer(self, method: str, path: str, document: Any) -> tuple[int, Any]:
        """The status and the document of an answer."""
        if path.startswith(NODES):
            machine = self.machines.get(path.removeprefix(NODES))
            return (404, None) if machine is None else (200, machine)
        name = path.removeprefix(SECRETS).removeprefix("/")
        if not path.startswith(SECRETS) or not self._may(VERBS[method], name):
            return 403, None
        if method == "GET":
            return (200, self.secrets[name]) if name in self.secrets else (404, None)
        name = document["metadata"]["name"]
        before = self.secrets.get(name)
        if method == "POST" and before is not None:
            return 409, None
        if method == "PUT":
            if before is None:
                return 404, None
            if document["metadata"].get("resourceVersion") != before["metadata"]["resourceVersion"]:
                return 409, None
        self.changed.append(name)
        version = {"resourceVersion": str(len(self.changed))}
        kept = {**document, "metadata": {**document["metadata"], **version}}
        self.secrets[name] = json.loads(json.dumps(kept))
        return (201 if method == "POST" else 200), self.secrets[name]

    def _may(self, verb: str, name: str) -> bool:
        if self.rules is None:
            return True
        return any(
            "secrets" in rule["resources"]
            and verb in rule["verbs"]
            and ("resourceNames" not in rule or name in rule["resourceNames"])
            for rule in self.rules
        )
