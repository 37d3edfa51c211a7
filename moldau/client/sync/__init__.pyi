"""Written by tools/package_names.py (`make fmt`): do not edit."""

from moldau.client.sync.admin import Admin as Admin
from moldau.client.sync.consumer import Consumer as Consumer
from moldau.client.sync.handover import Delivery as Delivery
from moldau.client.sync.producer import Producer as Producer
from moldau.client.sync.producer import Transaction as Transaction
