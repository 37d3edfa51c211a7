"""UpdateFeatures with several brokers and controllers: up, down, and what stands in the way."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest

from moldau.metadata.features import (
    METADATA_RELEASES,
    SUPPORTED_FEATURES,
    UnsupportedFeatureLevel,
    advertised_features,
    initial_feature_levels,
    is_lossless_downgrade,
)
from moldau.metadata.image import ConfigResourceType
from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.p57_update_features import FeatureUpdateKey, UpdateFeaturesRequest
from moldau.protocol.messages.p62_broker_registration import Feature
from moldau.protocol.messages.p70_controller_registration import ControllerRegistrationRequest
from moldau.protocol.metadata_records import ConfigRecord, FeatureLevelRecord
from tests.unit.metadata.builders import CoreDriver, directory_id, registration

UPGRADE, SAFE, UNSAFE = 1, 2, 3
GROUP, METADATA = "group.version", "metadata.version"
ELIGIBLE = "eligible.leader.replicas.version"
BROKER = ConfigResourceType.BROKER


def update(driver: CoreDriver, *levels: tuple[str, int, int], **options: Any) -> Any:
    keys = [
        FeatureUpdateKey(feature=name, max_version_level=level, upgrade_type=kind)
        for name, level, kind in levels
    ]
    return driver.ask(UpdateFeaturesRequest(feature_updates=keys, **options))


def register_controller(driver: CoreDriver, controller_id: int, **lower: int) -> Any:
    """A controller that supports everything, but for the features named, up to these levels."""
    features = [
        Feature(
            name=name,
            min_supported_version=levels.minimum_level,
            max_supported_version=lower.get(name.replace(".", "_"), levels.maximum_level),
        )
        for name, levels in SUPPORTED_FEATURES.items()
    ]
    return driver.ask(
        ControllerRegistrationRequest(
            controller_id=controller_id,
            incarnation_id=UUID(int=0x300 + controller_id),
            features=features,
        )
    )


@pytest.fixture
def driver() -> CoreDriver:
    """With group.version off."""
    driver = CoreDriver(features=True)
    assert update(driver, (GROUP, 0, SAFE)).error_code == 0
    return driver


def test_validating_only_answers_and_changes_nothing(driver: CoreDriver) -> None:
    response = update(driver, (GROUP, 1, UPGRADE), validate_only=True)
    assert (response.error_code, response.error_message) == (0, None)
    assert not driver.appended
    refused = update(driver, (GROUP, 9, UPGRADE), validate_only=True)
    assert refused.error_code == ErrorCode.INVALID_UPDATE_VERSION


@pytest.mark.parametrize(("level", "kind"), [(1, SAFE), (1, UNSAFE), (1, 0), (1, 4), (-1, UNSAFE)])
def test_upgrades_that_are_refused(driver: CoreDriver, level: int, kind: int) -> None:
    response = update(driver, (GROUP, level, kind))
    assert response.error_code == ErrorCode.INVALID_UPDATE_VERSION
    assert not driver.appended


@pytest.mark.parametrize("kind", [SAFE, UNSAFE])
def test_a_feature_is_lowered_by_either_kind_of_downgrade(driver: CoreDriver, kind: int) -> None:
    (result,) = update(driver, (GROUP, 1, UPGRADE)).results
    assert (result.feature, result.error_code, result.error_message) == (GROUP, 0, "NONE")
    assert update(driver, (GROUP, 0, UPGRADE)).error_code == ErrorCode.INVALID_UPDATE_VERSION
    assert update(driver, (GROUP, 0, kind)).error_code == 0
    assert driver.image.features.level(GROUP) == 0


def test_version_0_allows_a_downgrade_and_does_not_insist_on_it(driver: CoreDriver) -> None:
    for level in (1, 0):
        key = FeatureUpdateKey(feature=GROUP, max_version_level=level, allow_downgrade=True)
        assert driver.ask(UpdateFeaturesRequest(feature_updates=[key])).error_code == 0
        assert driver.image.features.level(GROUP) == level


def test_a_downgrade_that_would_lose_something_is_refused_by_its_reason() -> None:
    driver = CoreDriver(release="4.1")
    for kind, says in ((SAFE, False), (UNSAFE, True)):
        response = update(driver, (METADATA, 22, kind))
        assert response.error_code == ErrorCode.INVALID_UPDATE_VERSION
        assert "4.0-IV0 cannot hold what 4.1-IV1 wrote" in response.error_message
        assert ("unsafe downgrades" in response.error_message) is says


@pytest.mark.parametrize(
    ("level", "kind", "error"),
    [(7, UNSAFE, "wrote"), (6, UNSAFE, "7 to 30"), (30, UPGRADE, ""), (31, UPGRADE, "7 to 30")],
)
def test_levels_are_refused_outside_of_what_is_supported(level: int, kind: int, error: str) -> None:
    driver = CoreDriver(release="3.9")
    response = update(driver, (METADATA, level, kind))
    assert bool(response.error_code) is bool(error)
    assert error in (response.error_message or "")


def test_a_feature_that_was_never_finalized_needs_nothing() -> None:
    driver = CoreDriver(release="3.7-IV4")
    assert ELIGIBLE not in driver.image.features.finalized_levels
    assert update(driver, (METADATA, 20, UPGRADE)).error_code == 0
    assert driver.image.features.level(METADATA) == 20


@pytest.mark.parametrize("is_set", [True, False])
def test_with_eligible_leaders_brokers_have_no_minimum_of_their_own(*, is_set: bool) -> None:
    """KIP-966. What else a broker is configured with stays, and so does the cluster's minimum."""
    driver = CoreDriver(release="4.0-IV0")
    driver.join(1)
    settings = {"": {"min.insync.replicas": "2"}} if is_set else {}
    settings |= {"1": {"min.insync.replicas": "1", "log.cleaner.threads": "2"}}
    settings |= {"2": {"log.cleaner.threads": "3"}}
    driver.append(
        [
            (ConfigRecord(resource_type=BROKER, resource_name=name, name=key, value=value), 0)
            for name, values in settings.items()
            for key, value in values.items()
        ]
    )
    assert update(driver, (METADATA, 30, UPGRADE), (ELIGIBLE, 1, UPGRADE)).error_code == 0
    written = [each for each in driver.appended if isinstance(each, ConfigRecord)]
    assert len(written) == (1 if is_set else 2), "nothing is removed that was not there"
    configs = driver.image.configs
    assert dict(configs.get(BROKER, "")) == {"min.insync.replicas": "2" if is_set else "1"}
    assert dict(configs.get(BROKER, "1")) == {"log.cleaner.threads": "2"}
    assert dict(configs.get(BROKER, "2")) == {"log.cleaner.threads": "3"}


