"""Dynamic configuration and feature levels at the controller."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest

from moldau.metadata.features import (
    METADATA_RELEASES,
    SUPPORTED_FEATURES,
    UnsupportedFeatureLevel,
    feature_records,
    initial_feature_levels,
    metadata_level_of,
)
from moldau.metadata.image import ConfigResourceType
from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages import p33_alter_configs as legacy
from moldau.protocol.messages import p44_incremental_alter_configs as incremental
from moldau.protocol.messages.p19_create_topics import CreatableTopic, CreateTopicsRequest
from moldau.protocol.messages.p57_update_features import FeatureUpdateKey, UpdateFeaturesRequest
from moldau.protocol.messages.p62_broker_registration import Feature
from moldau.protocol.messages.p70_controller_registration import ControllerRegistrationRequest
from moldau.protocol.metadata_records import RegisterControllerRecord
from tests.unit.metadata.builders import CoreDriver

TOPIC, BROKER = ConfigResourceType.TOPIC, ConfigResourceType.BROKER
SET, DELETE, APPEND, SUBTRACT = range(4)


@pytest.fixture
def driver() -> CoreDriver:
    driver = CoreDriver()
    driver.join(1)
    request = CreateTopicsRequest(
        topics=[CreatableTopic(name="t", num_partitions=1, replication_factor=1)]
    )
    assert driver.ask(request).topics[0].error_code == 0
    return driver


def alter(
    driver: CoreDriver,
    resource_type: int,
    name: str,
    *operations: tuple[int, str, str | None],
    **options: Any,
) -> tuple[ErrorCode, str | None]:
    resource = incremental.AlterConfigsResource(
        resource_type=resource_type,
        resource_name=name,
        configs=[
            incremental.AlterableConfig(config_operation=operation, name=key, value=value)
            for operation, key, value in operations
        ],
    )
    response = driver.ask(
        incremental.IncrementalAlterConfigsRequest(resources=[resource], **options)
    )
    answer = response.responses[0]
    assert (answer.resource_type, answer.resource_name) == (resource_type, name)
    return ErrorCode.of(answer.error_code), answer.error_message


def config(driver: CoreDriver, resource_type: int, name: str) -> dict[str, str]:
    return dict(driver.image.configs.get(resource_type, name))


@pytest.mark.parametrize(
    ("key", "size", "error"),
    [
        ("metrics", 32_767, ErrorCode.NONE),
        ("metrics", 32_768, ErrorCode.INVALID_CONFIG),
        ("", 1, ErrorCode.INVALID_CONFIG),
        ("k" * 32_768, 1, ErrorCode.INVALID_CONFIG),
    ],
)
def test_names_and_values_fit_into_a_record(
    driver: CoreDriver, key: str, size: int, error: ErrorCode
) -> None:
    kind = ConfigResourceType.CLIENT_METRICS
    assert alter(driver, kind, "s", (SET, key, "v" * size))[0] is error
    assert bool(config(driver, kind, "s")) is (error is ErrorCode.NONE)


@pytest.mark.parametrize(
    ("size", "error"), [(32_767, ErrorCode.NONE), (32_768, ErrorCode.INVALID_REQUEST)]
)
def test_names_of_resources_fit_into_a_record(
    driver: CoreDriver, size: int, error: ErrorCode
) -> None:
    kind = ConfigResourceType.CLIENT_METRICS
    assert alter(driver, kind, "n" * size, (SET, "metrics", "v"))[0] is error


def test_set_and_delete(driver: CoreDriver) -> None:
    result = alter(
        driver, TOPIC, "t", (SET, "retention.ms", "5"), (SET, "segment.bytes", "1048576")
    )
    assert result == (ErrorCode.NONE, None)
    assert config(driver, TOPIC, "t") == {"retention.ms": "5", "segment.bytes": "1048576"}
    assert alter(driver, TOPIC, "t", (DELETE, "retention.ms", None))[0] is ErrorCode.NONE
    assert config(driver, TOPIC, "t") == {"segment.bytes": "1048576"}
    assert alter(driver, TOPIC, "t", (DELETE, "retention.ms", None))[0] is ErrorCode.NONE
    assert not driver.appended, "deleting what is not there writes nothing"
    alter(driver, TOPIC, "t", (SET, "segment.bytes", "1048576"))
    assert not driver.appended, "setting what is so already writes nothing"


def test_append_and_subtract_on_lists(driver: CoreDriver) -> None:
    key = "leader.replication.throttled.replicas"
    assert alter(driver, TOPIC, "t", (APPEND, key, "0:1"))[0] is ErrorCode.NONE
    alter(driver, TOPIC, "t", (APPEND, key, "0:1,1:1"))
    assert config(driver, TOPIC, "t") == {key: "0:1,1:1"}
    alter(driver, TOPIC, "t", (SUBTRACT, key, "0:1"))
    assert config(driver, TOPIC, "t") == {key: "1:1"}
    error, message = alter(driver, TOPIC, "t", (APPEND, "retention.ms", "1"))
    assert error is ErrorCode.INVALID_CONFIG
    assert message is not None
    assert "list" in message


def test_lists_begin_with_their_default(driver: CoreDriver) -> None:
    assert alter(driver, TOPIC, "t", (APPEND, "cleanup.policy", " compact , "))[0] is ErrorCode.NONE
    assert config(driver, TOPIC, "t") == {"cleanup.policy": "delete,compact"}
    assert alter(driver, BROKER, "", (APPEND, "log.cleanup.policy", "compact"))[0] is ErrorCode.NONE
    assert config(driver, BROKER, "")["log.cleanup.policy"] == "delete,compact"
    assert alter(driver, BROKER, "", (SUBTRACT, "log.cleanup.policy", "delete"))[0] == 0
    assert config(driver, BROKER, "")["log.cleanup.policy"] == "compact"


def test_controllers_are_configured_like_brokers(driver: CoreDriver) -> None:
    """As voters, and as controllers that have registered."""
    change = (SET, "log.retention.ms", "78")
    driver.append([(RegisterControllerRecord(controller_id=3, incarnation_id=UUID(int=9)), 0)])
    driver.core.state.voter_ids = frozenset([7])
    found = [alter(driver, BROKER, name, change)[0] for name in ("3", "7", "8")]
    assert found == [ErrorCode.NONE, ErrorCode.NONE, ErrorCode.BROKER_ID_NOT_REGISTERED]


def test_what_is_left_after_a_removal_has_to_agree_with_the_defaults(driver: CoreDriver) -> None:
    shortest, longest = "min.compaction.lag.ms", "max.compaction.lag.ms"
    assert alter(driver, BROKER, "", (SET, "log.cleaner.min.compaction.lag.ms", "500"))[0] == 0
    assert alter(driver, TOPIC, "t", (SET, shortest, "0"), (SET, longest, "100"))[0] == 0
    error, message = alter(driver, TOPIC, "t", (DELETE, shortest, None))
    assert error is ErrorCode.INVALID_CONFIG
    assert longest in str(message)
    assert config(driver, TOPIC, "t") == {shortest: "0", longest: "100"}
    both = [(DELETE, shortest, None), (DELETE, longest, None)]
    assert alter(driver, TOPIC, "t", *both)[0] is ErrorCode.NONE
    assert config(driver, TOPIC, "t") == {}


def test_what_only_one_broker_can_have_is_no_default_of_all(driver: CoreDriver) -> None:
    change = (SET, "listener.name.plaintext.ssl.keystore.location", "/k")
    assert alter(driver, BROKER, "1", change)[0] is ErrorCode.NONE
    assert alter(driver, BROKER, "", change)[0] is ErrorCode.INVALID_REQUEST


def test_validate_only(driver: CoreDriver) -> None:
    result = alter(driver, TOPIC, "t", (SET, "retention.ms", "5"), validate_only=True)
    assert result == (ErrorCode.NONE, None)
    assert not driver.appended
    result = alter(driver, TOPIC, "t", (SET, "retention.ms", "x"), validate_only=True)
    assert result[0] is ErrorCode.INVALID_CONFIG


@pytest.mark.parametrize(
    ("resource_type", "name", "operation", "error"),
    [
        (TOPIC, "absent", (SET, "retention.ms", "1"), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (TOPIC, "b/d", (SET, "retention.ms", "1"), ErrorCode.INVALID_TOPIC_EXCEPTION),
        (TOPIC, "t", (SET, "retention.ms", "soon"), ErrorCode.INVALID_CONFIG),
        (TOPIC, "t", (SET, "nonsense", "1"), ErrorCode.INVALID_CONFIG),
        (TOPIC, "t", (SET, "retention.ms", None), ErrorCode.INVALID_REQUEST),
        (TOPIC, "t", (SET, "retention.ms", "1" * 40_000), ErrorCode.INVALID_CONFIG),
        (TOPIC, "t", (SET, "", "1"), ErrorCode.INVALID_CONFIG),
        (TOPIC, "t", (7, "retention.ms", "1"), ErrorCode.INVALID_REQUEST),
        (BROKER, "9", (SET, "log.retention.ms", "1"), ErrorCode.BROKER_ID_NOT_REGISTERED),
        (BROKER, "one", (SET, "log.retention.ms", "1"), ErrorCode.INVALID_REQUEST),
        (BROKER, "-1", (SET, "log.retention.ms", "1"), ErrorCode.INVALID_REQUEST),
        (BROKER, "\uff11", (SET, "log.retention.ms", "1"), ErrorCode.INVALID_REQUEST),
        (BROKER, "10000000001", (SET, "log.retention.ms", "1"), ErrorCode.INVALID_REQUEST),
        (
            BROKER,
            "1000000001",
            (SET, "log.retention.ms", "1"),
            ErrorCode.BROKER_ID_NOT_REGISTERED,
        ),
        (BROKER, "1", (APPEND, "nonsense", "1"), ErrorCode.INVALID_CONFIG),
        (BROKER, "1", (SUBTRACT, "log.retention.ms", "1"), ErrorCode.INVALID_CONFIG),
        (TOPIC, "t", (APPEND, "nonsense", "1"), ErrorCode.INVALID_CONFIG),
        (TOPIC, "t", (SUBTRACT, "cleanup.policy", None), ErrorCode.INVALID_REQUEST),
        (
            ConfigResourceType.GROUP,
            "g",
            (APPEND, "consumer.session.timeout.ms", "45000"),
            ErrorCode.INVALID_CONFIG,
        ),
        (BROKER, "1", (SET, "node.id", "4"), ErrorCode.INVALID_REQUEST),
        (BROKER, "", (SET, "log.retention.ms", "0"), ErrorCode.INVALID_REQUEST),
        (ConfigResourceType.BROKER_LOGGER, "1", (SET, "x", "INFO"), ErrorCode.INVALID_REQUEST),
        (ConfigResourceType.UNKNOWN, "1", (SET, "x", "1"), ErrorCode.INVALID_REQUEST),
        (99, "1", (SET, "x", "1"), ErrorCode.INVALID_REQUEST),
        (ConfigResourceType.CLIENT_METRICS, "", (SET, "metrics", "x"), ErrorCode.INVALID_REQUEST),
        (ConfigResourceType.CLIENT_METRICS, "s", (SET, "x", "1"), ErrorCode.INVALID_CONFIG),
        (
            ConfigResourceType.CLIENT_METRICS,
            "s",
            (SET, "interval.ms", "5"),
            ErrorCode.INVALID_CONFIG,
        ),
        (
            ConfigResourceType.CLIENT_METRICS,
            "s",
            (SET, "match", "color=x"),
            ErrorCode.INVALID_CONFIG,
        ),
        (ConfigResourceType.GROUP, "g", (SET, "retention.ms", "1"), ErrorCode.INVALID_CONFIG),
        (
            ConfigResourceType.GROUP,
            "g",
            (SET, "share.isolation.level", "dirty"),
            ErrorCode.INVALID_CONFIG,
        ),
    ],
)
def test_what_is_refused(
    driver: CoreDriver,
    resource_type: int,
    name: str,
    operation: tuple[int, str, str | None],
    error: ErrorCode,
) -> None:
    before = driver.image
    found, message = alter(driver, resource_type, name, operation)
    assert found is error
    assert message
    assert driver.image is before


def test_a_resource_changes_as_a_whole_or_not_at_all(driver: CoreDriver) -> None:
    result = alter(driver, TOPIC, "t", (SET, "retention.ms", "5"), (SET, "segment.bytes", "no"))
    assert result[0] is ErrorCode.INVALID_CONFIG
    assert config(driver, TOPIC, "t") == {}
    result = alter(driver, TOPIC, "t", (SET, "retention.ms", "5"), (DELETE, "retention.ms", None))
    assert result[0] is ErrorCode.INVALID_REQUEST


def test_brokers_their_default_and_other_resources(driver: CoreDriver) -> None:
    assert alter(driver, BROKER, "", (SET, "log.retention.ms", "77"))[0] is ErrorCode.NONE
    assert config(driver, BROKER, "")["log.retention.ms"] == "77"
    assert alter(driver, BROKER, "1", (SET, "log.retention.ms", "78"))[0] is ErrorCode.NONE
    metrics = ConfigResourceType.CLIENT_METRICS
    operations = [
        (SET, "metrics", "org.apache.kafka."),
        (SET, "interval.ms", "5000"),
        (SET, "match", "client_id=a.*,client_source_port=.*"),
    ]
    assert alter(driver, metrics, "s", *operations) == (ErrorCode.NONE, None)
    group = ConfigResourceType.GROUP
    assert alter(driver, group, "g", (SET, "consumer.session.timeout.ms", "45000"))[0] == 0
    assert alter(driver, group, "g", (SET, "share.auto.offset.reset", "by_duration:PT1H"))[0] == 0


def test_topics_inherit_the_clusters_dynamic_default_when_created(driver: CoreDriver) -> None:
    alter(driver, BROKER, "", (SET, "log.retention.ms", "77"))
    request = CreateTopicsRequest(
        topics=[CreatableTopic(name="u", num_partitions=1, replication_factor=1)]
    )
    (result,) = driver.ask(request).topics
    shown = {each.name: each for each in result.configs}
    assert (shown["retention.ms"].value, shown["retention.ms"].config_source) == ("77", 3)


def test_legacy_alter_replaces_everything(driver: CoreDriver) -> None:
    alter(driver, TOPIC, "t", (SET, "retention.ms", "5"), (SET, "segment.bytes", "1048576"))

    def replace(**configs: str | None) -> Any:
        resource = legacy.AlterConfigsResource(
            resource_type=TOPIC,
            resource_name="t",
            configs=[
                legacy.AlterableConfig(name=key.replace("_", "."), value=value)
                for key, value in configs.items()
            ],
        )
        return driver.ask(legacy.AlterConfigsRequest(resources=[resource])).responses[0]

    assert replace(retention_ms="9", max_message_bytes="99").error_code == 0
    assert config(driver, TOPIC, "t") == {"retention.ms": "9", "max.message.bytes": "99"}
    assert replace(retention_ms=None).error_code == ErrorCode.INVALID_REQUEST
    assert replace(retention_ms="x").error_code == ErrorCode.INVALID_CONFIG
    assert replace().error_code == 0
    assert config(driver, TOPIC, "t") == {}


def test_a_resource_named_twice(driver: CoreDriver) -> None:
    resource = legacy.AlterConfigsResource(resource_type=TOPIC, resource_name="t")
    response = driver.ask(legacy.AlterConfigsRequest(resources=[resource, resource]))
    assert [each.error_code for each in response.responses] == [42, 42]


# -- features ------------------------------------------------------------------------------------


def update(driver: CoreDriver, feature: str, level: int, kind: int = 1, **options: Any) -> Any:
    key = FeatureUpdateKey(feature=feature, max_version_level=level, upgrade_type=kind)
    return driver.ask(UpdateFeaturesRequest(feature_updates=[key], **options))


def test_bootstrap_finalizes_the_defaults_and_the_cluster_wide_min_insync_replicas() -> None:
    driver = CoreDriver()
    levels = {
        name: feature.default_level
        for name, feature in SUPPORTED_FEATURES.items()
        if feature.default_level and name != "kraft.version"
    }
    assert driver.image.features.finalized_levels == levels
    assert config(driver, BROKER, "") == {"min.insync.replicas": "1"}


def test_levels_go_up_and_down(driver: CoreDriver) -> None:
    assert update(driver, "group.version", 0).error_code == ErrorCode.INVALID_UPDATE_VERSION
    assert update(driver, "group.version", 0, 2).error_code == 0
    assert "group.version" not in driver.image.features.finalized_levels
    assert update(driver, "group.version", 1, validate_only=True).error_code == 0
    assert driver.image.features.level("group.version") == 0
    assert update(driver, "group.version", 1).error_code == 0
    assert driver.image.features.level("group.version") == 1


@pytest.mark.parametrize(
    ("feature", "level", "kind"),
    [
        ("nonsense.version", 1, 1),
        ("group.version", 7, 1),
        ("group.version", -1, 3),
        ("metadata.version", 31, 1),
        ("metadata.version", 29, 2),
        ("metadata.version", 0, 3),
        ("kraft.version", 0, 2),
    ],
)
def test_levels_that_are_refused(driver: CoreDriver, feature: str, level: int, kind: int) -> None:
    before = driver.image
    response = update(driver, feature, level, kind)
    assert response.error_code == ErrorCode.INVALID_UPDATE_VERSION
    assert feature in response.error_message
    assert driver.image is before


def test_all_of_a_requests_levels_or_none(driver: CoreDriver) -> None:
    request = UpdateFeaturesRequest(
        feature_updates=[
            FeatureUpdateKey(feature="group.version", max_version_level=0, upgrade_type=2),
            FeatureUpdateKey(feature="nonsense", max_version_level=1),
        ]
    )
    response = driver.ask(request)
    assert response.error_code == ErrorCode.INVALID_UPDATE_VERSION
    assert response.results == []
    assert "nonsense" in response.error_message
    assert driver.image.features.level("group.version") == 1


def test_a_controller_registers() -> None:
    driver = CoreDriver()
    features = [
        Feature(
            name=name,
            min_supported_version=levels.minimum_level,
            max_supported_version=levels.maximum_level,
        )
        for name, levels in SUPPORTED_FEATURES.items()
    ]
    request = ControllerRegistrationRequest(
        controller_id=3, incarnation_id=UUID(int=9), features=features
    )
    assert driver.ask(request).error_code == 0
    assert driver.image.cluster.controllers[3].incarnation_id == UUID(int=9)
    request.features = []
    assert driver.ask(request).error_code == ErrorCode.UNSUPPORTED_VERSION


def test_formatting_levels() -> None:
    levels = initial_feature_levels({"group.version": 0}, release="4.2")
    assert levels["metadata.version"] == 29
    names = [record.name for record, _ in feature_records(levels)]  # type: ignore[attr-defined]
    assert names[0] == "metadata.version"
    assert "group.version" not in names
    assert "kraft.version" not in names
    assert metadata_level_of("4.2-IV0") == 28
    assert METADATA_RELEASES[initial_feature_levels()["metadata.version"]] == "4.3-IV0"
    for bad in ("9.9", "4.3-IV9", ""):
        with pytest.raises(UnsupportedFeatureLevel):
            metadata_level_of(bad)
    with pytest.raises(UnsupportedFeatureLevel):
        initial_feature_levels({"nonsense": 1})
    with pytest.raises(UnsupportedFeatureLevel):
        initial_feature_levels({"group.version": 9})
