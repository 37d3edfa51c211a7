"""The client under every fault that brokers and networks have."""