def test_a_feature_named_twice(driver: CoreDriver) -> None:
    response = update(driver, (GROUP, 1, UPGRADE), (GROUP, 0, SAFE))
    assert response.error_code == ErrorCode.INVALID_REQUEST
    assert not driver.appended


def test_a_broker_that_does_not_support_a_level_stands_in_the_way(driver: CoreDriver) -> None:
    features = [
        Feature(name=name, min_supported_version=lowest, max_supported_version=highest)
        for name, (lowest, highest, _default) in SUPPORTED_FEATURES.items()
        if name != GROUP
    ]
    driver.join(1, features=features)
    response = update(driver, (GROUP, 1, UPGRADE))
    assert response.error_code == ErrorCode.INVALID_UPDATE_VERSION
    assert "broker 1" in response.error_message


def test_a_controller_that_does_not_support_a_level_stands_in_the_way(driver: CoreDriver) -> None:
    assert register_controller(driver, 101, group_version=0).error_code == 0
    assert register_controller(driver, 102).error_code == 0
    response = update(driver, (GROUP, 1, UPGRADE))
    assert response.error_code == ErrorCode.INVALID_UPDATE_VERSION
    assert "controller 101" in response.error_message
    assert register_controller(driver, 101).error_code == 0
    assert update(driver, (GROUP, 1, UPGRADE)).error_code == 0


@pytest.mark.parametrize(
    ("lowest", "highest", "goes_up"), [(0, 1, True), (1, 1, True), (0, 0, False), (2, 3, False)]
)
def test_a_level_has_to_be_within_what_a_broker_supports(
    driver: CoreDriver, lowest: int, highest: int, goes_up: bool
) -> None:
    """A feature that is turned off needs no support."""
    ranges = [
        Feature(
            name=name,
            min_supported_version=lowest if name == GROUP else levels.minimum_level,
            max_supported_version=highest if name == GROUP else levels.maximum_level,
        )
        for name, levels in SUPPORTED_FEATURES.items()
    ]
    driver.join(1, features=ranges)
    assert (update(driver, (GROUP, 1, UPGRADE)).error_code == 0) is goes_up
    if goes_up:
        assert update(driver, (GROUP, 0, SAFE)).error_code == 0


@pytest.mark.parametrize(
    ("release", "error"),
    [("3.6-IV2", ErrorCode.NONE), ("3.7-IV0", ErrorCode.INVALID_UPDATE_VERSION)],
)
def test_voters_are_asked_for_from_the_level_at_which_they_register(
    release: str, error: ErrorCode
) -> None:
    driver = CoreDriver(release=release)
    driver.core.state.voter_ids = frozenset([100, 101])
    assert update(driver, (METADATA, 20, UPGRADE)).error_code == error


def test_a_voter_that_has_not_registered_stands_in_the_way(driver: CoreDriver) -> None:
    driver.core.state.voter_ids = frozenset([100, 101])
    response = update(driver, (GROUP, 1, UPGRADE))
    assert response.error_code == ErrorCode.INVALID_UPDATE_VERSION
    assert "controller 101" in response.error_message
    register_controller(driver, 101)
    assert update(driver, (GROUP, 1, UPGRADE)).error_code == 0


