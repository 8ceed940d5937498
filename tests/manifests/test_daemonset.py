"""The DaemonSets fit the program that they run: command, settings, folders, probes."""

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from nodeagent import __version__
from nodeagent.api.listening import SOCKET_NAME
from nodeagent.cli.parser import parse
from nodeagent.cluster.drain.pods import Pod, PodSelector
from nodeagent.documents.reading import read_document
from nodeagent.settings import Settings, load_settings
from tests.api.serving import api
from tests.manifests import rendering
from tests.simulated_cluster import volumes
from tests.simulated_cluster.agent import (
    NAME,
    PLAN,
    AgentProcess,
    in_sync,
    kubeconfig,
    until_status,
)
from tests.simulated_cluster.api_server import ApiServer
from tests.simulated_cluster.volumes import empty_dir, without_powers

WITH_GPUS = ("dra", "gpu-operator", "nos", "plain")
rendered = pytest.mark.skipif(bool(rendering.why_not()), reason=rendering.why_not())
POD, CONTAINER = rendering.pod_of(rendering.written("base/daemonset.yaml"))


def _environment(container: rendering.Document) -> dict[str, str]:
    given = {entry["name"]: entry["value"] for entry in container["env"] if "value" in entry}
    return {**given, "NODE_NAME": "gpu-0"}


def _settings(name: str) -> Settings:
    return load_settings(
        rendering.MANIFESTS / "overlays" / name / "settings.yaml", _environment(CONTAINER), {}
    )


def test_the_base_fits_the_program() -> None:
    """Its command line is the agent's, its image is this version's, and it gets the node's name."""
    assert parse(CONTAINER["args"]).command == "run"
    assert CONTAINER["image"] == f"nodeagent:{__version__}"
    (name,) = (e for e in CONTAINER["env"] if e["name"] == "NODE_NAME")
    assert name["valueFrom"]["fieldRef"]["fieldPath"] == "spec.nodeName"


def test_the_plain_overlay_finds_the_device_plugin() -> None:
    """Whether it was installed by NVIDIA's chart or by its static manifest."""
    selectors = list(map(PodSelector.of, _settings("plain").kubernetes.plugin_pods))
    cases: list[dict[str, str]] = [
        {"app.kubernetes.io/name": "nvidia-device-plugin", "app.kubernetes.io/instance": "nvdp"},
        {"name": "nvidia-device-plugin-ds"},
    ]
    for labels in cases:
        pod = Pod("kube-system", "plugin", labels)
        assert any(selector.matches(pod) for selector in selectors), labels


@pytest.mark.parametrize("name", WITH_GPUS)
def test_the_pod_reaches_the_hosts_systemd(name: str) -> None:
    """So that MPS daemons outlive it: the setting, the host's processes, root's powers, and the
    directories of daemons and of CDI at the same place inside and outside.
    """
    settings = _settings(name)
    assert settings.mps.launch == "hostSystemd"
    assert POD["hostPID"]
    assert CONTAINER["securityContext"]["privileged"]
    inside, outside = _mounts()
    for folder in (settings.run.dir, settings.cdi.dir, settings.state.dir):
        assert inside[str(folder)] == outside[inside[str(folder)]]["name"]
        assert outside[inside[str(folder)]]["hostPath"]["path"] == str(folder)


def test_the_agent_stays_on_a_tainted_node() -> None:
    """An agent that ended while its own taint is on the Node has to come back to remove it. Where
    NoExecute ends the pods of a node, their claims are given back to it: without it they hang.
    """
    assert {"operator": "Exists"} in POD["tolerations"]


def test_the_kubelets_folder_is_mounted_where_it_is_looked_for() -> None:
    """The folder, not the socket in it, from the host's place to the same."""
    folder = str(load_settings(None, {}, {}).kubelet.socket.parent)
    inside, outside = _mounts()
    assert outside[inside[folder]]["hostPath"] == {"path": folder, "type": "Directory"}


def _mounts() -> tuple[dict[str, str], dict[str, Any]]:
    """Volumes' names by mount path, and the volumes by name."""
    inside = {mount["mountPath"]: mount["name"] for mount in CONTAINER["volumeMounts"]}
    return inside, {volume["name"]: volume for volume in POD["volumes"]}


