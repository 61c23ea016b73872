"""The validator's program: verdicts on files, exit codes, and files that are no programs."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from spade_jax.envs.programs import MAX_BYTES, kind_of, read_program
from spade_jax.types import Kind, Reason, UsageError
from tests.envs.programs import CHAIN, SEARCH, SUM, game
from tests.envs.witness import descendants, wait_for_end

ROOT = Path(__file__).parents[1]


def run(*arguments: object, folder: Path = ROOT) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "spade_jax.validate", *map(str, arguments)],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )


def write(folder: Path, **codes: str) -> list[Path]:
    for name, code in codes.items():
        (folder / f"{name}.py").write_text(code)
    return [folder / f"{name}.py" for name in codes]


def test_good_files_are_accepted_with_their_numbers(tmp_path: Path) -> None:
    files = write(tmp_path, sum=SUM, chain=CHAIN)
    done = run(*files, "--json", "--seeds=8")
    assert (done.returncode, done.stderr) == (0, "")
    first, second = map(json.loads, done.stdout.splitlines())
    assert first["file"] == str(files[0]) and first["reason"] == "accepted"
    assert (first["kind"], second["kind"]) == ("game", "tool_use")
    assert first["measures"]["solution"] == second["measures"]["solution"] == 1.0
    assert first["measures"]["changes"] == 0.0 and second["measures"]["changes"] > 0.5


def test_rejected_files_say_why_and_repeated_ones_what_they_equal(tmp_path: Path) -> None:
    files = write(
        tmp_path,
        search=SEARCH,
        again=SEARCH.replace("SearchEnv", "FindEnv").replace("Lower", "Less"),
        same=SEARCH.replace("self.left = 7", "self.left = 3 + 4"),
        broken="x = (",
    )
    (tmp_path / "reply.md").write_text(f"Here it is.\n```python\n{SUM}```\n")
    (tmp_path / "text.md").write_text("```\nno program\n```\n")
    more = [tmp_path / "reply.md", tmp_path / "text.md"]
    done = run(*files, *more, "--json", "--seeds", "8")
    assert done.returncode == 1
    lines = {Path(line["file"]).name: line for line in map(json.loads, done.stdout.splitlines())}
    assert {name: (line["reason"], line["phase"]) for name, line in lines.items()} == {
        "search.py": ("accepted", ""),
        "again.py": ("new", "pool"),
        "same.py": ("new", "pool"),
        "broken.py": ("parse", "source"),
        "reply.md": ("accepted", ""),
        "text.md": ("extract", "source"),
    }
    assert f"is written like {files[0]};" in lines["again.py"]["message"]
    assert f"plays exactly like {files[0]};" in lines["same.py"]["message"]


def test_the_table_has_every_file_and_the_remedy(tmp_path: Path) -> None:
    write(tmp_path, good=SUM, broken="x = (\x1b[2J")
    done = run("broken.py", "--seeds=8", "good.py", folder=tmp_path)
    assert done.returncode == 1
    rows = [line for line in done.stdout.splitlines() if line.strip().startswith("broken.py")]
    assert rows[0].split() == ["broken.py", "game", "parse"]
    assert rows[1].startswith("broken.py (source): The program is not valid Python: ")
    row = next(line for line in done.stdout.splitlines() if line.strip().startswith("good.py"))
    assert row.split()[:5] == ["good.py", "game", "accepted", "0%", "0%"]
    assert "1 of 2 accepted, 8 seeds" in done.stdout
    assert "\x1b" not in done.stdout


def test_how_programs_were_held_is_said(tmp_path: Path) -> None:
    [file] = write(tmp_path, sum=SUM)
    done = run(file, "--tier=C", "--seeds=8", "--unsafe")
    assert (done.returncode, done.stderr) == (0, "unsafe: programs ran in tier C\n")
    assert "8 seeds, tier C, " in done.stdout
    assert done.stdout.endswith("not enforced: namespaces (not asked for (tier C))\n")
    line = json.loads(run(file, "--tier=C", "--seeds=8", "--json").stdout)
    assert (line["tier"], list(line["not_enforced"])) == ("C", ["namespaces"])


def test_packages_may_be_named(tmp_path: Path) -> None:
    [file] = write(tmp_path, sum=SUM.replace("import random", "import random, packaging.version"))
    line = json.loads(run(file, "--json", "--seeds=8").stdout)
    assert (line["reason"], "imports packaging.version; use" in line["message"]) == (
        "imports",
        True,
    )
    assert run(file, "--seeds=8", "--modules=packaging").returncode == 0


def test_the_kind_may_be_said(tmp_path: Path) -> None:
    files = write(tmp_path, sum=SUM)
    done = run(*files, "--kind=tool_use", "--json", "--seeds=8")
    line = json.loads(done.stdout)
    assert (done.returncode, line["reason"], line["phase"]) == (1, "construct", "construct")
    assert "SumEnv must subclass ToolUseBaseEnv" in line["message"]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ([], "no file is given"),
        (["missing.py"], "missing.py cannot be read (no such file or directory); check its name"),
        (["x" * 300], "cannot be read (file name too long)"),
        (["."], ". is a folder; name the files in it"),
        (["/dev/zero"], "/dev/zero is not a regular file"),
        (["x.py", "--seeds=1"], "--seeds=1"),
        (["x.py", "--kind=toy"], "--kind=toy"),
        (["x.py", "--sead=3"], "sead"),
        (["x.py", "--modules=no_such"], "no_such is not installed; run `pip install no_such`"),
        (["x.py", "--modules=json, no"], "no is not installed"),
        (["x.py", "--modules=a b"], "'a b' is no name of a module"),
    ],
)
def test_wrong_usage_is_one_line_and_code_2(
    tmp_path: Path, arguments: list[str], sentence: str
) -> None:
    write(tmp_path, x=SUM)
    done = run(*arguments, folder=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("error: ") and done.stderr.count("\n") == 1
    assert sentence in done.stderr


def test_an_interrupt_ends_it_in_one_line(tmp_path: Path) -> None:
    loop = game(reset="exec('while 1: pass')")
    files = write(tmp_path, **{f"loop{i}": loop for i in range(40)})
    process = subprocess.Popen(
        [sys.executable, "-m", "spade_jax.validate", *files],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    while len(started := descendants(process.pid)) < 3:  # a server, its guard, an instance
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    assert process.communicate() == ("", "interrupted\n")
    assert process.returncode == 130
    assert all(wait_for_end(pid) for pid in started)


def test_classes_that_cannot_be_chosen_or_made(tmp_path: Path) -> None:
    files = write(
        tmp_path,
        args=SUM.replace(
            "    def reset", "    def __init__(self, size):\n        pass\n\n    def reset"
        ),
        two=SUM + SUM.replace("SumEnv", "OtherEnv"),
        none="x = 1\n",
    )
    done = run(*files, "--json")
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert done.returncode == 1
    assert {(line["reason"], line["phase"]) for line in lines} == {("construct", "construct")}
    assert "needs arguments (size)" in lines[0]["message"]
    assert "several environments, SumEnv and OtherEnv" in lines[1]["message"]
    assert lines[2]["message"].endswith("no class whose name ends in Env; write one.")


# -- reading files ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (bytes(range(256)), "not text in the encoding it claims"),
        (SUM.encode() + b"\xff", "not text in the encoding it claims"),
        (SUM.encode("utf-16"), "not text in the encoding it claims"),
        (b"# coding: rot13\n", "not text in the encoding it claims"),
        (b"# coding: nowhere\n", "not text in the encoding it claims"),
        (b"# coding: raw_unicode_escape\nx = '\\ud800'\n", "not text in the encoding it claims"),
        (b"x = 1\0\n", "zero bytes"),
    ],
)
def test_files_that_are_no_text_are_rejected(tmp_path: Path, data: bytes, message: str) -> None:
    (tmp_path / "x.py").write_bytes(data)
    program = read_program(tmp_path / "x.py")
    assert program.rejection.reason is Reason.PARSE and message in program.rejection.message


def test_an_empty_file_is_rejected(tmp_path: Path) -> None:
    (tmp_path / "x.py").write_text(" \n")
    rejection = read_program(tmp_path / "x.py").rejection
    assert (rejection.reason, rejection.phase) == (Reason.EXTRACT, "source")
    assert "The file is empty" in rejection.message


def test_a_huge_file_is_not_read(tmp_path: Path) -> None:
    with open(tmp_path / "x.py", "wb") as file:
        file.truncate(100 << 20)
    rejection = read_program(tmp_path / "x.py").rejection
    assert (rejection.reason, rejection.phase) == (Reason.LIMITS, "source")
    assert f"104,857,600 bytes; a program has at most {MAX_BYTES:,}" in rejection.message


def test_declared_encodings_and_line_ends_are_read(tmp_path: Path) -> None:
    path = tmp_path / "x.py"
    path.write_bytes("# coding: latin-1\r\nx = 'ü'\r\n".encode("latin-1"))
    assert read_program(path).code == "# coding: latin-1\nx = 'ü'\n"
    path.write_bytes(b"\xef\xbb\xbfx = 1\n")
    assert read_program(path).code == "x = 1\n"


def test_a_file_that_may_not_be_read(tmp_path: Path) -> None:
    (tmp_path / "loop.py").symlink_to("loop.py")
    with pytest.raises(UsageError, match="cannot be read"):
        read_program(tmp_path / "loop.py")


def test_kinds_are_recognised_by_the_base() -> None:
    assert kind_of(SUM) is Kind.GAME
    assert kind_of(CHAIN) is Kind.TOOL_USE
    assert kind_of("class AEnv(tools.ToolUseBaseEnv): pass") is Kind.TOOL_USE
    assert kind_of("x = (ToolUseBaseEnv") is Kind.GAME
