"""Commands about thread percentages, memory limits and priority."""

from __future__ import annotations

from collections.abc import Callable

from nodeagent.simulation.mps import values
from nodeagent.simulation.mps.lookup import Answer, Caller, Lookup

_DEFAULTS = (  # the spelling is the daemon's own
    "Control deamon settings can only be modified by the user started it or by the root user."
)
_BAD_PERCENTAGE = "Invalid percentage, expected between (0.0, 100.0]"
_BAD_ORDINAL = "Invalid device ordinal!"


class SettingCommands:
    """Those of the daemon, which the next server starts with, and those of one server."""

    def __init__(self, lookup: Lookup) -> None:
        self._lookup = lookup
        self._defaults = lookup.servers.defaults
        self.commands: dict[str, Callable[[str, Caller], Answer]] = {
            "get_default_active_thread_percentage": self._get_default_percentage,
            "set_default_active_thread_percentage": self._set_default_percentage,
            "get_active_thread_percentage": self._get_percentage,
            "set_active_thread_percentage": self._set_percentage,
            "get_default_device_pinned_mem_limit": self._get_default_limit,
            "set_default_device_pinned_mem_limit": self._set_default_limit,
            "get_device_pinned_mem_limit": self._get_limit,
            "set_device_pinned_mem_limit": self._set_limit,
            "get_default_client_priority": self._get_priority,
            "set_default_client_priority": self._set_priority,
        }

    # --- thread percentages -------------------------------------------------------------------

    def _get_default_percentage(self, rest: str, caller: Caller) -> Answer:
        return f"{self._defaults.percentage:.1f}\n"

    def _set_default_percentage(self, rest: str, caller: Caller) -> Answer:
        if self._lookup.guarded and not caller.owner:
            return self._lookup.refused(caller, _DEFAULTS)
        wanted = values.percentage(rest)
        if wanted is None:
            self._lookup.log(_BAD_PERCENTAGE)
        elif self._lookup.knobs.get("ignore_settings"):
            return f"{wanted:.1f}\n"
        else:
            self._defaults.percentage = wanted
        return f"{self._defaults.percentage:.1f}\n"

    def _get_percentage(self, rest: str, caller: Caller) -> Answer:
        server = self._lookup.ready(rest)
        return server if isinstance(server, str) else f"{server.settings.percentage:.1f}\n"

    def _set_percentage(self, rest: str, caller: Caller) -> Answer:
        named, _, value = rest.partition(" ")
        server = self._lookup.mine(named, caller)
        if isinstance(server, str):
            return server
        wanted = values.percentage(value)
        if wanted is None:
            self._lookup.log(_BAD_PERCENTAGE)
        else:
            server.settings.percentage = wanted
            server.send({"settings": server.settings.to_json()})
        return f"{server.settings.percentage:.1f}\n"

    # --- memory limits ------------------------------------------------------------------------

    def _get_default_limit(self, rest: str, caller: Caller) -> Answer:
        return self._limit(self._defaults.limits, values.integer(rest))

    def _set_default_limit(self, rest: str, caller: Caller) -> Answer:
        if self._lookup.guarded and not caller.owner:
            return self._lookup.refused(caller, _DEFAULTS)
        if not self._lookup.knobs.get("ignore_settings"):
            self._set(self._defaults.limits, rest)
        return ""

    def _get_limit(self, rest: str, caller: Caller) -> Answer:
        named, _, device = rest.partition(" ")
        server = self._lookup.ready(named)
        if isinstance(server, str):
            return server
        return self._limit(server.settings.limits, values.integer(device))

    def _set_limit(self, rest: str, caller: Caller) -> Answer:
        named, _, limit = rest.partition(" ")
        server = self._lookup.mine(named, caller)
        if isinstance(server, str):
            return server
        self._set(server.settings.limits, limit)
        server.send({"settings": server.settings.to_json()})
        return ""

    def _limit(self, limits: dict[int, int], device: int) -> str:
        if not 0 <= device < values.DEVICES:
            self._lookup.log(_BAD_ORDINAL)
        elif device not in limits:
            self._lookup.log("No default pinned memory limit set for the device!")
        else:
            return f"{values.shown_limit(limits[device])}\n"
        return ""

    def _set(self, limits: dict[int, int], text: str) -> None:
        key, _, value = text.partition(" ")
        if self._lookup.servers.version.limits_by_uuid and key.startswith(("GPU-", "MIG-")):
            device = 0  # one daemon for one device is what can be simulated
        else:
            device, value = values.device_and_limit(text)
        if not 0 <= device < values.DEVICES:
            self._lookup.log(_BAD_ORDINAL)
            return
        limits.pop(device, None)
        if size := values.limit(value):
            limits[device] = size

    def _get_priority(self, rest: str, caller: Caller) -> Answer:
        return f"{self._defaults.priority}\n"

    def _set_priority(self, rest: str, caller: Caller) -> Answer:
        if self._lookup.guarded and not caller.owner:
            return self._lookup.refused(caller, _DEFAULTS)
        wanted = values.integer(rest)
        if wanted not in (0, 1):
            return "Invalid priority value - must be 0 or 1!\n"
        self._defaults.priority = wanted
        return ""
