"""The table of returns, rewards and advantages, every number of it worked out by hand."""

import re

import pytest

from spade_jax import reward_table
from spade_jax.learn.advantages import AGENT_ADVANTAGES, PENALTIES
from spade_jax.learn.returns import RETURNS
from spade_jax.learn.rewards import DESIGNER_REWARDS

# Rows by name, cells as printed; the arithmetic stands above each.
EPISODES = {
    "": "final sum discounted",
    # 0.5 - 0.25 + 0.5; 0.5 - 0.99 * 0.25 + 0.9801 * 0.5
    "[0.5, -0.25, 0.5]": "0.5000 0.7500 0.7426",
    # 2 and 3, clipped; 1 + 0.99 * 2
    "[1.0, 2.0]": "1.0000 1.0000 2.9800",
    "[1.0, 0.5], cut off": "0.0000 0.0000 0.0000",
    "[nan, 1.0]": "- - -",
}
AGENT = {
    "return": "1.0000 0.0000 - 0.5000",
    # Mean 1/2, std sqrt((1/4 + 1/4 + 0) / 3) = 0.408248.
    "grpo": "1.2247 -1.2247 - 0.0000",
    "centred": "0.5000 -0.5000 - 0.0000",
    # Less 1/4; the next is 0.5 * 0.25 + 0.5 * 0.5.
    "ema_baseline": "0.7500 -0.2500 - 0.2500",
    "next baseline": "0.3750",
}
SHOWN = {
    "": "climbs level mute leaky falls hung",
    # 6 / 16; 8 / 16; 4 / 16; 0; 8 / 10
    "win": "0.3750 0.5000 0.2500 0.0000 0.8000 -",
    # Of zeros and ones, win (1 - win).
    "var": "0.2344 0.2500 0.1875 0.0000 0.1600 -",
    # (2 + 3 - 0 - 1) / 8; of the last (2 + 2) / 6 - 4 / 4
    "late - early": "0.5000 0.0000 0.0000 0.0000 -0.3333 -",
    # Steps 0, 1/4, 1/2, 3/4: 1/4 a step, times 3. Steps 1, 1, 1/2 of 4, 2, 4 plays about x = 1 and
    # y = 0.8: (4 * -1 * 0.2 + 4 * 1 * -0.3) / (4 + 4) = -1/4, times 2.
    "rise": "0.7500 0.0000 0.0000 0.0000 -0.5000 -",
    # Differences 1 0 1 0; 0 0.3 0 0; none; 1 1; 0 0 0 -1
    "regret": "0.5000 0.0750 - 1.0000 -0.2500 -",
    # sqrt(4 * 0.25 / 3 / 4); sqrt((0.225^2 + 3 * 0.075^2) / 3 / 4); 0; sqrt(0.75 / 3 / 4)
    "its standard error": "0.2887 0.0750 - 0.0000 0.2500 -",
    "pairs n": "4 4 0 2 4 0",
    "leaking hints": "0.0000 0.0000 0.0000 0.2500 0.0000 0.0000",
}
SKILLS = {
    "": "mu_fast mu_slow potential",
    # 0.25 / 0.26
    "logic": "0.5000 0.2500 0.9615",
    # 0.02 * 0.5 + 0.98; 0.15 * 0.25 + 0.85; 0.1025 / 0.26
    "logic, after": "0.9900 0.8875 0.3942",
    # 0.1 / 0.26
    "space": "0.4000 0.5000 0.3846",
    # 0.02 * 0.4 + 0.98; 0.15 * 0.5 + 0.85; 0.063 / 0.26
    "space, after": "0.9880 0.9250 0.2423",
}
RAW = {
    "": "climbs level mute leaky falls",
    "regret": "0.5000 0.0750 - 1.0000 0.0000",
    # Regret terms 0.4 * (1, 1/2, -, 1, 0); plateaus 1 - 0.025 / 0.25 = 0.9, 1, 1 - 0.15 / 0.25
    # = 0.4, 0, 1 - 0.2 / 0.25 = 0.2, times 0.6: 0.54, 0.6, -, 0, 0.12.
    "blend": "0.9400 0.8000 - 0.4000 0.1200",
    "solve_rate": "0.9000 1.0000 0.4000 0.0000 0.2000",
    # From 0.25 in logic and 0.5 in space
    "learning_potential": "0.1250 0.2500 0.0000 0.5000 0.3000",
    "micro_lp": "0.5000 0.0000 0.0000 0.0000 0.0000",
    # 0.1 / 0.1 = 1: the rises 0.75 and -0.5 are added as they are.
    "blend, w_micro 0.1": "1.6900 0.8000 - 0.4000 -0.3800",
    # 0.125^2, 0, -, 0.5^2, 0.3^2 times 1.25: 0.01953, 0, -, 0.3125, 0.1125 less
    "blend, w_frontier 0.1": "0.9205 0.8000 - 0.0875 0.0075",
    # exp of -0.015625^2 / 0.02 = -0.012207, 0, -, -0.0625 / 0.02 = -3.125, -0.09^2 / 0.02 =
    # -0.405: 0.98787, 1, -, 0.04394, 0.66698
    "regret, w_variance 1": "1.4879 1.0750 - 1.0439 0.6670",
    # Plateaus 1, 1 - 0.1 / 0.2 = 1/2, -, 1 - 0.2 / 0.2 = 0, 1 - 0.4 / 0.2 < 0
    "blend, plateau 0.2 to 0.4, ramp 0.2": "1.0000 0.5000 - 0.4000 0.0000",
}
ADVANTAGES = {
    "": "climbs level mute rejected leaky falls hung",
    # Means 0.2875 and 0.5; centred (0.575 - 0.5) / 3 = 0.025 and (1 - 0.5) / 3 = 1/6.
    "regret; outside": "0.2125 -0.2125 - -0.5000 0.5000 -0.5000 -0.5000",
    "regret; centred": "0.4750 0.0500 - -0.5250 0.8333 -0.1667 -0.6667",
    # 0.87 and 0.26; (1.74 - 0.5) / 3 = 0.41333 and (0.52 - 0.5) / 3 = 0.00667
    "blend; outside": "0.0700 -0.0700 - -0.5000 0.1400 -0.1400 -0.5000",
    "blend; centred": "0.5267 0.3867 - -0.9133 0.3933 0.1133 -0.5067",
    # 2.3 / 3 = 0.76667 and 0.1; (2.3 - 0.5) / 4 = 0.45 and (0.2 - 0.5) / 3 = -0.1
    "solve_rate; outside": "0.1333 0.2333 -0.3667 -0.5000 -0.1000 0.1000 -0.5000",
    "solve_rate; centred": "0.4500 0.5500 -0.0500 -0.9500 0.1000 0.3000 -0.4000",
    # 0.125 and 0.4; (0.375 - 0.5) / 4 = -0.03125 and (0.8 - 0.5) / 3 = 0.1
    "learning_potential; outside": "0.0000 0.1250 -0.1250 -0.5000 0.1000 -0.1000 -0.5000",
    "learning_potential; centred": "0.1562 0.2812 0.0312 -0.4688 0.4000 0.2000 -0.6000",
    # 1/6 and 0; (0.5 - 0.5) / 4 = 0 and -0.5 / 3
    "micro_lp; outside": "0.3333 -0.1667 -0.1667 -0.5000 0.0000 0.0000 -0.5000",
    "micro_lp; centred": "0.5000 0.0000 0.0000 -0.5000 0.1667 0.1667 -0.3333",
    # -0.38 is negative and left out: 1.245 and 0.4; (2.49 - 0.5) / 3 = 0.66333, -0.1 / 2 = -0.05
    "blend, w_micro 0.1; outside": "0.4450 -0.4450 - -0.5000 0.0000 - -0.5000",
    "blend, w_micro 0.1; centred": "1.0267 0.1367 - -1.1633 0.4500 - -0.4500",
    # 0.86023 and 0.0475; (1.72047 - 0.5) / 3 = 0.40682 and (0.095 - 0.5) / 3 = -0.135
    "blend, w_frontier 0.1; outside": "0.0602 -0.0602 - -0.5000 0.0400 -0.0400 -0.5000",
    "blend, w_frontier 0.1; centred": "0.5136 0.3932 - -0.9068 0.2225 0.1425 -0.3650",
    # 1.28143 and 0.85546; (2.56287 - 0.5) / 3 = 0.68762 and (1.71091 - 0.5) / 3 = 0.40364
    "regret, w_variance 1; outside": "0.2064 -0.2064 - -0.5000 0.1885 -0.1885 -0.5000",
    "regret, w_variance 1; centred": "0.8002 0.3874 - -1.1876 0.6403 0.2633 -0.9036",
    # 0.75 and 0.2; (1.5 - 0.5) / 3 and (0.4 - 0.5) / 3
    "blend, plateau 0.2 to 0.4, ramp 0.2; outside": (
        "0.2500 -0.2500 - -0.5000 0.2000 -0.2000 -0.5000"
    ),
    "blend, plateau 0.2 to 0.4, ramp 0.2; centred": (
        "0.6667 0.1667 - -0.8333 0.4333 0.0333 -0.4667"
    ),
    # As by skill, but the rejected one has no valid design of its prompt beside it.
    "blend, by prompt; outside": "0.0700 -0.0700 - -0.5000 0.1400 -0.1400 -0.5000",
    "blend, by prompt; centred": "0.0700 -0.0700 - 0.0000 0.3933 0.1133 -0.5067",
    # A quarter of -0.5: 0.14 - 0.125; centred 0.275, (0.395 - 0.5) / 3 = -0.035
    "blend, leak_penalty -0.5; outside": "0.0700 -0.0700 - -0.5000 0.0150 -0.1400 -0.5000",
    "blend, leak_penalty -0.5; centred": "0.5267 0.3867 - -0.9133 0.3100 0.1550 -0.4650",
    # (1.74 - 1) / 3 = 0.24667
    "blend, penalty of reason leak -1; outside": (
        "0.0700 -0.0700 - -1.0000 0.1400 -0.1400 -0.5000"
    ),
    "blend, penalty of reason leak -1; centred": ("0.6933 0.5533 - -1.2467 0.3933 0.1133 -0.5067"),
    # 1.74 / 3 = 0.58
    "blend, penalty 0; outside": "0.0700 -0.0700 - 0.0000 0.1400 -0.1400 -0.5000",
    "blend, penalty 0; centred": "0.3600 0.2200 - -0.5800 0.3933 0.1133 -0.5067",
}
TABLES = {
    "Episode returns": EPISODES,
    "Agent's advantages": AGENT,
    "What the plays show": SHOWN,
    "Trackers": SKILLS,
    "Raw rewards": RAW,
    "Designer's advantages": ADVANTAGES,
}


