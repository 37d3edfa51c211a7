"""The topic of bookings: one blocking producer for each process, made when it is first needed."""

import atexit
import json
from functools import cache

from django.conf import settings

from moldau.client.sync import Producer


@cache
def producer() -> Producer:
    """Threads may share it. It is closed when the process ends."""
    made = Producer(settings.BOOTSTRAP_SERVERS)
    atexit.register(made.close)
    return made


def announce(booking_id: int, flight: str) -> None:
    """Write a record, and wait until it is acknowledged."""
    value = json.dumps({"booking": booking_id, "flight": flight}).encode()
    producer().send(settings.BOOKINGS_TOPIC, value, key=flight.encode())
