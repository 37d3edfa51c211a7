"""UpdateFeatures: which feature levels the cluster runs at (KIP-584, KIP-778, KIP-919, KIP-1022).

A finalized level is supported by every registered broker and controller; `kraft.version` is the
quorum's own: `raft.core.voter_changes`.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum

from moldau.controller.core.configuration_control import forget_eligible_leaders
from moldau.controller.core.result import Asked, ControllerResult, Refusal, VersionedRecord
from moldau.controller.core.state import MIN_INSYNC_REPLICAS, ControllerState
from moldau.metadata.features import (
    CONTROLLER_REGISTRATION_LEVEL,
    ELIGIBLE_LEADER_REPLICAS_VERSION,
    FEATURE_REQUIREMENTS,
    KRAFT_VERSION,
    METADATA_VERSION,
    advertised_features,
    is_lossless_downgrade,
    metadata_release,
)
from moldau.metadata.image import ConfigResourceType, LevelRange
from moldau.metadata.image.configs import config_record
from moldau.metadata.steps import Steps, repeated
from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages import p57_update_features as p57
from moldau.protocol.metadata_records import FeatureLevelRecord

MAX_NAME_CHARACTERS = 80
"""So much of an unknown feature's name is repeated."""


class UpgradeType(IntEnum):
    """What the sender of UpdateFeatures allows."""

    UNKNOWN = 0
    UPGRADE = 1
    SAFE_DOWNGRADE = 2
    UNSAFE_DOWNGRADE = 3


def update_features(
    state: ControllerState, request: p57.UpdateFeaturesRequest, _asked: Asked
) -> Steps[ControllerResult[p57.UpdateFeaturesResponse]]:
    """Finalize new levels: all of the request's, or none (KIP-1022)."""
    records: list[VersionedRecord] = []
    results: list[p57.UpdatableFeatureResult] = []
    named_twice = yield from repeated(update.feature for update in request.feature_updates)
    proposed = dict(state.image.features.finalized_levels)
    for update in request.feature_updates:
        proposed[update.feature] = update.max_version_level
        yield
    for update in request.feature_updates:
        try:
            if update.feature in named_twice:
                raise Refusal.invalid("the feature is named more than once")
            records += _update(state, update, proposed)
        except Refusal as refusal:
            return ControllerResult(
                p57.UpdateFeaturesResponse(
                    error_code=refusal.error,
                    error_message="nothing was updated, because of "
                    f"{update.feature[:MAX_NAME_CHARACTERS]}: {refusal.message}",
                )
            )
        results.append(updated(update.feature))
    response = p57.UpdateFeaturesResponse(error_message=None, results=results)
    return ControllerResult(response, [] if request.validate_only else records)


def updated(feature: str) -> p57.UpdatableFeatureResult:
    """The result of a feature that is at its level now; the message is Apache Kafka's."""
    return p57.UpdatableFeatureResult(feature=feature, error_message=ErrorCode.NONE.name)


def _update(
    state: ControllerState, update: p57.FeatureUpdateKey, proposed: Mapping[str, int]
) -> list[VersionedRecord]:
    name, level = update.feature, update.max_version_level
    supported = advertised_features(state.image.features.finalized_levels).get(name)
    if supported is None:
        raise _refused(f"there is no feature {name[:MAX_NAME_CHARACTERS]!r}")
    if name == KRAFT_VERSION:  # the listener's handler takes such updates to the quorum
        raise _refused(f"{name} is the quorum's own: only the quorum's leader changes it")
    if not is_known_upgrade_type(update):
        raise _refused(f"there is no upgrade type {update.upgrade_type}")
    current = state.image.features.level(name)
    lowest, highest, _default = supported
    if not lowest <= level <= highest:
        raise _refused(f"level {level} is not supported: {lowest} to {highest} are")
    if level == current:
        return []
    _check_direction(name, current, level, update)
    _check_nodes(state, name, level)
    _check_requirements(name, level, proposed)
    records: list[VersionedRecord] = [(FeatureLevelRecord(name=name, feature_level=level), 0)]
    if name == ELIGIBLE_LEADER_REPLICAS_VERSION and level > current:
        records += eligible_leader_replicas_records(state)
        # Left from an earlier time at this level: what was committed since was not counted.
        records += forget_eligible_leaders(state)
    return records


def is_known_upgrade_type(update: p57.FeatureUpdateKey) -> bool:
    """Whether the sender says what it allows; version 0 says it with `allow_downgrade`."""
    return UpgradeType.UPGRADE <= update.upgrade_type <= UpgradeType.UNSAFE_DOWNGRADE


def _check_direction(name: str, current: int, level: int, update: p57.FeatureUpdateKey) -> None:
    asked_down = update.allow_downgrade or update.upgrade_type != UpgradeType.UPGRADE
    if level > current:
        if asked_down and not update.allow_downgrade:
            raise _refused(f"level {level} is above {current}, but a downgrade was asked for")
        return
    if not asked_down:
        raise _refused(f"level {level} is below {current}, and no downgrade was asked for")
    if name != METADATA_VERSION or is_lossless_downgrade(current, level):
        return
    problem = f"{metadata_release(level)} cannot hold what {metadata_release(current)} wrote"
    if update.upgrade_type == UpgradeType.UNSAFE_DOWNGRADE:
        problem += ": unsafe downgrades of metadata.version are not served"
    raise _refused(problem)


def _check_requirements(name: str, level: int, proposed: Mapping[str, int]) -> None:
    """A feature may need another one, and may be needed by others."""
    for (dependent, dependent_level), needed in FEATURE_REQUIREMENTS.items():
        if proposed.get(dependent, 0) < dependent_level:
            continue
        for needed_name, needed_level in needed.items():
            if name in (dependent, needed_name) and proposed.get(needed_name, 0) < needed_level:
                raise _refused(
                    f"{dependent} at level {proposed[dependent]} needs {needed_name} "
                    f"at level {needed_level} or above"
                )


def _check_nodes(state: ControllerState, name: str, level: int) -> None:
    """Every broker and controller must support the level; what is off needs no support."""
    cluster = state.image.cluster
    for kind, nodes in (("broker", cluster.brokers), ("controller", cluster.controllers)):
        for node_id, node in nodes.items():
            features: Mapping[str, LevelRange] = node.supported_features
            lowest, highest = features.get(name, LevelRange(0, 0))
            if level and not lowest <= level <= highest:
                raise _refused(f"{kind} {node_id} supports only levels {lowest} to {highest}")
    if state.metadata_level >= CONTROLLER_REGISTRATION_LEVEL:
        for node_id in sorted(state.voter_ids):
            if node_id != state.settings.node_config.node_id and node_id not in cluster.controllers:
                raise _refused(f"controller {node_id} has not said yet what it supports")


def _refused(message: str) -> Refusal:
    return Refusal(ErrorCode.INVALID_UPDATE_VERSION, message)


def eligible_leader_replicas_records(state: ControllerState) -> list[VersionedRecord]:
    """KIP-966 needs one cluster-wide `min.insync.replicas`: per-broker values are removed."""
    kind, key, configs = ConfigResourceType.BROKER, MIN_INSYNC_REPLICAS, state.image.configs
    records: list[VersionedRecord] = []
    if key not in configs.get(kind, ""):
        records.append(config_record(kind, "", key, str(state.settings.node_config[key])))
    for name in configs.names(kind):
        if name and key in configs.get(kind, name):
            records.append(config_record(kind, name, key, None))
    return records
