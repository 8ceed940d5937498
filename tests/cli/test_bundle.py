import json
import stat
import tarfile
from contextlib import suppress
from pathlib import Path

import pytest
import yaml

from nodeagent.cli.bundle.withheld import _SHOWN
from nodeagent.errors import UsageError
from nodeagent.settings import load_settings
from nodeagent.settings.sources import setting_names, variable_of
from tests.cli.agent_server import answering
from tests.cli.conftest import Program

SECRET = "s3cret"
GONE = "127.0.0.1:1"  # where nothing listens


def _packed(archive: Path) -> dict[str, str]:
    with tarfile.open(archive) as opened:
        found = {member.name: opened.extractfile(member) for member in opened.getmembers()}
        return {
            name.removeprefix("nodeagent-bundle/"): file.read().decode()
            for name, file in found.items()
            if file is not None
        }


def test_without_an_agent(h100: Program) -> None:
    archive = h100.directory / "bundle.tar.gz"
    h100.file("# nodeagent health 1 sha256:0\n", f"{h100.state.name}.health.json")
    made = h100.on("bundle", archive, "--listen", GONE, "-o", "json")
    assert (made.code, made.err) == (0, "")
    assert stat.S_IMODE(archive.stat().st_mode) == 0o600
    found = _packed(archive)
    assert {"MANIFEST", *made.json["files"]} == set(found)
    assert found["export.yaml"] == h100.on("export").out
    assert "3g.40gb" in found["profiles.txt"]
    assert found["state/health.json"].startswith("# nodeagent health")
    checks = {row["check"]: row for row in json.loads(found["check.json"])["findings"]}
    assert checks["driver"]["level"] == "ok"
    assert "has MIG" in checks["gpu 1"]["message"]
    missing = {row["name"]: row["reason"] for row in made.json["missing"]}
    assert all("no agent answers" in missing[name] for name in ("status.json", "advice.json"))
    assert all(name in found["MANIFEST"] for name in [*made.json["files"], *missing])


@pytest.mark.parametrize("link", [False, True])
def test_nothing_is_overwritten(h100: Program, link: bool) -> None:
    archive, target = h100.directory / "bundle.tar.gz", h100.directory / "target"
    if link:
        archive.symlink_to(target)
    else:
        archive.write_bytes(b"mine")
    assert h100.on("bundle", archive, "--listen", GONE).code == 1
    assert not target.exists()
    assert link or archive.read_bytes() == b"mine"


def _planted(folder: Path) -> dict[str, object]:
    """A secret for each setting that takes one, and in each file that a setting names."""
    names: dict[str, object] = {}
    for name in set(setting_names()) - _SHOWN:
        secret = f"{SECRET}-{name}"
        with suppress(UsageError):  # a number, a switch or a choice
            load_settings(None, {}, {name: secret})
            names[name] = secret
    del names["kubernetes.tolerate"]  # must be words that are known
    names["kubernetes.plugin_pods"] = f"app={SECRET}-pods"
    context = str(names["kubernetes.context"])
    user = {"name": "u", "user": {"token": SECRET}}
    cluster = {"name": "c", "cluster": {"server": f"http://me:{SECRET}@127.0.0.1:1"}}
    one = {"name": context, "context": {"cluster": "c", "user": "u"}}
    kubeconfig = {"contexts": [one], "clusters": [cluster], "users": [user]}
    key = f"-----BEGIN PRIVATE KEY-----\n{SECRET}\n-----END PRIVATE KEY-----\n"
    files = {
        "kubernetes.kubeconfig": yaml.safe_dump(kubeconfig),
        "metrics.web_config": f"basic_auth_users: {{me: {SECRET}}}\n",
        "metrics.counters": f"{SECRET}, gauge, {SECRET}\n",
        "health.xids": f"{SECRET}: {SECRET}\n",
        "plan.file": key,
    }
    for name, text in files.items():
        path = folder / f"{SECRET}-{name}" if name in names else folder / name
        path.write_text(text, encoding="utf-8")
        names[name] = str(path)
    return {**names, "metrics.listen": GONE}


def test_nothing_secret_is_in_it(h100: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = _planted(h100.directory)
    assert {"plan.name", "nvidia_smi", "mps.control", "kubernetes.kubeconfig"} <= set(settings)
    for name, value in settings.items():
        monkeypatch.setenv(variable_of(name), str(value))
    monkeypatch.setenv("KUBE_TOKEN", SECRET)
    archive = h100.directory / "bundle.tar.gz"
    answer = json.dumps({"message": f"{settings['kubernetes.kubeconfig']} is refused"}).encode()
    with answering(answer) as (listen, _):
        made = h100.on("bundle", archive, "--listen", listen)
    assert made.code == 0
    found = _packed(archive)
    assert "is refused" in found["status.json"]
    checks = {finding["check"] for finding in json.loads(found["check.json"])["findings"]}
    assert {"API server", "file of counters", "table of XIDs", "web-config file"} <= checks
    assert "metrics.txt" in found
    assert "NODEAGENT_PLAN_NAME\n" in found["environment.txt"]
    assert "KUBE_TOKEN" not in found["environment.txt"]
    assert "127.0.0.1:1" in found["settings.yaml"]
    assert [name for name, text in found.items() if SECRET in text + name] == []
    assert SECRET not in made.out + made.err
