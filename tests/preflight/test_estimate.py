"""Memory by phase, time and utilisation, in numbers worked out by hand."""

import dataclasses

import pytest
from ml_collections import config_dict

from spade_jax.policy.model import ModelConfig
from spade_jax.preflight import compiler, estimate, schedule, work
from spade_jax.preflight.compiler import Facts, Part
from spade_jax.preflight.schedule import Rates
from tests import small_run

RESIDENTS = {"parameters": 10, "optimizer": 20, "reference": 0, "sampling copy": 5, "cache": 40}
SMALL = ModelConfig(
    vocab=100, width=8, layers=2, heads=4, kv_heads=2, head_size=4, ffn=16, rope_theta=1e4,
    norm_eps=1e-6, tied=False, max_positions=64,
)  # fmt: skip


def facts(name: str, phase: str, holds: tuple[str, ...], *parts: float, **more: int) -> Facts:
    """Of a program whose fixed part and rounds take so many seconds."""
    each = tuple(Part(str(n), 0.0, 0.0, seconds, 0.0, ()) for n, seconds in enumerate(parts))
    return Facts(name, phase, holds, 1.0, parts=each, **more)


DECODE = facts("decode", "sample", ("sampling copy", "cache"), 0.2, 0.01,
               arguments=46, outputs=7, aliased=2, temporaries=9, code=1)  # fmt: skip
TRAIN = facts("train step", "learn", ("parameters", "optimizer"), 0.5, 1.0, 4.0,
              arguments=33, outputs=30, aliased=30, temporaries=50)  # fmt: skip
SCORE = facts("log-probabilities", "learn", ("parameters",), 0.1, 0.3, 1.2, arguments=12)
WEIGHTS = facts("weights to the sampler", "weights", ("parameters",), 0.25, arguments=10, outputs=5)


def test_what_is_resident_together() -> None:
    """Decoding adds 46 + 7 - 2 + 9 + 1 - (5 + 40) = 16 to all that stays; training 83 - 30.

    While weights are copied or learned the sampler has neither copy nor cache.
    """
    weights, sample, learn = estimate.phases(RESIDENTS, [WEIGHTS, DECODE, SCORE, TRAIN], 90.0)
    assert (weights.total, weights.parts["weights to the sampler"]) == (10 + 20 + 5, 5)
    assert (sample.total, sample.parts["decode"], sample.fits) == (75 + 16, 16, False)
    assert (learn.program, learn.parts["train step"]) == ("train step", 53)
    assert (learn.total, learn.fits) == (83, True)
    assert "reference" not in learn.parts


def test_a_phase_of_which_nothing_is_known_is_left_out() -> None:
    assert [p.name for p in estimate.phases(RESIDENTS, [TRAIN], 1.0)] == ["learn"]


@pytest.fixture
def c() -> config_dict.ConfigDict:
    fields = {
        "mesh": (1, 4, 1, 1),
        "design.num_envs": 4,
        "design.regenerate_every": 2,
        "design.max_tokens": 400,
        "play.plays": 8,
        "play.hint_plays": 4,
        "play.context": 200,
        "sampling.slots": 10,
        "sampling.block": 20,
        "learn.row_tokens": (100, 500),
        "learn.rows": (8, 4),
        "learn.passes": 2,
    }
    return small_run.configured("tiny", fields)


def fitting(c: config_dict.ConfigDict, name: str = "learn", **parts: int) -> list[str]:
    """What would make this phase fit into 100, on 4 devices with 2 replicas."""
    phase = estimate.Phase(name, {"program": 0, **parts}, "program", 100.0)
    return estimate.remedies(c, phase, pieces=4, devices=4, replicas=2)


def test_what_would_make_sampling_fit(c: config_dict.ConfigDict) -> None:
    """20 too much: of a cache of 60 for 10 slots it leaves 6; half of a copy of 50 is enough."""
    assert fitting(c, "sample", cache=60, parameters=60)[0].endswith("--config.sampling.slots=6)")
    assert "a shorter context" in fitting(c, "sample", program=70, cache=50)[1]
    spread = "replicas of more hosts (--config.hosts.per_replica=2)"
    assert spread in fitting(c, "sample", parameters=70, **{"sampling copy": 50})
    assert spread in fitting(c, "weights", parameters=70, program=50)
    assert spread not in fitting(c, "sample", parameters=90, **{"sampling copy": 30})  # 4 hosts


