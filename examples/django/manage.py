"""Django's commands, with this project's settings.

python manage.py migrate
python manage.py runserver
python manage.py confirm_bookings
"""

import os
import sys

from django.core.management import execute_from_command_line

if __name__ == "__main__":
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "airline.settings")
    execute_from_command_line(sys.argv)
