"""The agent's local HTTP API: read-only over TCP; over a Unix socket, for root, the same and what
changes something.

`answers` says what the API can ask of the agent, `routes` and `mps_routes` what a client can ask
of the API, `guard` who may ask at all, `listening` where.
"""
