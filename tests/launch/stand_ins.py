"""A machine whose PATH begins with stand-ins for gcloud, kubectl, xpk, sbatch and the like."""

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
PROGRAMS = ("gcloud", "kubectl", "xpk", "sbatch", "srun", "scontrol", "squeue", "scancel")

# Notes its arguments, and answers the n-th time as the n-th of the answers says whose key is in
# the command: [what it prints, its exit code]. The last answer holds for all later times.
STAND_IN = f"""#!{sys.executable} -IS
import json, os, pathlib, sys
here = pathlib.Path(__file__).parent
words = [pathlib.Path(__file__).name, *sys.argv[1:]]
with open(here / "calls", "a") as calls:
    calls.write(json.dumps(words) + "\\n")
earlier = [" ".join(json.loads(line)) for line in open(here / "calls")][:-1]
for key, answers in json.loads((here / "answers").read_text()).items():
    if key in " ".join(words):
        out, code = answers[min(sum(key in each for each in earlier), len(answers) - 1)]
        print(out, end="")
        sys.exit(code)
"""
# As the trainer it says its arguments, then does what the first asks for.
TRAINER = """#!/bin/bash
[ "$1" = -m ] || exit 0
echo "trainer $JAX_PROCESS_ID:" "${@:3}"
case "$3" in
    wait) trap 'echo saved; exit 130' INT; touch "$AT/started"; while :; do sleep 0.05; done ;;
    exit) exit "$4" ;;
esac
"""
POD = {"SPADE_POD": "pod", "SPADE_ZONE": "us-east5-a", "SPADE_TPU": "v5p-128"}
TPU_VM = ["gcloud", "compute", "tpus", "tpu-vm"]


@dataclasses.dataclass
class Machine:
    """A folder to be in, and one for stand-ins that stands first on the PATH."""

    folder: Path
    programs: Path

    def answer(self, **answers: list[tuple[str, int]]) -> None:
        """What the stand-ins say and exit with, time by time, by what the command holds."""
        (self.programs / "answers").write_text(json.dumps(answers))

    def environment(self, **variables: str) -> dict[str, str]:
        clean = {k: v for k, v in os.environ.items() if not k.startswith("SPADE_")}
        path = f"{self.programs}:{clean['PATH']}"
        quick = {"SPADE_RESTART_WAIT": "0", "SPADE_POLL": "0"}
        return clean | {"PATH": path, "SPADE_LOGS": str(self.folder / "logs")} | quick | variables

    def run(
        self, script: str, *arguments: str, **variables: str
    ) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["bash", str(ROOT / "launch" / script), *arguments],
            cwd=self.folder,
            env=self.environment(**variables),
            capture_output=True,
            text=True,
            check=False,
        )

    @property
    def calls(self) -> list[list[str]]:
        log = self.programs / "calls"
        return [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []


def command(call: list[str]) -> str:
    """What a call of ssh runs on the worker."""
    [found] = [word for word in call if word.startswith("--command=")]
    return found.removeprefix("--command=")


def sentence(done: subprocess.CompletedProcess[str]) -> str:
    """The one line of an error."""
    assert done.stderr.startswith("error: ") and done.stderr.count("\n") == 1, done.stderr
    return done.stderr.removeprefix("error: ").rstrip("\n")
