"""The reader of compiled programs, on literal texts with numbers worked out by hand."""

import pytest

from spade_jax.preflight import hlo, work
from spade_jax.preflight.work import Sent, Work

LOOP = """HloModule jit_f, is_scheduled=true

%fused (param_0: bf16[48,256,512], param_1: s32[], param_2: bf16[64,256]) -> bf16[64,512] {
  %param_0 = bf16[48,256,512]{2,1,0:T(8,128)(2,1)} parameter(0)
  %param_1 = s32[]{:T(128)} parameter(1)
  %zero = s32[]{:T(128)} constant(0)
  %slice = bf16[1,256,512]{2,1,0:T(8,128)(2,1)} dynamic-slice(%param_0, %param_1, %zero, %zero), dynamic_slice_sizes={1,256,512}
  %weight = bf16[256,512]{1,0:T(8,128)(2,1)} bitcast(%slice)
  %param_2 = bf16[64,256]{1,0:T(8,128)(2,1)} parameter(2)
  ROOT %product = bf16[64,512]{1,0:T(8,128)(2,1)} convolution(%param_2, %weight), dim_labels=bf_io->bf
}

%condition (state: (s32[], bf16[64,256], bf16[48,256,512])) -> pred[] {
  %state.1 = (s32[]{:T(128)}, bf16[64,256]{1,0:T(8,128)(2,1)}, /*index=2*/bf16[48,256,512]{2,1,0:T(8,128)(2,1)}) parameter(0)
  %bound = s32[]{:T(128)} constant(48)
  %at = s32[]{:T(128)} get-tuple-element(%state.1), index=0
  ROOT %less = pred[]{:T(512)} compare(%at, %bound), direction=LT
}

%body (state.2: (s32[], bf16[64,256], bf16[48,256,512])) -> (s32[], bf16[64,256], bf16[48,256,512]) {
  %state.3 = (s32[]{:T(128)}, bf16[64,256]{1,0:T(8,128)(2,1)}, /*index=2*/bf16[48,256,512]{2,1,0:T(8,128)(2,1)}) parameter(0)
  %i = s32[]{:T(128)} get-tuple-element(%state.3), index=0
  %x = bf16[64,256]{1,0:T(8,128)(2,1)} get-tuple-element(%state.3), index=1
  %w = bf16[48,256,512]{2,1,0:T(8,128)(2,1)} get-tuple-element(%state.3), index=2
  %y = bf16[64,512]{1,0:T(8,128)(2,1)S(1)} fusion(%w, %i, %x), kind=kOutput, calls=%fused, frontend_attributes={kernel_metadata={
"a line break": 1
}}
  %sum = bf16[64,512]{1,0:T(8,128)(2,1)S(1)} all-reduce(%y), channel_id=1, replica_groups=[4,2]<=[8], to_apply=%add
  ROOT %next = (s32[]{:T(128)}, bf16[64,256]{1,0:T(8,128)(2,1)}, bf16[48,256,512]{2,1,0:T(8,128)(2,1)}) tuple(%i, %x, %w)
}

ENTRY %main (w.1: bf16[48,256,512], x.1: bf16[64,256]) -> bf16[64,256] {
  %w.1 = bf16[48,256,512]{2,1,0:T(8,128)(2,1)} parameter(0)
  %x.1 = bf16[64,256]{1,0:T(8,128)(2,1)} parameter(1)
  %start = s32[]{:T(128)} constant(0)
  %init = (s32[]{:T(128)}, bf16[64,256]{1,0:T(8,128)(2,1)}, bf16[48,256,512]{2,1,0:T(8,128)(2,1)}) tuple(%start, %x.1, %w.1)
  %loop = (s32[]{:T(128)}, bf16[64,256]{1,0:T(8,128)(2,1)}, bf16[48,256,512]{2,1,0:T(8,128)(2,1)}) while(%init), condition=%condition, body=%body
  ROOT %out = bf16[64,256]{1,0:T(8,128)(2,1)} get-tuple-element(%loop), index=1
}
"""  # noqa: E501


def doing(text: str) -> list[Work]:
    """The instructions that do anything but move a few counters."""
    return [w for w in work.works(text) if w.flops or w.bytes > 64 or w.sent]


