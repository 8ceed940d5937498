"""The generated messages in the tree are those of the .proto file beside them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorProto, FileDescriptorSet

from nodeagent.cluster.kubelet.generated import podresources_pb2

pytest.importorskip("grpc_tools", reason="the protocol buffer compiler is not installed")

PROTO = Path("nodeagent/cluster/kubelet/generated/podresources.proto")
ROOT = Path(__file__).parents[3]


def test_the_stubs_are_up_to_date(tmp_path: Path) -> None:
    """Compiling the .proto file anew gives the very description that the stubs carry."""
    out = tmp_path / "descriptors"
    command = [sys.executable, "-m", "grpc_tools.protoc", "-I.", f"--descriptor_set_out={out}"]
    subprocess.run([*command, str(PROTO)], check=True, cwd=ROOT)
    (compiled,) = FileDescriptorSet.FromString(out.read_bytes()).file
    carried = FileDescriptorProto()
    podresources_pb2.DESCRIPTOR.CopyToProto(carried)
    for message in compiled.message_type:
        for field in message.field:
            field.ClearField("json_name")  # the compiler writes it out, the stubs leave it away
    assert compiled == carried
