"""Every setting of the clients: tables, parsing, typed keyword arguments."""

from moldau.client.config.client import AdminConfig, AdminSettings, ClientConfig, ClientSettings
from moldau.client.config.consumer import ConsumerConfig, ConsumerSettings
from moldau.client.config.producer import ProducerConfig, ProducerSettings
from moldau.client.config.settings import UnusedSetting

__all__ = [
    "AdminConfig",
    "AdminSettings",
    "ClientConfig",
    "ClientSettings",
    "ConsumerConfig",
    "ConsumerSettings",
    "ProducerConfig",
    "ProducerSettings",
    "UnusedSetting",
]
