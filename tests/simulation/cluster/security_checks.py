"""What nodes make of access control entries and quotas, beside a slow decision and a new index.

Owns: the questions, drawn by dice of their own, and the comparison. Must not: change what it asks.
Invariant: the indexes that were built by deltas answer as those of the same image built at once,
and as a decision that looks at everything there is.
"""

from __future__ import annotations

from random import Random

from moldau.controller.mutation_quotas import ControllerMutationQuotas
from moldau.metadata.image import MetadataDelta, MetadataImage
from moldau.protocol.access_control import Operation
from moldau.protocol.api_keys import ApiKey
from moldau.server.authorizer import Authorizer
from moldau.server.quotas.client_quotas import Quotas
from moldau.server.request import Sender
from moldau.server.standard_authorizer import StandardAuthorizer
from tests.kit import access_model
from tests.kit.seeds import Violation
from tests.simulation.cluster.security_administrator import KINDS, NAMES, OPERATIONS
from tests.simulation.cluster.security_ledger import SecurityState

QUESTIONS = 12
CLOSING_QUESTIONS = 150
ASKING_PRINCIPALS = ("User:ann", "User:bob", "User:zed")
ASKING_HOSTS = ("10.0.0.1", "10.0.0.2")
ASKED_NAMES = (*NAMES[1:], "abcd", "z")
ASKED_OPERATIONS = tuple(each for each in OPERATIONS if each is not Operation.ALL)
QUOTA_USERS, QUOTA_CLIENTS = ("ann", "zed"), ("app", "other")
WINDOWS_S = 10.0
"""The least time that a rate is taken over with the defaults: eleven windows of one second."""


class SecurityChecks:
    """The checks of one node's process. A metadata publisher on brokers, added behind what it
    checks.
    """

    def __init__(
        self, who: str, authorizer: Authorizer, random: Random, quotas: Quotas | None = None
    ) -> None:
        self._who = who
        self._authorizer = authorizer
        self._random = random
        self._quotas = quotas
        self._asked_acls: object = None

    def on_metadata_update(self, delta: MetadataDelta, image: MetadataImage) -> None:
        self.check_access(image)
        if delta.client_quotas_delta.changes:
            self.check_quotas(image)

    def check_access(self, image: MetadataImage, questions: int = QUESTIONS) -> None:
        """Ask the authorizer, if the image has entries that it has not been asked about.

        Raises:
            Violation: it decides otherwise than the entries say.
        """
        asked = self._authorizer
        if not isinstance(asked, StandardAuthorizer):
            return
        if image.acls is self._asked_acls and questions == QUESTIONS:
            return
        if self._asked_acls is None and not image.acls.entries_by_id:
            return  # before the first image it denies what it allows later
        self._asked_acls = image.acls
        allows_unmentioned = asked.allows_unmentioned
        built = StandardAuthorizer(asked.super_users, allows_unmentioned=allows_unmentioned)
        built.change(image.acls.entries_by_id)
        entries = list(image.acls.entries_by_id.values())
        choice = self._random.choice
        for _ in range(questions):
            question = (
                choice(ASKING_PRINCIPALS),
                choice(ASKING_HOSTS),
                choice(ASKED_OPERATIONS),
                choice(KINDS),
            )
            name = choice(ASKED_NAMES)
            found = (
                asked.authorize(*question, name),
                built.authorize(*question, name),
                access_model.may(entries, *question, name, allows_unmentioned=allows_unmentioned),
            )
            by_type = (
                asked.authorize_by_resource_type(*question),
                built.authorize_by_resource_type(*question),
                access_model.may_by_type(entries, *question, allows_unmentioned=allows_unmentioned),
            )
            if len(set(found)) > 1 or len(set(by_type)) > 1:
                raise Violation(
                    "access-differs",
                    f"{self._who} at {image.provenance.last_contained_offset}: {question} {name}: "
                    f"by deltas, at once, slowly: {found}, by type {by_type}",
                )

    def check_quotas(self, image: MetadataImage) -> None:
        """The limits in force are those of the image.

        Raises:
            Violation: they are not.
        """
        quotas = self._quotas
        if quotas is None:
            return
        state = SecurityState.of(image)
        set_keys = {key for entity, key in state.quotas if ("ip", None) not in entity}
        limits_requests = "request_percentage" in set_keys
        limits_fetches = limits_requests or "consumer_byte_rate" in set_keys
        found = quotas.limits_requests, quotas.limits_fetches
        if found != (limits_requests, limits_fetches):
            raise Violation("quotas-differ", f"{self._who}: limits {found}, set are {set_keys}")
        for user in QUOTA_USERS:
            for client_id in QUOTA_CLIENTS:
                limit = limit_of(state, "consumer_byte_rate", user, client_id)
                expected = None if limit is None else limit * WINDOWS_S
                most = quotas.most_fetched(f"User:{user}", client_id)
                if most != expected:
                    raise Violation(
                        "quotas-differ",
                        f"{self._who}: {user} {client_id} may fetch {most}, not {expected}",
                    )


def check_mutation_quotas(who: str, quotas: ControllerMutationQuotas, image: MetadataImage) -> None:
    """A controller limits the clients that the image limits.

    Raises:
        Violation: it does not.
    """
    state = SecurityState.of(image)
    for user in QUOTA_USERS:
        for client_id in QUOTA_CLIENTS:
            sender = Sender(f"User:{user}", Authorizer(), client_id)
            is_limited = quotas.of(ApiKey.CREATE_TOPICS, sender) is not None
            limit = limit_of(state, "controller_mutation_rate", user, client_id)
            if is_limited != (limit is not None):
                raise Violation("quotas-differ", f"{who}: {user} {client_id}, set is {limit}")


def limit_of(state: SecurityState, key: str, user: str, client_id: str) -> float | None:
    """The value that holds for a client, most specific first (KIP-55)."""
    for parts in (
        (("user", user), ("client-id", client_id)),
        (("user", user), ("client-id", None)),
        (("user", user),),
        (("user", None), ("client-id", client_id)),
        (("user", None), ("client-id", None)),
        (("user", None),),
        (("client-id", client_id),),
        (("client-id", None),),
    ):
        value = state.quotas.get((frozenset(parts), key))
        if value is not None:
            return value
    return None


__all__ = ["CLOSING_QUESTIONS", "SecurityChecks", "check_mutation_quotas", "limit_of"]
