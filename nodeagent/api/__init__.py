"""The agent's local HTTP API: read-only over TCP; over a Unix socket, for root, the same and what
changes something.

`answers` defines what the API can ask of the agent, `routes` the paths, `page` the page for people,
`guard` who is answered, `listening` where. `connection` and `limits` bound what a client can take,
and count and log those that were turned away.
"""
