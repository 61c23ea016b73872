"""The watchdog: a stage that hangs ends the process and says where; others go on."""

import re
import subprocess
import sys
import time
from pathlib import Path

from spade_jax import program
from spade_jax.watchdog import Watchdog
from tests import small_run

ROOT = Path(__file__).parents[1]

HANGING_RUN = """
import sys, time
from pathlib import Path
from spade_jax import config, train
c = config.load(sys.argv[1])
c.watchdog.play = 0.5
def wait_for_a_host_that_is_gone(*arguments):
    time.sleep(600)
train.play_pool = wait_for_a_host_that_is_gone
train.train(c, Path(sys.argv[2]))
"""

# PyDLL, unlike CDLL, keeps the interpreter's lock during the call: no Python thread can act.
HOLDING_THE_LOCK = """
import ctypes
from spade_jax.watchdog import Watchdog
with Watchdog({"play": 0.2}, grace=0.5).stage("play"):
    ctypes.PyDLL(None).sleep(600)
"""


def run(script: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", script, *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )


def test_a_run_that_hangs_in_a_stage_says_where_and_ends(
    model_folder: Path, tmp_path: Path
) -> None:
    c = small_run.run_config(model_folder, environments__source="fixed", environments__size=6)
    config = tmp_path / "config.json"
    config.write_text(c.to_json())
    done = run(HANGING_RUN, str(config), str(tmp_path / "run"))
    assert done.returncode == program.HUNG == 70, done.stderr
    said = r"error: stage play has taken longer than watchdog\.play = 0\.5 seconds; .* go on"
    assert re.search(said, done.stderr)
    assert "in wait_for_a_host_that_is_gone" in done.stderr
    assert re.search(r"in iterate\n.*in loop\n", done.stderr), "the stack names who called it"


def test_where_native_code_holds_the_lock_the_interpreter_ends_itself() -> None:
    done = run(HOLDING_THE_LOCK)
    assert done.returncode == 1
    assert done.stderr.startswith("Timeout") and 'File "<string>", line 5' in done.stderr


def test_stages_that_are_in_time_and_those_without_a_limit_go_on() -> None:
    watchdog = Watchdog({"iteration": 0.3, "play": 0.1, "learn": 0.0}, grace=0.0)
    for _ in range(3):  # longer in all than any limit
        with watchdog.stage("iteration"):
            for name in ("play", "learn", "score"):
                with watchdog.stage(name):
                    time.sleep(0.02)
    with watchdog.stage("learn"):
        time.sleep(0.4)
