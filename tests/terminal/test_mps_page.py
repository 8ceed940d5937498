from typing import Any

from nodeagent.terminal.gpu_page import gpu_page
from nodeagent.terminal.mps_page import clients_page, daemon_lines, daemons_page, shares_words
from nodeagent.terminal.page import plain_text
from nodeagent.terminal.status_page import status_page

GIB = 1 << 30
READY: dict[str, Any] = {
    "device": "GPU-0",
    "gpu": 0,
    "state": "Ready",
    "pid": 815,
    "user": 1000,
    "restarts": 2,
    "shares": {"small": {"count": 4, "memory": 8 * GIB, "threads": 15}},
    "server": {"pid": 816, "user": 1000, "status": "ACTIVE"},
    "clients": [
        {
            "pid": 4712,
            "command": "python",
            "user": 1000,
            "share": "small",
            "slot": "small-0",
            "memory": {"used": 2 * GIB, "limit": 8 * GIB},
            "threads": 15,
            "pod": {"namespace": "ml", "name": "train-0", "container": "main"},
        },
        {"pid": 4713, "findings": ["it has no share"]},
    ],
    "waiting": [{"pid": 99, "user": 1001, "command": "sleepy"}],
}
FAILED: dict[str, Any] = {
    "device": "MIG-b",
    "gpu": 1,
    "profile": "3g.40gb",
    "start": 4,
    "size": 4,
    "state": "Failed",
    "why": "failed 5 times in a row",
    "restarts": 5,
    "clients": [],
    "lastLines": ["no CUDA-capable device is detected"],
}
ANSWER = {"node": "node-a", "daemons": [READY, FAILED]}


def test_the_daemons() -> None:
    assert (
        plain_text(daemons_page(ANSWER))
        == """\
DEVICE              STATE   PID  USER  RESTARTS  CLIENTS  SHARES                UUID
GPU 0               Ready   815  1000         2        2  small 4 x 8 GiB 15 %  GPU-0
GPU 1 3g.40gb at 4  Failed    -  -            5        0  -                     MIG-b

! GPU 0: pid 4713: it has no share
! GPU 0: pid 99 (sleepy) of user 1001 waits; server 816 serves user 1000
! GPU 1 3g.40gb at 4: failed 5 times in a row
    no CUDA-capable device is detected
"""
    )


def test_the_clients() -> None:
    assert (
        plain_text(clients_page(ANSWER))
        == """\
DEVICE   PID  COMMAND  USER  SHARE     USED  LIMIT  THREADS  POD
GPU 0   4712  python   1000  small-0  2 GiB  8 GiB     15 %  ml/train-0
GPU 0   4713  -        -     none         -      -        -  -

! GPU 0: pid 4713: it has no share
! GPU 0: pid 99 (sleepy) of user 1001 waits; server 816 serves user 1000
"""
    )


def test_trouble_of_a_daemon_that_is_ready() -> None:
    trouble = "its last server (816) ended: status 1"
    ready = {"device": "GPU-0", "gpu": 0, "state": "Ready", "trouble": trouble}
    assert f"\n! GPU 0: {trouble}\n" in plain_text(daemons_page({"daemons": [ready]}))
    starting = {**ready, "state": "Starting", "why": trouble}
    assert plain_text(daemons_page({"daemons": [starting]})).count(trouble) == 1


def test_a_client_that_was_not_looked_at_yet() -> None:
    page = plain_text(
        clients_page({"daemons": [{**READY, "clients": [{"pid": 7}], "waiting": []}]})
    )
    assert page.splitlines()[1].split() == ["GPU", "0", "7", *"-------"]


def test_a_later_agent_may_say_less_or_more() -> None:
    page = plain_text(daemons_page({"daemons": [{"device": "GPU-9", "state": "Dreaming"}]}))
    assert page.splitlines()[1].split() == ["GPU-9", "Dreaming", "-", "-", "-", "0", "-", "GPU-9"]


