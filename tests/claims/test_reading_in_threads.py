"""What the API server and the toolkit have is read in several threads at once, from the start."""

import subprocess
import sys

import pytest

# Each child reads for the first time in its process; threads take turns as often as they can.
_RACES = """
import os, sys, threading
from msgspec import convert
from {module} import {kind}

sys.setswitchinterval(1e-6)
died = 0
for _ in range(30):
    child = os.fork()
    if not child:
        gate = threading.Barrier(8)
        def read():
            gate.wait()
            convert({document}, {kind})
        threads = [threading.Thread(target=read) for _ in range(8)]
        for one in threads:
            one.start()
        for one in threads:
            one.join()
        os._exit(0)
    died += os.waitpid(child, 0)[1] != 0
sys.exit(died)
"""
_STATUS = "{'metadata': {'uid': 'a1'}, 'status': {}}"


@pytest.mark.parametrize(
    ("module", "kind", "document"),
    [
        ("nodeagent.claims.serving.claim_object", "ClaimObject", _STATUS),
        ("nodeagent.files.cdi", "Edits", "{'deviceNodes': [{'path': '/dev/nvidiactl'}]}"),
    ],
    ids=["claim", "toolkit"],
)
def test_the_first_that_read_at_once(module: str, kind: str, document: str) -> None:
    """The kubelet prepares the claims of several pods at once, also right after a start."""
    program = _RACES.format(module=module, kind=kind, document=document)
    done = subprocess.run([sys.executable, "-c", program], check=False)
    assert done.returncode == 0
