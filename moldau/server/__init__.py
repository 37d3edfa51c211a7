"""The listening side of brokers and controllers: connections, requests, permissions, quotas."""
