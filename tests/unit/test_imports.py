"""Imports go one way, and the light ones stay light."""

import ast
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = {
    "ignitetf": ROOT / "ignitetf",
    "ignitetf.cli": ROOT / "cli",
}

# What a part may import of the project, by the beginning of the name; itself is always allowed.
ALLOWED = {
    "ignitetf.errors": (),
    "ignitetf.crc": (),
    "ignitetf.owner": (),
    "ignitetf.targets": ("errors", "results"),
    "ignitetf.native": (),
    "ignitetf.settings": ("errors", "node"),
    "ignitetf.wire": ("errors", "native"),
    "ignitetf.tlsfiles": ("errors", "settings"),
    "ignitetf.refusals": ("errors", "settings", "tlsfiles"),
    "ignitetf.handshake": ("errors", "settings", "refusals", "tlsfiles", "wire"),
    "ignitetf.probe": ("errors", "settings", "handshake", "refusals"),
    "ignitetf.failures": ("errors", "wire"),
    "ignitetf.transport": ("errors", "settings", "handshake", "refusals", "failures", "wire"),
    "ignitetf.sql": ("errors",),
    "ignitetf.pyclient": (
        "errors",
        "settings",
        "handshake",
        "failures",
        "transport",
        "wire",
        "sql",
    ),
    "ignitetf.cluster": ("errors", "handshake", "wire"),
    "ignitetf.results": ("errors", "pyclient", "sql"),
    "ignitetf.client": (
        "errors",
        "settings",
        "handshake",
        "failures",
        "transport",
        "node.ended",
        "probe",
        "pyclient",
        "cluster",
        "results",
        "targets",
        "wire",
        "sql",
    ),
    "ignitetf.room": ("errors", "client", "sql", "node.guard"),
    "ignitetf.catalog": ("errors", "client", "pyclient", "room", "transport", "wire"),
    "ignitetf.registry": ("errors", "client", "wire"),
    "ignitetf.node": ("errors", "settings", "client", "transport", "wire"),
    "ignitetf.load": (
        "crc",
        "owner",
        "errors",
        "settings",
        "client",
        "failures",
        "transport",
        "pyclient",
        "room",
        "catalog",
        "registry",
        "wire",
        "sql",
        "node.config",
    ),
    "ignitetf.read": (
        "errors",
        "settings",
        "native",
        "client",
        "failures",
        "transport",
        "registry",
        "catalog",
        "wire",
        "sql",
    ),
    "ignitetf.fs": (
        "crc",
        "owner",
        "errors",
        "settings",
        "client",
        "pyclient",
        "failures",
        "transport",
        "room",
        "wire",
        "load.caches",
        "native",
    ),
    "ignitetf.bench": ("errors", "settings", "net", "tables", "wire", "load", "read", "fs", "node"),
}


def modules():
    for package, folder in FOLDERS.items():
        for path in sorted(folder.rglob("*.py")):
            name = ".".join((package, *path.relative_to(folder).with_suffix("").parts))
            yield name.removesuffix(".__init__"), path


def imports(path, *, everywhere):
    """Names imported at module level, or anywhere; not those for type checkers only."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    hidden = set()
    for node in ast.walk(tree):
        checking = isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test)
        function = isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and not everywhere
        if checking or function:
            hidden |= {id(inner) for inner in ast.walk(node) if inner is not node}
    for node in ast.walk(tree):
        if id(node) in hidden:
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def within(name, prefix):
    return name == prefix or name.startswith(prefix + ".")


@pytest.mark.parametrize(
    ("name", "path"), list(modules()), ids=lambda x: x if isinstance(x, str) else ""
)
def test_imports_go_one_way(name, path):
    found = set(imports(path, everywhere=True))
    if not within(name, "ignitetf.cli"):
        assert not [f for f in found if within(f, "ignitetf.cli")], "nobody imports the commands"
    for part, allowed in ALLOWED.items():
        if not within(name, part):
            continue
        targets = {f for f in found if f.startswith("ignitetf.")}
        for target in targets:
            assert within(target, part) or any(within(target, f"ignitetf.{a}") for a in allowed), (
                f"{name} imports {target}"
            )
    if within(name, "ignitetf.wire"):
        outside = {f.partition(".")[0] for f in found} - set(sys.stdlib_module_names)
        assert outside <= {"numpy", "ignitetf"}
    tensorflow = any(within(f, "tensorflow") for f in imports(path, everywhere=False))
    if tensorflow:
        assert name in (
            "ignitetf.read.dataset",
            "ignitetf.read.form",
            "ignitetf.read.iteration",
            "ignitetf.read.substr",
            "ignitetf.fs.gfile",
        ) or within(name, "ignitetf.train")


@pytest.mark.parametrize("module", ["ignitetf", "ignitetf.cli.main"])
def test_light_imports_load_nothing_heavy(module):
    code = f"import sys, json, {module}; print(json.dumps(sorted(sys.modules)))"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(json.loads(out.stdout))
    assert not loaded & {"tensorflow", "keras", "numpy", "pyignite", "pandas", "pyarrow"}


def test_no_address_of_a_registry_and_no_path_of_one_machine():
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True)
    files = [ROOT / name for name in listed.stdout.splitlines()]
    if not files:
        pytest.skip("not a git checkout")
    registry = re.compile(r"https?://\S*(maven|pypi|pythonhosted|npmjs)")
    machine = re.compile(r"(?<![\w.])/(?:home|root|mnt|work|Users)/\w")
    for path in files:
        if path.suffix in {".py", ".md", ".toml", ".txt", ".sql", ".json", ".sh", ".yml", ".yaml"}:
            text = path.read_text(encoding="utf-8")
            assert not registry.search(text), path
            assert path.name == "test_imports.py" or not machine.search(text), path
