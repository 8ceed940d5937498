"""The agent as a service: its parts built, run together and taken down in order."""