def test_nothing_is_written_but_in_volumes() -> None:
    """The root is read-only, and each folder that the program writes is a volume that is not."""
    assert CONTAINER["securityContext"]["readOnlyRootFilesystem"] is True
    writable = {m["mountPath"] for m in CONTAINER["volumeMounts"] if not m.get("readOnly")}
    settings = load_settings(None, {}, {})
    written_to = (settings.run.dir, settings.state.dir, settings.cdi.dir)
    assert {*map(str, written_to), "/tmp"} == writable


def test_a_stuck_agent_is_not_waited_for() -> None:
    """The time to finish what has begun is for one that answers; a stuck one is replaced soon."""
    probe = CONTAINER["livenessProbe"]
    assert 0 < probe["terminationGracePeriodSeconds"] < POD["terminationGracePeriodSeconds"]


@rendered
def test_the_mode_of_claims_is_a_setting_of_the_file(tmp_path: Path) -> None:
    """The component leaves it to the settings, since a variable of the pod would win over them."""
    assert _settings("dra").dra.mode == "dynamic"
    _, container = rendering.pod_of(rendering.with_components(tmp_path, "gpu-operator", ("dra",)))
    for mode in ("static", "dynamic"):
        file = tmp_path / "settings.yaml"
        file.write_text(f"dra: {{mode: {mode}}}", encoding="utf-8")
        assert load_settings(file, _environment(container), {}).dra.mode == mode


@rendered
def test_the_simulated_overlay_fits_the_program() -> None:
    """Its command simulates, and its settings keep to what the pod may write."""
    _, container = rendering.pod_of(rendering.overlay("simulated"))
    options = parse(container["args"])
    assert (options.command, options.simulate) == ("run", "h100-80gb:2")
    settings = load_settings(None, _environment(container), {})
    assert settings.kubelet.use == "never"
    mounts = {mount["mountPath"] for mount in container["volumeMounts"]}
    for made in (settings.run.dir, settings.state.dir, settings.cdi.dir):
        assert str(made.parent) in mounts  # the volume itself is not the agent's alone
    assert "/tmp" in mounts


def test_a_component_names_the_source_and_its_file() -> None:
    """Its patch sets the plan's source and mounts the file where the setting looks for it, and the
    file that it brings is one that the agent reads.
    """
    cases: list[tuple[str, str]] = [("source-file", "file"), ("source-mig-config", "mig-config")]
    for component, source in cases:
        (kustomization,) = rendering.written(f"components/{component}/kustomization.yaml")
        pod, container = rendering.pod_of([yaml.safe_load(kustomization["patches"][0]["patch"])])
        settings = load_settings(None, _environment(container), {})
        assert settings.plan.source == source
        (mount,) = container["volumeMounts"]
        assert str(settings.plan.file.parent) == mount["mountPath"]
        assert (
            pod["volumes"][0]["configMap"]["name"] == kustomization["configMapGenerator"][0]["name"]
        )
        (file,) = kustomization["configMapGenerator"][0]["files"]
        assert file == settings.plan.file.name
        read_document((rendering.MANIFESTS / "components" / component / file).read_bytes())


# --- probes -------------------------------------------------------------------------------------


async def _probe(kind: str, port: str) -> int:
    command = [part.replace("/9470", f"/{port}") for part in CONTAINER[kind]["exec"]["command"]]
    process = await asyncio.create_subprocess_exec(
        *command, stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.DEVNULL
    )
    return await process.wait()


async def test_the_probes_ask_the_agent() -> None:
    """They pass while the agent is well, and fail while it is not or no process listens."""
    kinds = ("startupProbe", "livenessProbe", "readinessProbe")
    async with api(observed=False) as served:
        port = served.base.rpartition(":")[2]
        assert [await _probe(kind, port) for kind in kinds] == [0, 0, 0]
        served.reasons.append("the driver does not answer")
        assert 0 not in [await _probe(kind, port) for kind in kinds]
    assert 0 not in [await _probe(kind, port) for kind in kinds]


def test_the_probes_ask_where_the_api_listens() -> None:
    listen = load_settings(None, {}, {}).api.listen
    for kind in ("startupProbe", "livenessProbe", "readinessProbe"):
        assert f"/dev/tcp/{listen.host}/{listen.port}" in CONTAINER[kind]["exec"]["command"][-1]


# --- the driver ---------------------------------------------------------------------------------


