"""Every command, Python block, path and link of the docs is true: run, read or tested elsewhere."""

from __future__ import annotations

import ast
import contextlib
import dataclasses
import importlib
import io
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import unittest.mock
from collections.abc import Iterator
from pathlib import Path

import pytest

from spade_jax import config
from spade_jax.configs import ablations
from spade_jax.learn import rewards
from tests import documented, small_run
from tests.documented import PAGES, ROOT, Block
from tests.documented_commands import COMMANDS, Covered, Read
from tests.launch.stand_ins import PROGRAMS, STAND_IN

# In the place of python: notes its arguments where it is told to and starts nothing, as it does
# with what would install, lint or test.
PYTHON = f"""#!{sys.executable} -IS
import json, os, sys
words = sys.argv[1:]
note = os.environ.get("NOTE", "")
if note and words[:1] != ["-c"] or words[:1] == ["-m"] and words[1] in ("pip", "pytest", "ruff"):
    with open(note or os.devnull, "a") as notes:
        notes.write(json.dumps(words) + "\\n")
    sys.exit(0)
os.execv({sys.executable!r}, [{sys.executable!r}, *words])
"""
# Has programs read their flags and configs in a folder, each in a process of its own, and no more.
READER = """
import contextlib, io, json, os, runpy, sys
import spade_jax.evaluate, spade_jax.train
from absl import flags
from spade_jax import program

def read(main, *, config=None, check=program.configs.check, files=False):
    program.parse_flags(sys.argv, config, flags.FLAGS, check, files)

program.run_program = read
for line in sys.stdin:
    folder, words = json.loads(line)
    said, child = os.pipe(), os.fork()
    if not child:
        module = words[0] == "-m"
        sys.argv = words[module:]
        os.chdir(folder)
        try:
            if module:
                runpy.run_module(words[1], run_name="__main__", alter_sys=True)
            else:
                runpy.run_path(words[0], run_name="__main__")
        except BaseException as error:
            os.write(said[1], f"{type(error).__name__}: {error}".encode())
        os._exit(0)
    os.waitpid(child, 0)
    os.close(said[1])
    with os.fdopen(said[0]) as text:
        print(json.dumps(text.read()), flush=True)
"""
TIMES = re.compile(r"\d+(\.\d+)? s\b|tier [ABC]")


def pages(*, but: tuple[str, ...] = ()) -> list[object]:
    names = (str(page.relative_to(ROOT)) for page in PAGES)
    return [pytest.param(ROOT / name, id=name) for name in names if name not in but]


def commands_of(page: Path) -> list[str]:
    inside = [command for block in documented.read(page) for command in block.commands]
    return [c for c in inside if not c.startswith("export ")] + documented.inline_commands(page)


# -- the table --------------------------------------------------------------------------------


@pytest.mark.parametrize("page", pages())
def test_every_command_has_a_row(page: Path) -> None:
    missing = [command for command in commands_of(page) if command not in COMMANDS]
    assert not missing, (
        f"{page.relative_to(ROOT)} has commands without a row in tests/documented_commands.py: "
        f"{missing}"
    )


def test_every_row_has_its_command() -> None:
    written = {command for page in PAGES for command in commands_of(page)}
    surplus = [command for command in COMMANDS if command not in written]
    assert not surplus, f"no page has these rows of tests/documented_commands.py: {surplus}"


@pytest.mark.parametrize("command", COMMANDS)
def test_rows_are_of_their_commands_and_tests_exist(command: str) -> None:
    row = COMMANDS[command]
    if instead := getattr(row, "instead", ""):
        begins = 3 if command.startswith("python -m") else 2
        assert instead.split()[:begins] == command.split()[:begins], "another program"
    if isinstance(row, Read | Covered):
        file, name = row.test.split("::")
        functions = {
            node.name
            for node in ast.walk(ast.parse((ROOT / file).read_text("utf-8")))
            if isinstance(node, ast.FunctionDef)
        }
        assert name in functions, f"{file} has no {name}"


