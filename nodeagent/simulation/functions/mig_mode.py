"""MIG mode of a GPU."""

# A body has C's parameters and the session, needed or not, and C's name says what it does:
# ruff: noqa: ARG001, D103

from __future__ import annotations

from ctypes import c_uint

from nodeagent.simulation.arguments import Number, Out
from nodeagent.simulation.codes import Code, Refused
from nodeagent.simulation.functions.registry import GPU, c_function
from nodeagent.simulation.nvml_session import Session
from nodeagent.simulation.views import Device


@c_function("nvmlDeviceGetMigMode", GPU, Out(c_uint), Out(c_uint), errors=(Code.NOT_SUPPORTED,))
def get_mig_mode(library: Session, gpu: Device, current: c_uint, pending: c_uint) -> None:
    gpu.card.require_mig_capable()
    current.value, pending.value = gpu.card.state.mig, gpu.card.state.pending


@c_function(
    "nvmlDeviceSetMigMode",
    GPU,
    Number(),
    Out(c_uint),
    changes=True,
    errors=(Code.NOT_SUPPORTED, Code.NO_PERMISSION),
)
def set_mig_mode(library: Session, gpu: Device, mode: int, activation: c_uint) -> None:
    """The call succeeds also where the change has to wait; `activation` says why it waits."""
    gpu.card.require_mig_capable()
    library.require_privilege()
    if mode not in (0, 1):
        raise Refused(Code.INVALID_ARGUMENT)
    activation.value = gpu.card.set_mig_mode(enabled=bool(mode))
