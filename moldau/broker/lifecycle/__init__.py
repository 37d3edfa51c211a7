"""A broker towards the controller: registration, heartbeats, requests, its copy of the metadata."""
