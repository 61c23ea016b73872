"""The shape of the code: who imports whom, what loads jax, how long things are."""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "spade_jax"
MODULES = sorted(PACKAGE.rglob("*.py"))
ELSEWHERE = ("configs", "launch", "tests")
WRITTEN = [*MODULES, *(p for each in ELSEWHERE for p in sorted((ROOT / each).rglob("*.py")))]

# types <- design, envs, policy <- play, learn, evals <- train and the other programs.
LAYERS = {
    **dict.fromkeys(("types", "jsonl", "storage", "__init__"), 0),
    **dict.fromkeys(("design", "envs", "policy"), 1),
    **dict.fromkeys(("play", "learn", "evals"), 2),
}
TOP = 3
DEVICE = {"jax", "jaxlib", "flax", "optax", "orbax", "chex"}
MODULE_LINES = 500
FUNCTION_LINES = 60
LOOP = PACKAGE / "train.py"  # the method in one readable loop may be longer
LOOP_LINES = 120


def name(path: Path) -> str:
    """Dotted name of a module of the package."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def unit(module: str) -> str:
    """The subpackage or top module a dotted name of the package belongs to."""
    return [*module.split("."), "__init__"][1]


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def imports(path: Path) -> set[str]:
    """Dotted names a file imports anywhere; `from spade_jax import types` gives both names."""
    found: set[str] = set()
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: import by the full name"
            found.update(f"{node.module}.{alias.name}" for alias in node.names)
    return found


def units_imported(path: Path) -> set[str]:
    own = {module for module in imports(path) if module.split(".")[0] == "spade_jax"}
    return {unit(module) for module in own} - {"__version__", unit(name(path))}


def layer(of: str) -> int:
    return LAYERS.get(of, TOP)


def own_layer(path: Path) -> int:
    """Of a module: a program is at the top, whichever package it runs."""
    return TOP if path.name == "__main__.py" else layer(unit(name(path)))


@pytest.mark.parametrize("path", MODULES, ids=name)
def test_imports_point_down(path: Path) -> None:
    here = unit(name(path))
    upward = {there for there in units_imported(path) if layer(there) > own_layer(path)}
    assert not upward, f"{here} may not import {upward}: types <- design, envs, policy <- ..."
    if here == "learn":
        assert "envs" not in units_imported(path), "learn never imports envs"
    if here in ("types", "jsonl", "envs"):
        roots = {module.split(".")[0] for module in imports(path)}
        assert not roots & DEVICE, f"{here} never imports jax"


def test_packages_do_not_import_each_other_in_a_circle() -> None:
    edges: dict[str, set[str]] = {}
    for path in MODULES:
        edges.setdefault(unit(name(path)), set()).update(units_imported(path))
    while leaves := {here for here, there in edges.items() if not there & edges.keys()}:
        edges = {here: there for here, there in edges.items() if here not in leaves}
    assert not edges, f"import circle among {sorted(edges)}"


def in_fresh_process(code: str, **environment: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env={"PATH": "/usr/bin:/bin", **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def importable(paths: Iterator[Path] | list[Path]) -> list[str]:
    """Names of modules that are not programs (those run when they are imported as __main__)."""
    return [name(path) for path in paths if '__name__ == "__main__"' not in path.read_text()]


def test_types_and_envs_do_not_load_jax() -> None:
    modules = importable([PACKAGE / "types.py", *sorted((PACKAGE / "envs").rglob("*.py"))])
    in_fresh_process(
        f"import importlib, sys\nfor name in {modules!r}: importlib.import_module(name)\n"
        f"assert not {DEVICE!r} & sys.modules.keys(), 'jax is loaded'"
    )


def test_importing_the_package_loads_nothing_else() -> None:
    in_fresh_process(
        "import sys\nbefore = set(sys.modules)\nimport spade_jax\n"
        "new = set(sys.modules) - before\nassert new <= {'__future__', 'spade_jax'}, new"
    )


PROGRAMS = [
    path
    for path in (*MODULES, *(ROOT / "launch").glob("*.py"))
    if "\n    run_program(" in path.read_text(encoding="utf-8")
]
# Each in a copy of a process that has loaded what all have in common.
HELP = """
import contextlib, io, os, runpy, sys
import spade_jax.program

