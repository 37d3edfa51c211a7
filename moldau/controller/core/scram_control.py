"""AlterUserScramCredentials: checks, and the records of credentials that come and go (KIP-554).

Owns: what is wrong with a wanted credential. Must not: change state, or ask who may change one.
Invariants: a user is altered once in a request, or not at all; what one user is refused for leaves
the others alone; a salted password is turned into its keys here and kept nowhere.
"""

from __future__ import annotations

from typing import Final, TypeAlias

from moldau.config.principals import reserved
from moldau.controller.core.result import (
    MAX_RECORDS_PER_REQUEST,
    Asked,
    ControllerResult,
    Refusal,
    VersionedRecord,
)
from moldau.controller.core.state import ControllerState
from moldau.metadata.features import SCRAM_LEVEL
from moldau.metadata.image.security import ScramKey
from moldau.metadata.scram_secret import scram_secret, scram_secret_record
from moldau.metadata.steps import Steps
from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages import p51_alter_user_scram_credentials as p51
from moldau.protocol.metadata_records import (
    RemoveUserScramCredentialRecord,
    UserScramCredentialRecord,
)
from moldau.protocol.scram import (
    LEAST_ITERATIONS,
    MECHANISMS_BY_NUMBER,
    MOST_ITERATIONS,
    scram_keys,
)

Alteration: TypeAlias = p51.ScramCredentialDeletion | p51.ScramCredentialUpsertion

TWICE: Final = Refusal(
    ErrorCode.DUPLICATE_RESOURCE, "the user is named twice: one credential is altered at a time"
)


def alter_user_scram_credentials(
    state: ControllerState, request: p51.AlterUserScramCredentialsRequest, _asked: Asked
) -> Steps[ControllerResult[p51.AlterUserScramCredentialsResponse]]:
    """AlterUserScramCredentials: for each user a credential to set or to delete."""
    outcomes: dict[str, VersionedRecord | Refusal] = {}
    alterations: list[Alteration] = [*request.deletions, *request.upsertions]
    for wanted in alterations:
        yield
        before = outcomes.get(wanted.name)
        if isinstance(before, Refusal):
            continue
        if before is not None:
            outcomes[wanted.name] = TWICE
            continue
        try:
            if len(alterations) > MAX_RECORDS_PER_REQUEST:
                raise Refusal.too_many(
                    f"one request may alter at most {MAX_RECORDS_PER_REQUEST} credentials"
                )
            outcomes[wanted.name] = (_record_of(state, wanted), 0)
        except Refusal as refusal:
            outcomes[wanted.name] = refusal
    result = ControllerResult(p51.AlterUserScramCredentialsResponse())
    for user, outcome in outcomes.items():
        yield
        answer = p51.AlterUserScramCredentialsResult(user=user, error_message=None)
        result.response.results.append(answer)
        if isinstance(outcome, Refusal):
            outcome.tell(answer)
        else:
            result.records.append(outcome)
    if result.records:
        result.records += secret_records(state)
    return result


def secret_records(state: ControllerState) -> list[VersionedRecord]:
    """The record of the secret behind answers about unknown users; none where there is one."""
    secret = state.settings.scram_secret
    if not secret or scram_secret(state.image.configs) is not None:
        return []
    return [scram_secret_record(secret)]


def _record_of(
    state: ControllerState, wanted: Alteration
) -> UserScramCredentialRecord | RemoveUserScramCredentialRecord:
    """Raises Refusal: there is nothing to delete, or the credential cannot be one."""
    if state.metadata_level < SCRAM_LEVEL:
        raise Refusal(
            ErrorCode.UNSUPPORTED_VERSION,
            "SCRAM credentials need metadata.version 3.5-IV2",
        )
    if not wanted.name:
        raise Refusal(ErrorCode.UNACCEPTABLE_CREDENTIAL, "the user's name is empty")
    mechanism = MECHANISMS_BY_NUMBER.get(wanted.mechanism)
    if mechanism is None:
        raise Refusal(
            ErrorCode.UNSUPPORTED_SASL_MECHANISM,
            f"mechanism {wanted.mechanism} is unknown; 1 is SCRAM-SHA-256, 2 is SCRAM-SHA-512",
        )
    if isinstance(wanted, p51.ScramCredentialDeletion):
        if ScramKey(wanted.name, wanted.mechanism) not in state.image.scram.credentials:
            raise Refusal(ErrorCode.RESOURCE_NOT_FOUND, f"the user has no {mechanism} credential")
        return RemoveUserScramCredentialRecord(name=wanted.name, mechanism=wanted.mechanism)
    settings = state.settings
    if not settings.node_config.principals.may_have_password(wanted.name, settings.own_names):
        raise Refusal(ErrorCode.UNACCEPTABLE_CREDENTIAL, reserved(wanted.name))
    if not LEAST_ITERATIONS <= wanted.iterations <= MOST_ITERATIONS:
        raise Refusal(
            ErrorCode.UNACCEPTABLE_CREDENTIAL,
            f"{wanted.iterations} iterations; {LEAST_ITERATIONS} to {MOST_ITERATIONS} are accepted",
        )
    keys = scram_keys(
        mechanism, bytes(wanted.salted_password), bytes(wanted.salt), wanted.iterations
    )
    return UserScramCredentialRecord(name=wanted.name, mechanism=wanted.mechanism, **keys._asdict())