def test_a_controller_without_what_is_finalized_is_not_registered(driver: CoreDriver) -> None:
    response = register_controller(driver, 101, metadata_version=29)
    assert response.error_code == ErrorCode.UNSUPPORTED_VERSION
    assert not driver.appended


def test_the_quorums_own_feature_is_refused_here_and_says_why(driver: CoreDriver) -> None:
    response = update(driver, ("kraft.version", 1, UPGRADE))
    assert response.error_code == ErrorCode.INVALID_UPDATE_VERSION
    assert "kraft.version" in response.error_message
    assert "quorum" in response.error_message


def downgrades() -> list[tuple[int, int]]:
    levels = sorted(METADATA_RELEASES)
    return [(high, low) for high in levels for low in levels if low < high]


def test_which_metadata_versions_can_read_what_later_ones_wrote() -> None:
    """As Apache Kafka 4.3.0's MetadataVersion says of each level against the one before it."""
    changed = [
        level
        for level in sorted(METADATA_RELEASES)[1:]
        if not is_lossless_downgrade(level, level - 1)
    ]
    assert changed == [8, 11, 13, 14, 15, 17, 23, 30]
    for high, low in downgrades():
        expected = not any(low < level <= high for level in changed)
        assert is_lossless_downgrade(high, low) is expected


def at_level(release: str) -> CoreDriver:
    return CoreDriver(release=release)


def test_metadata_version_goes_down_where_nothing_is_lost() -> None:
    driver = at_level("4.2")
    driver.join(1)
    assert update(driver, (METADATA, 25, UPGRADE)).error_code == ErrorCode.INVALID_UPDATE_VERSION
    assert update(driver, (METADATA, 25, SAFE)).error_code == 0
    assert driver.image.features.metadata_level == 25
    for kind in (SAFE, UNSAFE):
        response = update(driver, (METADATA, 22, kind))
        assert response.error_code == ErrorCode.INVALID_UPDATE_VERSION
        assert "4.0-IV0" in response.error_message
    assert update(driver, (METADATA, 30, UPGRADE)).error_code == 0
    assert driver.image.features.metadata_level == 30


def test_a_feature_needs_its_metadata_version_first() -> None:
    driver = at_level("3.9")
    response = update(driver, (ELIGIBLE, 1, UPGRADE))
    assert response.error_code == ErrorCode.INVALID_UPDATE_VERSION
    assert METADATA in response.error_message
    assert update(driver, (METADATA, 22, UPGRADE)).error_code == 0
    assert update(driver, (ELIGIBLE, 1, UPGRADE)).error_code != 0
    both = update(driver, (METADATA, 23, UPGRADE), (ELIGIBLE, 1, UPGRADE))
    assert both.error_code == 0
    assert driver.image.features.level(ELIGIBLE) == 1
    lowered = update(driver, (METADATA, 22, SAFE))
    assert lowered.error_code == ErrorCode.INVALID_UPDATE_VERSION


def test_records_follow_the_level_they_are_written_at() -> None:
    driver = at_level("3.6")
    for broker_id in (1, 2):
        driver.join(broker_id)
    driver.topic("t", [1, 2])
    driver.alter_partition([1])
    assert driver.partition().directories == (UUID(int=0), UUID(int=0))
    assert update(driver, (METADATA, 30, UPGRADE)).error_code == 0
    for broker_id in (1, 2):
        driver.ask(registration(broker_id))  # the log of 3.6 had no place for the directories
    driver.topic("u", [1, 2])
    assert driver.partition("u").directories == (directory_id(1), directory_id(2))


SHARE, STREAMS = "share.version", "streams.version"


@pytest.mark.parametrize("feature", [SHARE, STREAMS])
def test_a_feature_whose_protocol_is_not_served_stays_off(driver: CoreDriver, feature: str) -> None:
    response = update(driver, (feature, 1, UPGRADE))
    assert response.error_code == ErrorCode.INVALID_UPDATE_VERSION
    assert not driver.appended
    assert advertised_features({feature: 0})[feature].maximum_level == 0
    with pytest.raises(UnsupportedFeatureLevel):
        initial_feature_levels({feature: 1})


@pytest.mark.parametrize("feature", [SHARE, STREAMS])
def test_a_cluster_that_finalized_such_a_feature_goes_on_and_may_lower_it(
    driver: CoreDriver, feature: str
) -> None:
    """Apache Kafka 4.3 formats with both at level 1."""
    driver.append([(FeatureLevelRecord(name=feature, feature_level=1), 0)])
    finalized = driver.image.features.finalized_levels
    features = [
        Feature(name=name, min_supported_version=lowest, max_supported_version=highest)
        for name, (lowest, highest, _default) in advertised_features(finalized).items()
    ]
    driver.join(1, features=features)
    assert 1 in driver.image.cluster.brokers
    assert update(driver, (feature, 1, UPGRADE)).error_code == 0, "nothing to do"
    assert update(driver, (feature, 0, SAFE)).error_code == 0
    assert update(driver, (feature, 1, UPGRADE)).error_code == ErrorCode.INVALID_UPDATE_VERSION
