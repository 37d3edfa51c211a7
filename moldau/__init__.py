"""Moldau: a Kafka-compatible, KRaft-style streaming cluster that installs with pip."""

__version__ = "0.1.0"