def test_what_would_make_an_update_fit(c: config_dict.ConfigDict) -> None:
    """A state of 90 on 4 divides by 6. A gradient of 20 does not shrink with the rows: of the other
    90 are 10 too many, so 8/9 of the rows are left, in multiples of 4."""
    assert fitting(c, optimizer=90, rest=30)[-1] == "a slice of at least 6 devices"
    with c.unlocked():
        c.learn.rows = (16, 8)
    assert "--config.learn.rows=(12, 4)" in fitting(c, program=90, parameters=20)[0]
    with c.unlocked():
        c.learn.rows = (16, 4)
    assert "shorter rows" in fitting(c, program=90, parameters=20)[0]
    with c.unlocked():
        c.learn.rows = (16, 6)
    assert "into 4 pieces (--config.learn.rows=(16, 8))" in fitting(c, program=90, parameters=20)[0]
    with c.unlocked():
        c.learn.rows, c.model.remat = (16, 4), "dots"
    assert "--config.model.remat=layer" in fitting(c, program=90, parameters=20)[0]
    assert fitting(c, w=60, x=60) == [
        "keep less for the backward pass, if enough (--config.model.remat=layer)"
    ]


def test_active_parameters() -> None:
    """A layer: q and o 8 x 16, k and v 8 x 8, norms 8 + 8 + 4 + 4, feed-forward 3 x 8 x 16."""
    layer = 2 * 128 + 2 * 64 + 24 + 384
    assert estimate.active(SMALL) == 2 * layer + 8 + 800  # the embedding is looked up
    tied = dataclasses.replace(SMALL, tied=True)
    assert estimate.active(tied) == 2 * layer + 8 + 800  # there it is the head
    mixed = dataclasses.replace(SMALL, experts=4, experts_per_token=2, expert_ffn=8)
    assert estimate.active(mixed) == 2 * (256 + 128 + 24 + 2 * 3 * 8 * 8 + 8 * 4) + 8 + 800


def test_model_flops_and_utilisation() -> None:
    """6 for a parameter and token; 6 x 2 layers x 16 x 50 a token for attention."""
    n = estimate.active(SMALL)
    assert estimate.model_flops(SMALL, 100, 50) == 100 * (6 * n + 6 * 2 * 16 * 50)
    part = Part("", 0.0, 0.0, 2.0, 1.5, ())
    done = estimate.model_flops(SMALL, 8 * 50, 50)
    reached = done / (2.0 * 4 * 1e6), done / (1.5 * 4 * 1e6)
    assert estimate.mfu(SMALL, part, 8, 50, 4, 1e6) == pytest.approx(reached)


def test_an_iteration(c: config_dict.ConfigDict) -> None:
    """Means of half the most tokens: episodes 100, designs 200.

    32 plain plays each iteration and 16 hinted ones in every other; 4 designs in every other. Two
    hosts of 10 slots: 2 rounds of plays, or 3, and one of designs, in all (2 + 3) / 2 x 100 +
    200 / 2 steps. Trained: 3,200 tokens in 4 batches of 8 x 100, 400 in one of 4 x 500.
    """
    made = estimate.iteration(
        c,
        SMALL,
        [WEIGHTS, DECODE, SCORE, TRAIN],
        replicas=2,
        devices=4,
        peak=1e6,
        share=0.5,
    )
    assert made.tokens_sampled == (32 + 8) * 100 + 2 * 200
    assert (made.tokens_trained, made.micro_batches) == (3600, (4, 1))
    assert made.decode_steps == 250 + 100
    assert made.sample_s == pytest.approx(350 * (0.01 + 0.2 / 20))
    assert made.learn_s == pytest.approx(2 * (0.5 + 4 * 1.0 + 4.0) + 0.1 + 1.2)
    assert made.weights_s == 0.25
    flops = estimate.model_flops(SMALL, 3200, 100) + estimate.model_flops(SMALL, 400, 200)
    assert made.mfu == pytest.approx(2 * flops / (made.seconds * 4 * 1e6))


def test_an_iteration_of_one_update_scores_nothing(c: config_dict.ConfigDict) -> None:
    """5 micro-batches as above; a reference goes through all of them, and its program is needed."""
    c.learn.passes = 1
    known = dict(replicas=2, devices=4, peak=1e6, share=0.5)
    made = estimate.iteration(c, SMALL, [WEIGHTS, DECODE, TRAIN], **known)
    assert made.learn_s == pytest.approx(0.5 + 4 * 1.0 + 4.0)
    c.learn.kl = 0.1
    assert estimate.iteration(c, SMALL, [WEIGHTS, DECODE, TRAIN], **known).learn_s is None
    made = estimate.iteration(c, SMALL, [WEIGHTS, DECODE, SCORE, TRAIN], **known)
    assert made.learn_s == pytest.approx(8.5 + 0.1 + 4 * 0.3 + 1.2)


def test_an_iteration_of_which_a_program_is_not_known(c: config_dict.ConfigDict) -> None:
    made = estimate.iteration(
        c, SMALL, [TRAIN, WEIGHTS], replicas=1, devices=4, peak=1.0, share=0.5
    )
    assert (made.sample_s, made.learn_s, made.seconds, made.mfu) == (None, None, None, None)


