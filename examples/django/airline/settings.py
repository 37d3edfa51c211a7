"""Settings of the project; `BOOTSTRAP_SERVERS`, `BOOKINGS_TOPIC` and `DATABASE` change them."""

import os

SECRET_KEY = "only-for-this-example"
DEBUG = False
ALLOWED_HOSTS = ["localhost", "testserver"]
ROOT_URLCONF = "airline.urls"
INSTALLED_APPS = ["airline"]
DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": os.environ.get("DATABASE", "bookings.sqlite3"),
    }
}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
USE_TZ = True

BOOTSTRAP_SERVERS = os.environ.get("BOOTSTRAP_SERVERS", "localhost:9092")
BOOKINGS_TOPIC = os.environ.get("BOOKINGS_TOPIC", "bookings")
