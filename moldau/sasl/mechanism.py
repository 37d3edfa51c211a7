"""What both sides of a SASL mechanism are, and how one is found by its name.

A mechanism's package has two functions: `login` gives the `SaslLogin` with which this process logs
in, `offer` the `Offer` of a listener, whose `ServerExchange` serves one authentication. Both may
block, as they read files, and complain of settings that cannot work. To add a mechanism: its
package here, and its row in `config.mechanisms`. Invariants: no secret is in a `repr` or in the
text of an error; what a client reads of a refusal does not depend on which part of its credentials
is wrong.
"""

from __future__ import annotations

import random
import ssl
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol, TypeAlias

from moldau.config.definition import ConfigError
from moldau.config.mechanisms import MECHANISMS
from moldau.protocol.scram import KnownKeys
from moldau.runtime.authentication import SecuritySettingError
from moldau.runtime.clock import Clock
from moldau.sasl.jaas import JaasEntry, parse_jaas
from moldau.sasl.login import SaslLogin, Value

if TYPE_CHECKING:
    from moldau.sasl.oauthbearer.jwks import KeySource

OTHER_AUTHORIZATION_ID: Final = "a client may only act as the user that it authenticates as"
HANDLER_KEY: Final = "sasl.server.callback.handler.class"


class SaslRefused(Exception):
    """The client is not authenticated.

    Attributes:
        told: what the client reads; None for a sentence that leaves open what is wrong.
        is_passing: whether the client may succeed when it comes again as it is: its connection ends
            without an answer, which clients take for a fault of the network.
    """

    def __init__(self, reason: str, told: str | None = None, *, is_passing: bool = False) -> None:
        """`reason` is for the log: it may name the user, and never holds a secret."""
        super().__init__(reason)
        self.told = told
        self.is_passing = is_passing


Wait: TypeAlias = Callable[[Callable[[], bool]], Awaitable[bool]]
"""Waits for what a step needs; it may be left out once the argument says that the client is gone.
False: too many wait already.
"""


class Postponed(Exception):
    """A step needs what is made beside the event loop. The session is as it was, and the step is
    taken again with the same token after `wait`.
    """

    def __init__(self, wait: Wait) -> None:
        super().__init__("the step has to wait")
        self.wait = wait


class Accepted(NamedTuple):
    """The client has proved its name.

    Attributes:
        answer: the last bytes to the client.
        left_ms: for how long the proof is good (a token's rest of life); None without an end.
        is_token: whether the proof is a delegation token.
    """

    user: str
    answer: bytes = b""
    left_ms: float | None = None
    is_token: bool = False


class ServerExchange(Protocol):
    """One authentication on the listener's side, step by step."""

    def step(self, token: bytes) -> bytes | Accepted:
        """What to send next, or who the client is.

        Raises:
            SaslRefused: the credentials are wrong, or the token breaks the mechanism's rules.
            Postponed: the step needs what does not exist yet.
        """


FindKeys: TypeAlias = Callable[[str, str, bool], KnownKeys]
"""The keys for a mechanism (first) of a user (second), or where the third argument is true of a
delegation token by its id; those of what does not exist are invented. Raises: Postponed: a token's
keys are not made yet.
"""


class Offer(NamedTuple):
    """A mechanism that a listener offers.

    Attributes:
        begin: makes the object for one authentication.
        max_session_ms: `connections.max.reauth.ms`; 0 or less for sessions without an end.
        keys: those of tokens, to be kept up to date while the listener is open; None without any.
    """

    begin: Callable[[], ServerExchange]
    max_session_ms: float = 0.0
    keys: KeySource | None = None


@dataclass(frozen=True, slots=True)
class MechanismConfig:
    """How one side of a mechanism is configured.

    Attributes:
        login_module: of `sasl.jaas.config`; None without one.
        place: whose settings these are, for errors ("listener OUTSIDE"); "" for a client.
        jaas_key: the whole name of `sasl.jaas.config`.
        dice: for a login's times.
        context: of a client: makes its TLS context.
        is_named: whether the settings name the mechanism, which is Kafka's default otherwise.
        find_keys: of a listener: the users of SCRAM.
    """

    mechanism: str
    value: Value
    login_module: JaasEntry | None
    clock: Clock
    place: str = ""
    jaas_key: str = "sasl.jaas.config"
    dice: random.Random = field(default_factory=random.Random)
    context: Callable[[], ssl.SSLContext] | None = None
    is_named: bool = True
    find_keys: FindKeys | None = None

    @property
    def options(self) -> Mapping[str, str]:
        """The login module's."""
        return {} if self.login_module is None else self.login_module.options

    def name_and_password(self) -> tuple[str, str]:
        """What this process logs in with. Raises: SecuritySettingError."""
        name, password = self.value("sasl.username"), self.value("sasl.password")
        if self.login_module is not None:
            if name is not None or password is not None:
                raise SecuritySettingError(
                    "sasl.jaas.config excludes sasl.username and sasl.password: give one or the "
                    "other"
                )
            name, password = self.options.get("username"), self.options.get("password")
        if name and password:
            return name, password
        if self.place:
            raise SecuritySettingError(
                "needs username and password, with which this node logs in to the others"
            )
        raise SecuritySettingError(
            f"sasl.mechanism={self.mechanism} needs sasl.username and sasl.password, or a "
            "sasl.jaas.config with username and password"
        )

    def refuse_plug_ins(self) -> None:
        """Raises: ConfigError: the listener is to have one."""
        handler = self.value(HANDLER_KEY)
        if handler is not None:
            reason = f"{self.place}: server-side plug-ins are not served for {self.mechanism}"
            raise ConfigError(HANDLER_KEY, handler, reason)


def login_module_of(text: str | None, mechanism: str) -> JaasEntry | None:
    """The login module of a `sasl.jaas.config`, which must be the mechanism's. Raises:
    SecuritySettingError: the text is shown nowhere, since it holds secrets.
    """
    if text is None:
        return None
    entry, wanted = parse_jaas(text), MECHANISMS[mechanism].login_module
    if entry.module != wanted:
        raise SecuritySettingError(f"{mechanism} needs {wanted}")
    return entry


def login(config: MechanismConfig) -> SaslLogin:
    """What this process logs in with. Blocks. Raises: SecuritySettingError, ConfigError."""
    made: SaslLogin = _family(config).login(config)
    return made


def offer(config: MechanismConfig) -> Offer:
    """What a listener offers. Blocks. Raises: ConfigError."""
    made: Offer = _family(config).offer(config)
    return made._replace(max_session_ms=float(config.value("connections.max.reauth.ms")))


def _family(config: MechanismConfig) -> Any:
    return import_module(f"moldau.sasl.{MECHANISMS[config.mechanism].family}")
