"""PLAIN (RFC 4616), both sides: a name and a password, with the users of a PlainLoginModule."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from moldau.config.definition import ConfigError
from moldau.runtime.authentication import SecuritySettingError
from moldau.sasl.login import SaslLogin
from moldau.sasl.mechanism import (
    OTHER_AUTHORIZATION_ID,
    Accepted,
    MechanismConfig,
    Offer,
    SaslRefused,
)

WRONG_PASSWORD: Final = "the user name or the password is wrong"
USER_PREFIX: Final = "user_"


class PlainServer:
    """The listener's side.

    Args:
        users: passwords by name.
    """

    __slots__ = ("_users",)

    def __init__(self, users: Mapping[str, str]) -> None:
        self._users = users

    def step(self, token: bytes) -> Accepted:
        parts = token.decode("utf-8", "replace").split("\0", 2)
        if len(parts) != 3:
            raise SaslRefused("the message of PLAIN does not have its three parts")
        authorization_id, name, password = parts
        if not name or not password:
            raise SaslRefused("the name or the password is empty")
        wanted = self._users.get(name)
        # For unknown names too, and whatever the lengths are: they take the same time.
        is_equal = hmac.compare_digest(_hashed(password), _hashed(wanted or ""))
        if wanted is None or not is_equal:
            problem = "there is no such user" if wanted is None else "the password is wrong"
            raise SaslRefused(f"{name!r}: {problem}", WRONG_PASSWORD)
        if authorization_id not in ("", name):
            raise SaslRefused(
                f"{name!r} asked to act as {authorization_id!r}", OTHER_AUTHORIZATION_ID
            )
        return Accepted(name)


def _hashed(password: str) -> bytes:
    return hashlib.sha256(password.encode()).digest()


@dataclass(frozen=True, slots=True)
class PlainLogin(SaslLogin):
    """The client's side, which is the same for every authentication."""

    username: str
    password: str = field(repr=False)

    mechanism = "PLAIN"
    is_complete = True

    def __post_init__(self) -> None:
        for part in (self.username, self.password):
            if not part or "\0" in part:
                raise SecuritySettingError(
                    "PLAIN: a username and a password are needed, both not empty and without NUL"
                )

    async def exchange(self, host: str) -> PlainLogin:
        return self

    def first(self) -> bytes:
        return f"\0{self.username}\0{self.password}".encode()

    def answer(self, challenge: bytes) -> bytes | None:
        return None  # the broker only says yes or no


def login(config: MechanismConfig) -> PlainLogin:
    return PlainLogin(*config.name_and_password())


def offer(config: MechanismConfig) -> Offer:
    config.refuse_plug_ins()
    if config.login_module is None:
        reason = 'is needed: PlainLoginModule required user_NAME="PASSWORD" …;'
        raise ConfigError(config.jaas_key, None, reason)
    return Offer(partial(PlainServer, plain_users(config.options)))


def plain_users(options: Mapping[str, str]) -> dict[str, str]:
    """The passwords by name of a listener's login module."""
    return {
        name.removeprefix(USER_PREFIX): password
        for name, password in options.items()
        if name.startswith(USER_PREFIX)
    }
