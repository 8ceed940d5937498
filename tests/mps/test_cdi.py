"""The CDI specification: valid, and nothing in it that a container must not get."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft7Validator
from jsonschema.exceptions import ValidationError
from msgspec.json import encode
from referencing import Registry
from referencing.jsonschema import DRAFT7

from nodeagent.files.cdi import cdi_specification
from nodeagent.mps.files.client_files import CDI_VERSION, KIND, NotPlain, slot_device
from nodeagent.mps.shares import client_environment
from nodeagent.plan.shares import Share
from nodeagent.structs import replace
from tests.mps.plans import GPU, MIG, spec_of, wanted

SCHEMA = Path(__file__).parents[1] / "data/cdi"


@pytest.fixture(scope="session")
def validator() -> Draft7Validator:
    """Of the CDI project's own schema."""
    schema, definitions = (
        json.loads((SCHEMA / name).read_text()) for name in ("schema.json", "defs.json")
    )
    registry: Registry[Any] = Registry().with_resource(
        "defs.json", DRAFT7.create_resource(definitions)
    )
    return Draft7Validator(schema, registry=registry)


def document() -> dict[str, Any]:
    """All slots of a plan with two shares, on a GPU and on a MIG device."""
    plan = wanted()
    devices = [
        slot_device(replace(spec_of(plan, device), private_shm=True), slot)
        for device in (GPU, MIG)
        for slot in plan.sharing.slots
    ]
    found: dict[str, Any] = json.loads(cdi_specification(CDI_VERSION, KIND, devices))
    return found


def test_it_is_valid(validator: Draft7Validator) -> None:
    """Against the schema; and names keep to the specification's grammar, and are all different."""
    found = document()
    validator.validate(found)
    assert (found["cdiVersion"], found["kind"]) == ("0.6.0", "nodeagent.io/mps")
    names = [device["name"] for device in found["devices"]]
    assert names[:3] == [f"{GPU}-small-0", f"{GPU}-small-1", f"{GPU}-large-0"]
    assert len(set(names)) == len(names) == 6
    assert all(re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.:-]*[A-Za-z0-9]", name) for name in names)


@pytest.mark.parametrize(
    "change",
    [
        {"cdiVersion": 6},
        {"devices": []},
        {"devices": [{"name": "a"}]},
        {"devices": [{"name": "a", "containerEdits": {"mounts": [{"hostPath": "/"}]}}]},
        {"devices": [{"name": "a", "containerEdits": {"env": [1]}}]},
        {"devices": [{"name": "a", "containerEdits": {}, "annotations": {"a": 1}}]},
        {"more": 1},
    ],
)
def test_the_schema_refuses(validator: Draft7Validator, change: dict[str, object]) -> None:
    """What it should: that the document is valid means something."""
    with pytest.raises(ValidationError):
        validator.validate(document() | change)


def test_what_a_container_gets() -> None:
    """The environment of its slot, the pipe directory to connect but not to change, memory to
    share with the server, and no more.
    """
    plan = wanted()
    [slot, *_] = plan.sharing.slots
    spec = replace(spec_of(plan, pipe="/run/x/pipe"), private_shm=True)
    device = json.loads(encode(slot_device(spec, slot)))
    assert device["containerEdits"] == {
        "env": [
            f"{name}={value}" for name, value in sorted(client_environment(spec, slot).items())
        ],
        "mounts": [
            {
                "hostPath": "/run/x/pipe",
                "containerPath": "/run/x/pipe",
                "options": ["ro", "nosuid", "nodev", "noexec", "bind"],
            },
            {
                "hostPath": "/run/x/shm",
                "containerPath": "/dev/shm",
                "options": ["rw", "nosuid", "nodev", "noexec", "bind"],
            },
        ],
    }
    assert device["annotations"] == {
        "nodeagent.io/device": GPU,
        "nodeagent.io/share": "small",
        "nodeagent.io/user": "1000",
        "nodeagent.io/memory-limit": str(8192 * 1024**2),
        "nodeagent.io/threads": "15",
    }


@pytest.mark.parametrize("share", ["a/b", "../a", "a\nb", "a b", "a,b", "a=b", "ä", "a\0"])
def test_names_that_are_no_device(share: str) -> None:
    """Are refused, and shown."""
    plan = wanted(Share(share, 1, None, None))
    [slot] = plan.sharing.slots
    with pytest.raises(ValueError, match="is no name of a CDI device") as caught:
        slot_device(spec_of(plan), slot)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "path", ["", "run/x", "/run/../etc", "/run/x\n", "/run/a b", "/run/${HOME}", "..", "/run/x\0"]
)
def test_directories_that_are_not_mounted(path: str) -> None:
    """Relative ones, those that lead elsewhere, and what is no plain path."""
    plan = wanted()
    [slot, *_] = plan.sharing.slots
    with pytest.raises(NotPlain, match=r"the pipe directory .* cannot be mounted"):
        slot_device(spec_of(plan, pipe=path), slot)
