"""How a claim's devices shall be shared: the opaque parameters of its classes and its own. Pure.

The words are those of a plan's `mps` and `timeSlice`, read by the plan's rules. Claims are written
by tenants, classes by administrators: whom MPS runs as, what becomes of clients beyond their
limits, and whether shares may add up to more than there is are in classes alone.
"""

from typing import Final, NoReturn

from nodeagent.claims.model import Configuration
from nodeagent.claims.names import DRIVER, NVIDIA_DRIVER
from nodeagent.claims.serving import nvidia_configuration
from nodeagent.claims.serving.claim_object import Source
from nodeagent.documents.findings import DocumentPath, Findings
from nodeagent.documents.grammar import DocumentValue, Given, Key, Rule, form, read_with, then, word
from nodeagent.documents.mps import MPS
from nodeagent.documents.plan import TIME_SLICE, refuse_two_ways
from nodeagent.plan.desired import MpsEntry, Shares
from nodeagent.plan.shares import TimeSlice
from nodeagent.structs import replace
from nodeagent.text import quote

API_VERSION: Final = "gpu.nodeagent.io/v1"
KIND: Final = "DeviceConfig"

_ADMINISTRATORS = ("user", "enforce", "oversubscribe")


def read_configuration(
    parameters: object, source: Source, path: DocumentPath, *, driver: str, nvidia: bool
) -> Configuration | nvidia_configuration.NvidiaConfiguration:
    """Return what the parameters at `path` of an allocation, written for `driver`, ask for.

    Those of NVIDIA's driver are honoured with `nvidia`, and refused without; with it the agent's
    own may be written for that driver, too. Raises DocumentError with every fault.
    """
    kind, to_nvidia = nvidia_configuration.kind_of(parameters), driver == NVIDIA_DRIVER
    if (kind == KIND and nvidia) if to_nvidia else kind not in nvidia_configuration.NVIDIA_KINDS:
        return read_with(_OURS[source], parameters, Findings(), path)
    rule = nvidia_configuration.NVIDIAS[source] if nvidia else _NOT_HONOURED
    return read_with(rule, parameters, Findings(), path)


def within_class(own: Configuration | None, of_class: Configuration | None) -> Configuration | None:
    """A claim's own configuration, with what its class alone may say of MPS."""
    if not isinstance(own, MpsEntry) or not isinstance(of_class, MpsEntry):
        return own
    return replace(
        own, user=of_class.user, enforce=of_class.enforce, oversubscribe=of_class.oversubscribe
    )


# --- the agent's own ------------------------------------------------------------------------------


def _class_mps(place: DocumentValue, mps: MpsEntry) -> MpsEntry:
    if isinstance(mps.clients, Shares) and len(mps.clients.entries) > 1:
        raise place.refused("severalShares", found=len(mps.clients.entries), below=("shares",))
    return mps


def _claim_mps(place: DocumentValue, mps: MpsEntry) -> MpsEntry:
    for key in _ADMINISTRATORS:
        if key in place.value:
            raise place.refused("ofClassOnly", key=key, below=(key,), of_key=True)
    return _class_mps(place, mps)


def _device_config(place: DocumentValue, given: Given) -> Configuration:
    refuse_two_ways(place, given)
    if given["mps"]:
        mps: MpsEntry = given["mps"]
        return mps
    if given["timeSlice"]:
        return TimeSlice(given["timeSlice"])
    raise place.refused("emptyConfiguration")


def _ours(mps: Rule[MpsEntry]) -> Rule[Configuration]:
    return form(
        Key("apiVersion", word(API_VERSION), API_VERSION, required=True),
        Key("kind", word(KIND), KIND, required=True),
        Key("mps", mps, "MPS on the device, as in a plan"),
        Key("timeSlice", TIME_SLICE, "how long a process runs before the next one's turn"),
        build=_device_config,
    )


_OURS = {Source.CLASS: _ours(then(MPS, _class_mps)), Source.CLAIM: _ours(then(MPS, _claim_mps))}


def _not_honoured(place: DocumentValue) -> NoReturn:
    kind = nvidia_configuration.kind_of(place.value)
    found = quote(kind) if kind else "a configuration"
    raise place.refused("ofNvidia", found=found, driver=DRIVER, below=("kind",))


_NOT_HONOURED: Rule[nvidia_configuration.NvidiaConfiguration] = Rule(_not_honoured, {})
