"""What the shell may complete: topics, groups, brokers, transactional ids and profiles.

Owns the questions to the cluster that is on the line. Invariants: whatever goes wrong, nothing is
printed and nothing is completed; the answer comes within QUESTION_MS, with at most MOST_WORDS.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterable
from typing import TYPE_CHECKING, Final

import typer

if TYPE_CHECKING:
    from moldau import client

QUESTION_MS: Final = 1_000
MOST_WORDS: Final = 500
_PLAIN: Final = re.compile(r"[\w@%+=:,./-]+")


def complete_topics(context: typer.Context, incomplete: str) -> list[str]:
    """Names of topics; internal ones when their underscores are typed."""
    internal = incomplete.startswith("_")

    async def names(admin: client.Admin) -> Iterable[str]:
        return await admin.list_topics(include_internal=internal)

    return _asked(context, incomplete, names)


def complete_groups(context: typer.Context, incomplete: str) -> list[str]:
    """Ids of groups."""

    async def names(admin: client.Admin) -> Iterable[str]:
        return [each.group_id for each in await admin.list_groups()]

    return _asked(context, incomplete, names)


def complete_brokers(context: typer.Context, incomplete: str) -> list[str]:
    """Ids of brokers."""

    async def names(admin: client.Admin) -> Iterable[str]:
        return [str(each.node_id) for each in (await admin.describe_cluster()).brokers]

    return _asked(context, incomplete, names)


def complete_transactional_ids(context: typer.Context, incomplete: str) -> list[str]:
    """Transactional ids."""

    async def names(admin: client.Admin) -> Iterable[str]:
        return [each.transactional_id for each in await admin.list_transactions()]

    return _asked(context, incomplete, names)


def complete_profiles(incomplete: str) -> list[str]:
    """Names of profiles."""
    from moldau.cli.profile_files import profile_names

    return _beginning(profile_names(), incomplete)


def _beginning(words: Iterable[str], incomplete: str) -> list[str]:
    """Words that no shell takes for anything else: names of groups may have any character."""
    found = {each for each in words if each.startswith(incomplete) and _PLAIN.fullmatch(each)}
    return sorted(found)[:MOST_WORDS]


def _asked(
    context: typer.Context, incomplete: str, ask: Callable[[client.Admin], Awaitable[Iterable[str]]]
) -> list[str]:
    import asyncio
    import contextlib
    import io
    import logging

    from moldau import client
    from moldau.cli.client_settings import client_properties
    from moldau.schema_registry.settings import take_registry_settings

    logging.disable(logging.CRITICAL)
    given = context.params
    shown = io.StringIO()
    try:
        with contextlib.redirect_stderr(shown):
            settings = client_properties(
                *map(given.get, ("bootstrap_server", "command_config", "properties")),
                profile=given.get("profile"),
            )
            take_registry_settings(settings)
            limits = {"request_timeout_ms": QUESTION_MS, "default_api_timeout_ms": QUESTION_MS}
            config = client.AdminConfig.resolve(None, settings, limits)

            async def question() -> Iterable[str]:
                async with asyncio.timeout(QUESTION_MS / 1_000):
                    async with client.Admin(config=config) as admin:
                        return await ask(admin)

            return _beginning(asyncio.run(question()), incomplete)
    except (client.KafkaError, OSError, RuntimeError, ValueError, SystemExit):
        return []
    finally:
        logging.disable(logging.NOTSET)
