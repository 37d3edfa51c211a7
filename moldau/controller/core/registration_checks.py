"""Whether a broker may register, and the record of its registration.

Owns: the checks that need no sessions. Invariant: a registered broker supports every finalized
feature level, has its own directories, and belongs to this cluster.
"""

from __future__ import annotations

from moldau.controller.core.result import Refusal
from moldau.controller.core.settings import ControllerSettings
from moldau.controller.core.state import ControllerState
from moldau.metadata.features import supports_directory_assignment
from moldau.metadata.image import BrokerRegistration
from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.p62_broker_registration import BrokerRegistrationRequest
from moldau.protocol.metadata_records import RegisterBrokerRecord
from moldau.protocol.metadata_records.register_broker_record import BrokerEndpoint, BrokerFeature
from moldau.protocol.types import RESERVED_TOPIC_IDS, ZERO_UUID


def check_registration(
    state: ControllerState, settings: ControllerSettings, request: BrokerRegistrationRequest
) -> None:
    """Check what a broker says about itself.

    Raises:
        Refusal: INCONSISTENT_CLUSTER_ID, INVALID_REGISTRATION, UNSUPPORTED_VERSION.
    """
    if request.cluster_id != settings.cluster_id:
        raise Refusal(
            ErrorCode.INCONSISTENT_CLUSTER_ID,
            f"this is cluster {settings.cluster_id}, not {request.cluster_id}",
        )
    if request.broker_id < 0:
        raise _invalid("a broker id is not negative")
    if request.incarnation_id == ZERO_UUID:
        raise _invalid("an incarnation needs an id")
    if not request.listeners:
        raise _invalid("a broker needs a listener")
    names = [listener.name for listener in request.listeners]
    if len(set(names)) != len(names):
        raise _invalid("a listener is named twice")
    _check_directories(state, request)
    _check_features(state, request)


def _check_directories(state: ControllerState, request: BrokerRegistrationRequest) -> None:
    directories = set(request.log_dirs)
    if len(directories) != len(request.log_dirs):
        raise _invalid("a log directory is named twice")
    if not directories.isdisjoint(RESERVED_TOPIC_IDS):
        raise _invalid("a log directory has a reserved id")
    if not directories:
        if supports_directory_assignment(state.metadata_level):
            raise _invalid("a broker needs a log directory")
        return
    for broker_id, other in state.image.cluster.brokers.items():
        if broker_id != request.broker_id and not directories.isdisjoint(other.directories):
            raise _invalid(f"broker {broker_id} has the same log directory")


def _check_features(state: ControllerState, request: BrokerRegistrationRequest) -> None:
    ranges = {
        feature.name: (feature.min_supported_version, feature.max_supported_version)
        for feature in request.features
    }
    for name, level in state.image.features.finalized_levels.items():
        lowest, highest = ranges.get(name, (0, 0))
        if not lowest <= level <= highest:
            raise Refusal(
                ErrorCode.UNSUPPORTED_VERSION,
                f"{name} is finalized at level {level}, the broker supports {lowest} to {highest}",
            )


def _invalid(message: str) -> Refusal:
    return Refusal(ErrorCode.INVALID_REGISTRATION, message)


def registration_record(
    request: BrokerRegistrationRequest,
    version: int,
    *,
    broker_epoch: int,
    keeps: BrokerRegistration | None,
) -> RegisterBrokerRecord:
    """The record of a registration; `keeps` is the same incarnation's earlier one, whose state
    stays.
    """
    return RegisterBrokerRecord(
        broker_id=request.broker_id,
        is_migrating_zk_broker=version >= 2 and request.is_migrating_zk_broker,
        incarnation_id=request.incarnation_id,
        broker_epoch=broker_epoch,
        end_points=[
            BrokerEndpoint(
                name=listener.name,
                host=listener.host,
                port=listener.port,
                security_protocol=listener.security_protocol,
            )
            for listener in request.listeners
        ],
        features=[
            BrokerFeature(
                name=feature.name,
                min_supported_version=feature.min_supported_version,
                max_supported_version=feature.max_supported_version,
            )
            for feature in request.features
        ],
        rack=request.rack,
        fenced=True if keeps is None else keeps.fenced,
        in_controlled_shutdown=keeps is not None and keeps.in_controlled_shutdown,
        log_dirs=list(request.log_dirs) if version >= 3 else [],
        cordoned_log_dirs=None
        if keeps is None or keeps.cordoned_directories is None or version < 4
        else list(keeps.cordoned_directories),
    )
