"""Tests that the public interface and the source files are documented.

Flags are in tools/FLAGS.md, RPCs and metrics in server/README.md, fields in the comments of the
proto, and source files in the README of their folder.
"""

import fnmatch
import pathlib
import re
import subprocess

import pytest
from google.protobuf import descriptor_pb2
from grpc_tools import protoc

import flags_reference
from server_process import BINARY, G2P, SOURCE, Server

PROTO = "quintet/v1/inference.proto"
# Field numbers in FileDescriptorProto (message_type, enum_type, service) and in the descriptors of
# messages, enums and services (their members). A path of SourceCodeInfo is a list of such numbers
# and indices.
MESSAGE, ENUM, SERVICE, MEMBER = 4, 5, 6, 2


@pytest.fixture(scope="module")
def proto(tmp_path_factory) -> descriptor_pb2.FileDescriptorProto:
    out = tmp_path_factory.mktemp("proto") / "descriptors"
    arguments = [f"-I{SOURCE / 'proto'}", f"--descriptor_set_out={out}", "--include_source_info"]
    assert protoc.main(["protoc", *arguments, PROTO]) == 0
    return descriptor_pb2.FileDescriptorSet.FromString(out.read_bytes()).file[0]


@pytest.fixture(scope="module")
def comments(proto) -> dict[tuple[int, ...], str]:
    return {
        tuple(place.path): place.leading_comments + place.trailing_comments
        for place in proto.source_code_info.location
    }


def test_flags():
    """tools/FLAGS.md has every flag of every command with the text of --help."""
    documented = (SOURCE / "tools" / "FLAGS.md").read_text(encoding="utf-8")
    assert documented == flags_reference.reference(BINARY), (
        "run tools/flags_reference.py build/quintet > tools/FLAGS.md"
    )
    # Check again that FLAGS.md names every flag of --help. This check does not use the parser of
    # flags_reference, which could overlook a flag.
    for command in flags_reference.commands(BINARY):
        text = flags_reference.help_of(BINARY, command)
        for flag in re.findall(r"^ +(?:-\w,)?(--[\w-]+)", text, re.MULTILINE):
            assert re.search(rf"\| `(?:-\w,)?{flag}[ `]", documented), flag


def test_every_member_of_the_proto_has_a_comment(proto, comments):
    missing = []
    for kind, types in ((MESSAGE, proto.message_type), (ENUM, proto.enum_type)):
        for i, declared in enumerate(types):
            members = declared.field if kind == MESSAGE else declared.value
            for j, member in enumerate(members):
                if not comments[(kind, i, MEMBER, j)].strip():
                    missing.append(f"{declared.name}.{member.name}")
    for i, service in enumerate(proto.service):
        for j, method in enumerate(service.method):
            if not comments[(SERVICE, i, MEMBER, j)].strip():
                missing.append(f"{service.name}.{method.name}")
    assert missing == []


def test_decoding_options_have_defaults_and_ranges(proto, comments):
    names = [message.name for message in proto.message_type]
    message = names.index("DecodingOptions")
    numbers = (
        descriptor_pb2.FieldDescriptorProto.TYPE_UINT32,
        descriptor_pb2.FieldDescriptorProto.TYPE_UINT64,
        descriptor_pb2.FieldDescriptorProto.TYPE_FLOAT,
    )
    missing = []
    for i, field in enumerate(proto.message_type[message].field):
        text = comments[(MESSAGE, message, MEMBER, i)]
        if field.proto3_optional and "Default" not in text:
            missing.append(f"{field.name}: default")
        if field.proto3_optional and field.type in numbers and "Range" not in text:
            missing.append(f"{field.name}: range")
        repeated = field.label == descriptor_pb2.FieldDescriptorProto.LABEL_REPEATED
        if repeated and "At most" not in text:
            missing.append(f"{field.name}: maximum")
    assert missing == []


