"""One module per API that is spoken, named by its number, and payloads that belong to no API.

Every class here covers all versions that Apache Kafka 4.3 defines. `moldau.protocol.registry`
finds the classes of an API by its number.
"""