RATE = Rates(flops=10.0, bandwidth=5.0, link=4.0)  # link: on one axis of the torus
PRODUCT, SWEEP = work.Work("a", 3, flops=20.0, bytes=5.0), work.Work("b", 1, bytes=20.0)
BUSY = 3 * 2.0 + 4.0


def seconds(*works: work.Work, topology: str = "v5p:4x4x4") -> tuple[float, float]:
    return schedule.seconds(works, RATE, topology)


def test_seconds_are_the_larger_of_products_and_bytes_with_the_links_on_top() -> None:
    gather = work.Work("c", 2, sent=work.Sent("all-gather", 8.0, 4))  # along one axis: 2 s each
    wide = work.Work("d", 2, sent=work.Sent("all-gather", 8.0, 16))  # along two
    assert seconds(PRODUCT, SWEEP) == (BUSY, BUSY)
    assert seconds(PRODUCT, SWEEP, gather) == (BUSY + 4.0, BUSY)
    assert seconds(PRODUCT, SWEEP, wide) == (BUSY + 2.0, BUSY)
    assert seconds(PRODUCT, SWEEP, wide, topology="v5e:16x16") == (BUSY + 4.0, BUSY)
    assert seconds() == (0.0, 0.0)


def test_what_runs_beside_the_rest_costs_what_is_waited_for() -> None:
    """A collective of 4 s, and rows of 3 s on the sparse cores, neither of which waits for it."""
    gather = work.Work("c", 2, sent=work.Sent("all-gather", 8.0, 4), beside=True)
    rows = work.Work("r", 1, bytes=15.0, beside=True)
    until, picked = work.Work("x", 1, waits="c"), work.Work("y", 1, waits="r")
    assert seconds(gather, PRODUCT, until, SWEEP) == (BUSY, BUSY)  # 6 s hide it
    assert seconds(gather, until, PRODUCT, SWEEP) == (BUSY + 4.0, BUSY)
    assert seconds(gather, SWEEP, rows, picked, until) == (4.0 + 3.0, 4.0)
    assert seconds(gather, rows, picked, until, SWEEP) == (4.0 + 4.0, 4.0)
    second = work.Work("d", 1, sent=work.Sent("all-gather", 8.0, 4))
    assert seconds(gather, second, SWEEP) == (4.0 + 2.0 + 4.0, 6.0)  # one after the other
    assert seconds(SWEEP, gather) == (8.0, 4.0)  # nobody waits for it, but it has to end


def test_loops_are_known_by_the_rows_they_are_over() -> None:
    """Four arrays of a loop are as long as its rows, one of each other length."""
    of = {
        n: "(" + ", ".join([f"s32[16,4,{n}]"] * 4 + ["f32[16,4,50]", "s32[]"]) + ")" for n in (8, 9)
    }
    assert compiler.in_order([of[9], of[8]], (8, 9)) == [1, 0]
    assert compiler.in_order([of[8], of[9], of[8], of[9]], (8, 9, 8, 9)) == [0, 1, 2, 3]
    assert compiler.in_order([of[8]], ()) == []
    assert compiler.in_order([of[8], of[8]], (8, 9)) == [0, 1]  # not told apart: as they come


def test_the_memory_report_names_the_largest_buffers() -> None:
    text = """Memory Space: default (color=0)
Total bytes: 26843550720 (25.00GiB)
  cumulative_size;       size;       offset; used_by_n_values; shapes_list
  ------------------------------------------------------------
    8.00GiB( 33%);    8.00GiB;            0;                2; 2\u00d7bf16[65536,65536]
   24.00GiB(100%);   16.00GiB;   8589934592;                2; pred[], s32[65536,65536]

  cumulative_size;       size;       offset; used_by_n_values; shapes_list
  ------------------------------------------------------------
  512.00MiB(100%);  512.00MiB;            0;                1; bf16[65536,4096]


Memory Space: vmem (color=1)
Total bytes: 0 (0B)
"""
    total, largest = compiler.read_report(text)
    assert total == 26843550720
    words = (
        "Ran out of memory on HBM, the total memory required for HLO temporaries (62.50G) exceeds"
    )
    assert compiler.needed(words) == 62.5 * 2**30
    assert compiler.needed("Ran out of memory in hbm. Used 800.0M of 31.2G hbm.") == 800 * 2**20
    assert compiler.needed("INTERNAL: 3") == 0
    assert largest == [
        (16 * 2**30, "pred[], s32[65536,65536]"),
        (8 * 2**30, "2\u00d7bf16[65536,65536]"),
        (512 * 2**20, "bf16[65536,4096]"),
    ]
    program = '  %f = (s32[65536,65536]{1,0}) sort(%a), metadata={op_name="jit(f)/layer/sort" x=1}'
    assert compiler.named(largest[0][1], program) == "s32[65536,65536] of layer/sort"
    assert compiler.named(largest[2][1], program) == "bf16[65536,4096]"
