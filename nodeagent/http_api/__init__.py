"""The agent's local HTTP API: read-only over TCP, and the same over a Unix socket for root.

`answers` says what the API can ask of the agent, `routes` what a client can ask of the API,
`guard` who may ask at all, `listening` where.
"""
