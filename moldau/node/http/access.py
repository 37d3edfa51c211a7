"""Who asks the HTTP listener, and whether it may: TLS, passwords, tokens, certificates, and ACLs.

Owns the meaning of the `moldau.http.*` keys about security. Must not serve pages. Invariants: no
page but the open ones is served before its client is known, where clients must say who they are;
the authorizer is asked on the loop that it lives on; a refusal does not tell whether a user exists.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple, NoReturn, TypeVar

from moldau.addresses import canonical_address
from moldau.config import NodeConfig
from moldau.config.definition import ConfigError
from moldau.config.principals import reserved
from moldau.metadata.image import MetadataImage
from moldau.node.http.passwords import PasswordChecks, TooManyTries
from moldau.node.http.places import Places
from moldau.protocol.access_control import CLUSTER_RESOURCE_NAME, Operation, ResourceType
from moldau.protocol.base64_text import canonical_base64
from moldau.runtime.authentication import SecuritySettingError
from moldau.runtime.authentication.listener_tls import ListenerContexts
from moldau.runtime.clock import Clock, SystemClock
from moldau.runtime.loop_thread import call_on
from moldau.sasl.mechanism import MechanismConfig
from moldau.sasl.oauthbearer.claims import TokenRefused
from moldau.sasl.oauthbearer.exchanges import TOKEN
from moldau.sasl.oauthbearer.jwks import URL_KEY, KeySource
from moldau.sasl.oauthbearer.listener import SignedTokens, signed_tokens
from moldau.server.audit_log import AuthenticationLog
from moldau.server.authentication.certificates import (
    MappingRuleError,
    NoMatchingRule,
    PrincipalMapping,
)
from moldau.server.authentication.listener_security import checked_login_module
from moldau.server.authentication.own_names import own_names
from moldau.server.authentication.tls_handshakes import handshake_problem
from moldau.server.authentication.tls_settings import listener_tls_settings
from moldau.server.request import Sender
from moldau.x509 import subject_name

if TYPE_CHECKING:
    from aiohttp import web

    from moldau.server.authorizer import Authorizer

Result = TypeVar("Result")

LISTENER_NAME: Final = "HTTP"
"""What the listener is called in the audit log."""
ANONYMOUS: Final = "User:ANONYMOUS"
PREFIX: Final = "moldau.http."
"""Before `ssl.…`: the keys of TLS for this listener."""
DECISION_TIMEOUT_S: Final = 5.0
MAX_ASKED: Final = 16
"""Questions to the authorizer under way; further ones wait."""
HANDSHAKE_MS: Final = 5_000.0
MAX_HANDSHAKES: Final = 200
MAX_HANDSHAKES_PER_HOST: Final = 50
"""One more ends the one that has waited longest: a probe always finds a place."""
BASIC, BEARER = "BASIC", "BEARER"
CHALLENGES: Final = {
    BASIC: 'Basic realm="moldau", charset="UTF-8"',
    BEARER: 'Bearer realm="moldau"',
}
"""The schemes by what `moldau.http.authentication` says (RFC 7617, RFC 6750)."""
_INVALID_TOKEN: Final = f'{CHALLENGES[BEARER]}, error="invalid_token"'
_NEEDED: Final = {BASIC: "name and password (Basic)", BEARER: "a token (Bearer)"}
_WRONG: Final = "the name or the password is wrong"
_WRONG_TOKEN: Final = "the token is not accepted"


class HttpRefused(Exception):
    """A request that is not served.

    Attributes:
        status: 401, 403, 429 or 503.
        headers: of the answer.
    """

    def __init__(self, status: int, reason: str, *headers: tuple[str, str]) -> None:
        super().__init__(reason)
        self.status = status
        self.headers = headers


@dataclass(frozen=True, slots=True)
class HttpSecurity:
    """What the HTTP listener asks of its clients.

    Attributes:
        contexts: None without TLS.
        mapping: makes user names of certificates' subjects.
        methods: BASIC, BEARER, as `moldau.http.authentication` has them.
        tokens: checks tokens; None without BEARER.
        is_reserved: whether no client may have a name.
        refusal_delay_s: `connection.failed.authentication.delay.ms`.
        max_log_lines: `moldau.audit.log.max.lines`.
    """

    contexts: ListenerContexts | None
    mapping: PrincipalMapping
    methods: tuple[str, ...]
    tokens: SignedTokens | None
    open_paths: frozenset[str]
    is_reserved: Callable[[str], bool]
    refusal_delay_s: float
    max_log_lines: int

    @classmethod
    def of(cls, config: NodeConfig) -> HttpSecurity:
        """Blocks: reads key stores. Raises: ConfigError."""
        rules: str = config[f"{PREFIX}ssl.principal.mapping.rules"]
        try:
            mapping = PrincipalMapping(rules)
        except MappingRuleError as error:
            name = f"{PREFIX}ssl.principal.mapping.rules"
            raise ConfigError(name, rules, str(error)) from None
        return cls(
            _contexts(config),
            mapping,
            tuple(config["moldau.http.authentication"]),
            _tokens(config),
            frozenset(config["moldau.http.open.paths"]),
            partial(config.principals.is_reserved, own=own_names(config)),
            config.get_int("connection.failed.authentication.delay.ms") / 1000,
            config.get_int("moldau.audit.log.max.lines"),
        )


def _tokens(config: NodeConfig) -> SignedTokens | None:
    if BEARER in config["moldau.http.authentication"]:
        return http_tokens(config, SystemClock())
    idle = sorted(name for name in config.explicit if name.startswith(f"{PREFIX}sasl."))
    if idle:
        reason = f"needs {BEARER}, which {idle[0]} is about"
        raise ConfigError("moldau.http.authentication", None, reason)
    return None


def http_tokens(config: NodeConfig, clock: Clock) -> SignedTokens:
    """What checks tokens: by `moldau.http.sasl.…`, and what is not set there as on the other
    listeners. Blocks: reads files. Raises: ConfigError.
    """

    def value(key: str) -> Any:
        own = config.get(PREFIX + key)
        return config[key] if own is None else own

    if value(URL_KEY) is None:
        reason = f"BEARER needs it, or {URL_KEY}, to check the signatures of tokens"
        raise ConfigError(PREFIX + URL_KEY, None, reason)
    mechanism, jaas_key = "OAUTHBEARER", f"{PREFIX}sasl.jaas.config"
    jaas = config[jaas_key]
    module = checked_login_module(jaas_key, None if jaas is None else jaas.value, mechanism)
    settings = MechanismConfig(mechanism, value, module, clock, "the HTTP listener", jaas_key)
    return signed_tokens(settings, ("moldau.http.authentication", BEARER))


def _contexts(config: NodeConfig) -> ListenerContexts | None:
    settings = listener_tls_settings(
        config.__getitem__,
        config.explicit.__contains__,
        client_auth=config[f"{PREFIX}ssl.client.auth"],
        prefix=PREFIX,
    )
    if not settings.own.is_given:
        idle = sorted(name for name in config.explicit if name.startswith(f"{PREFIX}ssl."))
        if idle:
            raise ConfigError(
                f"{PREFIX}ssl.keystore.location",
                None,
                f"is needed for TLS, which {idle[0]} is about",
            )
        return None
    try:
        return ListenerContexts(settings, LISTENER_NAME)
    except SecuritySettingError as error:
        raise ConfigError("moldau.http.listener", None, str(error)) from None


class Authority(NamedTuple):
    """Where access is decided.

    Attributes:
        authorizer: gives it; None while the node is starting.
        loop: gives the one that it lives on, once there is an authorizer.
        image: gives the newest one, which has the users of SCRAM; in any thread.
    """

    authorizer: Callable[[], Authorizer | None]
    loop: Callable[[], asyncio.AbstractEventLoop]
    image: Callable[[], MetadataImage]


async def _first_keys(keys: KeySource) -> None:
    # It has been logged, and tokens are refused until there are keys; other ways in stay open.
    with contextlib.suppress(ConfigError):
        await keys.start()


class HttpAccess:
    """Lets requests in or refuses them; on the HTTP thread's loop."""

    def __init__(self, security: HttpSecurity, authority: Authority) -> None:
        self._security = security
        self._authority = authority
        self._asked = asyncio.Semaphore(MAX_ASKED)
        clock = SystemClock()
        self._log = AuthenticationLog(clock, security.max_log_lines)
        self._passwords = PasswordChecks(authority.image, clock.monotonic_ms)
        contexts = self.contexts = security.contexts
        keys = None if security.tokens is None else security.tokens.keys
        self.provider_context = None if keys is None else keys.context
        self.max_log_lines = security.max_log_lines
        self.handshakes = None if contexts is None else HttpHandshakes(contexts, self._log)
        self._keys_tried: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to fetch the keys of tokens; only clients with tokens wait for the first try."""
        if self._security.tokens is not None:
            self._keys_tried = asyncio.create_task(_first_keys(self._security.tokens.keys))

    async def close(self) -> None:
        """Write what is due and end the thread."""
        if self._security.tokens is not None:
            await self._security.tokens.keys.close()
        if self._keys_tried is not None:
            await asyncio.wait((self._keys_tried,))
        self._log.close()
        self._passwords.close()

    def is_open(self, path: str) -> bool:
        """Whether every client may read the page."""
        return path in self._security.open_paths

    async def allowed_topics(self, sender: Sender, names: list[str]) -> list[str]:
        """Those of the topics that the sender may describe; the others are only left out."""
        describe = Operation.DESCRIBE

        def ask() -> list[str]:
            return [n for n in names if sender.authorized_topic(describe, n, logs_denied=False)]

        return await self._on_its_loop(ask)

    async def sender(self, request: web.Request) -> Sender:
        """Who asks. Raises: HttpRefused."""
        host = canonical_address(request.remote or "")
        authorizer = self._authority.authorizer()
        if authorizer is None:
            raise HttpRefused(503, "the node is starting")
        user = await self._user(request, host)
        if user is not None and self._security.is_reserved(user):
            self._log.failed(LISTENER_NAME, host, reserved(user))
            await asyncio.sleep(self._security.refusal_delay_s)
            raise HttpRefused(403, reserved(user))
        principal = ANONYMOUS if user is None else f"User:{user}"
        return Sender(principal, authorizer, client_host=host, listener_name=LISTENER_NAME)

    async def require(
        self,
        sender: Sender,
        operation: Operation,
        resource_type: ResourceType = ResourceType.CLUSTER,
        resource_name: str = CLUSTER_RESOURCE_NAME,
    ) -> None:
        """Raises: HttpRefused, unless the sender may do this."""
        if not await self.may(sender, operation, resource_type, resource_name):
            what = "the cluster" if resource_type is ResourceType.CLUSTER else resource_name
            name = operation.name.title().replace("_", "")
            raise HttpRefused(403, f"{sender.principal} may not {name} {what}")

    async def may(
        self, sender: Sender, operation: Operation, resource_type: ResourceType, resource_name: str
    ) -> bool:
        """Whether the sender may do this; a denial is logged."""
        ask = partial(sender.authorized, operation, resource_type, resource_name)
        return await self._on_its_loop(ask)

    async def _on_its_loop(self, ask: Callable[[], Result]) -> Result:
        authorizer = self._authority.authorizer()
        if authorizer is not None and authorizer.log is None:
            return ask()  # it has no rules, and is the same on every loop
        async with self._asked:
            try:
                async with asyncio.timeout(DECISION_TIMEOUT_S):
                    return await call_on(self._authority.loop(), ask)
            except TimeoutError:
                raise HttpRefused(503, "the node is busy") from None

    async def _user(self, request: web.Request, host: str) -> str | None:
        """The user's name; None for a client that need not have one."""
        methods = self._security.methods
        header = request.headers.get("Authorization")
        if header is not None and methods:
            scheme, _, value = header.partition(" ")
            if BEARER in methods and scheme.lower() == "bearer":
                return await self._user_by_token(value.strip(), host)
            if BASIC in methods and scheme.lower() == "basic":
                return await self._user_by_password(value.strip(), host)
            known = " or ".join(method.title() for method in methods)
            self._unusable(host, f"another scheme than {known}")
        name = self._user_by_certificate(request, host)
        if name is None and methods:
            raise self._unauthorized()
        return name

    def _unusable(self, host: str, why: str) -> NoReturn:
        self._log.failed(LISTENER_NAME, host, f"the Authorization header is unusable: {why}")
        raise self._unauthorized() from None

    def _unauthorized(self) -> HttpRefused:
        """Who are you? A client that shows nothing gets no error (RFC 6750, section 3.1)."""
        methods = self._security.methods
        needed = " or ".join(_NEEDED[method] for method in methods)
        challenges = (("WWW-Authenticate", CHALLENGES[method]) for method in methods)
        return HttpRefused(401, f"needed: {needed}", *challenges)

    async def _user_by_token(self, token: str, host: str) -> str:
        tokens = self._security.tokens
        assert tokens is not None, "made with BEARER"
        if not token:
            self._unusable(host, "no token in it")
        if self._keys_tried is not None:
            await asyncio.wait((self._keys_tried,))
        try:
            if TOKEN.fullmatch(token) is None:
                raise TokenRefused("the token has characters that no token has")
            return tokens(token).name
        except TokenRefused as refused:
            self._log.failed(LISTENER_NAME, host, f"Bearer: {refused}")
        await asyncio.sleep(self._security.refusal_delay_s)
        raise HttpRefused(401, _WRONG_TOKEN, ("WWW-Authenticate", _INVALID_TOKEN))

    async def _user_by_password(self, encoded: str, host: str) -> str:
        try:
            text = canonical_base64(encoded).decode()
        except ValueError:
            self._unusable(host, "not Base64 of UTF-8")
        name, colon, password = text.partition(":")
        if not colon or not name:
            self._unusable(host, "no name and password in it")
        try:
            if await self._passwords.is_right(name, password, host):
                return name
        except TooManyTries:
            self._log.failed(LISTENER_NAME, host, "passwords are tried too often")
            raise HttpRefused(
                429, "too many passwords are tried; try again later", ("Retry-After", "1")
            ) from None
        self._log.failed(LISTENER_NAME, host, f"the name {name!r} or its password is wrong")
        await asyncio.sleep(self._security.refusal_delay_s)
        raise HttpRefused(401, _WRONG, ("WWW-Authenticate", CHALLENGES[BASIC]))

    def _user_by_certificate(self, request: web.Request, host: str) -> str | None:
        transport = request.transport
        tls = None if transport is None else transport.get_extra_info("ssl_object")
        certificate = None if tls is None else tls.getpeercert(binary_form=True)
        if certificate is None:
            return None
        try:
            return self._security.mapping.user_name(subject_name(certificate))
        except NoMatchingRule as error:
            self._log.failed(LISTENER_NAME, host, str(error))
            raise HttpRefused(401, "the certificate's name is mapped to no user") from None