def test_a_loop_counts_by_its_trips() -> None:
    """48 layers: one layer's weight is read of the stack, the result stays on the chip."""
    product, sent, summed = (
        w for w in work.works(LOOP) if w.times == 48 and w.name in ("y", "sum")
    )
    read = 2 * 256 * 512 + 4 + 2 * 64 * 256  # a weight, the counter and the input
    assert product == Work("y", 48, flops=2.0 * 64 * 256 * 512, bytes=read)
    assert (summed.bytes, sent.sent) == (0.0, Sent("all-reduce", 2 * 64 * 512 * 2 / 2, 2))
    assert sum(w.times * w.flops for w in doing(LOOP)) == 48 * 2 * 64 * 256 * 512


def test_a_loop_bounded_by_data_counts_once_and_by_itself() -> None:
    """The bound lies in the loop's state, as that of the micro-batches in use does."""
    data = LOOP.replace("s32[]{:T(128)} constant(48)", "s32[]{:T(128)} get-tuple-element(%state.1)")
    products = [w for w in work.works(data) if w.flops]
    assert [(w.times, w.loop) for w in products] == [(1, 0)]
    assert {w.loop for w in work.works(LOOP)} == {None}
    [carried] = work.unknown_loops(data)
    assert "bf16[48,256,512]" in carried and work.unknown_loops(LOOP) == []


def test_the_comparison_may_be_fused() -> None:
    fused = LOOP.replace(
        "  ROOT %less = pred[]{:T(512)} compare(%at, %bound), direction=LT",
        "  ROOT %less = pred[]{:T(512)} fusion(%at, %bound), kind=kLoop, calls=%compared",
    ).replace(
        "%condition (state",
        "%compared (a: s32[], b: s32[]) -> pred[] {\n"
        "  %a = s32[]{:T(128)} parameter(0)\n"
        "  %b = s32[]{:T(128)} parameter(1)\n"
        "  ROOT %lt = pred[]{:T(512)} compare(%a, %b), direction=LT\n"
        "}\n\n%condition (state",
    )
    assert [w.times for w in work.works(fused) if w.flops] == [48]


def instruction(line: str, **operands: str) -> tuple[hlo.Instruction, hlo.Computation]:
    """An instruction, and a computation with operands of these types."""
    lines = [f"  %{name} = {type_} parameter(0)" for name, type_ in operands.items()]
    module = hlo.parse("\n".join(["ENTRY %c (x: s32[]) -> s32[] {", *lines, f"  {line}", "}"]))
    of = module.computations["c"]
    return list(of.values())[-1], of


@pytest.mark.parametrize(
    ("line", "left", "right", "flops"),
    [
        # (8, 32) x (32, 16)
        ("convolution(%a, %b), dim_labels=bf_io->bf", "[8,32]", "[32,16]", 2 * 8 * 16 * 32),
        # The kernel's window has the tokens: 4 places of 3 that meet 2, 3, 3 and 2 of them.
        (
            "convolution(%a, %b), window={size=3 pad=1_1}, dim_labels=b0f_0io->b0f",
            "[1,4,32]",
            "[3,32,16]",
            2 * 10 * 32 * 16,
        ),
        # Heads: each of 4 windows of width 4, mostly padding, meets all 4 heads of the weight once.
        (
            "convolution(%a, %b), window={size=4 pad=3_3 rhs_reversal=1}, dim_labels=bf0_oi0->b0f",
            "[8,32,1]",
            "[16,32,4]",
            2 * 4 * 8 * 32 * 16,
        ),
        # A batch of 6 as an axis: dilated, so that a window of 6 meets one entry only.
        (
            "convolution(%a, %b), window={size=6 stride=5 lhs_dilate=6}, dim_labels=0bf_0io->0bf",
            "[6,8,32]",
            "[6,32,16]",
            2 * 6 * 8 * 32 * 16,
        ),
        (
            "dot(%a, %b), lhs_contracting_dims={1}, rhs_contracting_dims={0}",
            "[8,32]",
            "[32,16]",
            2 * 8 * 16 * 32,
        ),
    ],
)
def test_products(line: str, left: str, right: str, flops: int) -> None:
    out = {"bf": "[8,16]", "b0f": "[1,4,16]" if "b0f_" in line else "[8,4,16]", "0bf": "[6,8,16]"}
    kind = line.rpartition("->")[2] if "->" in line else "bf"
    i, of = instruction(
        f"ROOT %p = f32{out[kind]}{{1,0}} {line}", a=f"bf16{left}{{1,0}}", b=f"bf16{right}{{1,0}}"
    )
    assert work.products(i, of) == flops


