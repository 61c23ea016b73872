"""Playing in the terminal: actions piped in, commands, and every way to leave."""

import contextlib
import os
import pty
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from spade_jax.play.__main__ import action
from spade_jax.types import Kind
from tests.envs.programs import CHAIN, SEARCH, SUM, game

ROOT = Path(__file__).parents[2]


def command(*arguments: object) -> list[str]:
    return [sys.executable, "-m", "spade_jax.play", *map(str, arguments)]


def play(folder: Path, code: str, typed: str, *flags: str) -> subprocess.CompletedProcess[str]:
    (folder / "x.py").write_text(code)
    return subprocess.run(
        command(folder / "x.py", *flags),
        input=typed,
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )


def test_an_episode_with_hint_and_solution(tmp_path: Path) -> None:
    # random.Random(3) draws 41 and 86.
    done = play(tmp_path, SUM, "/hint\n/solution\n \\boxed{127}\n7\n", "--seed", "3")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == [
        "Bees: add 41 and 86.",
        "(/hint, /solution, /quit)",
        "The tens make 120.",
        "127",
        "Done.",
        "reward 1",
        "won after 1 steps",
    ]


def test_packages_that_the_program_needs(tmp_path: Path) -> None:
    code = SUM.replace("import random", "import random, packaging.version")
    assert play(tmp_path, code, "/quit\n", "--modules=packaging").returncode == 0
    missing = play(tmp_path, code, "", "--modules=no_such")
    assert (missing.returncode, missing.stdout) == (2, "")
    assert missing.stderr == "error: no_such is not installed; run `pip install no_such`\n"


def test_leaving_early_and_losing(tmp_path: Path) -> None:
    assert play(tmp_path, SEARCH, "").returncode == 0
    quits = play(tmp_path, SEARCH, "101\n/quit\n7\n")
    assert quits.stdout.splitlines()[2:] == ["Lower.", "reward 0"]
    assert play(tmp_path, SUM, "0\n").stdout.endswith("reward 0\nlost after 1 steps\n")
    bare = SUM.replace("hint", "help").replace("solution", "solve")
    told = play(tmp_path, bare, "/hint\n/solution\n").stdout
    assert told.endswith("There is no hint.\nThere is no solution.\n")


def test_tools_are_called_as_functions(tmp_path: Path) -> None:
    done = play(tmp_path, CHAIN, 'boss(name="zed")\nnowhere\n', "--seed=1")
    lines = done.stdout.splitlines()[2:]
    assert lines == ["unknown", "reward 0", "Done.", "reward 0", "lost after 2 steps"]


def test_what_a_typed_line_means() -> None:
    assert action("up", Kind.GAME) == "up"
    assert action("oslo", Kind.TOOL_USE) == "<answer>oslo</answer>"
    assert action("<tool_call>{", Kind.TOOL_USE) == "<tool_call>{"


def test_an_environment_that_breaks(tmp_path: Path) -> None:
    done = play(tmp_path, game(step="1 / 0"), "x\n")
    assert done.returncode == 1
    assert done.stderr.startswith("step broke (error): ZeroDivisionError")
    forged = play(tmp_path, game(reset='return "\\x1b[2J", {}'), "")
    assert forged.stdout.startswith("\\x1b[2J\n")


@pytest.mark.parametrize(
    ("arguments", "code", "sentence"),
    [
        ([], 2, "error: 0 files are given"),
        (["a.py", "b.py"], 2, "error: 2 files are given"),
        (["missing.py"], 2, "error: missing.py cannot be read"),
        (["x.py", "--seed=-1"], 2, "error: flag --seed=-1"),
        (["/bin/true"], 1, "/bin/true cannot be played: The file"),
    ],
)
def test_wrong_usage(arguments: list[str], code: int, sentence: str) -> None:
    done = subprocess.run(
        command(*arguments), cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (code, "")
    assert done.stderr.startswith(sentence) and done.stderr.count("\n") == 1


@pytest.mark.parametrize("way", ["interrupt", "end of input"])
def test_a_terminal_has_a_prompt_and_can_be_left(tmp_path: Path, way: str) -> None:
    (tmp_path / "x.py").write_text(SEARCH)
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        command(tmp_path / "x.py"), cwd=ROOT, stdin=theirs, stdout=theirs, stderr=subprocess.PIPE
    )
    os.close(theirs)
    shown = b""
    while b"> " not in shown:
        shown += os.read(ours, 1000)
    while process.poll() is None:  # what comes while the line editor begins to wait may be lost
        if way == "interrupt":
            process.send_signal(signal.SIGINT)
        else:
            os.write(ours, b"\x04")
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(10)
    _, errors = process.communicate(timeout=60)
    assert (process.returncode, errors) == (0, b"")
    os.close(ours)


def test_the_prompt_goes_where_observations_go(tmp_path: Path) -> None:
    (tmp_path / "x.py").write_text(SEARCH)
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        command(tmp_path / "x.py"),
        cwd=ROOT,
        stdin=theirs,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    os.close(theirs)
    os.write(ours, b"101\n/quit\n")
    shown, errors = process.communicate(timeout=60)
    assert (process.returncode, errors) == (0, b"")
    assert shown.splitlines()[1:] == [b"(/hint, /solution, /quit)", b"> Lower.", b"reward 0", b"> "]
    os.close(ours)


def test_nobody_reads_on_or_nothing_can_be_read(tmp_path: Path) -> None:
    (tmp_path / "x.py").write_text(SEARCH)
    pipe, output = os.pipe()
    os.close(pipe)
    options = {"cwd": ROOT, "stderr": subprocess.PIPE, "text": True, "check": False}
    unread = subprocess.run(
        command(tmp_path / "x.py"), stdin=subprocess.DEVNULL, stdout=output, **options
    )
    os.close(output)
    assert (unread.returncode, unread.stderr) == (1, "")
    shell = ["sh", "-c", 'exec "$@" <&-', "sh", *command(tmp_path / "x.py")]
    closed = subprocess.run(shell, stdout=subprocess.PIPE, **options)
    assert (closed.returncode, closed.stdout) == (2, "")
    assert closed.stderr.startswith("error: standard input is closed")


def test_unsafe_is_said(tmp_path: Path) -> None:
    done = play(tmp_path, SUM, "/quit\n", "--unsafe")
    assert done.returncode == 0
    assert done.stderr.startswith("unsafe: the program runs in tier ")