# -- a place to run pages in ------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Place:
    """A checkout of its own with finished runs, and stand-ins for what lies outside."""

    folder: Path
    variables: dict[str, str]
    small: str  # flags of the finished run

    def bash(self, command: str, **variables: str) -> str:
        """What a command that succeeds prints."""
        done = subprocess.run(
            ["bash", "-c", command.replace("$SMALL", self.small)],
            cwd=self.folder,
            env=self.variables | variables,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        assert done.returncode == 0, f"{command}\nended with {done.returncode}:\n{done.stdout}"
        return done.stdout

    def noted(self) -> list[str]:
        """What python was told, a JSON list each, since the last time."""
        notes = self.folder / "notes"
        lines = notes.read_text("utf-8").splitlines() if notes.exists() else []
        notes.unlink(missing_ok=True)
        return lines


@pytest.fixture
def place(finished_run: Path, model_folder: Path, tmp_path: Path) -> Place:
    folder = tmp_path / "checkout"
    shutil.copytree(ROOT / "launch", folder / "launch")
    for name in ("LICENSE", "README.md", "configs", "pyproject.toml", "setup.py", "spade_jax"):
        (folder / name).symlink_to(ROOT / name)
    for name in ("runs/tiny-ablations", "colabs", ".venv/bin", "bin"):
        (folder / name).mkdir(parents=True)
    for name in ("tiny", "seed42"):
        (folder / "runs" / name).symlink_to(finished_run)
    for seed in (42, 43):
        run = folder / "runs" / "tiny-ablations" / f"seed={seed}"
        shutil.copytree(finished_run, run, ignore=shutil.ignore_patterns("checkpoints"))
        told = json.loads((run / config.FILE).read_text())
        (run / config.FILE).write_text(json.dumps(told | {"seed": seed}))
    programs = {"bin/python": PYTHON, "bin/python3": PYTHON, ".venv/bin/python": PYTHON}
    programs |= {f"bin/{name}": STAND_IN for name in PROGRAMS}
    for name, text in programs.items():
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    # The slice is asked for, comes, and is ready.
    answers = {"queued-resources list": [["", 0], ["ACTIVE\n", 0]], "list": [["READY\n", 0]]}
    (folder / "bin" / "answers").write_text(json.dumps(answers))
    c = small_run.run_config(model_folder)
    small = [word for word in small_run.arguments(c, folder) if not word.startswith("--workdir")]
    clean = {k: v for k, v in os.environ.items() if not k.startswith("SPADE_")}
    own = {"PATH": f"{folder}/bin:{clean['PATH']}", "PYTHONPATH": str(ROOT)}
    quick = {"SPADE_RESTART_WAIT": "0", "SPADE_POLL": "0"}
    return Place(folder, clean | own | quick, shlex.join(small))


@pytest.fixture(scope="module")
def reader() -> Iterator[subprocess.Popen[str]]:
    """A process that loads what programs share once, and then has each read its flags."""
    with subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", READER],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as running:
        yield running


def mistake(reader: subprocess.Popen[str], place: Place, arguments: str) -> str:
    """What is wrong with these arguments of python, "" where nothing is."""
    reader.stdin.write(json.dumps([str(place.folder), json.loads(arguments)]) + "\n")
    reader.stdin.flush()
    return json.loads(reader.stdout.readline())


# -- the pages --------------------------------------------------------------------------------


def run_page(page: Path, place: Place, *, slow: bool) -> list[str]:
    """Write its files and run its blocks and commands in their order; arguments left to read."""
    blocks = documented.read(page)
    for block in blocks:
        if block.name:
            (place.folder / block.name).write_text(block.text)
    noted: list[str] = []
    for n, block in enumerate(blocks):
        told = list(_told(blocks[n + 1 :]))
        if block.language == "python" and not block.name:
            said = run_python(block, place)
            assert [said] == told or not told, f"{page}:{block.line} printed\n{said}"
        else:
            noted += run_block(block, told, place, slow=slow)
    for command in documented.inline_commands(page):
        noted += run_command(command, "", place, slow=slow)[1]
    return noted


def _told(blocks: list[Block]) -> Iterator[str]:
    """The texts that follow, up to the next block of another kind."""
    for block in blocks:
        if block.language != "text":
            return
        yield block.text


def run_python(block: Block, place: Place) -> str:
    """What a block prints when it is run here, in the place's folder."""
    out, code = io.StringIO(), compile(block.text, f"{block.page}:{block.line}", "exec")
    with (
        contextlib.chdir(place.folder),
        contextlib.redirect_stdout(out),
        unittest.mock.patch.dict(rewards.DESIGNER_REWARDS),
    ):
        exec(code, {"__name__": "__main__"})
    return out.getvalue()


def run_block(block: Block, told: list[str], place: Place, *, slow: bool) -> list[str]:
    """Run its commands; what is left to read of their arguments."""
    exports, noted = "", []
    said, shown = "", False
    for command in block.commands:
        if command.startswith("export "):
            exports += f"{command}; "
            continue
        out, notes = run_command(command, exports, place, slow=slow)
        noted += notes
        said += out
        shown |= getattr(COMMANDS[command], "shown", False)
    if shown:
        lines = set(map(_plain, said.splitlines()))
        missing = [line for text in told for line in text.splitlines() if _plain(line) not in lines]
        assert not missing, f"{block.page}:{block.line} does not print {missing}, but\n{said}"
    return noted


def run_command(command: str, exports: str, place: Place, *, slow: bool) -> tuple[str, list[str]]:
    """What it prints if it is run, and the arguments of its programs if these are to be read."""
    row = COMMANDS[command]
    if isinstance(row, Covered) or (getattr(row, "slow", False) and not slow):
        return "", []
    if isinstance(row, Read):
        place.bash(exports + (row.instead or command), NOTE=str(place.folder / "notes"))
        told = [line for line in place.noted() if json.loads(line)[1:2] != ["pip"]]
        assert told, f"{command} started no program"
        return "", told
    said = place.bash(exports + (row.instead or command))
    for text in row.says:
        assert text in said, f"{command} does not say {text!r}, but\n{said}"
    return said, []


def _plain(line: str) -> str:
    """A line without what differs from machine to machine."""
    return " ".join(TIMES.sub("", line).split())


@pytest.mark.parametrize("page", pages(but=("CHANGELOG.md",)))
def test_page(page: Path, place: Place, reader: subprocess.Popen[str]) -> None:
    noted = run_page(page, place, slow=False)
    wrong = {each: told for each in noted if (told := mistake(reader, place, each))}
    assert not wrong, wrong


@pytest.mark.slow
@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, id=str(page.relative_to(ROOT)))
        for page in PAGES
        if any(getattr(COMMANDS.get(command), "slow", False) for command in commands_of(page))
    ],
)
def test_page_with_its_slow_commands(page: Path, place: Place) -> None:
    run_page(page, place, slow=True)


