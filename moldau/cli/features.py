"""`moldau features`: describe, upgrade, downgrade; as kafka-features."""

from __future__ import annotations

from typing import Annotated

import typer

from moldau import client
from moldau.cli.asking import Yes, ask_first
from moldau.cli.client_settings import key_values
from moldau.cli.options import AsJson, ClusterAccess, ControllerAccess
from moldau.cli.output import fail, print_json, print_table, refusing, say
from moldau.client.admin.cluster import ClusterCalls
from moldau.metadata.features import (
    KRAFT_VERSION,
    METADATA_VERSION,
    UnsupportedFeatureLevel,
    initial_feature_levels,
    metadata_level_of,
    metadata_release,
)

app = typer.Typer()

Levels = Annotated[list[str] | None, "--feature -f", "FEATURE=LEVEL; may be repeated."]
Release = Annotated[str | None, "--release-version -r", "All features as in this release, as 4.2."]
DryRun = Annotated[bool, "--dry-run", "Only check, change nothing."]


@app.command("describe")
def describe(access: ControllerAccess, as_json: AsJson = False) -> None:
    """Show supported and finalized feature levels."""
    features = access.ask(ClusterCalls, lambda admin: admin.describe_features())
    rows = [
        {
            "feature": name,
            "supported_min_version": features.supported.get(name, (None, None))[0],
            "supported_max_version": features.supported.get(name, (None, None))[1],
            "finalized_version_level": features.finalized.get(name, 0),
        }
        for name in sorted({*features.supported, *features.finalized})
    ]
    if as_json:
        print_json({"epoch": features.finalized_epoch, "features": rows})
        return
    print_table(
        ("feature", "supported min", "supported max", "finalized", "epoch"),
        (
            (name, *(_level_text(name, level) for level in levels), features.finalized_epoch)
            for name, *levels in (row.values() for row in rows)
        ),
    )


@app.command("upgrade")
def upgrade(
    access: ControllerAccess,
    feature: Levels = None,
    release_version: Release = None,
    dry_run: DryRun = False,
) -> None:
    """Raise feature levels; there may be no way back."""
    _change(access, _levels(feature, release_version), client.UpgradeType.UPGRADE, dry_run)


@app.command("downgrade")
def downgrade(
    access: ControllerAccess,
    feature: Levels = None,
    release_version: Release = None,
    unsafe: Annotated[bool, "Even if metadata is lost."] = False,
    dry_run: DryRun = False,
    yes: Yes = False,
) -> None:
    """Lower feature levels; 0 switches a feature off."""
    kind = client.UpgradeType
    upgrade_type = kind.UNSAFE_DOWNGRADE if unsafe else kind.SAFE_DOWNGRADE
    levels = _levels(feature, release_version)
    if unsafe and not dry_run:
        shown = ", ".join(f"{name}={level}" for name, level in levels.items())
        ask_first(f"lose the metadata that is not known at {shown}", yes=yes)
    _change(access, levels, upgrade_type, dry_run)


def _change(
    access: ClusterAccess, levels: dict[str, int], upgrade_type: client.UpgradeType, dry_run: bool
) -> None:
    updates = {name: client.FeatureUpdate(level, upgrade_type) for name, level in levels.items()}
    access.ask(ClusterCalls, lambda admin: admin.update_features(updates, validate_only=dry_run))
    done = "upgraded" if upgrade_type is client.UpgradeType.UPGRADE else "downgraded"
    for name, level in levels.items():
        say(f"{name} {'can be' if dry_run else 'was'} {done} to {level}")


def _levels(pairs: list[str] | None, release: str | None) -> dict[str, int]:
    """The levels to set; exits with status 2 for levels that no cluster can have."""
    if pairs and release is not None:
        fail("--feature and --release-version exclude each other", status=2)
    if not pairs and release is None:
        fail("nothing to change: give --feature or --release-version", status=2)
    with refusing(UnsupportedFeatureLevel):
        if release is not None:
            levels = initial_feature_levels(release=release)
            levels.pop(KRAFT_VERSION)
            return levels
        return {
            name: _level(name, text) for name, text in key_values(pairs or [], "--feature").items()
        }


def _level(name: str, text: str) -> int:
    """A number, or a release's name for metadata.version. Raises: UnsupportedFeatureLevel."""
    if text.isascii() and text.isdigit() and int(text) < 2**15:
        return int(text)
    if name == METADATA_VERSION:
        return metadata_level_of(text)
    fail(f"--feature {name}={text}: the level is a whole number", status=2)


def _level_text(name: object, level: object) -> str:
    if not isinstance(level, int):
        return "-"
    return metadata_release(level) if name == METADATA_VERSION and level else str(level)
