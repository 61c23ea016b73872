"""Run by test_mesh.py and test_many_hosts.py in a process with as many devices as they say.

    python -m tests.mesh_run MODEL WORKDIR MESH UPDATES [HOSTS]

Goes on from the newest checkpoint of WORKDIR, makes optimizer steps on fixed samples, saves, and
prints where the parameters lie and what they are, and what the policy says after each step. So many
HOSTS make a replica; the second one asks the policy three times as often as the first.
"""

import json
import random
import sys
from pathlib import Path

import jax
import numpy as np

from spade_jax import hosts, limits
from spade_jax import run as run_setup
from spade_jax.checkpoint import Checkpoints, abstract
from spade_jax.policy import sharding
from spade_jax.policy.conversation import Budget, Policy, reply_each
from spade_jax.run import Run
from spade_jax.types import HostState, Message, Role, Sample, TokenRecord
from tests import small_run


def samples(version: int) -> list[Sample]:
    """Both roles' conversations of random tokens; half of each is the policy's."""
    rng = np.random.default_rng(version)
    out = []
    for n in range(12):
        prompt, reply = rng.integers(1, 500, 40).tolist(), rng.integers(1, 500, 40).tolist()
        record = TokenRecord().read(tuple(prompt)).wrote(tuple(reply), (-6.0,) * 40)
        role = Role.DESIGNER if n % 3 == 0 else Role.AGENT
        out.append(Sample(role=role, records=(record,), advantage=1.0 - n % 2 * 2, version=version))
    return out


def main(model: str, workdir: str, mesh: str, updates: str, per_replica: str = "1") -> None:
    where = hosts.find_place("", -1, -1)
    with hosts.joined(where, connect_seconds=60, heartbeat_seconds=20):
        go_on(model, workdir, mesh, updates, per_replica)


def go_on(model: str, workdir: str, mesh: str, updates: str, per_replica: str) -> None:
    fields = {"mesh": tuple(map(int, mesh.split("x"))), "learn__rows": (8,), "sampling__slots": 8}
    fields |= {"learn__role_norms": True, "learn__ema_decay": 0.5}
    fields |= {"hosts__per_replica": int(per_replica)}
    c = small_run.run_config(Path(model), **fields)
    with run_setup.set_up(c) as (run, state), Checkpoints(Path(workdir), 2) as checkpoints:
        found = checkpoints.restore(abstract(state))
        if found:
            _, state, _ = found
        places = [leaf.sharding for leaf in jax.tree.leaves(state)]
        said, asked = [], 0
        for _ in range(int(updates)):
            run.sampler.rest()
            step = int(state.step)
            state, stats = run.learner.update(state, samples(step), random.Random(step))
            assert stats["learn/updates"] == 1, stats
            policy = run.policy(state)
            said.append(ask(run, policy, limits.play_rules(c).budget))
            asked += policy.tokens_read
        for leaf, place in zip(jax.tree.leaves(state), places, strict=True):
            assert leaf.sharding.is_equivalent_to(place, leaf.ndim), (leaf.sharding, place)
        checkpoints.save(int(state.step), state, HostState(iteration=int(state.step)))
        whole = max(
            leaf.addressable_shards[0].data.size / leaf.size
            for leaf in jax.tree.leaves(state.params)
            if leaf.ndim > 2
        )
        params = [
            leaf.ravel()[:64].tolist() for leaf in sharding.fetch(jax.tree.leaves(state.params))
        ]
        told = {"params": params, "largest_share": whole, "said": said, "asked": asked}
        print(json.dumps(told))


def ask(run: Run, policy: Policy, budget: Budget) -> list[str]:
    """What the policy says to a question in four random streams, the same on all hosts."""
    heard = run.divide(
        [0, 1, 1, 1], lambda own: [ask_here(policy, budget) for _ in own], list[str], by=int
    )
    assert all(each == heard[0] for each in heard)
    return heard[0]


def ask_here(policy: Policy, budget: Budget) -> list[str]:
    dialogues = policy.converse()
    asked = [Message(role="user", content="Bees: what is 3 + 4?")]
    replies = reply_each(
        dialogues,
        {dialogues.open(): asked for _ in range(4)},
        {i: (1, i, 0) for i in range(4)},
        budget,
    )
    dialogues.retire(list(replies))
    return [reply.text for reply in replies.values()]


if __name__ == "__main__":
    main(*sys.argv[1:])