def _find_driver(root: Path, library: Path) -> list[str]:
    """The command of the init container, for other folders than the pod's."""
    (patch,) = rendering.written("components/driver-from-operator/driver-root.yaml")
    (container,) = patch["spec"]["template"]["spec"]["initContainers"]
    *start, script = container["command"]
    script = script.replace("/driver-root", str(root)).replace("/driver-library", str(library))
    return [*start, script]


@pytest.mark.parametrize("folder", ["usr/lib64", "usr/lib/x86_64-linux-gnu"])
def test_the_drivers_library_is_found_below_its_root(folder: str, tmp_path: Path) -> None:
    """By relative links as in NVIDIA's packages, and by absolute ones as in Debian's, which mean
    the driver's root; nothing but this library is linked.
    """
    root, library = tmp_path / "root", tmp_path / "library"
    real = root / "opt/current/libnvidia-ml.so.570"
    for parent in (real.parent, root / folder, root / "etc/alternatives", root / "dev", library):
        parent.mkdir(parents=True)
    (root / "dev/nvidiactl").touch()
    real.write_text("the library")
    (root / "etc/alternatives/nvml").symlink_to("/opt/current/libnvidia-ml.so.1")
    (real.parent / "libnvidia-ml.so.1").symlink_to("libnvidia-ml.so.570")
    (root / folder / "libnvidia-ml.so.1").symlink_to("/etc/alternatives/nvml")
    subprocess.run(_find_driver(root, library), check=True, stdout=subprocess.DEVNULL)
    assert [path.name for path in library.iterdir()] == ["libnvidia-ml.so.1"]
    assert (library / "libnvidia-ml.so.1").read_text() == "the library"


def test_the_driver_is_waited_for(tmp_path: Path) -> None:
    command = _find_driver(tmp_path, tmp_path)
    with subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True) as waiting:
        assert waiting.stdout is not None
        line = waiting.stdout.readline()
        os.killpg(waiting.pid, signal.SIGKILL)  # with the sleep that it waits in
    assert line == f"no driver below {tmp_path} yet\n".encode()


# --- the overlay without a GPU, with what a real kubelet gives its pod --------------------------

SIMULATED_POD, SIMULATED = rendering.pod_of(rendering.written("overlays/simulated/daemonset.yaml"))
BASE_MOUNTS = {"run": "/run/nodeagent", "state": "/var/lib/nodeagent"}  # where the base has them


@pytest.fixture
def node(short: Path) -> Path:
    """Every user may pass it, as a pod's root is."""
    return short


@pytest.mark.skipif(bool(volumes.why_not()), reason=volumes.why_not())
async def test_the_simulated_overlay_gets_in_sync(node: Path) -> None:
    """As its user and without any capability, on volumes of root's: with MIG, and with MPS."""
    user = SIMULATED_POD["securityContext"]
    paths = {path: empty_dir(node / name, user["fsGroup"]) for name, path in BASE_MOUNTS.items()}
    environment = {one["name"]: _moved(one["value"], paths) for one in SIMULATED["env"]}
    environment["KUBERNETES_SERVICE_HOST"] = "127.0.0.1"  # by which the agent knows a pod
    async with ApiServer() as api:
        api.add_node(NAME)
        (node / "kubeconfig").write_text(kubeconfig(api.url))
        agent = [
            *without_powers(user["runAsUser"], user["runAsGroup"], user["fsGroup"]),
            *(sys.executable, "-m", "nodeagent"),
            *(_moved(one, paths) for one in SIMULATED["args"]),
            *("--kubeconfig", str(node / "kubeconfig"), "--node-name", NAME),
            *("--listen", "127.0.0.1:0"),
        ]
        async with AgentProcess(agent, node, settings=environment):
            for gpus in (
                "[{devices: [0], mig: {3g.40gb: 2}}]",
                "[{devices: [0], mig: {3g.40gb: 2}}, {devices: [1], mps: {replicas: 2}}]",
            ):
                plan = f"{{version: v1, gpus: {gpus}}}"
                api.annotate(NAME, **{PLAN: plan})
                await until_status(api, in_sync(plan))
            # Commands in the pod, which have its environment, find the agent.
            socket = Path(environment["NODEAGENT_RUN_DIR"], SOCKET_NAME)
            assert await asyncio.to_thread(socket.is_socket)


def _moved(text: str, paths: dict[str, Path]) -> str:
    """The value with the container's paths replaced by where its volumes are here."""
    for inside, here in paths.items():
        text = text.replace(inside, str(here))
    return text
