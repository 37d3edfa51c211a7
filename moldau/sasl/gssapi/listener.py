"""The listener's side of GSSAPI, from the node's configuration.

Owns the meaning of the `sasl.kerberos.*` keys of listeners, and the way of the library's errors to
the log. Must not contact a KDC: a listener needs its keytab alone. Invariant: settings that cannot
work are a `ConfigError` when the node starts.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

from moldau.config.definition import ConfigError
from moldau.runtime.aside import Aside
from moldau.runtime.authentication import SecuritySettingError
from moldau.sasl.gssapi.core import GssapiServer
from moldau.sasl.gssapi.library import (
    EXAMPLE,
    MODULE,
    SERVICE_NAME_KEY,
    AcceptedContext,
    KerberosError,
    accepting,
    default_realm,
    is_true,
    library,
    service_name_of,
)
from moldau.sasl.gssapi.local_names import LocalNames, LocalRuleError
from moldau.sasl.mechanism import Accepted, MechanismConfig, Offer, Postponed, SaslRefused

SLOW_STEP_MS: Final = 30_000.0
"""How long a step may take: the library reads the keytab and writes its replay cache."""

RULES_KEY: Final = "sasl.kerberos.principal.to.local.rules"


class AsideExchange:
    """One exchange, whose errors of the library are refusals. Each step is taken beside the event
    loop while it is postponed, and its result given when it is taken again.
    """

    __slots__ = ("_aside", "_exchange", "_result")

    def __init__(self, exchange: GssapiServer, aside: Aside) -> None:
        self._exchange = exchange
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


def offer(config: MechanismConfig) -> Offer:
    """Blocks: reads the keytab. Raises: ConfigError: also when the package is missing."""
    key, options = config.jaas_key, config.options
    if config.login_module is None:
        default = ", Kafka's default of sasl.enabled.mechanisms"
        raise ConfigError(key, None, f"is needed for {config.mechanism}{default}: {EXAMPLE}")
    principal = options.get("principal")
    if not is_true(options, "useKeyTab") or not principal:
        reason = f"{MODULE} of a listener needs useKeyTab=true and principal: {EXAMPLE}"
        raise ConfigError(key, None, reason)
    rules = config.value(RULES_KEY)
    try:
        library()
        service_name_of(options, config.value(SERVICE_NAME_KEY))
        names = LocalNames(rules, default_realm())
        credentials = accepting(options.get("keyTab"), principal)
    except LocalRuleError as error:
        raise ConfigError(RULES_KEY, ",".join(rules), f"{config.place}: {error}") from None
    except SecuritySettingError as error:
        raise ConfigError(key, None, str(error)) from None
    except KerberosError as error:
        keytab = options.get("keyTab", "the default keytab")
        raise ConfigError(key, None, f"{principal} in {keytab}: {error}") from None
    aside = Aside(f"moldau-kerberos-{config.place.removeprefix('listener ')}", SLOW_STEP_MS)

    def begin() -> AsideExchange:
        return AsideExchange(GssapiServer(AcceptedContext(credentials), names), aside)

    return Offer(begin)
