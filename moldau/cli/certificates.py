"""`moldau certificates`: those of a cluster that was made with `--secure`.

Owns the commands. Must not sign certificates (`local.certificate_authority` does), nor restart a
node: nodes read a key store again by themselves when its file changes.
"""

from __future__ import annotations

import datetime
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from moldau.cli.asking import Yes, ask_first
from moldau.cli.nearby import nearby
from moldau.cli.output import fail, print_json, print_table, say, warn
from moldau.cli.parameters import Within
from moldau.config.principals import RESERVED_NAMES
from moldau.local.layout import HOMES
from moldau.local.secure_files import (
    CLIENTS,
    KEY_STORE,
    NODES,
    SecureFiles,
    authority_name,
    hosts_of,
)

if TYPE_CHECKING:
    from moldau.local.certificate_authority import CertificateAuthority, CertificateSummary

app = typer.Typer()

Directory = Annotated[Path, "DIR", "Where --secure has made the cluster."]
Days = Annotated[int | None, Within(1, 3650), "How long it is valid (365)."]
COLUMNS: Final = ["name", "expires", "days_left", "subject"]
DETAILS: Final = [*COLUMNS, "signed_by", "hosts", "location"]
SOON_DAYS: Final = 30
"""From when on `show` says what to do, as nodes do by default."""
NAME: Final = re.compile(r"[A-Za-z0-9._-]{1,64}")
RESERVED: Final = ("admin", "ca", "node", *sorted(RESERVED_NAMES))
MADE: Final = "certificates"
"""The directory of those that `create` has made."""


@app.callback()
def certificates() -> None:
    """Show and renew a cluster's certificates, make new ones, replace who signs."""


@app.command("show")
def show(
    directory: Directory,
    details: Annotated[bool, "Also who signed each, its hosts and its file."] = False,
    as_json: Annotated[bool, "--json", "Print JSON."] = False,
) -> None:
    """List a cluster's certificates, with the days left."""
    files = SecureFiles(directory)
    with _complaints():
        from moldau.local.certificate_authority import summaries_of, summary_of

        _authority(files)  # says it when this is no such cluster
        # While the authority is replaced, there are two.
        authorities = [_row(directory, each) for each in summaries_of(files.trust)]
        signed = [_row(directory, summary_of(path)) for path in _stores(files)]
    rows = [*authorities, *signed]
    if as_json:
        print_json(rows)
        return
    columns = DETAILS if details else COLUMNS
    header = [name.replace("_", " ") for name in columns]
    print_table(header, ([row[name] for name in columns] for row in rows))
    place = shlex.quote(str(directory))
    _say_what_expires(authorities, f"moldau certificates rotate-authority {place}")
    _say_what_expires(signed, f"moldau certificates renew {place}")


@app.command("renew")
def renew(
    directory: Directory,
    names: Annotated[list[str] | None, "[NAME]...", "As `show` has them."] = None,
    days: Days = None,
) -> None:
    """Give nodes and clients new keys and certificates.

    Nodes that run show them to the next connection. Connections that are open keep the old ones.
    """
    files = SecureFiles(directory)
    with _complaints():
        authority = _authority(files)
        for path in _named(files, names) if names else _stores(files):
            renewed = authority.renew(path, **_valid(days))
            name = _name_of(directory, path)
            say(f"{name}: {renewed.subject}, until {renewed.expires_at:%Y-%m-%d}")


@app.command("rotate-authority")
def rotate_authority(directory: Directory, days: Days = None, yes: Yes = False) -> None:
    """Replace the certificate authority, one step each time.

    Run it three times: the new authority is trusted beside the old one; it signs
    every certificate; the old one is forgotten. Nodes that run follow at once. A
    step that was interrupted goes on when the command is run again. The last step
    says `done`: one run more begins with the next authority.
    """
    files = SecureFiles(directory)
    with _complaints():
        from moldau.local.certificate_authority import AuthorityRotation, summaries_of

        _authority(files)
        rotation = AuthorityRotation(files.authority, _stores(files))
        if not rotation.is_trusted:
            rotation.trust_both(authority_name())
            for each in summaries_of(files.trust):
                say(f"trusted: {each.signed_by}, until {each.expires_at:%Y-%m-%d}")
            say(f"next: give {files.trust} to clients that have a copy of it, run it again")
        elif unsigned := rotation.unsigned():
            authority = _authority(files)
            for path in unsigned:
                done = authority.renew(path, **_valid(days))
                name = _name_of(directory, path)
                say(f"{name}: signed by {done.signed_by}, until {done.expires_at:%Y-%m-%d}")
            say("next: give clients that show a certificate the new one, run it again")
        else:
            deed = "forget the old authority: clients that trust it alone connect no more"
            ask_first(deed, yes=yes, scripts_go_on=True)
            rotation.forget_the_old()
            [left] = summaries_of(files.trust)
            say(f"trusted: {left.signed_by} alone, until {left.expires_at:%Y-%m-%d}")
            say("done: to run it again replaces this authority, too")


