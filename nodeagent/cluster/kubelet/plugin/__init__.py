"""The agent as a DRA plugin of this node's kubelet, which is the client of all that is served here.

`claim_calls.py`, which others need to know, does not import gRPC; `driver.py` does.
"""
