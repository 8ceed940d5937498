"""NVIDIA mig-manager's protocol: a node label names a configuration, another reports on it."""
