"""Sketches for CPUs: how many, in which order, with exactly which steps. Ids are those of facts that TVM's own
tests check.
"""

from collections.abc import Iterable

import pytest

from retune.compiler import te
from retune.compiler.core.errors import OptionError
from retune.compiler.ops.winograd import winograd_conv
from retune.compiler.schedule.dag import ComputeDAG
from retune.compiler.schedule.primitives import split
from retune.compiler.schedule.state import Attached, Inlined, Root, State
from retune.compiler.schedule.steps import CacheWrite, ComputeAt, FollowSplit, Fuse, Reorder, Rfactor, Split
from retune.compiler.search.options import SearchOptions
from retune.compiler.search.rules import CPU_RULES, PreloadCustomSketchRule, SketchContext
from retune.compiler.search.rules.facts import common_outer_loops, has_cache_write
from retune.compiler.search.sketch import derive_sketches
from tests.support.attention import attention
from tests.support.workloads import (
    CORES,
    conv_bn_relu,
    conv_residual_nhwc,
    double_matmul,
    matmul,
    max_pool_nchw,
    min_nm,
    softmax,
    transformed_convolution,
    whole_axes_matmul,
    winograd_nhwc,
    zero_rank_compute,
    zero_rank_reduce,
)

CONTEXT = SketchContext(CORES, SearchOptions())
ORDER = (0, 4, 1, 5, 8, 2, 6, 9, 3, 7)
OPEN = (None, None, None)


def sketches(dag: ComputeDAG) -> tuple[State, ...]:
    """The sketches of a graph on four cores."""
    return derive_sketches(dag, CONTEXT)


def factored(state: State) -> set[int]:
    """Numbers of the stages, as they are in the end, that hold the first part of a factored reduction."""
    return {number for number, stage in enumerate(state.stages) if stage.op.name.endswith(".rf")}


def test_matmul_has_the_three_published_derivations() -> None:
    tiled, level1, level2 = sketches(matmul(512, 512, 512))
    tiling = (Split(2, 0, 512, OPEN), Split(2, 4, 512, OPEN), Split(2, 8, 512, (None,)), Reorder(2, ORDER))
    assert tiled.steps == tiling
    assert level1.steps == (
        CacheWrite(2, "local"),
        *tiling,
        FollowSplit(3, 0, 1, 1),
        FollowSplit(3, 2, 2, 1),
        Reorder(3, (0, 2, 1, 3)),
        ComputeAt(2, 3, 1),
    )
    assert level2.steps == (
        CacheWrite(2, "local"),
        *tiling,
        FollowSplit(3, 0, 1, 2),
        FollowSplit(3, 3, 2, 2),
        Reorder(3, (0, 3, 1, 4, 2, 5)),
        ComputeAt(2, 3, 3),
    )


def test_a_long_reduction_over_few_points_may_be_factored() -> None:
    outer, inner, *rest = sketches(matmul(8, 8, 512))
    assert outer.steps == (Split(2, 2, 512, (None,)), Rfactor(2, 2, 2))
    assert inner.steps == (Split(2, 2, 512, (None,)), Rfactor(2, 3, 2), Reorder(2, (0, 1, 3, 2)))
    assert [iterator.name for iterator in inner.stages[2].iters] == ["i", "j", "k_0", "k_1"]
    assert rest[0].steps == (
        Split(2, 0, 8, OPEN),
        Split(2, 4, 8, OPEN),
        Split(2, 8, 512, (None,)),
        Reorder(2, ORDER),
    )
    assert [isinstance(state.stages[2].location, Attached) for state in rest] == [False, True, True]
    assert all(state.stages[2].is_tiled and isinstance(state.steps[0], CacheWrite) for state in rest[1:])
    assert rest[1].steps != rest[2].steps


def test_two_matmuls_multiply_their_sketches() -> None:
    found = sketches(double_matmul(512))
    assert len({state.steps for state in found}) == len(found) == 9
    assert found[8].stages[5].is_tiled


