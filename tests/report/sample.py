"""A run's folder of three iterations, written by hand, whose environments would like to run."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from spade_jax import config as configs
from spade_jax.report.runs import Reading, flatten, read

SCRIPT = "<script>document.title = 'taken'</script><img src=x onerror=\"document.title='taken'\">"
CODE = f'''class {{name}}Env:
    """Says {SCRIPT}."""

    def reset(self, seed=None):
        return "what is 1 + {{number}}?", {{{{}}}}  # a </script> of its own
'''
ODD = '000000-x y%20"&<#/?ß'  # pools name their environments as they like
DESIGNS = (
    ("000000-000", "Sum", "Mathematical Reasoning", "accepted", ()),
    (ODD, "Grid", "Spatial Reasoning", "accepted", ()),
    ("000000-002", "", "Spatial Reasoning", "parse", ()),
    ("000002-000", "Sort", "Optimization", "accepted", ("000000-000",)),
    ("000002-001", "Chain", "Optimization", "leak", ("000000-000", ODD)),
)
PLAYS = (  # iteration, environment, plain and hinted returns, regret
    (0, "000000-000", (1.0, 0.0), (1.0, 1.0), 0.5),
    (0, ODD, (0.0, None), (0.0, 1.0), 0.0),
    (1, "000000-000", (1.0, 1.0), (), None),
    (1, ODD, (0.0, 0.0), (), None),
    (2, "000002-000", (1.0, 1.0), (1.0, 1.0), 0.0),
)


def write_lines(path: Path, lines: Sequence[Mapping[str, object]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")


def write_run(folder: Path, wins: Sequence[float] = (0.0, 1.0), **fields: object) -> Path:
    """Write the folder; `wins` are the outcomes of two instances at the end, all lost before.

    A field's dot is written as two underscores.
    """
    config = configs.load("tiny").to_dict()
    config["iterations"] = 3
    for name, value in fields.items():
        *groups, leaf = name.split("__")
        place = config
        for group in groups:
            place = place[group]
        place[leaf] = value
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config))
    write_lines(folder / "metrics.jsonl", [metrics(k) for k in range(3)])
    write_lines(folder / "alarms.jsonl", [ALARM])
    for k, outcomes in ((0, (0.0, 0.0)), (3, wins)):
        lines = [{"family": f, "level": 1, "won": w} for f, w in zip("ab", outcomes, strict=True)]
        path = folder / "evaluation" / f"{k:06d}.json"
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(lines))
    write_designs(folder)
    write_lines(folder / "plays.jsonl", [play_line(*play) for play in PLAYS])
    reward = {"iteration": 2, "environment_id": "000000-000", "reward": 0.7}
    write_lines(folder / "rewards.jsonl", [reward])
    for k in range(3):
        episodes = [e for play in PLAYS if play[0] == k for e in transcripts(*play)]
        write_lines(folder / "episodes" / f"{k:06d}.jsonl", episodes)
    (folder / "plot.png").write_bytes(b"")
    return folder


ALARM = {
    "iteration": 1,
    "alarm": "few_valid",
    "metric": "designer/valid_share",
    "value": 0.1,
    "bound": 0.2,
    "message": SCRIPT,
}


def metrics(k: int) -> dict[str, object]:
    """Designs in iterations 0 and 2."""
    line = {
        "step": k,
        "agent/success": 0.25 * k,
        "agent/entropy": 0.5 - 0.1 * k,
        "learn/logprob_gap_mean": 10.0 ** -(5 + k),
        "time/iteration_s": 60.0,
        "time/play_s": 20.0,
        "time/learn_s": 40.0,
        **{f"agent/win_rate/{n}": float(n == 3 * k) for n in range(10)},
    }
    if k != 1:
        line |= {"designer/valid_share": 0.5, "designer/reject/parse": 0.5}
        line |= {"designer/new_share": 1.0, "designer/class_names": 2}
        line |= {"designer/regret_mean": 0.25, "designer/regret_stderr": 0.05}
        line |= {"designer/regret_pairs": 8}
    return line


def write_designs(folder: Path) -> None:
    lines = []
    for name, title, skill, reason, seeds in DESIGNS:
        file = f"{len(lines)}.{'py' if title else 'txt'}"
        text = CODE.format(name=title, number=name[-1]) if title else f"No. {SCRIPT}"
        path = folder / "environments" / file
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        lines.append(
            {
                "iteration": int(name[:6]),
                "environment_id": name,
                "file": file,
                "skill": skill,
                "kind": "game",
                "document": f"7:{SCRIPT}",
                "excerpt": f"Bees. {SCRIPT}",
                "positives": seeds,
                "negatives": (),
                "hint": None,
                "reason": reason,
                "message": "" if reason == "accepted" else SCRIPT,
                "measures": None,
                "repairs": 0,
            }
        )
    write_lines(folder / "environments" / "index.jsonl", lines)


def play_line(
    k: int, name: str, plain: Sequence[float], hinted: Sequence[float], regret: float | None
) -> dict[str, object]:
    known = None if regret is None else {"mean": regret, "stderr": 0.1, "pairs": len(hinted)}
    return {
        "iteration": k,
        "environment_id": name,
        "plain": plain,
        "hinted": hinted,
        "regret": known,
        "hint": f"Add them. {SCRIPT}" if hinted else None,
        "hung": False,
    }


def transcripts(
    k: int, name: str, plain: Sequence[float], hinted: Sequence[float], regret: float | None
) -> list[dict[str, object]]:
    """The first play of both arms."""
    found = []
    for arm, returns in (("plain", plain), ("hinted", hinted)):
        for value in returns[:1]:
            learned = arm == "plain"
            found.append(
                {
                    "environment_id": name,
                    "arm": arm,
                    "play": 0,
                    "seed": 11,
                    "turns": [
                        {
                            "observation": f"what is 1 + 0? {SCRIPT}",
                            "reply": f"{SCRIPT} \\boxed{{{k}}}",
                            "action": str(k),
                            "reward": value,
                        }
                    ],
                    "end": "terminated",
                    "episode_return": value,
                    "hint": None if learned else f"Add. {SCRIPT}",
                    "hint_leaks": False,
                    "failure": None,
                    "tokens": 9,
                    "advantage": 0.5 if learned else None,
                    "rows": [[[False, 6, "<|user|>what"], [learned, 3, f"so {k}{SCRIPT}"]]],
                }
            )
    return found


def reading(folder: Path) -> Reading:
    return read(folder, flatten(configs.load("default").to_dict()))
