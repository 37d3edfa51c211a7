"""What Confluent's REST v3 does not have: below `/api/v1`, one file per resource."""
