"""A client that asks for producer ids on thousands of connections: `python -m ... HOST PORT`.

Prints one line of JSON when all its requests are sent, when the first refusal has come, and when
every request has its answer.
"""

from __future__ import annotations

import json
import resource
import selectors
import socket
import struct
import sys
from collections import Counter

from benchmarks.wire import request_frame
from moldau.protocol.errors import ErrorCode
from moldau.protocol.headers import decode_response
from moldau.protocol.messages.p22_init_producer_id import InitProducerIdRequest

CONNECTIONS = 2_600
REQUESTS_EACH = 8
VERSION = 4


def say(**facts: object) -> None:
    print(json.dumps(facts), flush=True)


def main(host: str, port: int) -> None:
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    request = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=1000)
    data = b"".join(
        request_frame(request, VERSION, correlation_id=n, client_id="greedy")
        for n in range(REQUESTS_EACH)
    )
    selector = selectors.DefaultSelector()
    buffers: dict[socket.socket, bytearray] = {}
    for _ in range(CONNECTIONS):
        connection = socket.create_connection((host, port), timeout=60)
        connection.sendall(data)
        connection.setblocking(False)
        selector.register(connection, selectors.EVENT_READ)
        buffers[connection] = bytearray()
    say(sent=CONNECTIONS * REQUESTS_EACH)
    errors: Counter[str] = Counter()
    ids: set[int] = set()
    while errors.total() < CONNECTIONS * REQUESTS_EACH:
        for key, _ in selector.select():
            connection = key.fileobj
            assert isinstance(connection, socket.socket)
            received = connection.recv(65536)
            if not received:
                say(closed=dict(errors))
                return
            buffer = buffers[connection]
            buffer += received
            while len(buffer) >= 4 and len(buffer) >= 4 + struct.unpack_from(">i", buffer)[0]:
                (size,) = struct.unpack_from(">i", buffer)
                _, response = decode_response(request.API_KEY, VERSION, bytes(buffer[4 : 4 + size]))
                del buffer[: 4 + size]
                error = ErrorCode.of(response.error_code)
                if error is not ErrorCode.NONE and not errors[error.name]:
                    say(first=error.name)
                errors[error.name] += 1
                if error is ErrorCode.NONE:
                    ids.add(response.producer_id)
    say(answers=dict(errors), ids=len(ids))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
