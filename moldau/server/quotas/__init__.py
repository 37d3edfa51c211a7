"""Client quotas: how much each user, client and address may use, and how it has to pause then."""
