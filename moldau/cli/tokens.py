"""`moldau tokens`: delegation tokens, with which clients log in for a while (KIP-48).

A token's secret is shown once, by `create`. Renewing and expiring take the token's id: the secret
is never on the command line, where other processes and the shell's history would see it.
"""

from __future__ import annotations

import datetime
from base64 import b64encode
from typing import Annotated

import typer

from moldau.cli.asking import Yes, ask_first, refuse_unknown
from moldau.cli.options import AsJson, ClusterAccess
from moldau.cli.output import fail, print_json, print_rows, say
from moldau.client.admin.security import DelegationToken, SecurityCalls

app = typer.Typer()
COLUMNS = ["id", "owner", "requester", "renewers", "issued", "expires", "ends"]
TokenId = Annotated[str, "The token's id, as list shows it."]


@app.command("create")
def create(
    access: ClusterAccess,
    owner: Annotated[str | None, "--owner User:NAME", "For this user; by default your own."] = None,
    renewer: Annotated[
        list[str] | None, "--renewer User:NAME", "Who may renew it; may be repeated."
    ] = None,
    max_lifetime_ms: Annotated[int, "No renewal beyond it; -1: the brokers' own."] = -1,
    as_json: AsJson = False,
) -> None:
    """Make a token and show its secret, which is the password of its id."""
    for principal in [*(renewer or []), *([owner] if owner else [])]:
        if not principal.startswith("User:") or principal == "User:":
            fail(f"{principal}: a principal is User:NAME", status=2)

    token = access.ask(
        SecurityCalls,
        lambda admin: admin.create_delegation_token(
            renewers=renewer or [], max_lifetime_ms=max_lifetime_ms, owner=owner
        ),
    )
    if as_json:
        print_json({**_row(token), "secret": _secret(token)})
        return
    say(f"token {token.token_id} of {token.owner} lasts until {_time(token.expires_at_ms)}")
    say(f"its secret: {_secret(token)}")


@app.command("list")
def list_tokens(
    access: ClusterAccess,
    owner: Annotated[
        list[str] | None, "--owner User:NAME", "Of this user; may be repeated."
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show the tokens that you may see, without their secrets."""

    found = access.ask(SecurityCalls, lambda admin: admin.describe_delegation_tokens(owner))
    found.sort(key=lambda token: token.issued_at_ms)
    print_rows(COLUMNS, [_row(each) for each in found], as_json=as_json)


@app.command("renew")
def renew(
    access: ClusterAccess,
    token_id: TokenId,
    period_ms: Annotated[int, "From now on; -1: the brokers' own."] = -1,
) -> None:
    """Let a token last longer."""
    with access.asking(SecurityCalls) as (admin, loop):
        token = loop.run(_found(admin, token_id))
        ends_ms = loop.run(admin.renew_delegation_token(token.hmac, renew_period_ms=period_ms))
    say(f"token {token_id} lasts until {_time(ends_ms)}")


@app.command("expire")
def expire(
    access: ClusterAccess,
    token_id: TokenId,
    period_ms: Annotated[int, "End it so many ms from now; at once by default."] = -1,
    yes: Yes = False,
) -> None:
    """End a token. Connections that came with it stay until their sessions end."""
    with access.asking(SecurityCalls) as (admin, loop):
        token = loop.run(_found(admin, token_id))
        if period_ms <= 0:  # until another end it can be renewed
            ask_first(f"end token {token_id} of {token.owner} for all that log in with it", yes=yes)
        ends_ms = loop.run(admin.expire_delegation_token(token.hmac, expiry_period_ms=period_ms))
    say(
        f"token {token_id} has ended"
        if period_ms < 0
        else f"token {token_id} lasts until {_time(ends_ms)}"
    )


async def _found(admin: SecurityCalls, token_id: str) -> DelegationToken:
    tokens = {each.token_id: each for each in await admin.describe_delegation_tokens()}
    refuse_unknown("token that you may see", [token_id], tokens)
    return tokens[token_id]


def _row(token: DelegationToken) -> dict[str, object]:
    return {
        "id": token.token_id,
        "owner": token.owner,
        "requester": token.requester,
        "renewers": ", ".join(token.renewers),
        "issued": _time(token.issued_at_ms),
        "expires": _time(token.expires_at_ms),
        "ends": _time(token.max_lifetime_end_ms),
    }


def _secret(token: DelegationToken) -> str:
    return b64encode(token.hmac).decode()


def _time(at_ms: int) -> str:
    """ISO 8601 in UTC; later times than Python knows as a number."""
    try:
        at = datetime.datetime.fromtimestamp(at_ms / 1000, datetime.UTC)
    except (ValueError, OverflowError, OSError):
        return str(at_ms)
    return at.isoformat(timespec="seconds").replace("+00:00", "Z")
