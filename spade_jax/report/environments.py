"""The viewer's data: every environment with its verdict, numbers and family, and its plays."""

from __future__ import annotations

import collections
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from spade_jax import folder
from spade_jax.folder import Lines
from spade_jax.report.curves import rounded
from spade_jax.report.runs import Reading
from spade_jax.types import class_name

Detail = dict[str, object]
CUT = " … [cut here]"
FEW = 160  # characters of a text that are there in any case


@dataclass(frozen=True)
class Level:
    """How much of each environment a report holds; None: all.

    Of each: texts of so many characters, so many transcripts of as many characters in all, and
    whether their trained tokens are marked. Transcripts are there of every `played`-th environment
    alone, programs and texts of every `programs`-th.
    """

    characters: int | None = None
    transcripts: int | None = None
    tokens: bool = True
    played: int = 1
    programs: int = 1

    def cut(self, text: str | None) -> str | None:
        return cut(text, self.characters)


def cut(text: str | None, most: int | None) -> str | None:
    """The text, or its beginning and a word that it goes on."""
    if text is None or most is None or len(text) <= most:
        return text
    return text[:most] + CUT


class Room:
    """Characters left for the texts of one transcript; None: no bound."""

    def __init__(self, most: int | None) -> None:
        self.left = most

    def cut(self, text: str | None) -> str | None:
        """As much of the text as there is room for, and a little in any case."""
        if text is None or self.left is None:
            return text
        kept = cut(text, max(self.left, FEW))
        self.left -= len(kept)
        return kept


SHORT = Level(characters=2_000, transcripts=2, tokens=False)
LEVELS = (
    Level(),
    Level(characters=20_000),
    Level(characters=20_000, tokens=False),
    Level(characters=8_000, transcripts=8, tokens=False),
    Level(characters=8_000, transcripts=4, tokens=False),
    Level(characters=4_000, transcripts=2, tokens=False),
    SHORT,
    *(replace(SHORT, played=2**k) for k in range(1, 6)),
    replace(SHORT, transcripts=0),
    *(replace(SHORT, transcripts=0, programs=2**k) for k in range(1, 12)),
)


# -- the list ---------------------------------------------------------------------------------


def rows(reading: Reading) -> list[Detail]:
    """What the list shows of each environment, newest first."""
    plays, rewards = by_environment(reading.plays), by_environment(reading.rewards)
    return [
        row(reading, line, plays.get(name, []), rewards.get(name, []))
        for line in reversed(reading.index)
        for name in (line["environment_id"],)
    ]


def row(reading: Reading, line: Mapping[str, object], plays: Lines, rewards: Lines) -> Detail:
    """Name, skill, verdict and numbers; the name is that of the program's class."""
    code = source(reading, line)
    plain = [r for each in plays for r in each["plain"] if r is not None]
    hinted = [r for each in plays for r in each["hinted"] if r is not None]
    regret = next((each["regret"] for each in plays if each["regret"]), None) or {}
    return {
        "id": line["environment_id"],
        "name": class_name(code) or ("no program" if line["file"].endswith(".txt") else "program"),
        "iteration": line["iteration"],
        "skill": line["skill"],
        "kind": line["kind"],
        "verdict": line["reason"],
        "win": rounded(_share(plain)),
        "hinted": rounded(_share(hinted)),
        "regret": rounded(regret.get("mean")),
        "stderr": rounded(regret.get("stderr")),
        "pairs": regret.get("pairs", 0),
        "reward": rounded(rewards[-1]["reward"]) if rewards else None,
        "document": line.get("document"),
        "parents": line.get("positives", []),
    }


def by_environment(lines: Lines) -> dict[str, Lines]:
    """Lines of a file by their environment, in their order."""
    found = collections.defaultdict(list)
    for line in lines:
        found[line["environment_id"]].append(line)
    return found


def source(reading: Reading, line: Mapping[str, object]) -> str:
    """The program, or the reply that held none; "" where its file has been moved away."""
    path = reading.workdir / "environments" / line["file"]
    return path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""


def _share(returns: Sequence[float]) -> float | None:
    return math.fsum(r > 0.5 for r in returns) / len(returns) if returns else None


# -- the details ------------------------------------------------------------------------------

KEPT_FIELDS = ("message", "phase", "measures", "resemblance", "resembles", "judge", "stop")
KEPT_FIELDS += ("repairs", "first", "negatives")


def details(reading: Reading, level: Level) -> Iterator[tuple[str, Detail]]:
    """Each environment's program, texts and transcripts as far as the level goes, newest first."""
    plays, transcripts = by_environment(reading.plays), transcripts_of(reading)
    for k, line in enumerate(reversed(reading.index)):
        name = line["environment_id"]
        if k % level.programs:
            continue
        of_it = transcripts.get(name, [])
        kept = [] if k % level.played else of_it[: level.transcripts]
        yield (
            name,
            {
                "code": level.cut(source(reading, line)),
                "hint": level.cut(hint(line, plays.get(name, []))),
                "excerpt": level.cut(line.get("excerpt")),
                "plays": [
                    [each["iteration"], each["plain"], each["hinted"]]
                    for each in plays.get(name, [])
                ],
                "transcripts": [transcript(each, level) for each in kept],
                "of": len(of_it),
                **{f: line[f] for f in KEPT_FIELDS if line.get(f) not in (None, "", [], 0)},
            },
        )


def hint(line: Mapping[str, object], plays: Lines) -> str | None:
    """The one hint of all instances, where there is one."""
    return line.get("hint") or next((each["hint"] for each in plays if each["hint"]), None)


def transcripts_of(reading: Reading) -> dict[str, Lines]:
    """Transcripts by environment, both arms of a play side by side, with their iterations."""
    found = collections.defaultdict(list)
    for iteration, episodes in folder.read_episodes(reading.workdir).items():
        for episode in episodes:
            found[episode["environment_id"]].append({**episode, "iteration": iteration})
    for episodes in found.values():
        episodes.sort(key=lambda e: (e["iteration"], e["play"], e["arm"] != "plain"))
    return found


def transcript(episode: Mapping[str, object], level: Level) -> Detail:
    """One play as the viewer tells it."""
    room, tokens = Room(level.characters), Room(level.characters)
    found = {
        "iteration": episode["iteration"],
        "arm": episode["arm"],
        "play": episode["play"],
        "seed": episode["seed"],
        "end": episode["end"],
        "return": rounded(episode["episode_return"]),
        "tokens": episode["tokens"],
        "advantage": rounded(episode.get("advantage")),
        "turns": [
            [room.cut(t["observation"]), room.cut(t["reply"]), room.cut(t["action"]), t["reward"]]
            for t in episode["turns"]
        ],
    }
    if episode["hint"]:
        found["hint"] = room.cut(episode["hint"])
        found["leaks"] = episode["hint_leaks"]
    if episode["failure"]:
        found["failure"] = {f: episode["failure"][f] for f in ("phase", "kind", "message")}
    if level.tokens and "rows" in episode:
        found["rows"] = [
            [[trained, n, tokens.cut(text)] for trained, n, text in row] for row in episode["rows"]
        ]
    return found
