import pytest

from tests.health.rig import Node


@pytest.fixture
def node() -> Node:
    return Node()
