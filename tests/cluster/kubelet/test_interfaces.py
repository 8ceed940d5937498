import json
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType

import pytest
from google.protobuf import descriptor_pb2

from nodeagent.cluster.kubelet.generated import (
    dra_health_pb2,
    dra_pb2,
    pluginregistration_pb2,
    podresources_pb2,
)

PUBLISHED = json.loads(
    (Path(__file__).parents[2] / "data/kubelet/interfaces.json").read_text(encoding="utf-8")
)
SERVED: dict[str, ModuleType] = {
    "pluginregistration": pluginregistration_pb2,
    "dra": dra_pb2,
    "dra_health": dra_health_pb2,
}
ALL = {**SERVED, "podresources": podresources_pb2}
REPEATED = descriptor_pb2.FieldDescriptorProto.LABEL_REPEATED


def described(name: str) -> descriptor_pb2.FileDescriptorProto:
    found = descriptor_pb2.FileDescriptorProto()
    ALL[name].DESCRIPTOR.CopyToProto(found)
    return found


def last(name: str) -> str:
    return name.rpartition(".")[2]


def kind(field: descriptor_pb2.FieldDescriptorProto) -> str:
    scalar = descriptor_pb2.FieldDescriptorProto.Type.Name(field.type).removeprefix("TYPE_").lower()
    return last(field.type_name) or scalar


def text(
    field: descriptor_pb2.FieldDescriptorProto, message: descriptor_pb2.DescriptorProto
) -> str:
    entry = next((e for e in message.nested_type if e.name == kind(field)), None)
    if entry:
        key, value = entry.field
        return f"map<{kind(key)}, {kind(value)}> {field.number}"
    label = "repeated " if field.label == REPEATED else ""
    label = "optional " if field.proto3_optional else label
    return f"{label}{kind(field)} {field.number}"


def messages(name: str) -> dict[str, dict[str, str]]:
    return {
        message.name: {field.name: text(field, message) for field in message.field}
        for message in described(name).message_type
    }


def methods(name: str) -> dict[str, str]:
    def call(method: descriptor_pb2.MethodDescriptorProto) -> str:
        stream = "stream " if method.server_streaming else ""
        return f"{last(method.input_type)} -> {stream}{last(method.output_type)}"

    return {
        f"{service.name}/{method.name}": call(method)
        for service in described(name).service
        for method in service.method
    }


@pytest.mark.parametrize("name", SERVED)
def test_what_the_agent_serves_is_whole(name: str) -> None:
    published = PUBLISHED[name]
    assert messages(name) == published["messages"]
    assert methods(name) == published["methods"]
    enums = {e.name: {v.name: v.number for v in e.value} for e in described(name).enum_type}
    assert enums == published.get("enums", {})


@pytest.mark.parametrize("name", ALL)
def test_what_the_agent_knows_is_published(name: str) -> None:
    published = PUBLISHED[name]
    assert described(name).package == published["package"]
    assert methods(name).items() <= published["methods"].items()
    for message, fields in messages(name).items():
        assert fields.items() <= published["messages"][message].items(), message


# --- generated from the .proto files --------------------------------------------------------------


FOLDER = Path("nodeagent/cluster/kubelet/generated")
ROOT = Path(__file__).parents[3]


def _without_json_names(messages: Iterable[descriptor_pb2.DescriptorProto]) -> None:
    for message in messages:
        for field in message.field:
            field.ClearField("json_name")  # the compiler writes it out, the stubs leave it away
        _without_json_names(message.nested_type)


@pytest.mark.parametrize("name", ALL)
def test_the_stubs_are_up_to_date(name: str, tmp_path: Path) -> None:
    pytest.importorskip("grpc_tools", reason="the protocol buffer compiler is not installed")
    out = tmp_path / "descriptors"
    command = [sys.executable, "-m", "grpc_tools.protoc", "-I.", f"--descriptor_set_out={out}"]
    subprocess.run([*command, str(FOLDER / f"{name}.proto")], check=True, cwd=ROOT)
    (compiled,) = descriptor_pb2.FileDescriptorSet.FromString(out.read_bytes()).file
    carried = described(name)
    _without_json_names(compiled.message_type)
    assert compiled == carried


def test_every_proto_file_is_compared() -> None:
    assert {path.stem for path in (ROOT / FOLDER).glob("*.proto")} == set(ALL)
