"""Success of a model on the held-out set, by family and level.

    python -m spade_jax.evaluate --config=tiny --config.model.path=runs/warmstart/model

The instances are those that training with the same config is judged on.
"""

from __future__ import annotations

import time

from absl import flags

from spade_jax import limits
from spade_jax import run as run_setup
from spade_jax.design.families import LEVELS
from spade_jax.evals import heldout
from spade_jax.evals.heldout import won
from spade_jax.program import run_program
from spade_jax.types import Arm

FLAGS = flags.FLAGS


def main() -> None:
    c = FLAGS.config
    began = time.monotonic()
    with run_setup.set_up(c) as (run, state):
        items = run_setup.held_out(run)
        episodes = heldout.play_held_out(
            run.policy(state),
            run.sandbox,
            items,
            limits.play_rules(c),
            arm=Arm[FLAGS.arm.upper()],
            seed=c.evaluation.seed,
            seats=c.sampling.slots,
        )
    wins = [won(e) for e in episodes]
    print(f"held-out success {heldout.mean(wins)} (95%), {len(items)} instances, {FLAGS.arm} arm")
    print(f"{'':<12}" + "".join(f"{f'level {v}':>10}" for v in LEVELS) + f"{'all':>10}")
    cells = heldout.by(lambda item: (item.family, item.level), items, episodes)
    for family in dict.fromkeys(item.family for item in items):
        groups = [[won(e) for e in cells[family, level]] for level in LEVELS]
        groups.append([outcome for group in groups for outcome in group])
        rates = [heldout.mean(group).value for group in groups]
        print(f"{family:<12}" + "".join(f"{rate:>10.0%}" for rate in rates))
    print(f"{time.monotonic() - began:.0f} s")


if __name__ == "__main__":
    flags.DEFINE_enum("arm", "plain", [str(arm) for arm in Arm], "Play without or with the hint.")
    run_program(main, config="tiny")
