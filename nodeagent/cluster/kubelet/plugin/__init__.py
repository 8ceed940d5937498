"""The agent as a DRA plugin of this node's kubelet, which is the client of all that is served here.

`driver.py` puts it together; it and what it is made of import gRPC. `claims.py`, `claim_calls.py`
and `device_health.py`, which others need to know, do not.
"""
