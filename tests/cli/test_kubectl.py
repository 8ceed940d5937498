import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec import to_builtins

from nodeagent import kubectl as plugin
from nodeagent.use.advice import Advice
from tests.folders import executable
from tests.simulated_cluster.agent import kubeconfig
from tests.simulated_cluster.real_api_server import RealApiServer, why_not

PLUGIN = Path(plugin.__file__)
DIGEST = "sha256:" + "7" * 64
STATUS: dict[str, Any] = {
    "headline": {"severity": "warning", "text": "Something is in use.", "code": "InUse"},
    "phase": "Blocked",
    "observedAt": "2026-01-02T03:04:05.000Z",
    "digest": DIGEST,
    "gpus": [
        {"uuid": "GPU-0", "mode": "enabled", "instances": [
            {"uuid": "MIG-0", "profile": "1g.10gb", "start": 0, "used": False},
            {"uuid": "MIG-1", "profile": "3g.40gb", "start": 4, "used": True},
            {"uuid": "MIG-2", "profile": "1g.10gb", "start": 1},
            {"profile": "1g.10gb", "start": 2, "used": False},
        ]},
        {"uuid": "GPU-1", "mode": "disabled", "used": True, "instances": []},
    ],
    "mps": [
        {"device": "GPU-1", "state": "Ready", "clients": 2},
        {"device": "MIG-0", "state": "Failed"},
    ],
    "problems": [],
}  # fmt: skip
LAYOUT = {"version": "v1", "gpus": [{"slots": {"total": 8, "free": [2, 3]}}, {"uuid": "GPU-1"}]}
READY = [{"type": "Ready", "status": "True"}]


def node(name: str, status: Any = None, conditions: Any = READY, **more: str) -> dict[str, Any]:
    text = status if isinstance(status, str | None) else json.dumps(status)
    annotations = more | ({} if text is None else {"nodeagent.io/status": text})
    content = {"metadata": {"name": name, "annotations": annotations}}
    return {"kind": "Node", "apiVersion": "v1", "status": {"conditions": conditions}} | content


def layout(content: Any = LAYOUT) -> dict[str, str]:
    return {"nodeagent.io/layout": json.dumps(content)}


# Stands for kubectl: writes its arguments and its input down, and answers from files, by the words
# of its command line without options.
STAND_IN = """#!/bin/sh
cd "$(dirname "$0")" || exit
echo "$*" >> asked
for word; do case $word in exec) cat > stdin;; esac; done
for word; do
  case $word in -*) ;; *) name=$name$word; [ ! -f "$name.json" ] || answer=$name;; esac
done
[ "$answer" ] || { echo "E1129 a line of klog" >&2; echo "error: no context" >&2; exit 1; }
cat "$answer.json"; [ -f "$answer.err" ] && cat "$answer.err" >&2
[ ! -f "$answer.code" ] || exit "$(cat "$answer.code")"
"""

Ran = subprocess.CompletedProcess[str]
Run = Callable[..., Ran]


@pytest.fixture(params=["", "3.9"])
def run(tmp_path: Path, request: pytest.FixtureRequest) -> Run:
    """Run the plugin as a file of its own, with what kubectl answers to the words in the names; by
    the Python of the tests, and by the oldest one that it is for.
    """
    python = _python(request.param) if request.param else sys.executable
    executable(tmp_path / "kubectl", STAND_IN)
    environment = os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}"}

    def run(*words: str, **answers: Any) -> Ran:
        for name, answer in answers.items():
            text = answer if isinstance(answer, str) else json.dumps(answer)
            (tmp_path / f"{name}.json").write_text(text)
        return _ran(words, environment, python)

    return run