def test_kernels_tell_their_products_or_are_named() -> None:
    """Splash attention: 2 rows, 4 heads, 512 queries, 256 keys, size 64; half of the pairs."""
    layouts = (
        "operand_layout_constraints={s8[1,4,4]{2,1,0}, bf16[2,4,512,64]{3,2,1,0}, "
        "bf16[2,2,256,64]{3,2,1,0}, s32[2,512,128]{2,1,0}}, frontend_attributes={}"
    )
    target = 'custom-call(%a), custom_call_target="tpu_custom_call"'

    def flops(name: str, rest: str) -> Work:
        text = (
            "ENTRY %c (a: bf16[8,8]) -> bf16[8,8] {\n  %a = bf16[8,8]{1,0} parameter(0)\n"
            f"  ROOT %{name} = bf16[8,8]{{1,0}} {target}, {rest}\n}}\n"
        )
        return next(w for w in work.works(text) if w.name == name)

    pairs = 2 * 4 * 512 * 256 / 2
    assert flops("splash_mha_fwd.1", layouts).flops == 2 * 2 * pairs * 64
    assert flops("splash_mha_dkv.1", layouts).flops == 2 * 5 * pairs * 64
    told = 'backend_config={"custom_call_config":{"cost_estimate":{"flops":"123","x":"4"}}}'
    assert (flops("gmm.1", told).flops, flops("gmm.1", told).kernel) == (123.0, "")
    assert (flops("other.1", "x=1").flops, flops("other.1", "x=1").kernel) == (0.0, "other.1")


@pytest.mark.parametrize(
    ("line", "moved"),
    [
        ("copy-start(%a)", 4 * 100),  # into the chip's memory: read only
        ("add(%a, %a)", 3 * 4 * 100),
        ("bitcast(%a)", 0),
        ("dynamic-update-slice(%a, %b, %i)", 2 * 4 * 10),  # the part, read and written
        ("dynamic-slice(%a, %i)", 2 * 4 * 10),
        ("iota()", 4 * 100),
        ('custom-call(%a), custom_call_target="ConcatBitcast"', 0),
    ],
)
def test_bytes_of_hbm(line: str, moved: int) -> None:
    types = {"copy-start": "(f32[100]{0:S(1)}, f32[100]{0}, u32[]{:S(2)})"}
    types["dynamic-slice"] = "f32[10]{0}"
    made = types.get(line.partition("(")[0], "f32[100]{0}")
    i, of = instruction(
        f"ROOT %r = {made} {line}", a="f32[100]{0}", b="f32[10]{0}", i="s32[]{:S(6)}"
    )
    assert work.moved(hlo.Module({"c": of}, "c"), of, i) == moved


def test_an_update_of_a_part_inside_a_fusion_writes_the_part() -> None:
    text = """
%inner (p0: f32[100], p1: f32[10], p2: s32[]) -> f32[100] {
  %p0 = f32[100]{0} parameter(0)
  %p1 = f32[10]{0} parameter(1)
  %p2 = s32[]{:T(128)} parameter(2)
  ROOT %u = f32[100]{0} dynamic-update-slice(%p0, %p1, %p2)
}

ENTRY %c (a: f32[100], b: f32[10], i: s32[]) -> f32[100] {
  %a = f32[100]{0} parameter(0)
  %b = f32[10]{0} parameter(1)
  %i = s32[]{:S(6)} parameter(2)
  ROOT %f = f32[100]{0} fusion(%a, %b, %i), kind=kLoop, calls=%inner
}
"""
    assert [w.bytes for w in work.works(text) if w.name == "f"] == [4 * 10 + 4 * 10]


