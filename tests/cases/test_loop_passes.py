"""Loop passes: the loops of a program before and after every pass that changes them; tests/cases/loops."""

from collections.abc import Callable

import pytest

from retune.compiler import te
from retune.compiler.core.target import HardwareParams
from retune.compiler.ir.expr import Expr
from retune.compiler.ir.verify import verify
from retune.compiler.lower.build_loops import build_loops
from retune.compiler.lower.passes import pass_name
from retune.compiler.lower.pipeline import PRE_TRANSFORMED, cpu_passes
from retune.compiler.schedule.dag import ComputeDAG
from retune.compiler.schedule.default.cpu import default_steps
from retune.compiler.schedule.default.layout import LayoutRewriteOption
from retune.compiler.schedule.state import Annotation, replay
from retune.compiler.schedule.steps import Annotate, ComputeAt, ComputeInline, Fuse, Reorder, Rfactor, Split, Step
from tests.support.cases import Sections, check_cases, check_subjects, read_cases
from tests.support.pass_programs import PASS_PROGRAMS
from tests.support.simt_operators import OPERATORS
from tests.support.small_computations import doubled, matmul, sum_and_peak, window
from tests.support.workloads import conv_bn_relu, conv_residual_nhwc, max_pool, min_nm, softmax

HARDWARE = HardwareParams(2, vector_unit_bytes=64)
VNNI = (("uint8", "int8"),)


def bytes_product(left: str = "int8") -> ComputeDAG:
    """C = A B of bytes, summed in 32 bits; B may be packed."""
    a, b = te.placeholder((4, 8), left, "A"), te.placeholder((8, 16), "int8", "B")
    k = te.reduce_axis(8, "k")

    def body(i: te.Axis, j: te.Axis) -> te.Reduce:
        return te.sum(te.cast("int32", a[i, k]) * te.cast("int32", b[k, j]), k)  # type: ignore[return-value]

    return ComputeDAG([a, b, te.compute((4, 16), body, "C", {"layout_free_placeholders": (b,)})])


