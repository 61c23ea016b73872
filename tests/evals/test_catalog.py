"""The suites by name, and that docs/evaluation.md tells of each what it is."""

import re
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace

import pytest

from spade_jax import evaluate, in_loop
from spade_jax.evals import (
    acebench,
    acebench_agent,
    bfcl,
    bfcl_single,
    catalog,
    games,
    humaneval,
    livecodebench,
    questions,
    reasoning_gym,
    results,
    tau2,
)
from spade_jax.evals.suites import Settings
from spade_jax.types import UsageError
from tests import documented, small_run
from tests.evals.test_evaluate import NOTHING

PAGE = documented.ROOT / "docs" / "evaluation.md"
SETTINGS: Mapping[str, Settings] = {
    "reasoning_gym": reasoning_gym.SETTINGS,
    "aime25": questions.AIME_SETTINGS,
    "aime26": questions.AIME_SETTINGS,
    "gpqa_diamond": questions.GPQA_SETTINGS,
    "livecodebench": livecodebench.LiveCodeBench.settings,
    "humaneval": humaneval.HumanEval.settings,
    "bfcl_multi_turn": bfcl.SETTINGS,
    "bfcl_non_live": bfcl_single.SETTINGS,
    "bfcl_live": bfcl_single.SETTINGS,
    "acebench_normal": acebench.SETTINGS,
    "acebench_special": acebench.SETTINGS,
    "acebench_agent": acebench_agent.SETTINGS,
    "tau2_retail": tau2.SETTINGS,
    "gem_games": games.SETTINGS,
    "textarena_games": games.SETTINGS,
}


def rows() -> dict[str, list[str]]:
    """The page's first table: the cells of each suite."""
    found = re.findall(r"(?m)^\| `(\w+)` \|(.*)\|$", PAGE.read_text().partition("## Data")[0])
    return {name: [cell.strip() for cell in cells.split("|")] for name, cells in found}


def test_the_page_has_every_suite() -> None:
    assert set(rows()) == {"heldout", *catalog.SUITES} == {"heldout", *SETTINGS}


@pytest.mark.parametrize("name", SETTINGS)
def test_the_page_has_the_settings(name: str) -> None:
    _, _, plays, sampling, reply, _ = rows()[name]
    s, how = SETTINGS[name], SETTINGS[name].sampling
    assert (int(plays), int(reply)) == (s.plays, s.reply)
    told = tuple(map(float, sampling.split(", ")))
    assert told == (how.temperature, how.top_p, how.top_k) and how.min_p == 0
    assert s.reply < s.context


def test_columns_of_the_paper_are_those_of_suites() -> None:
    told = {column for column, *_ in rows().values()}
    known = {f"RG {group}" for group in ("Math", "Algorithmic", "Cognition", "Logic")}
    assert "RG Math, Algorithmic, Cognition, Logic" in told
    assert set(results.COLUMNS) - told == known == set(reasoning_gym.GROUPS.values())


def test_names_that_there_are_not() -> None:
    with pytest.raises(UsageError, match="no suite is called 'humanevl' .near: humaneval.; choose"):
        catalog.find(["humanevl"])
    c = small_run.configured("tiny", {"evaluation.suites": ("aime2",)})
    with pytest.raises(UsageError, match="evaluation.suites: no suite is called 'aime2'"):
        in_loop.check(c)


def test_the_suite_of_the_page_is_run_by_name(
    model_folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Its scores are checked with the page; here it stands in the catalog."""
    [block] = [b for b in documented.read(PAGE) if b.language == "python"]
    names: dict = {"__name__": "capitals"}
    exec(block.text, names)
    monkeypatch.setitem(catalog.SUITES, "capitals", names["open_capitals"])
    c = small_run.configured("tiny", {"sampling.slots": 2})
    given = NOTHING | {"config": c, "model": str(model_folder), "output": str(tmp_path)}
    given |= {"suite": ["capitals"], "reply_tokens": 8, "context": 320, "concurrency": 3}
    monkeypatch.setattr(evaluate, "FLAGS", SimpleNamespace(**given))
    assert evaluate.main([]) == 0
    assert re.search(r"Capitals +2 +2 +0\.0%", capsys.readouterr().out)
    assert [play.item for play in results.read(tmp_path)] == ["France", "Japan"]
