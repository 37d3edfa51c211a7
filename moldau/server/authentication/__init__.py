"""Who the clients of a listener are: certificates, SASL sessions, and the settings of both."""
