"""The driver of the tests of `gpu/`."""

import pytest

from nodeagent.gpu.driver import Driver
from tests.gpu.conftest import driver, hasty

__all__ = ["driver", "hasty", "known"]


@pytest.fixture
async def known(driver: Driver) -> Driver:
    await driver.observe()
    return driver