class _Handshake:
    """One that takes a place."""

    is_busy = False

    def __init__(self, host: str, task: asyncio.Task[None], log: AuthenticationLog) -> None:
        self.host = host
        self.since_s = asyncio.get_running_loop().time()
        self._task = task
        self._log = log

    def give_up(self) -> None:
        self._log.failed(LISTENER_NAME, self.host, "too many TLS handshakes at once")
        self._task.cancel()


class HttpHandshakes:
    """Implements `moldau.runtime.network.Handshakes` for the HTTP listener."""

    timeout_ms = HANDSHAKE_MS

    def __init__(self, contexts: ListenerContexts, log: AuthenticationLog) -> None:
        self._contexts = contexts
        self._log = log
        self._places: Places[_Handshake] = Places(MAX_HANDSHAKES, MAX_HANDSHAKES_PER_HOST)

    async def context(self) -> ssl.SSLContext:
        return await self._contexts.current()

    def begin(self, host: str, handshake: asyncio.Task[None]) -> bool:
        began = _Handshake(host, handshake, self._log)
        self._places.take(began)
        handshake.add_done_callback(lambda _: self._places.leave(began))
        return True

    def end(self, host: str, error: OSError | None, *, is_late: bool) -> None:
        if is_late:
            self._log.failed(LISTENER_NAME, host, f"no TLS handshake within {HANDSHAKE_MS:.0f} ms")
        elif isinstance(error, ssl.SSLError):
            self._log.failed(LISTENER_NAME, host, handshake_problem(error))