# -- what else they say -----------------------------------------------------------------------


@pytest.mark.parametrize("page", pages())
def test_links_lead_to_files(page: Path) -> None:
    for link in documented.links(page):
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), f"{page.relative_to(ROOT)} links to {link}, which is not there"
        if anchor:
            titles = re.findall(r"(?m)^#+ (.+)$", target.read_text("utf-8"))
            known = [re.sub(r"[^\w -]", "", t).lower().replace(" ", "-") for t in titles]
            assert anchor in known, f"{link} is no heading of {target.name}"


def test_the_tree_of_the_readme_exists() -> None:
    [tree] = [b for b in documented.read(ROOT / "README.md") if b.lines[0].startswith("spade_jax/")]
    paths = list(documented.tree_paths(tree))
    assert len(paths) > 40
    missing = [str(path) for path in paths if not (ROOT / path).exists()]
    assert not missing, f"the tree of README.md names {missing}"
    left_out = {
        path.name
        for path in (ROOT / "spade_jax").iterdir()
        if path.name
        not in ("__init__.py", "__pycache__", "assets", "configs", "program.py", "jsonl.py")
    } - {path.name for path in paths}
    assert not left_out, f"the tree of README.md lacks {left_out}"


@pytest.mark.parametrize("page", pages())
def test_fields_and_files_that_are_named_exist(page: Path) -> None:
    """Between backticks: `group.field`, --config.group.field=..., and paths with a suffix."""
    fields = config.flatten(config.load("default"))
    groups = {field.partition(".")[0] for field in fields if "." in field}
    special = {"data", "train"}  # groups of the warm start's config alone
    named = re.findall(r"`([^`\n]+)`", page.read_text("utf-8"))
    for text in named:
        for found in re.findall(r"--config\.([\w.]+)|^([a-z]+\.(?!py$|jsonl$)\w+)(?:=\S+)?$", text):
            field = "".join(found)
            if field.partition(".")[0] in groups - special:
                assert field in fields, f"`{text}` names no field of configs/default.py"
        if re.fullmatch(r"[\w./]+/[\w.]+\.(py|sh|txt|toml|ipynb)", text):
            places = (ROOT, page.parent, ROOT / "spade_jax")
            assert any((place / text).exists() for place in places), f"there is no `{text}`"


