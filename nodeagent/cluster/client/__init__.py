"""The Kubernetes API server: follows this agent's Node, writes to it, publishes Events about it.

The only home of the library `kubernetes`, which costs 0.2 s and 20 MB (with the models of its API,
which are not used here, 45 MB): a process imports this package only where a cluster is used.
Nothing here knows what a plan is.
"""
