"""`kraft.version` in UpdateFeatures: a level of the quorum, not of the metadata (KIP-853).

Owns: telling that one feature from the others, and the order in which both are updated. Must not:
touch the image. Invariant: nothing is finalized when a part of the request cannot be; once
everything was checked, `kraft.version` goes first.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Protocol

from moldau.controller.core.feature_control import is_known_upgrade_type, updated
from moldau.metadata.features import KRAFT_VERSION, SUPPORTED_FEATURES
from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.p57_update_features import (
    FeatureUpdateKey,
    UpdateFeaturesRequest,
    UpdateFeaturesResponse,
)

Decide = Callable[[UpdateFeaturesRequest], Awaitable[Any]]


class KraftUpgrade(Protocol):
    """Raises the level of the quorum, or finds it there already."""

    async def __call__(self, level: int, *, timeout_ms: int) -> tuple[ErrorCode, str]:
        """The error, and what to say of it: NOT_LEADER_OR_FOLLOWER when this node does not lead."""


def names_kraft_version(request: UpdateFeaturesRequest) -> bool:
    """Whether the quorum is concerned."""
    return any(update.feature == KRAFT_VERSION for update in request.feature_updates)


async def update_with_kraft_version(
    request: UpdateFeaturesRequest,
    *,
    current_level: int,
    upgrade: KraftUpgrade,
    decide: Decide,
) -> Any:
    """Answer a request that names `kraft.version`.

    Args:
        decide: the controller's answer to what concerns the metadata alone.
    """
    own = [each for each in request.feature_updates if each.feature == KRAFT_VERSION]
    others = [each for each in request.feature_updates if each.feature != KRAFT_VERSION]
    problem = _problem(own, current_level)
    if problem:
        return _failed(ErrorCode.INVALID_UPDATE_VERSION, problem)
    # Also when there are no others: who does not lead must not answer.
    checked = await decide(_part(request, others, validate_only=True))
    if checked.error_code != ErrorCode.NONE:
        return checked
    level = own[0].max_version_level
    # Also when the level is that already: it may not be committed yet, and would not last then.
    if not request.validate_only:
        error, words = await upgrade(level, timeout_ms=max(request.timeout_ms, 0))
        if error is ErrorCode.NOT_LEADER_OR_FOLLOWER:
            error = ErrorCode.NOT_CONTROLLER
        if error is not ErrorCode.NONE:
            return _failed(error, words)
    response = checked
    if others and not request.validate_only:
        response = await decide(_part(request, others, validate_only=False))
    response.results.append(updated(KRAFT_VERSION))
    return response


def _problem(own: list[FeatureUpdateKey], current_level: int) -> str:
    supported = SUPPORTED_FEATURES[KRAFT_VERSION]
    level = own[0].max_version_level
    if len(own) > 1:
        return "it is named twice"
    if not is_known_upgrade_type(own[0]):
        return f"there is no upgrade type {own[0].upgrade_type}"
    if not supported.minimum_level <= level <= supported.maximum_level:
        return f"level {level} is not supported: 0 to {supported.maximum_level} are"
    if level < current_level:
        return f"the quorum cannot go back from level {current_level} to {level}"
    return ""


def _part(
    request: UpdateFeaturesRequest, updates: list[FeatureUpdateKey], *, validate_only: bool
) -> UpdateFeaturesRequest:
    return UpdateFeaturesRequest(
        timeout_ms=request.timeout_ms, feature_updates=updates, validate_only=validate_only
    )


def _failed(error: ErrorCode, words: str) -> UpdateFeaturesResponse:
    return UpdateFeaturesResponse(
        error_code=error,
        error_message=f"nothing was updated, because of {KRAFT_VERSION}: {words}",
    )
