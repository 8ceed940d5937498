"""Every plan source that settings name can be made, shown and followed."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import get_args, get_type_hints

from nodeagent.cluster.client.access import ClusterAccess
from nodeagent.cluster.client.node_view import ANNOTATIONS, LABELS
from nodeagent.cluster.plan_sources.registry import CARRIERS, make_source
from nodeagent.reconcile.plan_file import PlanFile
from nodeagent.settings import PlanSettings
from tests.cluster.node_rig import view_of


def test_settings_and_registry_agree(access: ClusterAccess, tmp_path: Path) -> None:
    """Each can be made, and what it reads is in the view of the Node."""
    choices = get_args(get_type_hints(PlanSettings)["source"])
    assert choices == ("auto", "file", *CARRIERS)
    for name, carrier in CARRIERS.items():
        prefixes = LABELS if carrier.kind == "label" else ANNOTATIONS
        assert carrier.key.startswith(prefixes)
        source = make_source(
            name,
            None,
            access=access,
            offer=lambda _: None,
            rounds=lambda: 0,
            follow=partial(PlanFile, tmp_path / "plan.yaml"),
        )
        source.observe(view_of())


def test_what_a_carrier_holds() -> None:
    """One key, or all that begin alike; an empty label is none."""
    label, specs = CARRIERS["mig-config"], CARRIERS["nos"]
    assert label.values(view_of(labels={label.key: "all-1g.10gb"})) == ["all-1g.10gb"]
    assert label.values(view_of(labels={label.key: ""})) == []
    assert specs.values(view_of({"nos.nebuly.com/spec-gpu-0-1g.10gb": "7"})) == ["7"]