def reshaped() -> ComputeDAG:
    """A matrix through its flat form."""
    x = te.placeholder((6, 8), name="x")
    flat = te.compute((48,), lambda i: x[i // 8, i % 8] + 1.0, "flat")
    return ComputeDAG([x, te.compute((6, 8), lambda i, j: flat[i * 8 + j], "y")])


def rows(kind: Callable[..., Expr] = te.sum) -> ComputeDAG:
    """A reduction of the rows of a matrix."""
    x, k = te.placeholder((3, 70), name="x"), te.reduce_axis(70, "k")
    return ComputeDAG([x, te.compute((3,), lambda i: kind(x[i, k], k), "y")])


TILE: tuple[Step, ...] = (
    Split(2, 1, 16, (16,)),
    Split(2, 0, 4, (2,)),
    Reorder(2, (0, 2, 4, 1, 3)),
    Annotate(2, 4, Annotation.VECTORIZE),
)
LOCAL: tuple[Step, ...] = (Split(2, 0, 8, (2,)), ComputeAt(1, 2, 0), Annotate(1, 0, Annotation.UNROLL))
NESTED: tuple[Step, ...] = (
    Split(2, 0, 8, (2,)),
    Annotate(2, 1, Annotation.VECTORIZE),
    Annotate(2, 0, Annotation.VECTORIZE),
)
VECTORS: tuple[Step, ...] = (Split(1, 0, 50, (16,)), Annotate(1, 1, Annotation.VECTORIZE))
TWO_LEVELS: tuple[Step, ...] = (
    Split(2, 0, 8, (2,)),
    Split(2, 2, 32, (16,)),
    Split(2, 4, 16, (4,)),
    Reorder(2, (0, 2, 4, 5, 1, 3)),
    Fuse(2, (0, 1)),
    Annotate(2, 0, Annotation.PARALLEL),
    Annotate(2, 4, Annotation.VECTORIZE),
    Annotate(2, 3, Annotation.UNROLL),
)
INSERTED = LayoutRewriteOption.INSERT_TRANSFORM_STAGE
AS_GIVEN = LayoutRewriteOption.NO_REWRITE

Program = tuple[ComputeDAG, tuple[Step, ...] | None, LayoutRewriteOption]

PROGRAMS: dict[str, Program] = {
    "ragged_split": (doubled(50), VECTORS, PRE_TRANSFORMED),
    "nested_vectors": (window(), NESTED, PRE_TRANSFORMED),
    "register_tile": (matmul(4, 16, 8), TILE, PRE_TRANSFORMED),
    "register_tile_as_given": (matmul(4, 16, 8), TILE, AS_GIVEN),
    "packed_inside": (matmul(4, 16, 8), TILE, INSERTED),
    "dot_product": (bytes_product(), TILE, PRE_TRANSFORMED),
    "dot_product_of_unsigned": (bytes_product("uint8"), TILE, PRE_TRANSFORMED),
    "dot_product_packed_inside": (bytes_product("uint8"), TILE, INSERTED),
    "sum_in_lanes": (rows(), (), PRE_TRANSFORMED),
    "maximum_in_lanes": (rows(te.max), (), PRE_TRANSFORMED),
    "inlined_reshape": (reshaped(), (ComputeInline(1),), PRE_TRANSFORMED),
    "local_buffer": (window(), LOCAL, PRE_TRANSFORMED),
    "two_levels_of_tiles": (matmul(8, 32, 16), TWO_LEVELS, PRE_TRANSFORMED),
    "two_levels_packed_inside": (matmul(8, 32, 16), TWO_LEVELS, INSERTED),
    "ragged_tile": (matmul(5, 18, 8), (Split(2, 0, 5, (2,)), Split(2, 2, 18, (16,)), Reorder(2, (0, 2, 4, 1, 3)),
                                       Annotate(2, 4, Annotation.VECTORIZE)), PRE_TRANSFORMED),
    "factored_reduction": (matmul(2, 4, 64), (Split(2, 2, 64, (16,)), Rfactor(2, 3, 2)), PRE_TRANSFORMED),
    "two_results_in_lanes": (sum_and_peak(3, 40), (), PRE_TRANSFORMED),
    "default_matmul": (matmul(6, 20, 12), None, PRE_TRANSFORMED),
    "default_product_of_bytes": (bytes_product("uint8"), None, PRE_TRANSFORMED),
    "product_of_bytes_in_naive_loops": (
        bytes_product("uint8"),
        (Fuse(2, (0, 1)), Annotate(2, 0, Annotation.PARALLEL)),
        PRE_TRANSFORMED,
    ),
    "default_convolution": (conv_residual_nhwc(5, 8), None, PRE_TRANSFORMED),
    "default_convolution_channels_first": (conv_bn_relu(1, 6, 4, 8, 3, 1, 1), None, PRE_TRANSFORMED),
    "default_pool": (max_pool(5, 8), None, PRE_TRANSFORMED),
    "default_minimum": (min_nm(5, 100), None, PRE_TRANSFORMED),
    "default_softmax": (softmax(4, 40), None, PRE_TRANSFORMED),
    "default_layer_norm": (OPERATORS["layer norm"](), None, PRE_TRANSFORMED),
    "default_depthwise": (OPERATORS["depthwise"](), None, PRE_TRANSFORMED),
    "default_transposed": (OPERATORS["transposed"](), None, PRE_TRANSFORMED),
    "default_batched_matmul": (OPERATORS["batched matmul"](), None, PRE_TRANSFORMED),
}  # fmt: skip
"""Computations, their steps (None: the default schedule), and what becomes of the layout of their weights."""


def cases_of(program: Program) -> dict[str, Sections]:
    """The loops before and after every pass that changes them, by the pass."""
    dag, steps, layout = program
    function = build_loops(replay(dag, default_steps(dag) if steps is None else steps), "k")
    cases: dict[str, Sections] = {}
    for loop_pass in cpu_passes(HARDWARE, layout, VNNI):
        after, name = loop_pass(function), pass_name(loop_pass)
        verify(after, name)
        if str(after) != str(function):
            cases[name] = {"input": str(function), "pass": name, "output": str(after)}
        function = after
    return cases


@pytest.mark.parametrize("name", PROGRAMS)
def test_passes_change_the_loops_of_a_program_as_its_cases_say(name: str, update_golden: bool) -> None:
    cases = cases_of(PROGRAMS[name])
    assert cases
    check_cases("loops", name, cases, update_golden)


@pytest.mark.parametrize("name", PASS_PROGRAMS)
def test_a_pass_gives_the_output_of_its_case(name: str, update_golden: bool) -> None:
    program = PASS_PROGRAMS[name]
    *earlier, last = program.passes
    before = build_loops(replay(program.dag, program.steps), "k")
    for loop_pass in earlier:
        before = loop_pass(before)
    after, last_name = last(before), pass_name(last)
    verify(after, last_name)
    output = "unchanged" if str(after) == str(before) else str(after)
    sections = {"input": str(before), "pass": last_name, "output": output}
    check_cases("loops", name, {last_name: sections}, update_golden)


def test_every_pass_has_cases_with_and_without_effect() -> None:
    every = {pass_name(step) for option in LayoutRewriteOption for step in cpu_passes(HARDWARE, option, VNNI)}
    every -= {"limit-code"}  # it refuses, and changes nothing
    cases = read_cases("loops").values()
    assert {case["pass"] for case in cases if case["output"] != "unchanged"} == every
    assert {case["pass"] for case in cases if case["output"] == "unchanged"} == every
    check_subjects("loops", [*PROGRAMS, *PASS_PROGRAMS])
