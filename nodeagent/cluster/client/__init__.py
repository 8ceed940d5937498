"""The Kubernetes API server: follows this agent's Node, writes to it, publishes Events about it.

Nothing here knows what a plan is.
"""