def test_convolution_fuses_with_the_end_of_its_elementwise_chain() -> None:
    found = sketches(conv_bn_relu(1, 56, 512, 512, 3, 1, 1))
    assert len(found) == 3
    for state in found:
        assert not state.stages[1].is_tiled
        assert isinstance(state.stages[1].location, Root)
        assert state.stages[3].is_tiled
        assert all(isinstance(state.stages[stage].location, Inlined) for stage in (5, 7, 9))
    for state in found[:2]:
        assert isinstance(state.stages[3].location, Attached)
        assert state.stages[10].is_tiled
    assert isinstance(found[2].stages[3].location, Root)
    assert not found[2].stages[10].is_tiled


def test_a_residual_addition_does_not_stop_the_fusion() -> None:
    found = sketches(conv_residual_nhwc(14, 32))
    assert [isinstance(state.stages[3].location, Attached) for state in found] == [True, True, False]
    assert sum(isinstance(stage.location, Inlined) for stage in found[0].stages) == 2


def test_a_short_reduction_without_reuse_is_left_alone() -> None:
    found = sketches(max_pool_nchw(1, 56, 56, 512, 1))
    assert [state.steps for state in found] == [()]
    assert [state.steps for state in sketches(zero_rank_compute(128))] == [()]


def test_a_long_reduction_without_reuse_is_factored_or_left() -> None:
    outer, inner, plain = sketches(min_nm(10, 1024))
    assert factored(outer) == factored(inner) == {1}
    assert outer.steps != inner.steps
    assert plain.steps == ()
    outer, inner, plain = sketches(zero_rank_reduce(128))
    assert outer.steps == (Split(1, 0, 128, (None,)), Rfactor(1, 0, 0))
    assert inner.steps == (Split(1, 0, 128, (None,)), Rfactor(1, 1, 0), Reorder(1, (1, 0)))
    assert plain.steps == ()


def test_reductions_are_fused_before_they_are_factored() -> None:
    pool = sketches(max_pool_nchw(1, 8, 8, 4, 0))
    assert len(pool) == 1
    few = SketchContext(type(CORES)(num_cores=2), SearchOptions())
    outer, inner, plain = derive_sketches(max_pool_nchw(1, 8, 8, 4, 0), few)
    assert outer.steps == (Fuse(1, (4, 5)), Split(1, 4, 4, (None,)), Rfactor(1, 4, 4))
    assert inner.steps[-1] == Reorder(1, (0, 1, 2, 3, 5, 4))
    assert plain.steps == ()


@pytest.mark.parametrize("shape", [(1, 1024), (1, 12, 128, 128)])
def test_softmax_has_three_ways_for_each_of_its_reductions(shape: tuple[int, ...]) -> None:
    found = sketches(softmax(*shape))
    assert len({state.steps for state in found}) == len(found) == 9
    for first in range(3):
        for second in range(3):
            expected = {1} if second < 2 else set()
            if first < 2:
                expected |= {4 if second < 2 else 3}
            assert factored(found[3 * first + second]) == expected
    assert found[8].steps == ()


def test_winograd_unrolls_its_constant_matrices() -> None:
    plain, *cached = sketches(winograd_nhwc(1, 28, 128, 128, 1))
    assert len(cached) == 2
    for state, shift in ((plain, 0), (cached[0], 1), (cached[1], 1)):
        tiled = {number for number, stage in enumerate(state.stages) if stage.is_tiled}
        assert tiled == {4, 6, *((7,) if shift else ()), 8 + shift}
        inlined = {number for number, stage in enumerate(state.stages) if isinstance(stage.location, Inlined)}
        assert inlined == {3, 7 + shift}
        assert not state.stages[1].is_tiled
        assert not state.stages[2].is_tiled
        assert not state.stages[9 + shift].is_tiled
        names = [iterator.name for iterator in state.stages[8 + shift].iters]
        assert names == ["p.0", "co.0", "p.1", "co.1", "vh", "vw", "r_a", "r_b"]
        marks = [int(iterator.annotation) for iterator in state.stages[8 + shift].iters]
        assert marks == [0, 0, 0, 0, 1, 1, 1, 1]
    for state in cached:
        assert has_cache_write(state, 6)
        assert isinstance(state.stages[6].location, Attached)
    assert cached[0].steps != cached[1].steps