@pytest.mark.parametrize(
    ("line", "kind", "bytes_", "group"),
    [
        ("all-gather(%a), replica_groups={{0,1,2,3},{4,5,6,7}}", "all-gather", 400 * 3, 4),
        ("all-reduce(%a), replica_groups=[2,4]<=[8]", "all-reduce", 2 * 400 * 3 / 4, 4),
        ("reduce-scatter(%a), replica_groups=[2,4]<=[4,2]T(1,0)", "reduce-scatter", 300, 4),
        (
            "all-to-all(%a), replica_groups=mesh['x'=2,'y'=4,'z'=2] {'x','z'}",
            "all-to-all",
            400 * 3 / 4,
            4,
        ),
        ("collective-permute(%a), source_target_pairs={{0,1}}", "collective-permute", 400, 2),
    ],
)
def test_collectives(line: str, kind: str, bytes_: float, group: int) -> None:
    text = (
        "ENTRY %c (a: f32[100]) -> f32[100] {\n  %a = f32[100]{0} parameter(0)\n"
        f"  ROOT %r = f32[100]{{0}} {line}\n}}\n"
    )
    assert [w.sent for w in work.works(text) if w.sent] == [Sent(kind, bytes_, group)]


def test_a_collective_beside_other_work_counts_once() -> None:
    """The compiler writes it into three fusions: its start, what runs beside it, and its end."""
    fusions = "".join(
        f"""
%f{n} (p: f32[100]) -> f32[400] {{
  %p{n} = f32[100]{{0}} parameter(0)
  ROOT %g{n} = f32[400]{{0}} all-gather(%p{n}), channel_id=7, replica_groups={{{{0,1,2,3}}}}
}}
"""
        for n in range(3)
    )
    calls = "\n".join(
        f"  %r{n} = f32[400]{{0}} fusion(%a), kind=kCustom, calls=%f{n}" for n in range(3)
    )
    text = (
        f"{fusions}\nENTRY %c (a: f32[100]) -> f32[100] {{\n  %a = f32[100]{{0}} parameter(0)\n"
        f"{calls}\n}}\n"
    )
    begun, *fused, over = (w for w in work.works(text) if w.name != "a")
    assert begun == Work("r0", 1, sent=Sent("all-gather", 1200.0, 4), beside=True)
    assert [w.name for w in fused] == ["r0", "r1", "r2"]
    assert over == Work("r2", 1, waits="r0")


SPARSE = """
%offloaded (param_0: f32[100]) -> f32[400] {
  %param_0 = f32[100]{0} parameter(0)
  %given = (f32[100]{0}) tuple(%param_0)
  %own = f32[100]{0} get-tuple-element(%given), index=0
  ROOT %gather = f32[400]{0} all-gather(%own), channel_id=4, replica_groups=mesh['x'=16,'y'=4] {'y'}, dimensions={0}
}, execution_thread="sparsecore"

%async (param_1: f32[100]) -> f32[400] {
  %param_1 = f32[100]{0} parameter(0)
  ROOT %call = f32[400]{0} custom-call(%param_1), custom_call_target="x", called_computations={%offloaded}
}, execution_thread="sparsecore"

%rows (param_2: bf16[64,8], param_3: s32[20]) -> bf16[20,8] {
  %param_2 = bf16[64,8]{1,0} parameter(0)
  %param_3 = s32[20]{0} parameter(1)
  ROOT %call.1 = bf16[20,8]{1,0} custom-call(%param_2, %param_3), custom_call_target="x"
}, execution_thread="sparsecore"

%added (param_4: f32[64], param_5: s32[20], param_6: f32[20]) -> f32[64] {
  %param_4 = f32[64]{0} parameter(0)
  %param_5 = s32[20]{0} parameter(1)
  %param_6 = f32[20]{0} parameter(2)
  ROOT %call.2 = f32[64]{0} custom-call(%param_4, %param_5, %param_6), custom_call_target="x"
}, execution_thread="sparsecore"

ENTRY %main (a: f32[100], t: bf16[64,8], i: s32[20], s: f32[64], u: f32[20]) -> f32[400] {
  %a = f32[100]{0} parameter(0)
  %t = bf16[64,8]{1,0} parameter(1)
  %i = s32[20]{0} parameter(2)
  %s = f32[64]{0} parameter(3)
  %u = f32[20]{0} parameter(4)
  %start = ((), (), s32[8192]{0}) async-start(), async_execution_thread="sparsecore", calls=%async
  %update = ((f32[100]{0}), f32[400]{0}, s32[8192]{0}) async-update(%start, %a), output_to_operand_aliasing={}
  %start.1 = ((bf16[64,8]{1,0}, s32[20]{0}), bf16[20,8]{1,0}) async-start(%t, %i), async_execution_thread="sparsecore", calls=%rows
  %start.2 = ((f32[64]{0}, s32[20]{0}, f32[20]{0}), f32[64]{0}) async-start(%s, %i, %u), async_execution_thread="sparsecore", calls=%added
  %sum = f32[100]{0} add(%a, %a)
  %picked = bf16[20,8]{1,0} async-done(%start.1)
  ROOT %all = f32[400]{0} async-done(%update)
}
"""  # noqa: E501


