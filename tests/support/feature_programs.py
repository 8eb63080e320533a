"""Hand-built statements for feature tests, with tile sizes as numbers or arrays; no steps are replayed."""

from collections.abc import Mapping, Sequence

from retune.compiler import te
from retune.compiler.core.target import HardwareParams
from retune.compiler.ir.affine import Affine
from retune.compiler.model.features import FEATURE_NAMES, extract
from retune.compiler.model.features.table import FLAG_NAMES
from retune.compiler.schedule.bounds import Loop
from retune.compiler.schedule.choices import LoopChoices, choices_of
from retune.compiler.schedule.counts import OpCounts
from retune.compiler.schedule.linear import Linear, LoopKey
from retune.compiler.schedule.state import Annotation, IterKind, Number, replay
from retune.compiler.schedule.statements import Access, StageNest, statement_nests
from retune.compiler.schedule.steps import Step
from retune.compiler.schedule.task import SearchTask
from retune.compiler.search.program_features import prior_scores, scored_hardware
from retune.compiler.te.tensor import ComputeOp, Tensor

HARDWARE = HardwareParams(num_cores=2)
S, R = IterKind.SPATIAL, IterKind.REDUCTION


def linear(terms: Mapping[LoopKey, Number], const: Number = 0) -> Linear:
    return Affine(const, dict(terms))


def op_of(tensor: Tensor) -> ComputeOp:
    assert isinstance(tensor.op, ComputeOp)
    return tensor.op


def matmul_tensors(n: int, packed: bool = False) -> tuple[Tensor, Tensor, Tensor]:
    a, b = te.placeholder((n, n), name="A"), te.placeholder((n, n), name="B")
    k = te.reduce_axis(n, "k")
    attrs = {"layout_free_placeholders": (b,)} if packed else None
    return a, b, te.compute((n, n), lambda i, j: te.sum(a[i, k] * b[k, j], k), name="C", attrs=attrs)


def small_tile(annotated: bool = True) -> StageNest:
    """512x512x512: i = 32*16, j = 64*8, order i0 j0 k j1 i1; j1 is vectorized, i0 and j0 parallel, k unrolled."""
    a, b, c = matmul_tensors(512)
    marks = (
        (Annotation.PARALLEL, Annotation.PARALLEL, Annotation.UNROLL, Annotation.VECTORIZE, Annotation.NONE)
        if annotated
        else (Annotation.NONE,) * 5
    )
    names, extents, kinds = ("i0", "j0", "k", "j1", "i1"), (32, 64, 512, 8, 16), (S, S, R, S, S)
    loops = tuple(
        Loop((2, name), extent, kind, mark)
        for name, extent, kind, mark in zip(names, extents, kinds, marks, strict=True)
    )
    i = linear({(2, "i0"): 16, (2, "i1"): 1})
    j = linear({(2, "j0"): 8, (2, "j1"): 1})
    k = linear({(2, "k"): 1})
    return StageNest(
        stage=2,
        op=op_of(c),
        loops=loops,
        own=5,
        write=Access(c, (512, 512), (i, j), True),
        reads=(Access(a, (512, 512), (i, k), False), Access(b, (512, 512), (k, j), False)),
        ops=OpCounts(float_mad=1),
        attached=False,
    )


def tiled_matmul(
    i: tuple[Number, ...], j: tuple[Number, ...], k: tuple[Number, ...], n: int = 512, packed: bool = False
) -> StageNest:
    """The SSRSRS nest of a matmul: `i` and `j` are four tile extents, outermost first, `k` the two of the reduction."""
    a, b, c = matmul_tensors(n, packed)
    order = (("i", 0), ("j", 0), ("i", 1), ("j", 1), ("k", 0), ("i", 2), ("j", 2), ("k", 1), ("i", 3), ("j", 3))
    tiles = {"i": i, "j": j, "k": k}
    loops = tuple(
        Loop((2, f"{axis}.{level}"), tiles[axis][level], R if axis == "k" else S, Annotation.NONE)
        for axis, level in order
    )

    def index(axis: str) -> Linear:
        terms: dict[LoopKey, Number] = {}
        weight: Number = 1
        for level in reversed(range(len(tiles[axis]))):
            terms[2, f"{axis}.{level}"] = weight
            weight = weight * tiles[axis][level]
        return linear(terms)

    return StageNest(
        stage=2,
        op=op_of(c),
        loops=loops,
        own=len(loops),
        write=Access(c, (n, n), (index("i"), index("j")), True),
        reads=(Access(a, (n, n), (index("i"), index("k")), False), Access(b, (n, n), (index("k"), index("j")), False)),
        ops=OpCounts(float_mad=1),
        attached=False,
    )


def copy_chain(outer: Number = 64, inner: Number = 32) -> tuple[StageNest, StageNest]:
    """B = A and C = B over outer x inner, with B computed inside the inner loop of C."""
    a = te.placeholder((64, 32), name="A")
    b = te.compute((64, 32), lambda i, j: a[i, j], name="B")
    c = te.compute((64, 32), lambda i, j: b[i, j], name="C")
    around = (Loop((2, "i"), outer, S, Annotation.NONE), Loop((2, "j"), inner, S, Annotation.NONE))
    own = (Loop((1, "i"), 1, S, Annotation.NONE), Loop((1, "j"), 1, S, Annotation.NONE))
    here = (linear({(2, "i"): 1}), linear({(2, "j"): 1}))
    source = (linear({(2, "i"): 1, (1, "i"): 1}), linear({(2, "j"): 1, (1, "j"): 1}))
    local = (linear({(1, "i"): 1}), linear({(1, "j"): 1}))
    counts = OpCounts()
    first = StageNest(
        1,
        op_of(b),
        (*around, *own),
        2,
        Access(b, (1, 1), local, True),
        (Access(a, (64, 32), source, False),),
        counts,
        True,
    )
    zero = (linear({}), linear({}))
    second = StageNest(
        2, op_of(c), around, 2, Access(c, (64, 32), here, True), (Access(b, (1, 1), zero, False),), counts, False
    )
    return first, second


def choices(parallel: Number = 0, vector: Number = 0, unroll: Number = 0) -> LoopChoices:
    return LoopChoices(parallel={2: parallel}, vector={2: vector}, unroll={2: unroll})


def features_of(task: SearchTask, steps: Sequence[Step]) -> tuple[dict[str, dict[str, float]], float]:
    """The unscaled features of each statement, and the guess for the whole program."""
    state, hardware = replay(task.dag, steps), scored_hardware(task)
    nests = statement_nests(state)
    rows = extract(nests, choices_of(state), hardware)
    names = [(place, name) for place, name in enumerate(FEATURE_NAMES) if name not in FLAG_NAMES]
    found = {
        nest.op.name: {name: 2.0 ** float(rows[0, at, place]) - 1 for place, name in names}
        for at, nest in enumerate(nests)
    }
    return found, float(prior_scores(rows, task.flop_count, hardware)[0])
