"""An attacker in its own process: `python -m tests.system.http.greedy PORT KIND HOST…`.

Keeps CONNECTIONS_PER_HOST connections open from each of the addresses, in the manner of KIND, and
opens each again that the node closes. Prints `ready` once all have been opened.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import sys

CONNECTIONS_PER_HOST = 60
PAUSE_S = 0.05
HALF = b"GET /healthz HTTP/1.1\r\nHost: x\r\nX-Half: "
WHOLE = b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"
SENDS = {
    "half": HALF,
    "half-behind-a-request": WHOLE + HALF,
    "silent": b"",
    "slow-body": b"POST /healthz HTTP/1.1\r\nHost: x\r\nContent-Length: 100000\r\n\r\nx",
    "unread": b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n",
    "pipelined": WHOLE * 30,
}


async def keep_one(port: int, kind: str, host: str, opened: asyncio.Semaphore) -> None:
    """One connection for ever; `opened` is released when it has been open once."""
    is_first = True
    loop = asyncio.get_running_loop()
    while True:
        with contextlib.suppress(OSError), socket.socket() as raw:
            raw.setblocking(False)
            if kind == "unread":
                raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
            raw.bind((host, 0))
            await loop.sock_connect(raw, ("127.0.0.1", port))
            await loop.sock_sendall(raw, SENDS[kind])
            if is_first:
                opened.release()
                is_first = False
            while kind == "unread" or await loop.sock_recv(raw, 65_536):
                await asyncio.sleep(PAUSE_S)
                if kind in ("slow-body", "unread"):
                    await loop.sock_sendall(raw, b"x" if kind == "slow-body" else SENDS[kind])
        await asyncio.sleep(PAUSE_S)


async def main(port: int, kind: str, hosts: list[str]) -> None:
    opened = asyncio.Semaphore(0)
    tasks = [
        asyncio.create_task(keep_one(port, kind, host, opened))
        for host in hosts
        for _ in range(CONNECTIONS_PER_HOST)
    ]
    for _ in tasks:
        await opened.acquire()
    print("ready", flush=True)
    await asyncio.gather(*tasks)


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]), sys.argv[2], sys.argv[3:]))
