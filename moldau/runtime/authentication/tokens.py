"""What an OAUTHBEARER token is. Must not know where tokens come from."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class OAuthBearerToken:
    """A token and what is known of it (KIP-255).

    Attributes:
        value: as it goes to the broker, "a.b.c" where it is a JWT.
        expires_at_ms: when it ends, in ms since 1970; None when it does not say. For a JWT that is
            given as text it is read off the token.
        extensions: further SASL extensions by name (KIP-342).
    """

    value: str = field(repr=False)
    expires_at_ms: float | None = None
    extensions: tuple[tuple[str, str], ...] = ()
