"""The blocking face of the client: the same classes and calls, for threads, scripts and notebooks.

    from moldau.client.sync import Producer

    with Producer("localhost:9092") as producer:
        producer.send("flights", b"value", key=b"UA")

Owns nothing but its names. Everything else (errors, records, settings, listeners) is that of
`moldau.client`.
"""

from __future__ import annotations

from moldau.first_use import at_first_use

at_first_use(
    globals(),
    """
    client.sync.admin: Admin
    client.sync.consumer: Consumer
    client.sync.handover: Delivery
    client.sync.producer: Producer Transaction
    """,
)