def section(readme: pathlib.Path, title: str) -> str:
    """Returns the text of a second-level section of a README."""
    found = re.search(
        rf"^## {title}\n(.*?)(?=^## |\Z)", readme.read_text("utf-8"), re.DOTALL | re.MULTILINE
    )
    assert found, f"{readme} has no section {title}"
    return found[1]


def test_calls(proto):
    table = section(SOURCE / "server" / "README.md", "RPCs")
    for method in proto.service[0].method:
        assert f"`{method.name}`" in table, method.name


def test_metrics():
    """server/README.md names exactly the metrics that a server exports, and their aliases."""
    rows = re.findall(
        r"^\| (`.*?) \| (.*?) \| (.*?)\|$",
        section(SOURCE / "server" / "README.md", "Metrics"),
        re.MULTILINE,
    )
    documented = set()
    for names, meaning, aliases in rows:
        if "only on a GPU" in meaning or "only of models with adapters" in meaning:
            continue
        documented |= {
            name if name.startswith("process_") else f"quintet_{name}"
            for name in re.findall(r"`(\w+)`", names)
        }
        documented |= {f"vllm:{name}" for name in re.findall(r"`(\w+)`", aliases)}
    with Server(G2P, metrics_compat="vllm") as server:
        exported = set(re.findall(r"^# TYPE (\S+)", server.get("/metrics")[1], re.MULTILINE))
    assert exported == documented


def expand(pattern: str) -> list[str]:
    """Expands braces: "a.{h,cc}" is a.h and a.cc."""
    braces = re.search(r"\{([^{}]*)\}", pattern)
    if not braces:
        return [pattern]
    head, tail = pattern[: braces.start()], pattern[braces.end() :]
    return [path for part in braces[1].split(",") for path in expand(head + part + tail)]


def tracked(folder: str) -> list[str]:
    """The files that git tracks under `folder`, relative to it."""
    run = subprocess.run(
        ["git", "ls-files"], cwd=SOURCE / folder, capture_output=True, text=True, check=True
    )
    return run.stdout.splitlines()


def unlisted(folder: str, suffixes: tuple[str, ...], under: bool) -> list[str]:
    """Returns the files in and below `folder` that the README of `folder` does not name.

    The README gives names in backticks, relative to the folder, with braces and wildcards. In a
    pattern with a wildcard, the file name must begin with two letters, so that no pattern covers a
    whole folder.
    """
    root = SOURCE / folder
    names = re.findall(r"`([^`\s]+)`", (root / "README.md").read_text(encoding="utf-8"))
    patterns = [
        path
        for name in names
        for path in expand(name)
        if "*" not in path or re.match(r"\w\w", path.rsplit("/", 1)[-1])
    ]
    return [
        path
        for path in tracked(folder)
        if path.endswith(suffixes)
        and (under or "/" not in path)
        and not any(fnmatch.fnmatchcase(path, pattern) for pattern in patterns)
    ]


CODE = (".h", ".cc", ".cu", ".cuh", ".proto")


@pytest.mark.parametrize(
    ("folder", "suffixes", "under"),
    [
        ("kernels", CODE, True),
        ("models", CODE, True),
        ("engine", CODE, True),
        ("server", CODE, True),
        ("tools", (*CODE, ".py", ".sh", ".cmake"), False),
        ("tools/bench", (*CODE, ".py"), True),
        ("tools/reliability", (".py",), True),
        ("tools/python", (*CODE, ".py", ".cmake"), True),
    ],
)
def test_readmes_list_their_files(folder, suffixes, under):
    assert unlisted(folder, suffixes, under) == []


@pytest.mark.parametrize("folder", ["tests", "deploy", "tools"])
def test_readmes_list_their_folders(folder):
    text = (SOURCE / folder / "README.md").read_text(encoding="utf-8")
    cells = " ".join(re.findall(r"^\| (`.*?) \|", text, re.MULTILINE))
    folders = {path.split("/")[0] for path in tracked(folder) if "/" in path}
    assert folders - set(re.findall(r"`([\w-]+)/", cells)) == set()
