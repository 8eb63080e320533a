"""Without the added rules the sketches are Ansor's: steps of its published derivations, in their order."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from retune.compiler import te
from retune.compiler.core.errors import OptionError
from retune.compiler.core.target import HardwareParams
from retune.compiler.schedule.dag import ComputeDAG
from retune.compiler.schedule.state import Annotation, State
from retune.compiler.schedule.steps import (
    Annotate,
    CacheRead,
    CacheWrite,
    ComputeAt,
    ComputeInline,
    FollowSplit,
    Reorder,
    Rfactor,
    Split,
)
from retune.compiler.search.options import ADDED_RULES, SearchOptions
from retune.compiler.search.rules import CPU_RULES, GPU_RULES, SketchContext
from retune.compiler.search.sketch import derive_sketches, rules_of
from tests.support.attention import attention
from tests.support.workloads import (
    CORES,
    GPU,
    conv_bn_relu,
    conv_residual_nhwc,
    double_matmul,
    matmul,
    max_pool_nchw,
    min_nm,
    relu_only,
    softmax,
    transformed_convolution,
    winograd_nhwc,
    zero_rank_reduce,
)

ANSOR = SearchOptions(without_rules=ADDED_RULES)


def describe(dag: ComputeDAG, sketch: State) -> str:
    """The steps of a sketch in words: what a rule does to a stage, without the lengths of splits."""
    words: list[str] = []
    state = State.initial(dag)
    for step, following in zip(sketch.steps, (*sketch.steps[1:], None), strict=False):
        name = state.stages[step.stage].op.name
        word = _word(state, name, step)
        words += [word] if word and word not in words[-1:] else []
        # An open length has a value before the part is factored.
        if isinstance(step, Split) and isinstance(following, Rfactor):
            step = replace(step, lengths=(1,))
        state = state.apply(step)
    return ", ".join(words)


def _word(state: State, name: str, step: object) -> str:
    match step:
        case ComputeInline():
            return f"inline {name}"
        case CacheWrite():
            return f"cache {name}"
        case CacheRead():
            return f"share {name}"
        case Rfactor():
            return f"factor {name} at {step.iter}"
        case ComputeAt():
            return f"{name} in {state.stages[step.target_stage].op.name} at {step.target_iter}"
        case FollowSplit():
            return f"follow in {name}"
        case Reorder():
            return f"order {name}"
        case Annotate():
            return f"{Annotation(step.annotation).name.lower()} {name}"
    return ""


def cached(name: str, loop: int, *shared: tuple[str, int]) -> str:
    """A tiled write cache of a product, inside a loop of the product, with what threads share inside a loop of it."""
    words = f"cache {name}, order {name}.local, follow in {name}, order {name}, {name}.local in {name} at {loop}"
    copies = (f"share {source}, {source}.shared in {name}.local at {loop}" for source, loop in shared)
    return ", ".join((words, *copies))


def both(*ways: list[str]) -> list[str]:
    """Every way of the first stage with every one of the second; the derivation is breadth-first."""
    first, second = ways
    return [", ".join(filter(None, (one, other))) for one in first for other in second]


def factored(name: str, loop: int) -> list[str]:
    return [f"factor {name} at {loop}", f"factor {name} at {loop + 1}, order {name}.rf"]


def sum_of_sums() -> ComputeDAG:
    """Elements times the sum of all, which adds up 32 sums of columns."""
    data, k, c = te.placeholder((1024, 32)), te.reduce_axis(1024, "k"), te.reduce_axis(32, "c")
    columns = te.compute((32,), lambda j: te.sum(data[k, j], k), "columns")
    total = te.compute((1,), lambda g: te.sum(columns[g * 32 + c], c), "total")
    return ComputeDAG([data, te.compute((1024, 32), lambda i, j: data[i, j] * total[0], "y")])


TAIL = "inline Bn_add, inline Bn_mul, inline Bias_add"
FUSED = "order conv, follow in relu, order relu, conv in relu at"
WAYS = ["order {0}", cached("{0}", 1), cached("{0}", 3)]
INVERSE = "unroll inverse, order inverse, inline A"
PACKED = "unroll data_pack, order data_pack, inline B"

CPU_SKETCHES: dict[str, tuple[Callable[[], ComputeDAG], list[str]]] = {
    "matmul": (lambda: matmul(512, 512, 512), ["order C", cached("C", 1), cached("C", 3)]),
    "matmul of few points": (
        lambda: matmul(8, 8, 512), [*factored("C", 2), "order C", cached("C", 1), cached("C", 3)]
    ),
    "convolution with a tail": (
        lambda: conv_bn_relu(1, 56, 512, 512, 3, 1, 1),
        [f"{TAIL}, {FUSED} 3", f"{TAIL}, {FUSED} 7", f"{TAIL}, order conv"],
    ),
    "convolution with a residual": (
        lambda: conv_residual_nhwc(14, 32),
        [f"inline added, inline biased, {end}" for end in (f"{FUSED} 3", f"{FUSED} 7", "order conv")],
    ),
    "max pool": (lambda: max_pool_nchw(1, 56, 56, 512, 1), [""]),
    "minimum of rows": (lambda: min_nm(10, 1024), [*factored("B", 1), ""]),
    "softmax": (lambda: softmax(1, 1024), both([*factored("sum", 1), ""], [*factored("max", 1), ""])),
    "softmax of four axes": (
        lambda: softmax(1, 12, 128, 128), both([*factored("sum", 3), ""], [*factored("max", 3), ""])
    ),
    "Winograd of matrices": (
        lambda: winograd_nhwc(1, 28, 128, 128, 1),
        [f"{INVERSE}, {way}, {PACKED}" for way in ("order bgemm", cached("bgemm", 3), cached("bgemm", 7))],
    ),
    "sum of all": (lambda: zero_rank_reduce(128), [*factored("B", 0), ""]),
    "relu": (lambda: relu_only(64), [""]),
}  # fmt: skip
"""Operators with the sketches that Ansor derives on four cores."""

SPREAD = "thread_x sum, sum in div at 0, inline exp"
GPU_SKETCHES: dict[str, tuple[Callable[[], ComputeDAG], list[str]]] = {
    "matmul": (lambda: matmul(512, 512, 512), [cached("C", 5, ("B", 6), ("A", 6))]),
    "matmul of few points": (
        lambda: matmul(8, 8, 1024), ["thread_x C", cached("C", 5, ("B", 6), ("A", 6))]
    ),
    "two matmuls": (
        lambda: double_matmul(512),
        [f"{cached('E', 5, ('C', 6), ('D', 6))}, {cached('D', 5, ('B', 6), ('A', 6))}"],
    ),
    "convolution with a tail": (
        lambda: conv_bn_relu(1, 56, 512, 512, 3, 1, 1),
        [f"{TAIL}, {FUSED} 11, share Kernel, Kernel.shared in conv at 14, share pad, pad.shared in conv at 14, "
         "inline pad"],
    ),
    "minimum of rows": (lambda: min_nm(10, 1024), ["thread_x B", ""]),
    "softmax": (
        lambda: softmax(2, 1024),
        [f"thread_x div, follow in sum, {SPREAD}, follow in max, thread_x max, max in div at 0",
         f"thread_x div, follow in sum, {SPREAD}", "inline exp, thread_x max", "inline exp"],
    ),
    "Winograd of matrices": (
        lambda: winograd_nhwc(1, 28, 128, 128, 1),
        [f"{INVERSE}, {cached('bgemm', 11, ('weight', 12), ('data_pack', 12))}, {PACKED}, "
         "input_tile in data_pack at 3, inline data_pad"],
    ),
    "sum of all": (lambda: zero_rank_reduce(128), ["thread_x B", ""]),
}  # fmt: skip
"""Operators with the sketches that Ansor derives for a GPU with warps of 32 threads."""


@pytest.mark.parametrize("name", CPU_SKETCHES)
def test_sketches_for_cpus_are_those_of_ansor(name: str) -> None:
    build, expected = CPU_SKETCHES[name]
    dag = build()
    assert [describe(dag, sketch) for sketch in derive_sketches(dag, SketchContext(CORES, ANSOR))] == expected


@pytest.mark.parametrize("name", GPU_SKETCHES)
def test_sketches_for_gpus_are_those_of_ansor(name: str) -> None:
    build, expected = GPU_SKETCHES[name]
    dag = build()
    assert [describe(dag, sketch) for sketch in derive_sketches(dag, SketchContext(GPU, ANSOR))] == expected


def test_two_matmuls_multiply_the_sketches_of_ansor() -> None:
    dag = double_matmul(512)
    sketches = {describe(dag, sketch) for sketch in derive_sketches(dag, SketchContext(CORES, ANSOR))}
    assert sketches == set(both([way.format("E") for way in WAYS], [way.format("D") for way in WAYS]))


@pytest.mark.parametrize(
    ("rule", "build", "hardware"),
    [
        ("TransformedConvolution", lambda: transformed_convolution(28, (64, 128), 4, ((1, 1), (1, 1))), CORES),
        ("BlocksOfRows", lambda: attention(48, 2, 400, 32), CORES),
        ("SplitK", lambda: matmul(64, 64, 4096), GPU),
        ("NegligibleReductions", sum_of_sums, CORES),
    ],
)
def test_every_added_rule_can_be_switched_off(
    rule: str, build: Callable[[], ComputeDAG], hardware: HardwareParams
) -> None:
    def sketches(*without: str) -> list[object]:
        context = SketchContext(hardware, SearchOptions(without_rules=without))
        return [sketch.steps for sketch in derive_sketches(build(), context)]

    others = tuple(name for name in ADDED_RULES if name != rule)
    assert sketches(*others) != sketches(*ADDED_RULES)
    assert sketches() != sketches(rule)


def test_no_other_rule_is_an_added_one() -> None:
    named = {type(rule).__name__ for rule in (*CPU_RULES, *GPU_RULES)}
    assert set(ADDED_RULES) - named == {"NegligibleReductions"}
    left = {type(rule).__name__ for hardware in (CORES, GPU) for rule in rules_of(SketchContext(hardware, ANSOR))}
    assert left == {
        "AddCacheRead",
        "AddCacheWrite",
        "AddRfactor",
        "AlwaysInline",
        "CrossThreadReduction",
        "MultiLevelTiling",
        "MultiLevelTilingWithFusion",
        "SimplifyComputeWithConstTensor",
        "SkipStage",
        "SpecialComputeLocation",
    }
    with pytest.raises(OptionError, match="without_rules"):
        SearchOptions(without_rules=("AddRfactor",))
