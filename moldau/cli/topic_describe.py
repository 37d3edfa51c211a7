"""`moldau topics describe`, once or again and again.

Must not talk to a cluster except through `moldau.client`. Invariant: Ctrl-C ends `--watch` with
status 0 and leaves the terminal as it was.
"""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

import typer

from moldau.cli.cluster_options import (
    DEFAULT_TIMEOUT_MS,
    AsJson,
    BootstrapServer,
    CommandConfig,
    TimeoutMs,
    with_admin,
)
from moldau.cli.live_view import Block, live_view
from moldau.cli.output import fail, print_json, print_table
from moldau.cli.partition_rows import COLUMNS, Only, cells, gather, line
from moldau.cli.partition_targets import resolve_names
from moldau.client import Admin, KafkaError, RequestTimeout

DEFAULT_INTERVAL_S = 2.0
MIN_INTERVAL_S = 0.1
OFFSETS_TIMEOUT_MS = 5_000
"""For each broker's offsets: the description is worth having while one of them does not answer."""

Document = dict[str, Any]


def describe(
    names: Annotated[
        list[str] | None,
        typer.Argument(help="Topics, or regular expressions of names; all when none is named."),
    ] = None,
    under_replicated: Annotated[
        bool,
        typer.Option(Only.UNDER_REPLICATED.value, help="Only with fewer in sync than replicas."),
    ] = False,
    unavailable: Annotated[
        bool, typer.Option(Only.UNAVAILABLE.value, help="Only those without a leader.")
    ] = False,
    under_min_isr: Annotated[
        bool, typer.Option(Only.UNDER_MIN_ISR.value, help="Only below min.insync.replicas.")
    ] = False,
    at_min_isr: Annotated[
        bool, typer.Option(Only.AT_MIN_ISR.value, help="Only exactly at min.insync.replicas.")
    ] = False,
    overrides: Annotated[
        bool,
        typer.Option(Only.OVERRIDES.value, help="Only topics with a configuration of their own."),
    ] = False,
    exclude_internal: Annotated[
        bool, typer.Option("--exclude-internal", help="Leave internal topics out.")
    ] = False,
    watch: Annotated[
        bool, typer.Option("--watch", "-w", help="Again and again, until Ctrl-C.")
    ] = False,
    interval: Annotated[
        float, typer.Option(min=MIN_INTERVAL_S, help="Seconds between two looks with --watch.")
    ] = DEFAULT_INTERVAL_S,
    bootstrap_server: BootstrapServer = None,
    command_config: CommandConfig = None,
    timeout_ms: TimeoutMs = DEFAULT_TIMEOUT_MS,
    as_json: AsJson = False,
) -> None:
    """Show leaders, replicas, who is in sync or behind, watermarks and changed configuration.

    Of replicas, + marks one that is being added and - one that is being removed. "end" is the
    leader's log end, "behind" how many records each replica lacks to it; "-" is not known, or none.
    """
    flags = (under_replicated, unavailable, under_min_isr, at_min_isr, overrides)
    chosen = [each for each, given in zip(Only, flags, strict=True) if given]
    if len(chosen) > 1:
        fail(f"{' and '.join(each.value for each in chosen)} exclude each other", status=2)
    only = chosen[0] if chosen else None
    offsets_timeout_ms = min(timeout_ms, OFFSETS_TIMEOUT_MS)

    async def look(admin: Admin) -> list[Document]:
        wanted = await resolve_names(admin, names, with_internal=not exclude_internal)
        return await gather(admin, wanted, only, timeout_ms=offsets_timeout_ms)

    async def follow(admin: Admin) -> None:
        await _follow(admin, look, interval, as_json)

    if watch:
        try:
            with_admin(bootstrap_server, command_config, timeout_ms, follow)
        except KeyboardInterrupt:
            return
    documents = with_admin(bootstrap_server, command_config, timeout_ms, look)
    if as_json:
        print_json(documents)
        return
    for document in documents:
        typer.echo(_title(document))
        print_table(COLUMNS, (cells(row) for row in document["partitions"]))


async def _follow(admin: Admin, look: Any, interval_s: float, as_json: bool) -> None:
    """Look until somebody ends it; what passes is said and waited for."""
    with live_view(plain=as_json) as view:
        while True:
            try:
                documents = await look(admin)
            except KafkaError as error:
                if not error.retriable and not isinstance(error, RequestTimeout):
                    raise
                view.say(str(error))
            else:
                if as_json:
                    print_json(documents, one_line=True)
                else:
                    view.show([_block(document) for document in documents])
            await asyncio.sleep(interval_s)


def _title(document: Document) -> str:
    shown = ", ".join(f"{key}={value}" for key, value in document["configs"].items())
    return (
        f"{document['name']}  id {document['topic_id']}  "
        f"{document['partition_count']} partitions  {shown}".rstrip()
    )


def _block(document: Document) -> Block:
    rows = document["partitions"]
    return Block(
        _title(document),
        COLUMNS,
        [cells(row) for row in rows],
        {f"{document['name']}-{row['partition']}": line(document["name"], row) for row in rows},
    )
