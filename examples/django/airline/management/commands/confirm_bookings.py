"""`manage.py confirm_bookings`: reads the topic, and confirms what it reads."""

import json
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandParser

from airline.models import Booking
from moldau.client.sync import Consumer


class Command(BaseCommand):
    """A member of the group `confirmations`: run as many as the topic has partitions."""

    help = "Confirm bookings as their records come."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--count", type=int, help="end after so many (default: go on)")

    def handle(self, *args: Any, **options: Any) -> None:
        done = 0
        with Consumer(
            settings.BOOTSTRAP_SERVERS,
            group_id="confirmations",
            auto_offset_reset="earliest",
            enable_auto_commit=False,
        ) as consumer:
            consumer.subscribe([settings.BOOKINGS_TOPIC])
            while options["count"] is None or done < options["count"]:
                booking = json.loads(consumer.getone().value)["booking"]
                # The row first, the offset then: after a crash in between it is confirmed twice.
                Booking.objects.filter(id=booking).update(is_confirmed=True)
                consumer.commit()
                done += 1
                self.stdout.write(f"confirmed booking {booking}")
