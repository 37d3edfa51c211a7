"""`moldau profile`: named sets of client properties, one of which commands use.

Must not make a client, or touch files (`profile_files` does). Invariants: a profile has only
properties that a client or a schema registry can have; a secret is shown only when it is asked for.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Final

import typer

from moldau import client
from moldau.cli.asking import Yes, ask_first
from moldau.cli.client_settings import key_values
from moldau.cli.completion import complete_profiles
from moldau.cli.options import AsJson
from moldau.cli.output import fail, file_errors, print_json, print_table, refusing, say, warn
from moldau.cli.profile_files import (
    ENVIRONMENT,
    NO_PROFILE,
    chosen_profile,
    profile_in_use,
    profile_names,
    profile_path,
    read_profile,
    replace_file,
    use_profile,
)
from moldau.config import ConfigError, read_properties_file
from moldau.local.secure_files import properties_text
from moldau.schema_registry.settings import REGISTRY_KEYS, SERIALIZER_KEYS

SERVERS: Final = "bootstrap.servers"
HIDDEN: Final = "[hidden]"
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")

app = typer.Typer()
Name = Annotated[str, complete_profiles, "The profile's name."]
Settings = Annotated[
    list[str] | None, "[KEY[=VALUE]]…", "Client properties; KEY alone asks for a value, unseen."
]


def _save(name: str, properties: Mapping[str, str]) -> None:
    for key, value in properties.items():
        _check(key, value)
    replace_file(profile_path(name), properties_text(dict(sorted(properties.items()))))


def _check(key: str, value: str) -> None:
    """Exits with status 2 for a key that no client has, or a value that it cannot have."""
    if key in (*REGISTRY_KEYS, *SERIALIZER_KEYS):
        return
    from moldau.client.config.settings import check_property

    with refusing(client.ConfigurationError):
        check_property(key, value)


def _is_secret(key: str) -> bool:
    from moldau.client.config.settings import is_secret

    return key.endswith("basic.auth.user.info") or is_secret(key)


def _given(pairs: list[str] | None) -> dict[str, str]:
    """The settings of the arguments; those without a value are asked for."""
    found: dict[str, str] = {}
    for pair in pairs or ():
        if "=" in pair:
            found.update(key_values([pair], "setting"))
        else:
            found[pair] = typer.prompt(pair, hide_input=True, err=True)
    return found


# -- commands --------------------------------------------------------------------------------------


@app.command("list")
def list_profiles(as_json: AsJson = False) -> None:
    """List the profiles, and which one is in use."""
    current = os.environ.get(ENVIRONMENT, profile_in_use())
    rows = [
        {"profile": name, "in_use": name == current, SERVERS: read_profile(name).get(SERVERS)}
        for name in profile_names()
    ]
    if as_json:
        print_json(rows)
        return
    if not rows:
        say("no profiles (`moldau profile create NAME bootstrap.servers=HOST:PORT`)")
        return
    print_table(
        ["profile", "bootstrap servers", "in use"],
        [[row["profile"], row[SERVERS] or "-", "yes" if row["in_use"] else "-"] for row in rows],
    )


@app.command("show")
def show(
    name: Annotated[
        str | None,
        typer.Argument(
            help="The profile's name; without it, the one in use.", autocompletion=complete_profiles
        ),
    ] = None,
    secrets: Annotated[bool, "Show passwords, too."] = False,
    as_json: AsJson = False,
) -> None:
    """Show the properties of a profile."""
    chosen = chosen_profile(name)
    if chosen is None:
        fail("no profile is in use (`moldau profile use NAME`)")
    shown = {
        key: value if secrets or not _is_secret(key) else HIDDEN
        for key, value in sorted(chosen.properties.items())
    }
    if as_json:
        print_json({"profile": chosen.name, "properties": shown})
    else:
        print_table(["property", "value"], [[key, value] for key, value in shown.items()])


@app.command("create")
def create(
    name: Name,
    settings: Settings = None,
    from_file: Annotated[Path | None, "Begin with a file of client properties."] = None,
    use_it: Annotated[bool, "--use", "Use it from now on."] = False,
) -> None:
    """Make a profile."""
    if not _NAME.fullmatch(name) or name == NO_PROFILE:
        fail(f"{name!r}: a name has letters, digits, dots and dashes, and is not none", status=2)
    if name in profile_names():
        fail(f"the profile {name} exists already (`moldau profile set {name} …`)")
    properties: dict[str, str] = {}
    if from_file is not None:
        with refusing(ConfigError):
            properties.update(read_properties_file(str(from_file)))
    _save(name, {**properties, **_given(settings)})
    say(f"created profile {name}")
    if use_it:
        use(name)


@app.command("set")
def set_properties(
    name: Name,
    settings: Settings = None,
    unset: Annotated[list[str] | None, "--unset KEY", "Remove this one; may be repeated."] = None,
) -> None:
    """Change properties of a profile."""
    properties = read_profile(name)
    for key in unset or ():
        if properties.pop(key, None) is None:
            fail(f"the profile {name} has no {key}")
    changes = _given(settings)
    if not changes and not unset:
        fail("give KEY=VALUE, KEY or --unset KEY", status=2)
    _save(name, {**properties, **changes})
    say(f"changed profile {name}")


@app.command("use")
def use(name: Name) -> None:
    """Use a profile from now on; none for no profile."""
    if name != NO_PROFILE:
        read_profile(name)
    use_profile(None if name == NO_PROFILE else name)
    say("no profile is in use" if name == NO_PROFILE else f"using profile {name}")
    override = os.environ.get(ENVIRONMENT)
    if override is not None:
        warn(f"{ENVIRONMENT}={override} in the environment goes before it")


@app.command("delete")
def delete(name: Name, yes: Yes = False) -> None:
    """Delete a profile."""
    properties = read_profile(name)
    secret = " with its secrets" if any(map(_is_secret, properties)) else ""
    ask_first(f"delete profile {name}{secret}", yes=yes, scripts_go_on=True)
    with file_errors(profile_path(name)):
        profile_path(name).unlink()
    say(f"deleted profile {name}")
    if profile_in_use() == name:
        use_profile(None)
        say("no profile is in use")
