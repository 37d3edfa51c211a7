"""An identity provider: it signs tokens, and its HTTP server publishes keys and gives tokens away.

Owns the keys, and how badly the server behaves. Must not know who asks.
"""

from __future__ import annotations

import asyncio
import base64
import hmac
import json
import ssl
import threading
import time
from collections.abc import Awaitable, Callable, Mapping
from functools import cached_property
from typing import Any, Final, NamedTuple, Self

from aiohttp import web
from joserfc import jws
from joserfc.jwk import ECKey, OKPKey, RSAKey

from tests.kit.ports import free_port
from tests.virtual.machine import HOST, MachineLoop

ISSUER = "https://issuer.example"
AUDIENCE = "kafka"
JWT_BEARER = "urn:ietf:params:oauth:grant-type:jwt-bearer"
CLIENT_ASSERTION = "urn:ietf:params:oauth:client-assertion-type:jwt-bearer"
CLIENT_ID, CLIENT_SECRET = "orders", "s3cret"
_MADE = {
    "RSA": lambda: RSAKey.generate_key(2048),
    "EC": lambda: ECKey.generate_key("P-256"),
    "OKP": lambda: OKPKey.generate_key("Ed25519"),
}


def encoded(data: bytes | object) -> str:
    """base64url of bytes, or of JSON."""
    raw = data if isinstance(data, bytes) else json.dumps(data).encode()
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


def claims_of(user: str = "erin", *, age_s: float = 0, left_s: float = 600, **more: Any) -> Any:
    """What a good token says; a claim of None is left out."""
    now_s = int(time.time())
    claims = {
        "sub": user,
        "iss": ISSUER,
        "aud": AUDIENCE,
        "iat": now_s - age_s,
        "exp": now_s + left_s,
        "scope": "kafka",
        **more,
    }
    return {name: value for name, value in claims.items() if value is not None}


class Signer:
    """A key with its name. `kind` is RSA, EC or OKP."""

    def __init__(self, key_id: str | None, kind: str = "RSA", algorithm: str | None = None) -> None:
        self.key_id = key_id
        self._kind = kind
        self.algorithm = algorithm or {"RSA": "RS256", "EC": "ES256", "OKP": "Ed25519"}[kind]

    @cached_property
    def key(self) -> RSAKey | ECKey | OKPKey:
        """Made when it is first asked for: that takes long."""
        return _MADE[self._kind]()

    def private_pem(self) -> bytes:
        """PKCS8, as Apache Kafka takes it."""
        return self.key.as_pem(private=True)

    def public(self, **more: object) -> dict[str, Any]:
        """The key as a key set has it."""
        named = {} if self.key_id is None else {"kid": self.key_id}
        return {**self.key.as_dict(private=False), **named, **more}

    def token(self, claims: object = None, **header: Any) -> str:
        """A signed token."""
        named = {} if self.key_id is None else {"kid": self.key_id}
        head = {"alg": self.algorithm, **named, **header}
        message = f"{encoded(head)}.{encoded(claims_of() if claims is None else claims)}"
        signature = jws.JWSRegistry.algorithms[self.algorithm].sign(message.encode(), self.key)
        return f"{message}.{encoded(signature)}"

    def signed_by_hmac(self, algorithm: str = "HS256") -> str:
        """A token whose secret is this key's public half: careless verifiers believe it."""
        message = f"{encoded({'alg': algorithm, 'kid': self.key_id})}.{encoded(claims_of())}"
        hash_name = {"HS256": "sha256", "HS512": "sha512"}[algorithm]
        secret = self.key.as_pem(private=False)
        return f"{message}.{encoded(hmac.digest(secret, message.encode(), hash_name))}"


def unsecured(claims: object = None, algorithm: object = "none", signature: bytes = b"") -> str:
    """A token without a signature."""
    body = claims_of() if claims is None else claims
    return f"{encoded({'alg': algorithm})}.{encoded(body)}.{encoded(signature)}"


