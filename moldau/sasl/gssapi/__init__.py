"""GSSAPI: Kerberos 5, by the system's library (`library`).

`client` gets tickets and logs in; `listener` accepts clients, and `local_names` names them.
"""

from __future__ import annotations

from moldau.first_use import at_first_use

at_first_use(globals(), "sasl.gssapi.client: login sasl.gssapi.listener: offer")
