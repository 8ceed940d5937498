"""The simulated node and the driver of the tests of `gpu/`."""

import pytest

from nodeagent.gpu.driver import Driver
from tests.gpu.conftest import driver, hasty, node

__all__ = ["driver", "hasty", "known", "node"]


@pytest.fixture
async def known(driver: Driver) -> Driver:
    await driver.observe()
    return driver