def test_words_of_ablations_are_all_told() -> None:
    [table] = re.findall(r"(?ms)^\| word \|.*?(?=\n\n)", (ROOT / "docs" / "configs.md").read_text())
    words = [w for row in table.splitlines() for w in re.findall(r"`(\w+)`", row.split("|")[1])]
    assert sorted(words) == sorted(ablations.WORDS)


def test_variables_that_pages_export_are_those_of_the_scripts() -> None:
    scripts = "".join(path.read_text("utf-8") for path in (ROOT / "launch").iterdir())
    for page in PAGES:
        for block in documented.read(page):
            for command in block.commands:
                if command.startswith("export "):
                    names = [word.partition("=")[0] for word in shlex.split(command)[1:]]
                    assert all(f"${{{name}" in scripts or f"${name}" in scripts for name in names)


def test_extras_that_pages_install_exist() -> None:
    setup = (ROOT / "setup.py").read_text("utf-8")
    extras = set(re.findall(r'(?m)^        "(\w+)": \[', setup))
    text = "".join(page.read_text("utf-8") for page in PAGES)
    install = r"pip install (?:-e )?['\"](?:\.|spade_jax)\[([\w,]+)\]"
    named = re.findall(install + r"|\bextra `(\w+)`", text)
    assert named and {n for a, b in named for n in (a or b).split(",")} <= extras


def test_one_release_of_torch() -> None:
    page, script = (
        (ROOT / "launch" / name).read_text("utf-8") for name in ("README.md", "test.sh")
    )
    [release] = re.findall(r"(?m)^TORCH=(.*)$", script)
    assert set(re.findall(r"torch==([\d.]+)", page)) == {release}


def test_names_of_the_notation_exist() -> None:
    """In CONTRIBUTING.md: what stands in the code and config columns, and the letters."""
    text = (ROOT / "CONTRIBUTING.md").read_text("utf-8")
    fields = config.flatten(config.load("default"))
    rows = [line.strip("|").split("|") for line in text.splitlines() if line.startswith("| ")]
    symbols = [row for row in rows if len(row) == 3]
    assert len(symbols) > 10
    for _, code, used in symbols[1:]:
        for name in re.findall(r"`([\w.]+)`", code):
            module, _, attribute = name.rpartition(".")
            assert hasattr(importlib.import_module(f"spade_jax.{module}"), attribute), name
        for field in re.findall(r"`([\w.]+)`", used):
            assert field in fields, field
    letters = {row[i].strip() for row in rows if len(row) == 4 for i in (0, 2)} - {"letter"}
    named = (ROOT / "spade_jax" / "types.py").read_text("utf-8").split('"""')[1]
    assert letters == set(re.findall(r"\b[A-Z]\b", named.partition("(`tokens_BT`):")[2]))
