import importlib.util
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
from google.protobuf import descriptor_pb2

from collector.base import Reason
from whitepanda.v1 import agent_pb2

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location("generate_protos", ROOT / "tools" / "generate_protos.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_generated_code_is_fresh_and_compatible() -> None:
    done = subprocess.run(
        [sys.executable, ROOT / "tools" / "generate_protos.py", "--check"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_reasons_are_the_same_on_both_sides() -> None:
    wire = {value.name.removeprefix("REASON_"): value.number for value in agent_pb2.Reason.DESCRIPTOR.values}
    assert wire == {reason.name: reason.value for reason in Reason}


def baseline() -> descriptor_pb2.FileDescriptorSet:
    path = ROOT / "proto" / "whitepanda" / "v1" / "baseline.binpb"
    return descriptor_pb2.FileDescriptorSet.FromString(path.read_bytes())


def field(files: descriptor_pb2.FileDescriptorSet, message: str, name: str) -> descriptor_pb2.FieldDescriptorProto:
    return next(
        f for file in files.file for m in file.message_type if m.name == message for f in m.field if f.name == name
    )


def test_a_new_field_is_compatible(tool: ModuleType) -> None:
    new = baseline()
    hello = next(m for file in new.file for m in file.message_type if m.name == "Hello")
    hello.field.add(name="colour", number=99, type=9, label=1)
    assert tool.incompatible(baseline(), new) == []


@pytest.mark.parametrize("change", ["number", "type", "name", "label"])
def test_changed_fields_are_refused(tool: ModuleType, change: str) -> None:
    new = baseline()
    target = field(new, "CpiBatch", "cpi")
    value = {"number": 77, "type": 2, "name": "cpj", "label": 1}[change]
    setattr(target, change, value)
    problems = tool.incompatible(baseline(), new)
    assert problems and "CpiBatch#7" in problems[0]


def test_a_removed_field_must_be_reserved(tool: ModuleType) -> None:
    new = baseline()
    message = next(m for file in new.file for m in file.message_type if m.name == "Task")
    del message.field[4]
    assert "Task#5 name" in tool.incompatible(baseline(), new)[0]
    message.reserved_range.add(start=5, end=6)
    assert tool.incompatible(baseline(), new) == []


def test_a_removed_method_is_refused(tool: ModuleType) -> None:
    new = baseline()
    service = next(s for file in new.file for s in file.service if s.name == "Fleet")
    del service.method[0]
    assert "Fleet/GetFleetStatus" in tool.incompatible(baseline(), new)[0]
