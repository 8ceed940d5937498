"""What an XID asks for: NVIDIA's catalog as data, one class for each number.

An XID is the number of a driver error. Sources disagree about many of them, so the classes are a
table that a user's file can correct, and the driver's own recovery action outranks it. The data is
`xid_table.json`; where each of its columns comes from stands at its top.
"""

import json
import pkgutil
from collections.abc import Mapping
from enum import StrEnum
from functools import cache

from nodeagent.structs import Struct

OFF_THE_BUS = 79
RECOVERY_CHANGED = 154
BLOCKS_CALLS = frozenset({79, 119, 120})  # after these, driver calls may never return (DCGM)


class XidClass(StrEnum):
    """Classes of XIDs, by what is done about them."""

    APPLICATION = "application"  # restart the application; the device stays healthy
    INFORMATION = "information"  # counted and reported, no finding
    GPU_RESET = "gpuReset"
    NODE_REBOOT = "nodeReboot"
    HARDWARE = "hardware"  # cabling and power, then inspection
    SOFTWARE = "software"  # another driver or firmware
    SUPPORT = "support"  # no action is defined: reported, and inspected when it comes back
    NVLINK5 = "nvlink5"  # the kernel log's severity decides
    RECOVERY_ACTION = "recoveryAction"  # says that the driver's recovery action changed
    UNCLASSIFIED = "unclassified"  # the catalog has no action yet


class XidRow(Struct, frozen=True):
    """One number: NVIDIA's name for it, and the class."""

    xid: int
    name: str
    kind: XidClass

    def __str__(self) -> str:
        return f"XID {self.xid}" if self.name in ("", "Unused") else f"XID {self.xid} ({self.name})"


class XidTable(Struct, frozen=True):
    """All rows by number. A number that has none is unclassified."""

    rows: Mapping[int, XidRow]

    def row(self, xid: int) -> XidRow:
        return self.rows.get(xid) or XidRow(xid, "", XidClass.UNCLASSIFIED)


@cache
def default_table() -> XidTable:
    """The table that comes with the program."""
    data = json.loads(pkgutil.get_data("nodeagent.health", "xid_table.json") or b"")
    rows = (XidRow(e["xid"], e["name"], XidClass(e["class"])) for e in data["xids"])
    return XidTable({row.xid: row for row in rows})
