"""A schema registry in this process that can misbehave: what no registry of the ecosystem does on
demand.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote


@dataclass
class Answer:
    """What the server says to a request in place of the usual answer."""

    status: int = 200
    body: bytes = b"{}"
    headers: dict[str, str] = field(default_factory=dict)
    closes: bool = False


@dataclass
class RegistryServer:
    """Subjects and ids, a note of each request, and answers that are planned ahead."""

    url: str = ""
    schemas: list[dict[str, Any]] = field(default_factory=list)
    subjects: dict[str, list[int]] = field(default_factory=dict)
    requests: list[tuple[str, str, dict[str, str]]] = field(default_factory=list)
    planned: list[Answer] = field(default_factory=list)

    @property
    def paths(self) -> list[str]:
        """Method and path of each request."""
        return [f"{method} {path}" for method, path, _ in self.requests]

    def answer(self, method: str, path: str, body: Any) -> tuple[int, object]:
        parts = [unquote(each) for each in path.strip("/").split("/")]
        match parts:
            case ["subjects"]:
                return 200, [*self.subjects]
            case ["schemas", "ids", number]:
                index = int(number) - 1
                if not 0 <= index < len(self.schemas):
                    return 404, {"error_code": 40403, "message": "Schema not found"}
                return 200, self.schemas[index]
            case ["subjects", subject, "versions"] if method == "POST":
                return 200, {"id": self._register(subject, body)}
            case ["subjects", subject] if method == "POST":
                ids = self.subjects.get(subject, [])
                for version, schema_id in enumerate(ids, 1):
                    if self.schemas[schema_id - 1] == _plain(body):
                        return 200, self._named(subject, version)
                return 404, {"error_code": 40403, "message": "Schema not found"}
            case ["subjects", subject, "versions", version]:
                ids = self.subjects.get(subject, [])
                number = len(ids) if version == "latest" else int(version)
                if not 0 < number <= len(ids):
                    return 404, {"error_code": 40401, "message": "Subject not found."}
                return 200, self._named(subject, number)
        return 404, {"error_code": 404, "message": "HTTP 404 Not Found"}

    def _register(self, subject: str, body: Any) -> int:
        schema = _plain(body)
        if schema not in self.schemas:
            self.schemas.append(schema)
        schema_id = self.schemas.index(schema) + 1
        ids = self.subjects.setdefault(subject, [])
        if schema_id not in ids:
            ids.append(schema_id)
        return schema_id

    def _named(self, subject: str, version: int) -> dict[str, Any]:
        schema_id = self.subjects[subject][version - 1]
        return {
            **self.schemas[schema_id - 1],
            "id": schema_id,
            "subject": subject,
            "version": version,
        }


def _plain(body: dict[str, Any]) -> dict[str, Any]:
    kept = {"schema": body["schema"]}
    if body.get("schemaType", "AVRO") != "AVRO":
        kept["schemaType"] = body["schemaType"]
    if body.get("references"):
        kept["references"] = body["references"]
    return kept


@contextmanager
def registry_server() -> Iterator[RegistryServer]:
    """Run one."""
    server = RegistryServer()

    class Handler(BaseHTTPRequestHandler):
        def _handle(self) -> None:
            size = int(self.headers.get("Content-Length") or 0)
            body = json.loads(self.rfile.read(size)) if size else None
            server.requests.append((self.command, self.path, dict(self.headers)))
            if server.planned:
                planned = server.planned.pop(0)
                if planned.closes:
                    self.close_connection = True
                    self.connection.close()
                    return
                status, data, headers = planned.status, planned.body, planned.headers
            else:
                status, answer = server.answer(self.command, self.path, body)
                data, headers = json.dumps(answer).encode(), {}
            self.send_response(status)
            for name, value in {"Content-Length": str(len(data)), **headers}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(data)

        do_GET = do_POST = _handle

        def log_message(self, *_: object) -> None:
            pass

    http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.url = f"http://127.0.0.1:{http.server_port}"
    thread = threading.Thread(target=http.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield server
    finally:
        http.shutdown()
        thread.join()
        http.server_close()