@app.command("create")
def create(
    directory: Directory,
    name: Annotated[str, "The client's user name, or the node's name."],
    node: Annotated[bool, "For a node that joins; it may do all that nodes may."] = False,
    host: Annotated[list[str] | None, "A node's host name or address; may be repeated."] = None,
    days: Days = None,
) -> None:
    """Make a key store for a client, or for a node that joins.

    It is written to DIR/certificates/NAME.pem, with the private key.
    """
    if not NAME.fullmatch(name) or name in RESERVED:
        fail(
            f"{name!r}: letters, digits, '.', '_' and '-', and none of {', '.join(RESERVED)}",
            status=2,
        )
    if bool(host) != node:
        fail("--node and --host go together: clients show a name, nodes are connected to", status=2)
    path = directory / MADE / f"{name}.pem"
    files = SecureFiles(directory)
    with _complaints():
        authority = _authority(files)
        if path.exists():
            fail(f"{path} is there: `moldau certificates renew` replaces it")
        for other in _stores(files):
            if _name_of(directory, other) == name:
                fail(f"{name} is the name of {other}: give it another one", status=2)
        path.parent.mkdir(mode=0o700, exist_ok=True)
        hosts = [each for given in host or () for each in hosts_of(given)]
        unit = NODES if node else CLIENTS
        made = authority.issue(path, name, unit, hosts, **_valid(days))
    say(f"{path}: {made.subject}, until {made.expires_at:%Y-%m-%d}")


def _say_what_expires(rows: Iterable[Mapping[str, Any]], command: str) -> None:
    for has_expired in (True, False):
        names = [
            row["name"]
            for row in rows
            if row["days_left"] < SOON_DAYS and (row["days_left"] < 0) is has_expired
        ]
        if names:
            one = len(names) == 1
            when = f"{'expires' if one else 'expire'} within {SOON_DAYS} days"
            if has_expired:
                when = f"{'has' if one else 'have'} expired"
            warn(f"{', '.join(names)} {when}: {command}")


@contextmanager
def _complaints() -> Iterator[None]:
    """What keeps certificates from being read or made is one line."""
    try:
        from moldau.local.certificate_authority import CertificateError
    except ImportError:
        fail("certificates need the cryptography package: pip install 'moldau[tls]'")
    try:
        yield
    except CertificateError as error:
        fail(str(error))
    except OSError as error:
        fail(f"{error.filename}: {error.strerror or error}")


def _authority(files: SecureFiles) -> CertificateAuthority:
    from moldau.local.certificate_authority import CertificateAuthority

    if not files.trust.exists():
        hint = nearby(str(files.directory), lambda path: SecureFiles(Path(path)).trust.exists())
        fail(f"{files.directory}: no cluster that was made with --secure{hint}")
    return CertificateAuthority.load(files.authority)


def _valid(days: int | None) -> dict[str, int]:
    """The days, where the command names them."""
    return {} if days is None else {"days": days}


def _stores(files: SecureFiles) -> list[Path]:
    """The key stores in a cluster's directory."""
    directory = files.directory
    stores = [*_node_stores(directory), files.admin_certificate, *_made(directory)]
    return [path for path in stores if path.exists()]


def _named(files: SecureFiles, names: Iterable[str]) -> list[Path]:
    """The key stores with these names; fails on a name that none has, or more than one."""
    by_name: dict[str, list[Path]] = {}
    for path in _stores(files):
        by_name.setdefault(_name_of(files.directory, path), []).append(path)
    chosen = []
    for name in dict.fromkeys(names):
        if name not in by_name:
            fail(f"no certificate {name} in {files.directory}: {', '.join(by_name)}", status=2)
        first, *others = by_name[name]
        if others:
            both = " and ".join(map(str, (first, *others)))
            fail(f"{name} is the name of {both}: without names, all are renewed", status=2)
        chosen.append(first)
    return chosen


def _node_stores(directory: Path) -> list[Path]:
    homes = [directory, *(path for pattern in HOMES for path in sorted(directory.glob(pattern)))]
    return [home / KEY_STORE for home in homes if (home / KEY_STORE).exists()]


def _made(directory: Path) -> list[Path]:
    return sorted((directory / MADE).glob("*.pem"))


def _name_of(directory: Path, path: Path) -> str:
    if path.name != KEY_STORE:
        return path.stem
    return "node" if path.parent == directory else path.parent.name


def _row(directory: Path, summary: CertificateSummary) -> dict[str, Any]:
    left = summary.expires_at - datetime.datetime.now(datetime.UTC)
    return {
        "name": _name_of(directory, summary.path),
        "subject": summary.subject,
        "signed_by": summary.signed_by,
        "hosts": ", ".join(summary.hosts),
        "expires": f"{summary.expires_at:%Y-%m-%d}",
        "days_left": left.days,
        "location": str(summary.path),
    }
