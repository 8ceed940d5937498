"""When a claim has a CDI file: with every device of it there, and not before."""

from __future__ import annotations

from pathlib import Path

import pytest

from nodeagent.claims.model import FileState
from nodeagent.claims.serving.cdi import ClaimFiles, file_names
from nodeagent.claims.serving.daemons import ClaimDaemons
from nodeagent.errors import NodeagentError
from nodeagent.files.cdi import Edits
from nodeagent.plan.observed import Gpu, ObservedNode
from tests.claims.machine import no_daemons
from tests.claims.samples import GPU, MIG_DEVICE, UID, mig_device, record


def test_no_file_for_a_device_that_is_not_there(tmp_path: Path) -> None:
    """The card's own device file alone would be all of a card outside MIG mode."""
    node = ObservedNode((Gpu(0, GPU, minor=0),))
    daemons = ClaimDaemons("1000", tmp_path, False, no_daemons)
    files = ClaimFiles(tmp_path, lambda: {3: (0, 7, None), 4: (0, 7, 0)}, Edits, daemons)
    lost = record(mig_device())
    with pytest.raises(NodeagentError, match=f"{MIG_DEVICE} does not exist"):
        files.publish(lost, node)
    assert file_names(tmp_path) == ()
    made = record(mig_device(instance=7, compute=0, uuid="MIG-7"))
    files.publish(made, node)
    assert files.states([made], node) == {UID: FileState.SAME}
    assert files.states([lost], node) == {UID: FileState.DIFFERS}