def test_shares_in_words() -> None:
    shares = {"small": {"count": 4, "memory": GIB, "threads": 15}, "rest": {"threads": 33.3}}
    words = "small 4 x 1 GiB 15 %, rest each all memory 33.3 %"
    assert shares_words({"shares": shares}) == words
    assert (
        shares_words({"shares": {"clients": {"memory": GIB}}}) == "clients each 1 GiB all threads"
    )


def test_one_daemon_within_a_page() -> None:
    assert (
        plain_text(daemon_lines(READY, "the GPU"))
        == """\
MPS on the GPU: Ready  user 1000, pid 815, restarts 2, small 4 x 8 GiB 15 %, 2 clients
  ! pid 4713: it has no share
  ! pid 99 (sleepy) of user 1001 waits; server 816 serves user 1000
  small-0: pid 4712 (python) of pod ml/train-0, 2 GiB used of 8 GiB
  no share: pid 4713
"""
    )


def test_the_status_has_daemons_by_their_gpus() -> None:
    gpus = [
        {"index": 0, "uuid": "GPU-0", "free": {}},
        {
            "index": 1,
            "uuid": "GPU-1",
            "free": {},
            "instances": [{"uuid": "MIG-b", "profile": "3g.40gb", "start": 4, "size": 4}],
        },
    ]
    gone = {"device": "MIG-gone", "state": "Draining", "clients": []}
    status = {"node": "n", "phase": "Failed", "gpus": gpus, "mps": [READY, FAILED, gone]}
    rows = plain_text(status_page(status, 100, 40)).splitlines()
    places = [
        next(n for n, row in enumerate(rows) if words in row)
        for words in (
            "  1 Ready",
            "  1 Failed",
            "GPU 0  MPS on the GPU: Ready",
            "GPU 1  MPS on 3g.40gb at 4: Failed",
            "MPS on MIG-gone: Draining",
        )
    ]
    assert places == sorted(places)


def test_a_daemon_of_two_gpus_is_one_row_and_on_the_page_of_each() -> None:
    both = {**READY, "devices": ["GPU-0", "GPU-1"], "gpus": [0, 1], "waiting": []}
    [row] = [row for row in daemons_page({"daemons": [both]}) if "815" in plain_text([row])]
    assert plain_text([row]).startswith("GPU 0 + GPU 1  Ready")
    gpus: list[dict[str, Any]] = [
        {"index": index, "uuid": f"GPU-{index}", "free": {}} for index in (0, 1)
    ]
    status = {"node": "n", "phase": "Working", "gpus": gpus, "mps": [both]}
    assert "GPUs 0-1  MPS on GPU 0 + GPU 1: Ready" in plain_text(status_page(status, 100, 40))
    for gpu in gpus:
        page = plain_text(gpu_page({**status, "gpus": [gpu]}, 100))
        assert page.count("MPS on GPU 0 + GPU 1: Ready") == 1


def test_modes_are_shown_where_they_are_not_the_usual_ones() -> None:
    usual = {"index": 0, "free": {}, "computeMode": "default", "timeSlice": "default"}
    other = {"index": 1, "free": {}, "computeMode": "exclusiveProcess", "timeSlice": "long"}
    shown = [
        plain_text(status_page({"phase": "InSync", "gpus": [gpu]}, 100, 40))
        for gpu in (usual, other)
    ]
    assert ["compute mode exclusiveProcess, time slice long" in page for page in shown] == [
        False,
        True,
    ]
    assert "compute mode" not in shown[0]


def test_what_python_runs_tells_clients_apart() -> None:
    client = {"pid": 4712, "command": "python3", "script": "train.py", "share": "small"}
    daemon = {**READY, "clients": [client], "waiting": []}
    assert "  4712  python3 train.py  " in plain_text(clients_page({"daemons": [daemon]}))
    assert "small: pid 4712 (python3 train.py)\n" in plain_text(daemon_lines(daemon, "the GPU"))
