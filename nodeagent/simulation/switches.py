"""What is uncertain about the driver, or differs between drivers and machines: one switch each.

A default is what the published evidence supports best. Code that relies on a default should also
be tested with the other value.
"""

import msgspec

from nodeagent.errors import UsageError

_CHOICES = {
    "ampere_mode": ("pending", "whenIdle"),
    "hopper_mode": ("whenIdle", "pending"),
    "gpu_reset": ("works", "NOT_SUPPORTED", "NO_PERMISSION", "in vain"),
    "compute_mode_of_mig_parent": ("NOT_SUPPORTED", "INVALID_ARGUMENT", "DEFAULT"),
}


class Switches(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """How the driver behaves where drivers or machines differ."""

    ampere_mode: str = "pending"
    """`pending`: a mode change always waits for a reset. `whenIdle`: the driver resets an idle
    GPU by itself, so that the change is immediate."""

    hopper_mode: str = "whenIdle"
    """The same on cards that as a rule change their mode at once."""

    passthrough: bool = False
    """The machine is a virtual machine with the GPUs passed through."""

    profiles_need_mig: bool = False
    """R535 and older report profiles and placements only while MIG is on."""

    gi_destroy_race: bool = False
    """The first attempt to destroy a GPU instance after its last compute instance went fails."""

    new_uuid_on_recreate: bool = False
    """A MIG device that is created again at the same place gets another UUID."""

    disable_needs_no_instances: bool = False
    """MIG cannot be switched off while instances exist, even idle ones."""

    pending_mode_stays: bool = False
    """A mode change that waits for a reset cannot be taken back: the driver says that the GPU is
    in use, and leaves it pending."""

    compute_mode_of_mig_parent: str = "NOT_SUPPORTED"
    """What a GPU in MIG mode answers when it is asked for its compute mode; `DEFAULT`: that mode.
    It cannot be set in any case."""

    mig_compute_modes: bool = True
    """MIG devices have a compute mode each. Older drivers refuse it."""

    time_slices: bool = True
    """GPUs have a time slice that can be set. Not before Volta."""

    zero_outside_mig: bool = False
    """Processes and events of a GPU outside MIG mode name instance 0 instead of none."""

    gpm_of_mig_parent: bool = False
    """Whether a GPU in MIG mode gives GPM samples of the whole GPU."""

    gpu_reset: str = "works"
    """What `nvidia-smi --gpu-reset` comes to: it may not be supported here, not be permitted, or
    report success `in vain`: a MIG mode that waits for it is pending as before."""

    reset_needs_nvml_closed: bool = True
    """`nvidia-smi` cannot reset a GPU while another process has NVML initialised."""

    persistence_mode: bool = True
    """Persistence mode after boot. While it is off, a card whose mode does not survive a reboot
    loses it when the last process shuts NVML down."""

    driver_version: str = "595.58.03"
    cuda_version: int = 13020
    """As NVML counts it: 1000 * major + 10 * minor."""

    missing_functions: tuple[str, ...] = ()
    """C functions that this driver's library does not have."""

    def __post_init__(self) -> None:
        for name, choices in _CHOICES.items():
            if getattr(self, name) not in choices:
                found = getattr(self, name)
                raise UsageError(
                    f"the simulator's switch {name} is {found!r}",
                    remedy=f"it can be {' or '.join(choices)}",
                )
