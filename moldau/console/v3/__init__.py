"""Confluent's REST v3, as it is documented: one file per resource."""