def test_a_transformed_convolution_is_computed_by_blocks_of_its_result() -> None:
    found = sketches(transformed_convolution(28, (64, 128), 4, ((1, 1), (1, 1))))
    assert len(found) == 3
    for state in found:
        stage = {described.op.name: number for number, described in enumerate(state.stages)}
        products, back, last = state.stages[stage["bgemm"]], state.stages[stage["inverse_rows"]], stage["relu"]
        for name in ("winograd_conv", "bias_add", "add"):
            assert isinstance(state.stages[stage[name]].location, Inlined)
        names = [iterator.name for iterator in state.stages[last].iters]
        assert names[4:] == ["y.0.1", "y.0.2", "x.0.1", "x.0.2", "c.1", "y.1", "x.1", "c.2"]
        assert products.location == Attached(last, 3)
        assert back.location == Attached(last, names.index("c.1"))
        assert state.stages[stage["data_rows"]].location == Attached(stage["data_pack"], 3)
        assert [iterator.name for iterator in products.iters][6:] == [
            "co.1",
            "th.1",
            "tw.1",
            "ci",
            "th.2",
            "tw.2",
            "co.2",
        ]
    outer = [[iterator.name for iterator in state.stages[-1].iters[:4]] for state in found]
    assert outer == [["n", "c.0", "y.0.0", "x.0.0"], *[["n", "y.0.0", "x.0.0", "c.0"]] * 2]
    places = [state.stages[3].location for state in found]
    assert places == [Root(), Root(), Attached(len(found[0].stages) - 1, 2)]


def test_the_images_of_a_transformed_convolution_are_split_as_its_rows_are() -> None:
    found = sketches(transformed_convolution(28, (64, 128), 4, ((1, 1),) * 3, depth=(8,), taps=(3,)))
    assert len(found) == 3
    outer = [[iterator.name for iterator in state.stages[-1].iters[:5]] for state in found]
    assert outer == [["n", "c.0", "z.0", "y.0.0", "x.0.0"], *[["n", "z.0", "y.0.0", "x.0.0", "c.0"]] * 2]
    for state in found:
        (products,) = (stage for stage in state.stages if stage.op.name == "bgemm")
        assert [iterator.name for iterator in products.iters] == [
            "eps",
            "nu",
            "n",
            "co.0",
            "z.0",
            "th.0",
            "tw.0",
            "co.1",
            "z.1",
            "th.1",
            "tw.1",
            "rz",
            "ci",
            "z.2",
            "th.2",
            "tw.2",
            "co.2",
        ]


def test_attention_is_computed_by_blocks_of_rows() -> None:
    (found,) = sketches(attention(48, 2, 400, 32))
    last = len(found.stages) - 1
    named = {stage.op.name: stage for stage in found.stages}
    assert [one.name for one in named["result"].iters] == ["h", "i.0", "d.0", "i.1", "c", "i.2", "d.1"]
    attached = {name for name, stage in named.items() if stage.location == Attached(last, 1)}
    assert attached == {"products", "shares_max", "shares_exp", "shares_sum", "shares"}
    assert isinstance(named["scores"].location, Inlined)


def test_attention_of_rows_that_no_block_divides_takes_the_usual_rules() -> None:
    assert len(sketches(attention(197, 2, 64, 32))) > 1


def test_a_transformed_convolution_whose_result_is_reduced_takes_the_usual_rules() -> None:
    data, weight = te.placeholder((1, 8, 8, 2)), te.placeholder((4, 4, 2, 16))
    image = winograd_conv(data, weight, ((1, 1), (1, 1)))
    c = te.reduce_axis(16, "c")
    total = te.compute((1, 8, 8), lambda n, y, x: te.sum(image[n, y, x, c], c), "total")
    assert len(sketches(ComputeDAG([data, weight, total]))) > 3


