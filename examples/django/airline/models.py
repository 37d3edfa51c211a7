"""What is booked."""

from django.db import models


class Booking(models.Model):
    """A seat for a passenger; confirmed when its record has been read."""

    flight = models.CharField(max_length=8)
    passenger = models.CharField(max_length=80)
    is_confirmed = models.BooleanField(default=False)
