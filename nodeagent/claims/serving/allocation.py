"""What a ResourceClaim was allocated of this driver's devices, read from the API server's object.

Pure. The scheduler wrote it, and the API server checked it; what the configurations in it say was
written by tenants and administrators.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from nodeagent.claims import model
from nodeagent.claims.capacity import CLIENTS, MEMORY, THREADS, Consumed
from nodeagent.claims.names import DRIVER, NVIDIA_DRIVER, WHOLE_GPU
from nodeagent.claims.offering.devices import read_name
from nodeagent.claims.offering.resource_slices import read_quantity
from nodeagent.claims.serving.claim_object import (
    AllocatedDevice,
    AllocatedDevices,
    ClaimObject,
    Source,
    WrittenConfiguration,
)
from nodeagent.claims.serving.configuration import read_configuration, within_class
from nodeagent.claims.serving.nvidia_configuration import NvidiaConfiguration, kind_of
from nodeagent.documents.findings import DocumentPath
from nodeagent.errors import DocumentError
from nodeagent.plan.shares import TimeSlice
from nodeagent.structs import Struct
from nodeagent.text import quote


def read_allocation(
    claim: ClaimObject, *, namespace: str, name: str, uid: str, nvidia: bool = False
) -> tuple[model.Result, ...]:
    """This driver's devices that the claim was allocated which the kubelet named; one at least.

    With `nvidia` configurations for NVIDIA's driver count as ones for this driver, and without
    those that nothing for this driver replaces are refused; in a claim that has devices of that
    driver, too, they are its own. Where this driver has that name they count, too. Raises
    ClaimRefused, which names the claim, the request or field, and what to do.
    """
    reference = model.ClaimReference(namespace, name)
    if claim.uid != uid:
        raise model.ClaimHeldUp.of(
            "anotherUid", claim=reference, found=quote(claim.uid), uid=quote(uid)
        )
    if claim.allocated is None:
        raise model.ClaimHeldUp.of("notAllocated", claim=reference)
    return _Reader(reference, claim.allocated, nvidia, refuses=not nvidia).results()


def read_state(claim: ClaimObject | None, record: model.ClaimRecord) -> model.ClaimState:
    """Compare the record with its claim, `claim` being what has its name, None where nothing has.

    One that cannot be read is UNKNOWN, so that nothing of it is released.
    """
    if claim is None or claim.uid != record.uid:
        return model.ClaimState.GONE
    if claim.allocated is None:
        return model.ClaimState.DEALLOCATED
    if not any(result.is_own for result in claim.allocated.results):
        return model.ClaimState.OTHER_RESULTS
    # A record has its configuration as the settings had it read: either way it is the same claim.
    state = model.ClaimState.OTHER_RESULTS
    for nvidia in (False, True):
        try:
            results = _Reader(record.reference, claim.allocated, nvidia).results()
        except model.ClaimRefused:
            state = model.ClaimState.UNKNOWN
            continue
        if record.is_of(results):
            return model.ClaimState.SAME
    return state


# --- the reader -----------------------------------------------------------------------------------


class _Configured(Struct, frozen=True):
    """A configuration as it was written, and as it was read."""

    written: WrittenConfiguration
    found: model.Configuration | NvidiaConfiguration

    def concerns(self, result: AllocatedDevice) -> bool:
        fits = not isinstance(self.found, NvidiaConfiguration) or self.found.fits(result.device)
        return self.written.concerns(result) if fits else self.written.names(result)

    @property
    def sharing(self) -> model.Configuration | None:
        """The sharing of most devices."""
        return self.found.sharing if isinstance(self.found, NvidiaConfiguration) else self.found


class _Reader(Struct, frozen=True):
    """Reads the allocated devices of one claim. Configurations for NVIDIA's driver count with
    `nvidia` and where this driver is called so, are refused with `refuses`, and else passed over.
    """

    claim: model.ClaimReference
    devices: AllocatedDevices
    nvidia: bool
    refuses: bool = False

    def results(self) -> tuple[model.Result, ...]:
        configurations = tuple(self._configurations())
        results = tuple(
            self._result(one, configurations) for one in self.devices.results if one.is_own
        )
        if not results:
            raise model.ClaimRefused.of("noDevice", claim=self.claim)
        self._check_together(results)
        return results

    # --- results --------------------------------------------------------------------------------

    def _result(self, one: AllocatedDevice, configurations: Sequence[_Configured]) -> model.Result:
        admin = bool(one.admin_access)
        if admin and one.device != WHOLE_GPU:
            raise model.ClaimRefused.of("adminOfPart", claim=self.claim, one=one, driver=DRIVER)
        result = model.Result(
            one.request,
            one.pool,
            one.device,
            one.share_id or "",
            admin,
            None if admin else self._chosen(one, configurations),
            None if admin else self._consumed(one),
            one.driver,
        )
        interval = result.configuration
        changes = isinstance(interval, TimeSlice) and interval is not TimeSlice.DEFAULT
        if changes and result.device != WHOLE_GPU:
            raise model.ClaimRefused.of("timeSliceOfPart", claim=self.claim, one=one, driver=DRIVER)
        return result

    def _consumed(self, one: AllocatedDevice) -> Consumed | None:
        """Capacities of other releases count for nothing; without the memory it is not known what
        the device is shared by.
        """
        consumed = (one.consumed_capacity or {}).items()
        found = {read_name(name, one.driver): amount for name, amount in consumed}
        if MEMORY not in found:
            return None
        try:
            amounts = [read_quantity(found.get(name, "0")) for name in (MEMORY, THREADS, CLIENTS)]
        except ValueError as error:
            raise model.ClaimRefused.of(
                "consumedCapacity", claim=self.claim, one=one, why=error
            ) from error
        return Consumed(*amounts)

    def _check_together(self, results: Sequence[model.Result]) -> None:
        """A device has one name in the claim's CDI file."""
        for (pool, device, _), count in Counter(result.key for result in results).items():
            if count > 1:
                raise model.ClaimRefused.of("twice", claim=self.claim, device=device, pool=pool)

    # --- configurations -------------------------------------------------------------------------

    def _configurations(self) -> Iterator[_Configured]:
        """The configurations for this driver, each read, whether or not it counts; the ones that
        were written for it come last, and so count before those for NVIDIA's.
        """
        drivers = (NVIDIA_DRIVER, DRIVER) if self._counts_nvidias else (DRIVER,)
        for driver in drivers:
            for path, one, parameters in self._written_for(driver):
                yield _Configured(one, self._read(path, one, parameters, driver))

    @property
    def _counts_nvidias(self) -> bool:
        """Whether configurations for NVIDIA's driver count."""
        named = (one.driver for one in self.devices.results if one.is_own)
        return self.nvidia or NVIDIA_DRIVER in named

    def _written_for(
        self, driver: str
    ) -> Iterator[tuple[DocumentPath, WrittenConfiguration, object]]:
        """With place and parameters. One for NVIDIA's driver is that driver's own where the claim
        has devices of it.
        """
        others = (one.driver for one in self.devices.results if not one.is_own)
        if driver == NVIDIA_DRIVER and driver in others:
            return
        for number, one in enumerate(self.devices.config):
            if one.opaque is not None and one.opaque.driver == driver:
                yield ("config", number), one, one.opaque.parameters

    def _read(
        self, path: DocumentPath, one: WrittenConfiguration, parameters: object, driver: str
    ) -> model.Configuration | NvidiaConfiguration:
        try:
            return read_configuration(
                parameters, one.source, path, driver=driver, nvidia=self._counts_nvidias
            )
        except DocumentError as error:
            raise self._refused_configuration(one, error) from error

    def _chosen(
        self, one: AllocatedDevice, configurations: Sequence[_Configured]
    ) -> model.Configuration | None:
        """The last of the claim's own, else the last of its class's; nothing is merged but what is
        the class's alone to say.
        """
        by_source = {c.written.source: c for c in configurations if c.concerns(one)}
        if self.refuses and not self._counts_nvidias:
            self._refuse_unread(one, by_source)
        of_class = by_source.get(Source.CLASS)
        chosen = by_source.get(Source.CLAIM, of_class)
        if chosen is None:
            return None
        return within_class(self._said(chosen, one), of_class.sharing if of_class else None)

    def _refuse_unread(self, one: AllocatedDevice, counted: Mapping[Source, _Configured]) -> None:
        """Refuse a configuration for NVIDIA's driver: its pod would run without the limits that it
        asks for. A writer who has another for this driver means nodes of both.
        """
        for path, written, parameters in self._written_for(NVIDIA_DRIVER):
            theirs = _Configured(written, NvidiaConfiguration(kind_of(parameters), path))
            if theirs.concerns(one) and counted.keys().isdisjoint({written.source, Source.CLAIM}):
                self._read(path, written, parameters, NVIDIA_DRIVER)

    def _said(self, chosen: _Configured, one: AllocatedDevice) -> model.Configuration | None:
        """The sharing of that device by the configuration."""
        if not isinstance(chosen.found, NvidiaConfiguration):
            return chosen.found
        own = [other for other in self.devices.results if other.is_own]
        alone = sum(map(chosen.concerns, own)) == 1
        try:
            return chosen.found.of_device(one.device, one.pool.rpartition("/")[2], alone=alone)
        except DocumentError as error:
            raise self._refused_configuration(chosen.written, error) from error

    def _refused_configuration(
        self, one: WrittenConfiguration, error: DocumentError
    ) -> model.ClaimRefused:
        """The first fault in full, and how many more there are."""
        if one.source is Source.CLASS:
            writer, where = "a DeviceClass", f"spec.config of the DeviceClass ({model.CLASSES})"
        else:
            writer = "the claim"
            where = f"spec.devices.config of the claim or its template ({self.claim.show})"
        requests = f" for {', '.join(map(quote, one.requests[:3]))}" if one.requests else ""
        more = len(error.problems) - 1
        rest = f" (and {more} more)" if more else ""
        return model.ClaimRefused(
            f"{self.claim}: configuration of {writer}{requests}: {error.message}{rest}",
            remedy="; ".join(filter(None, (error.remedy, f"it is written in {where}"))),
        )
