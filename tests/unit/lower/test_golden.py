"""Golden texts: for every transform step the state and the loops before and after it, for every pass the loops before
and after.

The texts lie in tests/golden. `pytest --update-golden` writes them anew; read the difference before keeping it.
"""

import pytest

from retune.compiler import te
from retune.compiler.lower.build_loops import build_loops
from retune.compiler.lower.pipeline import PRE_TRANSFORMED, cpu_passes
from retune.compiler.schedule.dag import ComputeDAG
from retune.compiler.schedule.layout import LayoutRewriteOption
from retune.compiler.schedule.state import Annotation, State, replay
from retune.compiler.schedule.steps import (
    Annotate,
    CacheRead,
    CacheWrite,
    ComputeAt,
    ComputeInline,
    ComputeRoot,
    FollowFusedSplit,
    FollowSplit,
    Fuse,
    Pragma,
    Reorder,
    Rfactor,
    Split,
    Step,
    StorageAlign,
    dump_steps,
)
from retune.compiler.target import HardwareParams
from tests.golden_texts import GOLDEN, compared
from tests.unit.lower.small import doubled, matmul, window

HARDWARE = HardwareParams(2, vector_unit_bytes=64)
VNNI = (("uint8", "int8"),)

STEPS: dict[str, tuple[ComputeDAG, tuple[Step, ...], Step]] = {
    "annotate": (matmul(4, 16, 8), (), Annotate(2, 1, Annotation.VECTORIZE)),
    "fuse": (matmul(4, 6, 8), (), Fuse(2, (0, 1))),
    "pragma": (matmul(4, 16, 8), (), Pragma(2, 0, "auto_unroll_max_step$16")),
    "reorder": (matmul(4, 6, 8), (), Reorder(2, (2, 0, 1))),
    "split": (matmul(4, 6, 8), (), Split(2, 1, 6, (4,))),
    "follow_split": (window(), (Split(2, 0, 8, (2, 2)),), FollowSplit(1, 0, 0, 1)),
    "follow_fused_split": (window(), (Split(2, 0, 8, (2, 2)),), FollowFusedSplit(1, 0, (0, 0), 1)),
    "storage_align": (matmul(4, 6, 8), (CacheRead(0, "local", (2,)),), StorageAlign(1, 0, 16, 3)),
    "compute_at": (window(), (Split(2, 0, 8, (4,)),), ComputeAt(1, 2, 0)),
    "compute_inline": (window(), (), ComputeInline(1)),
    "compute_root": (window(), (Split(2, 0, 8, (4,)), ComputeAt(1, 2, 0)), ComputeRoot(1)),
    "cache_read": (matmul(4, 6, 8), (), CacheRead(0, "local", (2,))),
    "cache_write": (matmul(4, 6, 8), (), CacheWrite(2)),
    "rfactor": (matmul(4, 6, 10), (Split(2, 2, 10, (4,)),), Rfactor(2, 3, 2)),
}


def bytes_product() -> ComputeDAG:
    """C = A B of signed bytes, summed in 32 bits; B may be packed."""
    a, b = te.placeholder((4, 8), "int8", "A"), te.placeholder((8, 16), "int8", "B")
    k = te.reduce_axis(8, "k")

    def body(i: te.Axis, j: te.Axis) -> te.Reduce:
        return te.sum(te.cast("int32", a[i, k]) * te.cast("int32", b[k, j]), k)  # type: ignore[return-value]

    return ComputeDAG([a, b, te.compute((4, 16), body, "C", {"layout_free_placeholders": (b,)})])


