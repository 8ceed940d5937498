"""Everything Kubernetes: the API server's client, the kubelet, plan sources, what the Node shows,
and what is done around a change.
"""