def symmetric(secret: bytes = b"k" * 32, key_id: str = "shared") -> tuple[dict[str, Any], str]:
    """A symmetric key as a key set has it, and a token that it signs."""
    message = f"{encoded({'alg': 'HS256', 'kid': key_id})}.{encoded(claims_of())}"
    signature = hmac.digest(secret, message.encode(), "sha256")
    return {"kty": "oct", "k": encoded(secret), "kid": key_id}, f"{message}.{encoded(signature)}"


class TokenRequest(NamedTuple):
    """What a token endpoint was asked."""

    headers: dict[str, str]
    form: dict[str, str]


Answer = Callable[[web.Request], Awaitable[web.StreamResponse]]


async def _slow(request: web.Request) -> web.StreamResponse:
    """One byte at a time, for ever."""
    response = web.StreamResponse()
    await response.prepare(request)
    while True:
        await response.write(b" ")
        loop = asyncio.get_running_loop()
        await (loop.elapse(1) if isinstance(loop, MachineLoop) else asyncio.sleep(0))


async def _silent(request: web.Request) -> web.StreamResponse:
    await asyncio.Event().wait()
    raise AssertionError("nothing ends the wait but the end of the connection")


async def _megabytes(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse()
    await response.prepare(request)
    for _ in range(64):
        await response.write(b" " * 1024 * 1024)
    return response


async def _bomb(request: web.Request) -> web.StreamResponse:
    return web.Response(body=b"x", headers={"Content-Encoding": "gzip"})


async def _elsewhere(request: web.Request) -> web.StreamResponse:
    raise web.HTTPFound("/keys?again")


async def _broken(request: web.Request) -> web.StreamResponse:
    key = Signer("of a broken server", "EC").public()
    return web.json_response({"keys": [key]}, status=500)


async def _garbage(request: web.Request) -> web.StreamResponse:
    return web.Response(body=b"\xff\x00<html>")


async def _cut(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Length": "1000"})
    await response.prepare(request)
    await response.write(b'{"keys": [')
    assert request.transport is not None
    request.transport.abort()
    return response


BAD_ANSWERS: Final[Mapping[str, Answer]] = {
    "slow": _slow,
    "silent": _silent,
    "megabytes": _megabytes,
    "bomb": _bomb,
    "elsewhere": _elsewhere,
    "broken": _broken,
    "garbage": _garbage,
    "cut": _cut,
}
"""What a server of keys may answer that is no key set; `slow` and `silent` last until the
provider's `answer` changes.
"""


class IdentityProvider:
    """The server, on its own thread, or on the virtual machine of its test. Use as a context.

    Attributes:
        keys: entries of the key set, as `Signer.public` gives them.
        answer: answers requests for the key set; None for `keys`.
        asked: how many requests for the key set have come.
        token_life_s: of the tokens that the token endpoint gives.
        requests: what the token endpoint was asked.
        clients: whose assertions it takes for those of CLIENT_ID.
        is_down: whether the token endpoint answers 503 instead; `refused` counts these answers, and
            refusals.
        hangs: whether it answers nothing.
    """

    def __init__(
        self,
        signer: Signer | None = None,
        context: ssl.SSLContext | None = None,
        port: int | None = None,
    ) -> None:
        self._context = context
        self.signer = signer or Signer("first")
        self.keys: list[object] = [self.signer.public()]
        self._answer: Answer | None = None
        self._answering: set[asyncio.Task[web.StreamResponse]] = set()
        self.asked = 0
        self.given = 0
        self.token_life_s = 600.0
        self.requests: list[TokenRequest] = []
        self.clients: list[Signer] = []
        self.is_down = False
        self.hangs = False
        self.refused = 0
        self._ready = threading.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), daemon=True)
        self._stopping = asyncio.Event()
        loop = asyncio._get_running_loop()
        self._machine = loop if isinstance(loop, MachineLoop) else None
        if port is None:
            port = self._machine.fabric.free_port(HOST) if self._machine else free_port()
        self._port = port

    @property
    def url(self) -> str:
        return f"http{'s' if self._context else ''}://127.0.0.1:{self._port}/keys"

    @property
    def token_url(self) -> str:
        return f"http://127.0.0.1:{self._port}/token"

    @property
    def answer(self) -> Answer | None:
        return self._answer

    @answer.setter
    def answer(self, answer: Answer | None) -> None:
        """Those that the last one keeps waiting are cut off."""
        self._answer = answer
        assert self._loop is not None
        self._loop.call_soon_threadsafe(self._cut_off)

    def _cut_off(self) -> None:
        for task in self._answering:
            task.cancel()

    def __enter__(self) -> Self:
        if self._machine is not None:
            self._machine.create_task(self._serve())
            return self
        self._thread.start()
        assert self._ready.wait(30)
        return self

    def again(self) -> IdentityProvider:
        """The same provider on the same port, after its end."""
        return IdentityProvider(self.signer, self._context, self._port)

    def __exit__(self, *_: object) -> None:
        assert self._loop is not None
        self._loop.call_soon_threadsafe(self._stopping.set)
        if self._machine is None:
            self._thread.join(30)

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        application = web.Application()
        application.router.add_get("/keys", self._answer_keys)
        application.router.add_post("/token", self._answer_token)
        runner = web.AppRunner(application, shutdown_timeout=0.1, access_log=None)
        await runner.setup()
        assert runner.server is not None
        server = await self._loop.create_server(
            runner.server, "127.0.0.1", self._port, ssl=self._context
        )
        self._ready.set()
        await self._stopping.wait()
        # asyncio never closes a connection that its server accepted in the turn in which it ends.
        for each in server.sockets if self._machine is None else ():
            self._loop.remove_reader(each)
        await asyncio.sleep(0)
        server.close()
        await runner.cleanup()

    def _error(self, authorization: str | None, form: Mapping[str, str]) -> str | None:
        """Why there is no token for a request; None when there is one."""
        if form.get("grant_type") == JWT_BEARER:
            return None if self._is_known(form.get("assertion", "")) else "invalid_grant"
        if form.get("grant_type") != "client_credentials":
            return "unsupported_grant_type"
        if form.get("client_assertion_type") == CLIENT_ASSERTION:
            return None if self._is_known(form.get("client_assertion", "")) else "invalid_client"
        wanted = "Basic " + base64.b64encode(f"{CLIENT_ID}:{CLIENT_SECRET}".encode()).decode()
        return None if authorization == wanted else "invalid_client"

    def _is_known(self, assertion: str) -> bool:
        """Whether one of the clients has signed it."""
        message, _, signature = assertion.rpartition(".")
        raw = base64.urlsafe_b64decode(signature + "==")
        return any(
            jws.JWSRegistry.algorithms[each.algorithm].verify(message.encode(), raw, each.key)
            for each in self.clients
        )

    async def _answer_keys(self, request: web.Request) -> web.StreamResponse:
        self.asked += 1
        if self.answer is not None:
            task = asyncio.ensure_future(self.answer(request))
            self._answering.add(task)
            try:
                return await task
            finally:
                self._answering.discard(task)
        return web.json_response({"keys": self.keys})

    async def _answer_token(self, request: web.Request) -> web.StreamResponse:
        """Client credentials (RFC 6749, section 4.4) with a secret or an assertion, and the JWT
        bearer grant (RFC 7523).
        """
        form = {name: str(value) for name, value in (await request.post()).items()}
        self.requests.append(TokenRequest(dict(request.headers), form))
        if self.hangs:
            await asyncio.Event().wait()
        if self.is_down:
            self.refused += 1
            return web.Response(status=503)
        error = self._error(request.headers.get("Authorization"), form)
        if error is not None:
            self.refused += 1
            return web.json_response({"error": error}, status=401)
        self.given += 1
        token = self.signer.token(claims_of(CLIENT_ID, left_s=self.token_life_s))
        return web.json_response(
            {"access_token": token, "token_type": "Bearer", "expires_in": self.token_life_s}
        )
