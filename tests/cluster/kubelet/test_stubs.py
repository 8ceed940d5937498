"""The generated messages in the tree are those of the .proto files beside them."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType

import pytest
from google.protobuf.descriptor_pb2 import DescriptorProto, FileDescriptorProto, FileDescriptorSet

from nodeagent.cluster.kubelet.generated import (
    dra_health_pb2,
    dra_pb2,
    pluginregistration_pb2,
    podresources_pb2,
)

pytest.importorskip("grpc_tools", reason="the protocol buffer compiler is not installed")

FOLDER = Path("nodeagent/cluster/kubelet/generated")
ROOT = Path(__file__).parents[3]
STUBS = {
    "dra": dra_pb2,
    "dra_health": dra_health_pb2,
    "pluginregistration": pluginregistration_pb2,
    "podresources": podresources_pb2,
}


def _without_json_names(messages: Iterable[DescriptorProto]) -> None:
    for message in messages:
        for field in message.field:
            field.ClearField("json_name")  # the compiler writes it out, the stubs leave it away
        _without_json_names(message.nested_type)


@pytest.mark.parametrize("name", STUBS)
def test_the_stubs_are_up_to_date(name: str, tmp_path: Path) -> None:
    """Compiling the .proto file anew gives the very description that the stubs carry."""
    stubs: ModuleType = STUBS[name]
    out = tmp_path / "descriptors"
    command = [sys.executable, "-m", "grpc_tools.protoc", "-I.", f"--descriptor_set_out={out}"]
    subprocess.run([*command, str(FOLDER / f"{name}.proto")], check=True, cwd=ROOT)
    (compiled,) = FileDescriptorSet.FromString(out.read_bytes()).file
    carried = FileDescriptorProto()
    stubs.DESCRIPTOR.CopyToProto(carried)
    _without_json_names(compiled.message_type)
    assert compiled == carried


def test_every_proto_file_is_compared() -> None:
    """A new one has to be entered above."""
    assert {path.stem for path in (ROOT / FOLDER).glob("*.proto")} == set(STUBS)