def show(path):
    sys.argv, said = [path, "--help"], io.StringIO()
    try:
        with contextlib.redirect_stdout(said):
            runpy.run_path(path, run_name="__main__")
    except SystemExit as end:
        assert not end.code, f"--help exits with {end.code}"
    first = said.getvalue().partition(chr(10))[0]
    assert first.endswith((".", "?")), f"--help begins with {first!r}"
    loaded = DEVICE & sys.modules.keys()
    assert not loaded, f"--help loads {loaded}"

for path in PATHS:
    child = os.fork()
    if not child:
        show(path)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0, path
"""


def test_help_of_programs_loads_no_jax() -> None:
    """It takes seconds to load, and a mistaken flag is to be answered at once."""
    assert {PACKAGE / "train.py", ROOT / "launch" / "sweep.py"} <= set(PROGRAMS)
    paths = [str(path) for path in PROGRAMS]
    in_fresh_process(HELP.replace("DEVICE", repr(DEVICE)).replace("PATHS", repr(paths)))


def test_importing_makes_no_jax_call() -> None:
    """Any computation at import would look for the platform, and there is none of this name."""
    modules = importable(MODULES)
    in_fresh_process(
        f"import importlib\nfor name in {modules!r}: importlib.import_module(name)",
        JAX_PLATFORMS="none_of_this_name",
    )


def functions(path: Path) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


@pytest.mark.parametrize("path", WRITTEN, ids=lambda path: str(path.relative_to(ROOT)))
def test_nothing_is_too_long(path: Path) -> None:
    lines = len(path.read_text(encoding="utf-8").splitlines())
    assert lines <= MODULE_LINES, f"{path} has {lines} lines; split it by its nouns"
    if path.parent == ROOT / "configs":
        return  # a config is one function that lists its fields
    limit = LOOP_LINES if path == LOOP else FUNCTION_LINES
    for node in functions(path):
        length = node.end_lineno - node.lineno + 1
        assert length <= limit, f"{path}:{node.lineno} {node.name} has {length} lines"


@pytest.mark.parametrize("path", WRITTEN, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_module_for_leftovers(path: Path) -> None:
    parts = {part.removesuffix(".py") for part in path.relative_to(ROOT).parts}
    assert not parts & {"utils", "common", "helpers", "misc"}


OPTIONAL = (
    "gym",
    "math",
    "corpus",
    "endpoint",
    "serve",
    "wandb",
)  # extras for what a single module needs


def requirements(*groups: str) -> set[str]:
    """Names, lower case, of what setup.py requires, or of those extras."""
    found: list[str] = []
    for node in ast.walk(tree(ROOT / "setup.py")):
        if isinstance(node, ast.keyword) and node.arg == "install_requires" and not groups:
            found += ast.literal_eval(node.value)
        elif isinstance(node, ast.keyword) and node.arg == "extras_require":
            extras = ast.literal_eval(node.value)
            found += [text for group in groups for text in extras[group]]
    assert found, f"setup.py lists nothing for {groups or 'install_requires'}"
    return {re.split(r"[>=\[]", text)[0].lower() for text in found}


def test_dependencies_are_those_imported() -> None:
    roots = {module.split(".")[0] for path in MODULES for module in imports(path)}
    roots -= sys.stdlib_module_names | {"spade_jax"}
    distributions = packages_distributions()
    imported = {distributions.get(root, [root])[0].lower().replace("_", "-") for root in roots}
    wanted = requirements() | requirements(*OPTIONAL)
    assert imported == wanted, "setup.py must list what the package imports, no more"


def test_everything_in_the_package_is_shipped() -> None:
    """setup.py ships folders with an __init__ and, in them, what lies in prompts or assets."""
    folders = {path.parent for path in MODULES}
    assert all((folder / "__init__.py").is_file() for folder in folders)
    data = {path for path in PACKAGE.rglob("*") if path.is_file() and path.suffix != ".py"}
    for path in data - set(PACKAGE.rglob("__pycache__/*")):
        package = next(folder for folder in path.parents if folder in folders)
        assert path.relative_to(package).parts[0] in ("prompts", "assets"), f"{path} is not shipped"