def test_what_sparse_cores_do_runs_beside_the_rest_until_it_is_waited_for() -> None:
    """A collective is started, gets its operand and ends; rows are read and written, or added."""
    found = [w for w in work.works(SPARSE) if w.beside or w.waits]
    assert found == [
        Work("update", 1, sent=Sent("all-gather", 400.0 * 3, 4), beside=True),
        Work("start.1", 1, bytes=2 * 20 * 8 * 2 + 4 * 20, beside=True),
        Work("start.2", 1, bytes=3 * 4 * 20 + 4 * 20, beside=True),
        Work("picked", 1, waits="start.1"),
        Work("all", 1, waits="update"),
    ]
    assert [w.bytes for w in work.works(SPARSE) if w.name in ("start", "sum")] == [0.0, 3 * 400.0]


def test_a_sum_of_which_each_keeps_its_share_is_a_reduce_scatter() -> None:
    text = (
        "%all-reduce-scatter.1 (p: f32[400]) -> f32[100] {\n  %p = f32[400]{0} parameter(0)\n"
        "  %sum = f32[400]{0} all-reduce(%p), channel_id=2, replica_groups=[2,4]<=[8]\n"
        "  ROOT %own = f32[100]{0} dynamic-slice(%sum)\n}\n\n"
        "ENTRY %c (a: f32[400]) -> f32[100] {\n  %a = f32[400]{0} parameter(0)\n"
        "  ROOT %r = f32[100]{0} fusion(%a), kind=kCustom, calls=%all-reduce-scatter.1\n}\n"
    )
    assert [w.sent for w in work.works(text) if w.sent] == [Sent("reduce-scatter", 1200.0, 4)]


COST = 'backend_config={"cost_estimate":{"flops":"7","bytes_accessed":"9"}}'


def test_a_kernel_over_all_layers_reads_one_of_them_a_trip() -> None:
    """48 layers of 2 experts, of which a trip reads 1/48; another kernel tells what it reads."""
    kernel = 'custom-call(%x, %w), custom_call_target="tpu_custom_call"'
    product = "  %y = bf16[64,512]{1,0:T(8,128)(2,1)S(1)} fusion(%w, %i, %x), "
    body = LOOP.replace(
        product, f"  %ragged-dot.1 = bf16[64,512]{{1,0:T(8,128)(2,1)S(1)}} {kernel}, x={{"
    ).replace("all-reduce(%y)", "all-reduce(%ragged-dot.1)")
    body = body.replace("calls=%fused, ", "")
    [found] = (w for w in work.works(body) if w.name == "ragged-dot.1")
    assert found.bytes == 2 * 64 * 256 + 2 * 48 * 256 * 512 / 48
    shared = [w.flops for w in work.works(body.replace("x={", f"{COST}, x={{"), 0.25) if w.flops]
    assert shared == [7.0 / 4]  # of rows of which a quarter is in a group
    told = body.replace("ragged-dot.1", "cached.1").replace("x={", f"{COST}, x={{")
    [found] = (w for w in work.works(told) if w.name == "cached.1")
    assert (found.flops, found.bytes, found.times) == (7.0, 9.0, 48)