@pytest.fixture
def printed(capsys: pytest.CaptureFixture) -> dict[str, list[str]]:
    """The lines of each table by its title."""
    reward_table.main()
    tables = capsys.readouterr().out.removesuffix("\n").split("\n\n")
    return {lines[0]: lines[1:] for table in tables if (lines := table.split("\n"))}


@pytest.mark.parametrize("title", TABLES)
def test_numbers(printed: dict[str, list[str]], title: str) -> None:
    [lines] = [lines for known, lines in printed.items() if known.startswith(title)]
    rows = [re.split(" {2,}", line) for line in lines]  # name, cells, and a formula or none
    got = {name: cells for name, *cells in rows if cells}
    assert got.keys() == TABLES[title].keys()
    for name, cells in TABLES[title].items():
        expected = cells.split()
        assert got[name][: len(expected)] == expected, name
        assert len(got[name]) <= len(expected) + 1, name


def test_all_variants_and_modes_are_there() -> None:
    names = [option.name for option in reward_table.OPTIONS]
    assert set(DESIGNER_REWARDS) <= set(names)
    assert set(AGENT_ADVANTAGES) <= AGENT.keys()
    assert EPISODES[""].split() == list(RETURNS)
    for option in reward_table.OPTIONS:
        assert all(f"{option.name}; {mode}" in ADVANTAGES for mode in PENALTIES)
