"""The plan's `mps`: who may use how much of a device, and as whom.

Memory is a Kubernetes quantity (`8Gi`, `512Mi`, `10G`, `1.5Gi`). Its grammar and meaning are those
of apimachinery's resource.Quantity, except that nothing is ever rounded: what is not a whole number
of bytes is refused.
"""

import re

from nodeagent.documents import grammar
from nodeagent.plan.desired import MpsEntry, Replicas, ShareEntry, Shares
from nodeagent.text import quote

MAX_CLIENTS = 128  # of one device, more than any driver serves (48 or 60)
MAX_ID = 2**32 - 2  # the number above means "no change" to the kernel

_SHARE_NAME = r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?"
_USER = r"([0-9]{1,10})(?::([0-9]{1,10}))?|[A-Za-z_][A-Za-z0-9_.@-]{0,62}\$?"


# --- values -----------------------------------------------------------------------------------


def _memory(place: grammar.DocumentValue) -> int:
    value = place.value
    if isinstance(value, float) and value.is_integer():  # 1e9
        value = int(value)
    if type(value) not in (int, str):
        raise place.unexpected(ACCEPTED)
    try:
        return read_quantity(str(value))
    except ValueError as error:
        likely = likely_quantity(str(value))
        remedy = f"did you mean {likely}?" if likely and likely != value else ""
        raise place.refuse(f"found {quote(value)}: {error}", remedy=remedy) from error


MEMORY = grammar.Rule(
    _memory,
    {
        "anyOf": [
            {"type": "string", "pattern": r"^[0-9.]+([KMGTPE]i|[mkMGTPE]|[eE][+-]?[0-9]+)?$"},
            {"type": "integer", "minimum": 1},
        ]
    },
)


def _user(place: grammar.DocumentValue) -> str:
    value = place.value
    match = re.fullmatch(_USER, str(value)) if type(value) in (int, str) else None
    if match is None:
        raise place.unexpected("a uid, uid:gid or the name of a user")
    ids = [int(part) for part in match.groups() if part]
    if any(number > MAX_ID for number in ids):
        raise place.refuse(f"found {quote(value)}: the largest id is {MAX_ID}")
    return ":".join(map(str, ids)) or str(value)


_USER_RULE = grammar.Rule(
    _user,
    {
        "anyOf": [
            {"type": "integer", "minimum": 0, "maximum": MAX_ID},
            {"type": "string", "pattern": f"^({_USER})$"},
        ]
    },
)


# --- maps -------------------------------------------------------------------------------------

_PERCENT = grammar.then(
    grammar.scalar(
        lambda value: type(value) in (int, float) and 0 < value <= 100,
        "a number of percent, more than 0 and at most 100",
        {"type": "number", "exclusiveMinimum": 0, "maximum": 100},
    ),
    lambda _, value: float(value),
)
_LIMITS = (
    grammar.Key("memory", MEMORY, "device memory that a client may use, a quantity such as 8Gi"),
    grammar.Key(
        "threads", _PERCENT, "share of the device's threads that a client may use, in percent"
    ),
)
_CLIENTS = grammar.whole(1, MAX_CLIENTS)


def _share(place: grammar.DocumentValue, given: grammar.Given) -> ShareEntry:
    name = str(place.path[-1])
    return ShareEntry(name, given["count"], given["memory"], given["threads"], place.path_below())


def _any_clients(place: grammar.DocumentValue, given: grammar.Given) -> Shares:
    """One share for any number of clients."""
    share = _share(place, {"count": None, **given})
    return Shares((share,), share.path)


def _check_share_name(place: grammar.DocumentValue, name: str) -> None:
    if not re.fullmatch(_SHARE_NAME, name):
        raise place.refused("shareName", found=quote(name), below=(name,), of_key=True)


def _mps(place: grammar.DocumentValue, given: grammar.Given) -> MpsEntry:
    found = [kind for kind in ("shares", "replicas", "clients") if given[kind] is not None]
    if len(found) != 1:
        raise place.refused("clients", found=" and ".join(found) or "none of them")
    return MpsEntry(
        path=place.path_below(),
        clients=given[found[0]],
        user=given["user"],
        enforce=given["enforce"],
        oversubscribe=given["oversubscribe"],
        together=given.get("together", False),
    )


