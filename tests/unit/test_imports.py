"""Imports go one way, private names stay in their module, and the light modules stay light."""

import ast
import json
import re
import subprocess
import sys
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

pytestmark = pytest.mark.core

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = {
    "ignitetf": ROOT / "ignitetf",
    "ignitetf.cli": ROOT / "cli",
}

# From the ground up. A module imports from its own group and from the layers below it, never from
# another group of its own layer. The first word of a group's module below `ignitetf` is looked up.
LAYERS = (
    (
        {
            "_core",
            "crc",
            "errors",
            "notebook",
            "owner",
            "partitions",
            "pictures",
            "post_import",
            "spelling",
            "threads",
            "trust",
        },
    ),
    ({"home", "local", "profiles", "settings"}, {"sql"}, {"wire"}),
    ({"net"},),
    ({"node"},),
    ({"tables"},),
    ({"fs"}, {"load"}, {"read"}),
    (
        {"dali"},
        {"dbapi"},
        {"explore"},
        {"export"},
        {"grain"},
        {"huggingface"},
        {"jobs"},
        {"metrics"},
        {"lightning", "torch"},
        {"ray"},
        {"train"},
    ),
    ({"bench"},),
    ({"demo"}, {"launch"}, {"plan"}, {"sqlalchemy"}, {"ui"}),
    ({"cli", "__main__"},),
)

# Modules that import TensorFlow when they are imported themselves.
WITH_TENSORFLOW = ("ignitetf.read.tf", "ignitetf.train")


def modules():
    for package, folder in FOLDERS.items():
        for path in sorted(folder.rglob("*.py")):
            name = ".".join((package, *path.relative_to(folder).with_suffix("").parts))
            yield name.removesuffix(".__init__"), path


MODULES = dict(modules())
TREES = {name: ast.parse(path.read_text(encoding="utf-8")) for name, path in MODULES.items()}


def inner(node, *, deferred):
    """Every node that runs: not those for type checkers, and functions only if `deferred`."""
    for child in ast.iter_child_nodes(node):
        checking = isinstance(child, ast.If) and "TYPE_CHECKING" in ast.dump(child.test)
        function = isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda))
        if not checking and (deferred or not function):
            yield child
            yield from inner(child, deferred=deferred)


def imports(tree, *, deferred):
    """Names that a module imports, those of `from X import Y` as X.Y."""
    for node in inner(tree, deferred=deferred):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.module and not node.level, "imports are absolute"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def imported_modules(name):
    """Modules of the project that a module imports, anywhere in it."""
    for found in imports(TREES[name], deferred=True):
        module = found if found in MODULES else found.rpartition(".")[0]
        if module in MODULES:
            yield module


def within(name, prefix):
    return name == prefix or name.startswith(prefix + ".")


def place(name):
    """Layer and group of a module."""
    part = name.split(".")[1]
    (found,) = [
        (number, group) for number, layer in enumerate(LAYERS) for group in layer if part in group
    ]
    return found


BELOW = sorted(set(MODULES) - {"ignitetf"})


def test_the_package_itself_imports_nothing_of_it():
    assert not list(imported_modules("ignitetf"))


@pytest.mark.parametrize("name", BELOW)
def test_imports_go_one_way(name):
    layer, group = place(name)
    for target in set(imported_modules(name)) - {"ignitetf"}:
        below, its_group = place(target)
        assert below < layer or its_group is group, f"{name} imports {target}"


def test_no_modules_import_each_other_in_a_circle():
    try:
        TopologicalSorter({name: {*imported_modules(name)} - {name} for name in MODULES}).prepare()
    except CycleError as error:
        pytest.fail(" -> ".join(error.args[1]))


@pytest.mark.parametrize("name", [name for name in BELOW if within(name, "ignitetf.wire")])
def test_wire_needs_numpy_alone(name):
    outside = {found.partition(".")[0] for found in imports(TREES[name], deferred=True)}
    assert outside - set(sys.stdlib_module_names) <= {"numpy", "ignitetf"}
    groups = {target.split(".")[1] for target in imported_modules(name)}
    assert groups <= {"_core", "errors", "wire"}


def test_columns_become_arrow_in_one_module():
    """Loading makes plain arrays of others; nothing else has memory for Arrow, or streams."""
    making = ("from_buffers", "py_buffer", "RecordBatchReader.from_batches")
    found = {
        name
        for name in BELOW
        for node in ast.walk(TREES[name])
        if isinstance(node, ast.Attribute) and ast.unparse(node).endswith(making)
    }
    assert {name for name in found if not within(name, "ignitetf.load")} == {"ignitetf.wire.arrow"}


@pytest.mark.parametrize("name", BELOW)
def test_only_some_modules_import_tensorflow_at_once(name):
    if any(within(found, "tensorflow") for found in imports(TREES[name], deferred=False)):
        assert any(within(name, prefix) for prefix in WITH_TENSORFLOW)


def is_private(name):
    return name.startswith("_") and not name.endswith("__")


def defined(tree):
    """Private names that a module defines, as functions, classes, variables and attributes."""
    own = set()
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            own.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            own.add(node.id)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            own.add(node.attr)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            own.add(node.value)  # in __slots__
    return {name for name in own if is_private(name)}


DEFINED = {name: defined(tree) for name, tree in TREES.items()}


def foreign_names(name):
    """Private names of other modules of the project that a module reads."""
    others = set().union(*(names for other, names in DEFINED.items() if other != name))
    for node in ast.walk(TREES[name]):
        if isinstance(node, ast.Attribute) and is_private(node.attr):
            own = isinstance(node.value, ast.Name) and node.value.id in ("self", "cls")
            if not own and node.attr in others - DEFINED[name]:
                yield ast.unparse(node)
        elif isinstance(node, ast.ImportFrom) and within(node.module or "", "ignitetf"):
            yield from (alias.name for alias in node.names if is_private(alias.name))


@pytest.mark.parametrize("name", BELOW)
def test_no_module_reads_private_names_of_another(name):
    assert not sorted(set(foreign_names(name)))


def loaded_by(module):
    """Modules that a new Python has after it imported this one, without those of its start."""
    code = (
        f"import sys, json; before = {{*sys.modules}}; import {module}; "
        "print(json.dumps(sorted({*sys.modules} - before)))"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(json.loads(out.stdout))


@pytest.mark.parametrize("module", ["ignitetf", "ignitetf.cli.main"])
def test_light_imports_load_nothing_heavy(module):
    heavy = {"tensorflow", "keras", "numpy", "pyignite", "pandas", "pyarrow", "jax", "torch"}
    assert not loaded_by(module) & heavy


def test_a_worker_imports_nothing_of_others_before_its_script():
    """What a script sets before it imports a package, as the threads of NumPy, must still count."""
    loaded = {name.partition(".")[0] for name in loaded_by("ignitetf.launch.worker")}
    assert loaded <= {"ignitetf", *sys.stdlib_module_names}


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


def test_one_function_opens_images():
    """Pillow runs programs for some formats, and allocates what a header claims."""
    found = [
        f"{name}:{node.lineno}"
        for name, tree in TREES.items()
        for node in ast.walk(tree)
        if (isinstance(node, ast.Attribute) and ast.unparse(node).endswith("Image.open"))
        or (isinstance(node, ast.ImportFrom) and node.module == "PIL.Image")
    ]
    assert [place.partition(":")[0] for place in found] == ["ignitetf.pictures"]
