"""The simulated node and the driver of the tests of `gpu/`."""

from __future__ import annotations

from tests.gpu.conftest import driver, hasty, node

__all__ = ["driver", "hasty", "node"]
