"""A server with the Node `n`, and a way to it."""

from tests.simulated_cluster.fixtures import access, server

__all__ = ["access", "server"]
