"""The pages of the reference list what the code has: variables, errors, public names."""

import ast
import re

from helpers.pages import blocks
from helpers.paths import ROOT
from test_imports import TREES
from test_wings import LISTED, is_public

from ignitetf.errors import MissingExtra
from ignitetf.settings import VARIABLES

DOCS = ROOT / "docs"
_VARIABLE = re.compile(r"_?[A-Z][A-Z0-9_]+")
# Where a program reads the environment by a name that is computed, and what it reads there.
COMPUTED = {
    "ignitetf.settings": set(VARIABLES.values()),
    "ignitetf.launch.environment": set(VARIABLES.values()),
    "_build.compiling": {"CFLAGS", "LDFLAGS"},
}


def page(name):
    return (DOCS / f"{name}.md").read_text(encoding="utf-8")


def first_cells(text):
    """Return what the first cells of all tables have in backquotes."""
    cells = re.findall(r"^\| ([^|]*`[^|]*) \|", text, re.MULTILINE)
    return {name for cell in cells for name in re.findall(r"`([^`]+)`", cell)}


def is_environment(node):
    """Whether an expression is `os.environ`, or a parameter or import of that name."""
    return ast.unparse(node) in ("os.environ", "environ")


def names_read(tree):
    """Yield the expression of each variable that a module reads from its environment."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.args:
            if (
                is_environment(node.func.value) and node.func.attr in ("get", "pop", "setdefault")
            ) or ast.unparse(node.func) == "os.getenv":
                yield node.args[0]
        elif isinstance(node, ast.Subscript) and is_environment(node.value):
            yield node.slice
        elif isinstance(node, ast.Compare) and is_environment(node.comparators[0]):
            yield node.left
        elif isinstance(node, ast.keyword) and node.arg == "envvar":
            yield node.value


def constants_of(tree):
    """Return the texts that each name at the top of a module stands for."""
    found = {}
    for node in tree.body:
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            texts = {c.value for c in ast.walk(node.value) if isinstance(c, ast.Constant)}
            found |= {t.id: texts for t in targets if isinstance(t, ast.Name)}
    return found


def looped_over(tree, name):
    """Return the names that a loop variable goes over."""
    loops = (n for n in ast.walk(tree) if isinstance(n, ast.comprehension | ast.For))
    return {ast.unparse(x.iter) for x in loops if ast.unparse(x.target) == name}


def variables_of(module, tree):
    constants = constants_of(tree)
    for expression in names_read(tree):
        if isinstance(expression, ast.Constant):
            yield expression.value
            continue
        name = ast.unparse(expression)
        options = {name, *looped_over(tree, name)} & set(constants)
        if options:
            yield from set().union(*(constants[each] for each in options))
        elif module == "ignitetf.read.arguments":
            yield from dataset_variables()
        else:
            assert module in COMPUTED, f"{module} reads {name} of the environment: add it here"
            yield from COMPUTED[module]


def dataset_variables():
    """Return the variables of the arguments that `IgniteDataset` passes to `with_environment`."""
    calls = [
        node
        for node in ast.walk(TREES["ignitetf.read.tf.dataset"])
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "with_environment"
    ]
    return {f"IGNITE_DATASET_{k.arg.upper()}" for call in calls for k in call.keywords}


def test_the_page_of_settings_has_every_variable():
    trees = dict(TREES)
    for path in (ROOT / "_build").glob("*.py"):
        trees[f"_build.{path.stem}"] = ast.parse(path.read_text(encoding="utf-8"))
    read = {name for module, tree in trees.items() for name in variables_of(module, tree)}
    listed = {name for name in first_cells(page("settings")) if _VARIABLE.fullmatch(name)}
    # Set for scripts, which read them; and read by the tests.
    for_others = {"IGNITETF_JOB_DIR", "IGNITETF_ATTEMPT", "IGNITETF_TEST_ADDRESS"}
    assert listed == read | for_others


def errors_of_the_package():
    """Return the public classes that derive from an error of `errors` or `dbapi`."""
    bases = {
        (module, node.name): {ast.unparse(base).rpartition(".")[2] for base in node.bases}
        for module, tree in TREES.items()
        for node in tree.body
        if isinstance(node, ast.ClassDef)
    }
    found = {"IgniteTFError"}
    found |= {name for module, name in bases if module == "ignitetf.dbapi.errors"}
    while new := {n for (_, n), parents in bases.items() if parents & found} - found:
        found |= new
    return {name for name in found if not name.startswith("_")}


def test_the_page_of_errors_has_every_class():
    text = page("errors")
    names = {name.rpartition(".")[2] for name in first_cells(text)}
    names |= set(re.findall(r"^`[\w.]+\.(\w+)` \(an `IgniteTFError`", text, re.MULTILINE))
    assert names == errors_of_the_package()


def imports_of_pages():
    """Yield page, module and name of each import of ignitetf in the Python blocks of the pages."""
    for path in sorted(DOCS.rglob("*.md")):
        for language, _, content in blocks(path.read_text(encoding="utf-8")):
            if language != "python":
                continue
            try:
                tree = ast.parse(content)
            except SyntaxError:
                continue
            for node in ast.walk(tree):
                if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("ignitetf"):
                    yield from ((path.name, node.module, alias.name) for alias in node.names)


def test_what_the_pages_import_is_in_the_reference():
    import ignitetf

    for name, module, imported in imports_of_pages():
        whole = f"{module}.{imported}"
        if whole in LISTED:
            continue
        known = module == "ignitetf" and (imported in ignitetf.__all__ or whole in LISTED)
        if known:
            continue
        try:
            assert is_public(module, imported), (name, whole)
        except MissingExtra:
            assert module in ("ignitetf.torch", "ignitetf.grain"), (name, whole)
