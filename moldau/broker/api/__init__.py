"""What answers a broker's requests: from a row of the table of APIs to the module of its handler.

Must not import a handler before its first request (start-up). Invariant: a row names a module of
this package with a `handle` (plain function, answers through its context, now or later; a generator
if a request may have many parts, which yields between them so that others get their turn) or an
`answer` (coroutine that returns the response). What only travels on to the active controller, which
authorises and decides it, has no module of its own: its row says `forwarding`.
"""

from __future__ import annotations

from functools import partial
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING

from moldau.server.api_versions import listener_handlers
from moldau.server.apis import BROKER_APIS, Api
from moldau.server.request_router import Handler, Route

if TYPE_CHECKING:
    from moldau.broker.api.services import BrokerServices


def load_handler_module(api: Api) -> ModuleType:
    return import_module(f"{__package__}.{api.broker}")


def broker_routes(services: BrokerServices) -> dict[int, Route]:
    """The table for a request router; `services` is what handlers work with."""
    own = listener_handlers(
        BROKER_APIS, lambda: services.metadata.image, lambda: services.kraft_version()
    )
    return {
        int(api_key): Route(
            api.min_version,
            api.max_version,
            partial(_load_handler, services, api, own.get(api_key)),
            api.lane,
            budget=api.budget,
        )
        for api_key, api in BROKER_APIS.items()
    }


def _load_handler(services: BrokerServices, api: Api, own: Handler | None) -> Handler:
    if own is not None:
        return own
    module = load_handler_module(api)
    handle, answer = getattr(module, "handle", None), getattr(module, "answer", None)
    return Handler(handle and partial(handle, services), answer and partial(answer, services))
