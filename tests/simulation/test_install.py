"""The simulator leaves pynvml as it found it."""

from __future__ import annotations

import pynvml
import pytest

from nodeagent.simulation import simulated
from tests.simulation import calls


def _state() -> tuple[object, ...]:
    return (
        pynvml.nvmlLib,
        pynvml._nvmlLib_refcount,  # what is to be restored
        dict(pynvml._nvmlGetFunctionPointer_cache),
        dict(pynvml.NVMLError._errcode_to_string),
    )


def test_pynvml_is_as_before() -> None:
    """Library, count, cached functions and cached error texts."""
    before = _state()
    with calls.node_with():
        assert str(pynvml.NVMLError(19)) == "In use by another client"
        assert _state() != before
    assert _state() == before


def test_pynvml_is_as_before_after_an_error() -> None:
    """Also when the block is left by an exception, without a shutdown."""
    before = _state()
    with pytest.raises(pynvml.NVMLError_InvalidArgument), simulated("t4"):  # noqa: PT012
        pynvml.nvmlInit()
        calls.gpu(1)
    assert _state() == before


def test_one_node_within_another() -> None:
    """The inner one answers while it is there, then the outer one again."""
    with calls.node_with("h100-80gb:2"):
        with calls.node_with("t4"):
            assert pynvml.nvmlDeviceGetName(calls.gpu()) == "Tesla T4"
        assert pynvml.nvmlDeviceGetCount() == 2


def test_a_closed_node_answers_nothing() -> None:
    """A function kept from before is UNINITIALIZED, and holds no caller up."""
    with calls.node_with() as node:
        kept = pynvml.nvmlLib.nvmlDeviceGetCount_v2
        node.close()
        assert kept(calls.c_uint_reference()) == pynvml.NVML_ERROR_UNINITIALIZED
        pynvml.nvmlLib.session.initialised = 0


def test_functions_accept_attributes() -> None:
    """pynvml sets a result type on one of them, as ctypes allows."""
    with simulated("t4"):
        function = pynvml.nvmlLib.nvmlErrorString
        function.restype = str
        assert function.restype is str
        assert function.__name__ == "nvmlErrorString"


def test_unknown_functions_do_not_exist() -> None:
    """So that pynvml says FunctionNotFound."""
    with simulated("t4"):
        with pytest.raises(AttributeError, match="undefined symbol"):
            pynvml.nvmlLib.nvmlNoSuchThing  # noqa: B018
        assert pynvml.nvmlLib is not None
