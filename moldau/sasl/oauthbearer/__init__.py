"""OAUTHBEARER: tokens of identity providers, in place of passwords.

`client` gets tokens (`token_endpoint`, `assertions`, `unsecured_tokens`) and keeps them (`tokens`);
`listener` checks them: signatures by `jwks`, what they say by `claims`.
"""

from __future__ import annotations

from moldau.first_use import at_first_use

at_first_use(globals(), "sasl.oauthbearer.client: login sasl.oauthbearer.listener: offer")