def _python(version: str) -> str:
    asked = [f"python{version}", "-c", "import sys; print(sys.executable)"]
    with_pyenv = os.environ | {"PYENV_VERSION": version}
    try:
        found = subprocess.run(asked, env=with_pyenv, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip(f"Python {version} is not installed")
    return found.stdout.strip()


def _ran(words: tuple[str, ...], environment: dict[str, str], python: str = sys.executable) -> Ran:
    command = [python, "-I", "-S", str(PLUGIN), *words]  # no package but Python's own
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


def said(ran: Ran) -> str:
    """What it said when all was well."""
    assert (ran.returncode, ran.stderr) == (0, "")
    return ran.stdout


def test_a_fleet_in_a_pipe(run: Run) -> None:
    """Nothing is cut; a damaged annotation, a silent node and a new agent each have their words."""
    long = "One text that is far wider than any terminal has columns. " * 8
    well = STATUS | {"headline": {"severity": "ok", "text": "All is well."}, "phase": "InSync"}
    headline = {"severity": "error", "text": f"{long}\x1b[2J\u202e"}
    bad = STATUS | {"headline": headline, "more": {"gpus": 3}}
    starting = [*READY, {"type": "GPUPartitionsReady", "status": "Unknown", "message": "not read"}]
    healthy = {"type": "GPUHealthy", "status": "True", "message": "no fault"}
    late = [{"type": "Ready", "status": "Unknown", "reason": "NodeStatusUnknown"}]
    damaged = {"7-none": "{}", "8-cut": '{"phase"', "9-list": STATUS | {"gpus": [1]}}
    damaged["9-many"] = STATUS | {"claimsWaiting": "\x1b"}
    items = [
        node("6-new", conditions=[*starting, healthy]),
        node("6-first", conditions=[*READY, healthy]),
        node("2-bad", bad, **layout(LAYOUT | {"more": 1})),
        node("1-used", STATUS | {"claimsWaiting": 2}, **layout()),
        node("3-well", well | {"mps": []}),
        node("4-late", well | {"mps": [], "more": {"mps": 2}}, late),
        node("5-none"),
        *(node(name, text) for name, text in damaged.items()),
        node("9-map", well, **layout({"gpus": 5})),
    ]
    header, *rows, counted = said(run(getnodes={"items": items})).splitlines()
    assert header.split("  ")[0] == "NODE"
    cells = [[c.strip() for c in row.split("  ") if c.strip()] for row in rows]
    assert [row[:8] for row in cells[:4]] == [
        ["1-used", "Blocked", "2", "2", "1", "2", "1/2", "2"],
        ["2-bad", "Blocked", "2+", "2+", "1+", "2+", "1/2", "-"],
        ["3-well", "InSync", "2", "2", "1", "-", "-", "-"],
        ["4-late", "InSync", "2", "2", "1", "-", "0/0+", "-"],
    ]
    assert rows[0].endswith("  warning: Something is in use.")
    assert rows[1].endswith(f"  error: {long}\\x1b[2J\\u202e")
    assert rows[2].endswith("d  -")
    assert "  the node is not Ready (NodeStatusUnknown), last known: -" in rows[3]
    assert [row.rsplit("  ")[-1] for row in rows[4:6]] == ["no fault", "not read"]
    for row, name in zip(rows[6:], [*damaged, "9-map"], strict=True):
        assert row.startswith(name)
        assert row.endswith("/status or nodeagent.io/layout is not what an agent writes")
    each = "5 damaged, 1 error, 1 not Ready, 1 ok, 2 unknown, 1 warning"
    assert counted == f"11 nodes with an agent ({each}), 1 without"


def test_what_kubectl_says_is_handed_on_with_a_remedy(run: Run, tmp_path: Path) -> None:
    failed = run("--context", "other")
    assert (failed.returncode, failed.stdout) == (1, "")
    first, second = failed.stderr.splitlines()
    assert first == "nodeagent: kubectl get nodes failed: no context"
    assert "kubectl config get-contexts" in second
    assert (tmp_path / "asked").read_text() == "--context=other get nodes -o json\n"
    assert "kubectl get nodes failed: its answer is no JSON" in run(getnodes="<html>").stderr
    (tmp_path / "kubectl").unlink()
    missing = _ran((), {"PATH": str(tmp_path)})
    assert missing.returncode == 1
    assert "nodeagent: kubectl cannot be started: No such file or directory\n" in missing.stderr
    assert run("--nonsense").returncode == 2


AGENTS = "-A -l app.kubernetes.io/name=nodeagent,app.kubernetes.io/component=agent"


def pod(name: str, phase: str = "Running") -> dict[str, Any]:
    args = ["run", "--simulate", "h100-80gb:2", "--state", "/var/node.json"]
    containers = [{"name": "sidecar"}, {"name": "nodeagent", "args": args}]
    spec = {"nodeName": f"at-{name}", "containers": containers}
    metadata = {"namespace": "gpus", "name": name}
    return {"metadata": metadata, "spec": spec, "status": {"phase": phase}}


def test_a_page_of_the_agent_beside_it(run: Run, tmp_path: Path) -> None:
    (tmp_path / "exec.code").write_text("3")
    (tmp_path / "exec.err").write_text("one\x1b[1m word\ncommand terminated with exit code 3\n")
    pods = {"items": [pod("old", "Failed"), pod("agent-x")]}
    plan = tmp_path / "plan.yaml"
    plan.write_text("version: v1\n")
    shown = run("plan", "n1", "-f", str(plan), "-o", "json", getpods=pods, exec="the page\n")
    assert (shown.returncode, shown.stdout, shown.stderr) == (3, "the page\n", "one\\x1b[1m word\n")
    assert (tmp_path / "stdin").read_text() == "version: v1\n"
    run("status", "-o", "json", "--problems", "--gpu", "3", "n1")
    assert (tmp_path / "stdin").read_text() == ""
    of_agent = "-n gpus -c nodeagent agent-x -- nodeagent"
    assert (tmp_path / "asked").read_text().splitlines() == [
        f"get pods {AGENTS} --field-selector spec.nodeName=n1 -o json",
        f"exec -i {of_agent} plan --state /var/node.json -f - --output=json",
        f"get pods {AGENTS} --field-selector spec.nodeName=n1 -o json",
        f"exec {of_agent} status --output=json --gpu=3 --problems",
    ]


def advised(verdict: str, **more: Any) -> Any:
    """As the agent writes it, which leaves out what is as usual."""
    whose: dict[str, Any] = {"namespace": "team-a", "workload": "web", "container": "main"}
    has = {"model": "H100", "device": "3g.40gb", "held": 72000.0, "used": 0.0, "granted": 40 << 30}
    known = {"kind": "workload", "verdict": verdict, "why": ["a sentence"]}
    return to_builtins(Advice(**whose | has | known | more))


def test_the_advice_of_all_nodes_is_joined(run: Run, tmp_path: Path) -> None:
    smaller = advised("smaller", advised="1g.10gb", frees_part=0.375, peak=7 << 30)
    less = advised("smaller", advised="2g.20gb", frees_part=0.25, peak=12 << 30)
    late, user = advised("notEnough"), {"namespace": "", "workload": "1000\x1b[2J"}
    grows = [advised("notEnough", device="gpu", peak=30 << 30), smaller | {"device": "gpu"}]
    share = {"device": "share", "advised": "share", "memory": 3 << 30, "threads": 10.0, **user}
    full = [advised("larger", device="gpu", peak=79 << 30, **user), advised("newer", **share)]
    each = {"a": [smaller], "b": [less, *full], "c": [late, *grows]}
    answers = {f"execgpusnodeagent{name}": {"advice": advice} for name, advice in each.items()}
    pods = {"items": [pod(name) for name in ("a", "b", "c", "silent")]}
    refused = "nodeagent: no agent answers\n  start one\ncommand terminated with exit code 1\n"
    (tmp_path / "execgpusnodeagentsilent.err").write_text(refused)
    (tmp_path / "execgpusnodeagentsilent.code").write_text("1")
    everything = {"getpods": pods, "execgpusnodeagentsilent": "", **answers}
    shown = run("advise", "-n", "team-a", **everything)
    assert shown.stdout == """\
WORKLOAD            CARD  HAS      NODES  HELD  PEAK    FREES  ADVICE
1000\\x1b[2J (main)  H100  gpu      1      20h   79.0Gi  0%     larger
1000\\x1b[2J (main)  H100  share    1      20h   -       0%     newer share of 3Gi 10%
team-a/web (main)   H100  3g.40gb  3      60h   12.0Gi  25%    smaller 2g.20gb
team-a/web (main)   H100  gpu      2      40h   30.0Gi  0%     notEnough
"""  # fmt: skip
    missed = "at-silent: kubectl exec failed: no agent answers\n"
    assert (shown.returncode, shown.stderr) == (1, missed)
    listed = run("advise", "-o", "json", **everything)
    assert (listed.returncode, listed.stderr) == (1, missed)
    found = json.loads(listed.stdout)["advice"]
    assert [one.pop("node") for one in found] == [f"at-{name}" for name in "abbbccc"]
    assert found == [smaller, less, *full, late, *grows]
    alone = {"getpods": {"items": [pod("a")]}, "execgpusnodeagenta": {"advice": []}}
    none = "No holder in namespace team-a was seen yet\n"
    assert run("advise", "-n", "team-a", **alone).stdout == none
    assert json.loads(run("advise", "-o", "json", **alone).stdout) == {"advice": []}
    asked = (tmp_path / "asked").read_text()
    assert "exec -n gpus -c nodeagent a -- nodeagent advise --namespace=team-a -o json\n" in asked


def test_an_agent_that_is_not_there(run: Run) -> None:
    none = run("status", "n1", getpods={"items": []})
    assert none.returncode == 1
    assert none.stderr.startswith("nodeagent: the agent's pod on node n1 is not there\n  see ")
    nowhere = run("advise", getpods={"items": []})
    assert (nowhere.returncode, nowhere.stdout) == (1, "")
    assert nowhere.stderr.startswith("nodeagent: no agent's pod is there\n  see kubectl get pods ")
    pending = run("status", "n1", getpods={"items": [pod("agent-x", "Pending")]})
    assert "the agent's pod on node n1 does not run\n" in pending.stderr
    unread = run("plan", "n1", "-f", "/nowhere/plan.yaml")
    assert unread.returncode == 2
    assert "/nowhere/plan.yaml cannot be read: No such file" in unread.stderr


def asked_once(status: Any, plan: str = "version: v1") -> dict[str, Any]:
    return node("n1", status, **{"nodeagent.io/plan": plan})


def test_waiting_for_a_plan(run: Run, tmp_path: Path) -> None:
    wait = ("wait", "n1", "--timeout", "0")
    done = STATUS | {"phase": "InSync"}
    other = "sha256:" + "8" * 64
    refused = {"digest": other, "path": "gpus[0].mig", "message": "there is no 8g.40gb\x1b"}

    def ended(status: Any, *words: str) -> tuple[int, str, str]:
        shown = run(*wait, *words, getnoden1=asked_once(status))
        return shown.returncode, shown.stdout, shown.stderr.split("\n")[0]

    first = f"nodeagent: node n1 is not as plan {DIGEST} says: "
    assert ended(done, "--digest", DIGEST) == (0, f"node n1 is as plan {DIGEST} says\n", "")
    assert ended(done, "--digest", "7" * 12)[0] == 0
    blocked = ended(STATUS, "--digest", DIGEST)
    assert blocked == (3, "", f"{first}Blocked: warning: Something is in use.")
    failed = ended(STATUS | {"phase": "Failed", "message": "it broke"}, "--digest", DIGEST)
    assert failed == (1, "", f"{first}Failed: it broke")
    assert ended(STATUS | {"digest": other}, "--digest", DIGEST) == (1, "", f"{first}at {other}")
    words = f"nodeagent: plan {other} is refused: gpus[0].mig: there is no 8g.40gb\\x1b"
    assert ended(done | {"rejected": refused}, "--digest", other) == (2, "", words)
    for damaged in ("[", "[]", None, {"headline": 1}, {"rejected": 1}):
        assert ended(damaged, "--digest", DIGEST) == (1, "", f"{first}at no plan")
    assert ended(done, "--digest", "777")[0] == 2
    mine = "sha256:793111870e8d"  # of the annotation's own text
    assert mine in ended(done)[2]
    assert "node n1 has no nodeagent.io/plan" in run(*wait, getnoden1=node("n1", done)).stderr


def test_waiting_outlasts_an_outage_and_ends_when_the_agent_is_done(
    run: Run, tmp_path: Path
) -> None:
    """What another try does not mend ends it at once, and so does the end of the time."""
    turns = "echo >> turns; mv turn$(wc -l < turns).json getnoden1.json 2> /dev/null\n"
    script = STAND_IN.replace("no context", "$(cat refused)").replace("for", f"{turns}for", 1)
    (tmp_path / "kubectl").write_text(script)
    refused = tmp_path / "refused"
    refused.write_text("The connection to the server 127.0.0.1:6443 was refused")
    wait = ("wait", "n1", "--digest", DIGEST, "--timeout")
    over = run(*wait, "0")
    assert (over.returncode, "get node failed: The connection to" in over.stderr) == (1, True)
    done = STATUS | {"phase": "InSync"}
    assert run(*wait, "inf", turn3=asked_once(STATUS), turn4=asked_once(done)).returncode == 0
    assert len((tmp_path / "asked").read_text().splitlines()) == 4
    (tmp_path / "getnoden1.json").unlink()
    refused.write_text('Error from server (NotFound): nodes "n1" not found')
    assert "not found" in run(*wait, "60").stderr


def test_why_a_pod_does_not_run(run: Run, tmp_path: Path) -> None:
    """Its own state, that of its claims and their devices, what the agent said of both, and the
    node; nothing of other pods, and nothing that is well.
    """

    def event(uid: str, kind: str, message: str, **more: str) -> dict[str, Any]:
        about = {"involvedObject": {"uid": uid, "kind": kind}, "type": "Warning"}
        return about | {"reason": f"Of{kind}", "message": message, "lastTimestamp": "2"} | more

    unfit = {"type": "Ready", "status": "False", "reason": "Unhealthy", "message": "XID 95"}
    bare = {"type": "Ready", "status": "False"}
    one_of = [{"deviceClassName": "one"}, {"deviceClassName": "other", "count": 3}]
    exactly = {"deviceClassName": "small", "count": 2}
    devices_asked = {"requests": [{"exactly": exactly}, {"firstAvailable": one_of}]}
    template = {"name": "main", "resourceClaimTemplateName": "small"}
    state = {
        "phase": "Pending",
        "conditions": [unfit | {"type": "PodScheduled"}, unfit | {"status": "True"}, bare],
        "resourceClaimStatuses": [{"name": "main", "resourceClaimName": "p1-main"}],
        "extendedResourceClaimStatus": {"resourceClaimName": "extra"},
    }
    spec = {"nodeName": "n1", "resourceClaims": [template, {"resourceClaimName": "mine"}]}
    named = {"name": "p1", "namespace": "ml", "uid": "1"}
    results = [{"pool": "n1/gpu-0", "device": "mig-1g-0"}, {"pool": "n1/gpu-1", "device": "gpu"}]
    devices = [{"device": "mig-1g-0", "conditions": [unfit]}]
    allocated = {"allocation": {"devices": {"results": results}}, "devices": devices}
    events = [
        event("1", "Pod", "it waits\x1b"),
        event("1", "Pod", "it waits for x", lastTimestamp="1"),
        event("3", "ResourceClaim", "in use by pid 7"),
        event("1", "Pod", "all well", type="Normal"),
        event("1", "Pod", "XID 95", reason="Other"),
        event("2", "ResourceClaim", "mig-1g-0: XID 95"),
        event("2", "ResourceClaim", "mig-1g-0: held: XID 95", reason="Held"),
        event("9", "Pod", "of another"),
    ]
    answers = {
        "getpodp1": {"metadata": named, "spec": spec, "status": state},
        "getresourceclaimp1-main": {"metadata": {"uid": "2"}, "status": allocated},
        "getresourceclaimmine": {"metadata": {"uid": "3"}, "spec": {"devices": devices_asked}},
        "getresourceclaimextra": {"metadata": {"uid": "4"}, "status": {}},
        "getevents": {"items": events},
        "getnoden1": node("n1", STATUS),
    }
    assert said(run("why", "p1", "-n", "ml", **answers)) == """\
pod p1: Pending on node n1
  not PodScheduled: Unhealthy: XID 95
  not Ready
claim extra: no device is allocated
claim mine: no device is allocated: 2 x small, 1 x one or 3 x other
claim p1-main: n1/gpu-0/mig-1g-0, n1/gpu-1/gpu
  mig-1g-0: not Ready: Unhealthy: XID 95
pod OfPod: it waits\\x1b
resourceclaim OfResourceClaim: in use by pid 7
resourceclaim Held: mig-1g-0: held: XID 95
node n1: warning: Something is in use.
"""  # fmt: skip
    known = STATUS | {"headline": {"severity": "error", "text": "In use by pid 7."}}
    again = run("why", "p1", "-n", "ml", getnoden1=node("n1", known)).stdout
    assert again.lower().count("in use by pid 7") == 1
    asked = (tmp_path / "asked").read_text().splitlines()
    assert all("--namespace=ml" in line for line in asked if "get node" not in line)
    assert "kubectl get pod failed" in run("why", "p2").stderr


@pytest.mark.skipif(bool(why_not()), reason=why_not())
def test_two_hundred_nodes_of_a_real_server(real_server: RealApiServer, tmp_path: Path) -> None:
    """From one list, in under two seconds of a processor."""
    assets = os.environ.get("KUBEBUILDER_ASSETS", "/usr/local/kubebuilder/bin")
    config, token = tmp_path / "config", tmp_path / "token"
    token.write_text(real_server.token)
    config.write_text(kubeconfig(real_server.url, token_file=token))
    environment = os.environ | {"PATH": f"{assets}:{os.environ['PATH']}", "KUBECONFIG": str(config)}
    eight = STATUS | {"gpus": [{**STATUS["gpus"][0], "uuid": f"GPU-{n}"} for n in range(8)]}
    items = [node(f"fleet-{number:03}", eight, **layout()) for number in range(200)]
    nodes = {"kind": "List", "apiVersion": "v1", "items": items}
    assert not real_server.kubectl("create", "-f-", given=nodes)
    try:
        before = sum(os.times()[2:4])  # of all programs that ended
        shown = said(_ran((), environment))
        took = sum(os.times()[2:4]) - before
        named = _ran(("--kubeconfig", str(config)), environment | {"KUBECONFIG": "/nowhere"})
    finally:
        real_server.kubectl("delete", "--wait=false", "-f-", given=nodes)
    assert shown.count("\nfleet-") == 200
    assert "200 nodes with an agent (200 warning), " in shown
    assert named.stdout == shown
    assert took < 2.0