_KEYS = (
    grammar.Key(
        "shares",
        grammar.then(
            grammar.map_of(
                grammar.form(
                    grammar.Key("count", _CLIENTS, "how many clients", default=1),
                    *_LIMITS,
                    build=_share,
                ),
                _check_share_name,
                key_pattern=f"^({_SHARE_NAME})$",
                least=1,
            ),
            lambda place, shares: Shares(tuple(shares.values()), place.path_below()),
        ),
        "different limits for different clients, each kind under a name",
    ),
    grammar.Key(
        "replicas",
        grammar.then(_CLIENTS, lambda place, count: Replicas(count, place.path_below())),
        "so many clients with equal shares of memory and threads",
    ),
    grammar.Key(
        "clients",
        grammar.form(*_LIMITS, build=_any_clients),
        "the same limits for every client, however many there are",
    ),
    grammar.Key(
        "user",
        _USER_RULE,
        "uid, uid:gid or name that daemon, servers and clients run as; any: clients of every user",
    ),
    grammar.Key(
        "enforce",
        grammar.word("report", "terminate"),
        "what happens to a client beyond its limits",
        default="report",
    ),
    grammar.Key(
        "oversubscribe",
        grammar.flag(),
        "whether the shares may add up to more than the device has",
        default=False,
    ),
)
_TOGETHER = grammar.Key(
    "together",
    grammar.flag(),
    "whether the entry's GPUs have one daemon, so that a client can use all of them",
    default=False,
)
_ONE_OF: grammar.JsonSchema = {
    "oneOf": [{"required": [key]} for key in ("shares", "replicas", "clients")]
}
MPS = grammar.form(*_KEYS, build=_mps, constraints=_ONE_OF)  # of one device
MPS_OF_GPUS = grammar.form(*_KEYS, _TOGETHER, build=_mps, constraints=_ONE_OF)


# --- quantities -------------------------------------------------------------------------------

MAX_QUANTITY = 2**63 - 1  # bytes; what Kubernetes itself can hold

_QUANTITY = (
    r"(?P<sign>[+-]?)(?P<number>[0-9]{0,24}(?:\.[0-9]{0,24})?)"
    r"(?P<suffix>[KMGTPE]i|[numkMGTPE]|[eE](?P<exponent>[+-]?[0-9]{1,2}))?"
)
_BINARY = {
    suffix: 1024**power for power, suffix in enumerate(("Ki", "Mi", "Gi", "Ti", "Pi", "Ei"), 1)
}
_DECIMAL = {"n": -9, "u": -6, "m": -3, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}

ACCEPTED = "a Kubernetes quantity of bytes such as 8Gi, 512Mi or 10G"


def read_quantity(text: str) -> int:
    """The bytes a quantity means; raises ValueError with a sentence when it means none."""
    match = re.fullmatch(_QUANTITY, text)
    if match is None or match["number"] in {"", "."}:
        raise ValueError(f"expected {ACCEPTED}")
    if match["sign"] == "-":
        raise ValueError("memory cannot be negative")
    from fractions import Fraction  # only documents with limits of memory pay for it

    exponent = match["exponent"] or _DECIMAL.get(match["suffix"] or "", 0)
    amount = Fraction(f"{match['number']}e{exponent}") * _BINARY.get(match["suffix"], 1)
    if not amount:
        raise ValueError("memory must be more than 0; without the key there is no limit")
    value = int(amount)
    if value != amount:
        below = f"; the next below is {value}" if value else ""
        raise ValueError(f"this is not a whole number of bytes, and nothing is rounded{below}")
    if value > MAX_QUANTITY:
        raise ValueError(f"this is more than {MAX_QUANTITY} bytes")
    return value


def likely_quantity(text: str) -> str | None:
    """The quantity that was probably meant by a misspelt one: `8GB`, `8 gi`, `512mib`."""
    match = re.fullmatch(r"([0-9.]{1,20})\s*([a-z])(i?)b?", text.strip().lower())
    if match is None or match[2] not in "kmgtpe":
        return None
    number, unit, binary = match.groups()
    letter = unit if unit == "k" and not binary else unit.upper()
    return f"{number}{letter}{binary}"