def test_a_negligible_reduction_is_not_factored() -> None:
    def norm(groups: int) -> ComputeDAG:
        data = te.placeholder((1024, 32))
        k, c = te.reduce_axis(1024, "k"), te.reduce_axis(32 // groups, "c")
        columns = te.compute((32,), lambda j: te.sum(data[k, j], k), "columns")
        total = te.compute((groups,), lambda g: te.sum(columns[g * (32 // groups) + c], c), "total")
        return ComputeDAG([data, te.compute((1024, 32), lambda i, j: data[i, j] * total[j % groups], "y")])

    # Three ways to sum the columns; the 32 column sums are summed in one.
    assert [len(sketches(norm(groups))) for groups in (1, 4)] == [3, 3]


def test_a_custom_rule_comes_first_and_may_end_the_derivation() -> None:
    def condition(policy: object, state: State, stage: int) -> int:  # noqa: ARG001
        return PreloadCustomSketchRule.APPLY_AND_SKIP_REST if stage == 2 else PreloadCustomSketchRule.PASS

    def apply(policy: object, state: State, stage: int) -> Iterable[list[object]]:  # noqa: ARG001
        changed, _ = split(state, 2, 0, [8, 2])
        return [[state, -1], [changed, -1]]

    rule = PreloadCustomSketchRule(condition, apply, "mine")
    found = derive_sketches(matmul(512, 512, 512), CONTEXT, (rule, *CPU_RULES))
    assert [[iterator.extent for iterator in state.stages[2].iters] for state in found] == [
        [512, 512, 512],
        [32, 8, 2, 512, 512],
    ]


def test_invalid_rule_verdict_ends_the_rules() -> None:
    rule = PreloadCustomSketchRule(lambda *_: None, lambda _, state, __: [(state, -1)])  # type: ignore[arg-type]
    with pytest.warns(UserWarning, match="none of 0, 1, 2"):
        (only,) = derive_sketches(matmul(64, 64, 64), CONTEXT, (rule, *CPU_RULES))
    assert only.steps == ()


def test_a_rule_that_applies_leaves_the_others_their_turn() -> None:
    rule = PreloadCustomSketchRule(lambda _, __, stage: int(stage == 2), lambda _, state, stage: [(state, stage - 1)])
    found = derive_sketches(matmul(512, 512, 512), CONTEXT, (rule, *CPU_RULES))
    # The stage is visited twice where it gets a write cache: left alone both times, and the three of the other rules.
    assert [len(state.steps) for state in found] == [0, 4, 1, 9, 9]


def test_loops_that_must_not_be_split_stand_in_front_of_the_innermost_tile() -> None:
    tiled, level1, _ = sketches(whole_axes_matmul(16, 64, 4, ["i"]))
    names = [iterator.name for iterator in tiled.stages[2].iters]
    assert names == ["j.0", "j.1", "k.0", "j.2", "k.1", "i", "j.3"]
    followed = [iterator.name for iterator in level1.stages[3].iters]
    assert followed == ["j.0", "i", "j.1"]
    assert [iterator.name for iterator in level1.stages[2].iters][-2:] == ["i_c", "j_c.3"]


@pytest.mark.parametrize("structure", ["SSRS", "SRS", "ssrsrs"])
def test_the_structure_is_an_option(structure: str) -> None:
    context = SketchContext(CORES, SearchOptions(tiling=structure))
    state = derive_sketches(matmul(64, 64, 64), context)[0]
    expected = 2 * structure.upper().count("S") + structure.upper().count("R")
    assert len(state.stages[2].iters) == expected


def test_a_structure_of_other_letters_is_refused() -> None:
    with pytest.raises(OptionError, match="letters S and R"):
        SearchOptions(tiling="SST")
    with pytest.raises(OptionError, match="begin with SSS"):
        SearchOptions(gpu_tiling="SSRS")


def test_common_outer_loops_are_those_of_every_path() -> None:
    state = State.initial(softmax(1, 12, 128, 128))
    assert common_outer_loops(state, 1, 4) == 3
    assert common_outer_loops(state, 2, 4) == 3
    assert common_outer_loops(state, 3, 4) == 3
    assert common_outer_loops(State.initial(matmul(8, 8, 8)), 0, 2) == 1
    assert common_outer_loops(State.initial(matmul(8, 8, 8)), 1, 2) == 0
