"""Generate the Python of proto/whitepanda/v1/*.proto beside them, and the descriptor set of what is released.

python tools/generate_protos.py            writes the generated files
python tools/generate_protos.py --check    exits 1 where they are not fresh, or a field changed incompatibly
python tools/generate_protos.py --release  also makes the present descriptors the baseline of the compatibility check
"""

import sys
import tempfile
from pathlib import Path

from google.protobuf import descriptor_pb2
from grpc_tools import protoc

ROOT = Path(__file__).resolve().parent.parent
PROTO = ROOT / "proto"
PACKAGE = PROTO / "whitepanda" / "v1"
BASELINE = PACKAGE / "baseline.binpb"


def generate(out: Path) -> descriptor_pb2.FileDescriptorSet:
    """Run protoc over all files into `out` and return their descriptors."""
    files = sorted(str(path.relative_to(PROTO)) for path in PACKAGE.glob("*.proto"))
    descriptors = out / "set.binpb"
    arguments = [
        "protoc",
        f"-I{PROTO}",
        f"--python_out={out}",
        f"--pyi_out={out}",
        f"--grpc_python_out={out}",
        f"--descriptor_set_out={descriptors}",
        *files,
    ]
    if protoc.main(arguments) != 0:
        raise SystemExit("protoc failed")
    parsed = descriptor_pb2.FileDescriptorSet.FromString(descriptors.read_bytes())
    descriptors.unlink()
    return parsed


def _flatten(  # noqa: C901 - one walk over four kinds of things
    files: descriptor_pb2.FileDescriptorSet,
) -> tuple[dict[str, tuple[object, ...]], dict[str, set[int]]]:
    """Every field, enum value and method by full name and number; and the reserved numbers of every message."""
    found: dict[str, tuple[object, ...]] = {}
    reserved: dict[str, set[int]] = {}

    def message(prefix: str, m: descriptor_pb2.DescriptorProto) -> None:
        name = f"{prefix}.{m.name}"
        reserved[name] = {n for r in m.reserved_range for n in range(r.start, min(r.end, r.start + 1000))}
        for f in m.field:
            oneof = m.oneof_decl[f.oneof_index].name if f.HasField("oneof_index") else ""
            found[f"{name}#{f.number}"] = (f.name, f.type, f.label, f.type_name, oneof)
        for nested in m.nested_type:
            message(name, nested)
        for e in m.enum_type:
            enum(name, e)

    def enum(prefix: str, e: descriptor_pb2.EnumDescriptorProto) -> None:
        for v in e.value:
            found[f"{prefix}.{e.name}={v.number}"] = (v.name,)

    for file in files.file:
        for m in file.message_type:
            message(file.package, m)
        for e in file.enum_type:
            enum(file.package, e)
        for s in file.service:
            for method in s.method:
                found[f"{file.package}.{s.name}/{method.name}"] = (
                    method.input_type,
                    method.output_type,
                    method.client_streaming,
                    method.server_streaming,
                )
    return found, reserved


def incompatible(old: descriptor_pb2.FileDescriptorSet, new: descriptor_pb2.FileDescriptorSet) -> list[str]:
    """List what in `new` breaks peers that speak `old`: removed without `reserved`, renumbered, retyped, renamed."""
    before, _ = _flatten(old)
    after, reserved = _flatten(new)
    problems = []
    for key, shape in before.items():
        if key in after:
            if after[key] != shape:
                problems.append(f"{key}: was {shape}, is {after[key]}")
            continue
        name, _, number = key.partition("#")
        if not (number and int(number) in reserved.get(name, set())):
            problems.append(f"{key} {shape[0]}: removed without being reserved")
    return problems


def main(arguments: list[str]) -> int:
    """Do what the module's docstring says."""
    if "--check" not in arguments:
        descriptors = generate(PROTO)
        if "--release" in arguments:
            BASELINE.write_bytes(descriptors.SerializeToString(deterministic=True))
        return 0
    problems: list[str] = []
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder)
        descriptors = generate(out)
        for path in sorted(out.rglob("*.py*")):
            committed = PROTO / path.relative_to(out)
            if not committed.exists() or committed.read_bytes() != path.read_bytes():
                problems.append(f"{committed.relative_to(ROOT)} is not fresh; run tools/generate_protos.py")
    baseline = descriptor_pb2.FileDescriptorSet.FromString(BASELINE.read_bytes())
    problems += incompatible(baseline, descriptors)
    for problem in problems:
        print(problem, file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
