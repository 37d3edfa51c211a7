"""How one listener accepts clients by Kerberos, from the node's configuration.

Owns the meaning of the `sasl.kerberos.*` keys of listeners, and the way of the library's errors to
the log. Must not contact a KDC: a listener needs its keytab alone. Invariant: settings that cannot
work are a `ConfigError` when the node starts.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

from moldau.config import NodeConfig
from moldau.config.definition import ConfigError
from moldau.runtime.authentication import SecuritySettingError
from moldau.runtime.authentication.aside import Aside
from moldau.runtime.authentication.jaas import JaasEntry
from moldau.runtime.authentication.kerberos import (
    EXAMPLE,
    MECHANISM,
    MODULE,
    Acceptor,
    KerberosError,
    check_package,
    default_realm,
    is_true,
    service_name_of,
)
from moldau.server.authentication.core.gssapi import Gssapi
from moldau.server.authentication.core.kerberos_names import LocalNames, LocalRuleError
from moldau.server.authentication.core.mechanism import (
    Accepted,
    Mechanism,
    Postponed,
    SaslRefused,
)

SLOW_STEP_MS: Final = 30_000.0
"""How long a step may take: the library reads the keytab and writes its replay cache."""

RULES_KEY: Final = "sasl.kerberos.principal.to.local.rules"


class KerberosMechanism:
    """One exchange, whose errors of the library are refusals. Each step is taken beside the event
    loop while it is postponed, and its result given when it is taken again.
    """

    __slots__ = ("_aside", "_exchange", "_result")

    def __init__(self, acceptor: Acceptor, names: LocalNames, aside: Aside) -> None:
        self._exchange = Gssapi(acceptor.context, names)
        self._aside = aside
        self._result: bytes | Accepted | SaslRefused | None = None

    def step(self, token: bytes) -> bytes | Accepted:
        result, self._result = self._result, None
        if result is None:
            raise Postponed(partial(self._take, token))
        if isinstance(result, SaslRefused):
            raise result
        return result

    async def _take(self, token: bytes, is_gone: Callable[[], bool]) -> bool:
        try:
            self._result = await self._aside(self._exchange.step, token)
        except SaslRefused as refusal:
            self._result = refusal
        except KerberosError as error:
            self._result = SaslRefused(str(error), is_passing=error.is_passing)
        except TimeoutError:
            reason = "the mechanism has not come to an end in time"
            self._result = SaslRefused(reason, is_passing=True)
        return True


def kerberos_beginner(
    config: NodeConfig, listener_name: str, key: str, entry: JaasEntry | None
) -> Callable[[], Mechanism]:
    """What makes the object for one client's authentication. Blocks: reads the keytab.

    Args:
        key: names the login module in errors.
        entry: the listener's login module.

    Raises:
        ConfigError: the settings cannot work, or the package is missing.
    """

    def value(name: str) -> object:
        return config.listener_value(listener_name, name, MECHANISM)

    if entry is None:
        default = ", Kafka's default of sasl.enabled.mechanisms"
        raise ConfigError(key, None, f"is needed for {MECHANISM}{default}: {EXAMPLE}")
    options = entry.options
    principal = options.get("principal")
    if not is_true(options, "useKeyTab") or not principal:
        reason = f"{MODULE} of a listener needs useKeyTab=true and principal: {EXAMPLE}"
        raise ConfigError(key, None, reason)
    rules = config.listener_value(listener_name, RULES_KEY, MECHANISM)
    try:
        check_package()
        configured = value("sasl.kerberos.service.name")
        service_name_of(options, None if configured is None else str(configured))
        names = LocalNames(rules, default_realm())
        acceptor = Acceptor(options.get("keyTab"), principal)
    except LocalRuleError as error:
        raise ConfigError(
            RULES_KEY, ",".join(rules), f"listener {listener_name}: {error}"
        ) from None
    except SecuritySettingError as error:
        raise ConfigError(key, None, str(error)) from None
    except KerberosError as error:
        keytab = options.get("keyTab", "the default keytab")
        raise ConfigError(key, None, f"{principal} in {keytab}: {error}") from None
    aside = Aside(f"moldau-kerberos-{listener_name}", SLOW_STEP_MS)
    return partial(KerberosMechanism, acceptor, names, aside)
