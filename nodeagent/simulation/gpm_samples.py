"""GPM samples: how busy a device had been at the moment each was taken."""

from __future__ import annotations

from dataclasses import dataclass

from nodeagent.simulation.handles import Handle


@dataclass(slots=True)
class GpmSample:
    """Empty until it was taken: then of a GPU, or of the GPU instance with this serial.

    `busy` in seconds of full work so far, `at` by the node's clock.
    """

    gpu: int = -1
    serial: int = 0
    at: float = 0.0
    busy: float = 0.0


class GpmSamples:
    """The samples of one process. The library's lock guards it."""

    def __init__(self) -> None:
        self._samples: dict[int, GpmSample] = {}
        self._made = 0

    def make(self) -> int:
        """The running number of a new sample."""
        self._made += 1
        self._samples[self._made] = GpmSample()
        return self._made

    def get(self, handle: Handle) -> GpmSample | None:
        return self._samples.get(handle.serial)

    def free(self, sample: GpmSample) -> None:
        self._samples = {n: one for n, one in self._samples.items() if one is not sample}

    def clear(self) -> None:
        self._samples.clear()

    def __len__(self) -> int:
        return len(self._samples)
