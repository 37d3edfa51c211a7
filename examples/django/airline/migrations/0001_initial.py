"""The table of bookings."""

from django.db import migrations, models


class Migration(migrations.Migration):
    initial = True
    operations = [  # noqa: RUF012 - as Django reads it
        migrations.CreateModel(
            "Booking",
            [
                ("id", models.BigAutoField(primary_key=True)),
                ("flight", models.CharField(max_length=8)),
                ("passenger", models.CharField(max_length=80)),
                ("is_confirmed", models.BooleanField(default=False)),
            ],
        )
    ]