def reshaped() -> ComputeDAG:
    """A matrix through its flat form."""
    x = te.placeholder((6, 8), name="x")
    flat = te.compute((48,), lambda i: x[i // 8, i % 8] + 1.0, "flat")
    return ComputeDAG([x, te.compute((6, 8), lambda i, j: flat[i * 8 + j], "y")])


def rows() -> ComputeDAG:
    """Sums of the rows of a matrix."""
    x, k = te.placeholder((3, 70), name="x"), te.reduce_axis(70, "k")
    return ComputeDAG([x, te.compute((3,), lambda i: te.sum(x[i, k], k), "y")])


TILE: tuple[Step, ...] = (
    Split(2, 1, 16, (16,)),
    Split(2, 0, 4, (2,)),
    Reorder(2, (0, 2, 4, 1, 3)),
    Annotate(2, 4, Annotation.VECTORIZE),
)
PROGRAMS: dict[str, tuple[ComputeDAG, tuple[Step, ...], LayoutRewriteOption]] = {
    "ragged_split": (doubled(50), (Split(1, 0, 50, (16,)), Annotate(1, 1, Annotation.VECTORIZE)), PRE_TRANSFORMED),
    "nested_vectors": (
        window(),
        (Split(2, 0, 8, (2,)), Annotate(2, 1, Annotation.VECTORIZE), Annotate(2, 0, Annotation.VECTORIZE)),
        PRE_TRANSFORMED,
    ),
    "register_tile": (matmul(4, 16, 8), TILE, PRE_TRANSFORMED),
    "packed_inside": (matmul(4, 16, 8), TILE, LayoutRewriteOption.INSERT_TRANSFORM_STAGE),
    "dot_product": (bytes_product(), TILE, PRE_TRANSFORMED),
    "sum_in_lanes": (rows(), (), PRE_TRANSFORMED),
    "inlined_reshape": (reshaped(), (ComputeInline(1),), PRE_TRANSFORMED),
    "local_buffer": (window(), (Split(2, 0, 8, (2,)), ComputeAt(1, 2, 0), Annotate(1, 0, Annotation.UNROLL)),
                     PRE_TRANSFORMED),
}  # fmt: skip


def shown(title: str, state: State) -> str:
    """A state, and its loops before any pass."""
    return f"== {title}: state\n{state}\n\n== {title}: loops\n{build_loops(state, 'k')}\n"


@pytest.mark.parametrize("name", STEPS)
def test_what_a_step_does(name: str, update_golden: bool) -> None:
    dag, first, step = STEPS[name]
    state = replay(dag, first)
    head = f"== graph\n{dag}\n\n== steps before\n{dump_steps(first)}\n\n== step\n{dump_steps((step,))}\n"
    text = "\n".join((head, shown("before", state), shown("after", state.apply(step))))
    compared(f"steps/{name}", text, update_golden)


def passed(name: str) -> dict[str, str]:
    """The loops of a program, and after every pass that changes them."""
    dag, steps, layout = PROGRAMS[name]
    function = build_loops(replay(dag, steps), "k")
    texts = {"build-loops": str(function)}
    for one in cpu_passes(HARDWARE, layout, VNNI):
        after = one.apply(function)
        if str(after) != str(function):
            texts[one.name] = str(after)
        function = after
    return texts


@pytest.mark.parametrize("name", PROGRAMS)
def test_what_the_passes_do(name: str, update_golden: bool) -> None:
    texts = passed(name)
    compared(f"passes/{name}", "\n".join(f"== {after}\n{text}\n" for after, text in texts.items()), update_golden)


def test_every_step_and_every_pass_has_a_golden_text() -> None:
    assert {step.tag for _, _, step in STEPS.values()} == {
        "AN", "FU", "PR", "RE", "SP", "FSP", "FFSP", "SA", "CA", "CI", "CR", "CHR", "CHW", "RF"
    }  # fmt: skip
    acting = {name for program in PROGRAMS for name in passed(program)}
    every = {one.name for option in LayoutRewriteOption for one in cpu_passes(HARDWARE, option, VNNI)}
    assert every - acting == {"limit-code"}, "limit-code refuses, it changes nothing"
    folders = [GOLDEN / "steps", GOLDEN / "passes"]
    files = {path.relative_to(GOLDEN).with_suffix("").as_posix() for one in folders for path in one.glob("*.txt")}
    assert files == {f"steps/{name}" for name in STEPS} | {f"passes/{name}" for name in PROGRAMS}
