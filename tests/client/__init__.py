"""The client against real brokers: every test runs unchanged on Moldau and on Apache Kafka."""
