"""Programs proposed for symbolic extents compute the definition for any sizes, and results steer the search."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import count

import numpy as np
import pytest

from retune.compiler import te
from retune.compiler.codegen.build import build_kernel
from retune.compiler.core.errors import LoweringError, ScheduleError
from retune.compiler.core.target import Target
from retune.compiler.driver.hardware import hardware_of
from retune.compiler.lower import block_plan, symbolic
from retune.compiler.measure.record import TaskProgram
from retune.compiler.model.base import RandomModel
from retune.compiler.runtime.artifact import KernelArtifact
from retune.compiler.schedule.dag import ComputeDAG
from retune.compiler.schedule.state import Annotation
from retune.compiler.schedule.steps import Annotate, Block, Reorder, SizeLimit, Split, Step, load_steps
from retune.compiler.schedule.task import SampledShape, SearchTask
from retune.compiler.search.block_search import BlockSearch
from retune.compiler.search.options import SearchOptions
from retune.compiler.te.symbols import symbols_of
from tests.support.property.symbolic_programs import Program, check, random_sizes, random_symbolic_program
from tests.support.tiers import long_except

SEARCH = SearchOptions(population=128, generations=1)


def _task(program: Program) -> SearchTask:
    target = Target.host()
    sizes = dict.fromkeys(symbols_of(program), 20)
    return SearchTask("kernel", ComputeDAG(program), target, hardware_of(target, 2), shapes=(SampledShape(sizes, 1.0),))


def _dense(rows: int, depth: int = 24, columns: int = 48) -> Program:
    x, w = te.placeholder((rows, depth), name="x"), te.placeholder((depth, columns), name="w")
    k = te.reduce_axis(depth, "k")
    attrs = {"layout_free_placeholders": (w,)}
    y = te.compute((rows, columns), lambda i, j: te.sum(x[i, k] * w[k, j], k), "y", attrs)
    return [x, w, te.compute((rows, columns), lambda i, j: te.maximum(y[i, j], 0.0), "z")]


def _build(program: Program, steps: Sequence[Step]) -> KernelArtifact:
    return build_kernel(_task(program), steps, "kernel")


def _check(program: Program, steps: Sequence[Step], sizes: Sequence[int]) -> None:
    artifact, rng = _build(program, steps), np.random.default_rng(0)
    for size in sizes:
        check(artifact, program, {"n": size}, rng, threads=2)


@pytest.mark.parametrize("seed", long_except(range(3), range(16)))
def test_proposed_programs_compute_the_definition(seed: int) -> None:
    rng = np.random.default_rng(seed)
    program = random_symbolic_program(rng)
    for proposed in BlockSearch(_task(program), RandomModel(), SEARCH, seed).ask(3, 0):
        try:
            artifact = _build(program, load_steps(proposed.steps))
        except LoweringError:  # a candidate that cannot be built is a result
            continue
        for number in range(4):
            check(artifact, program, random_sizes(rng, program), rng, threads=1 + number % 2)


def _tile(rows: int, height: int, strip: int) -> tuple[Step, ...]:
    """Blocks of `rows`, in register tiles of `height` rows and `strip` columns."""
    return (
        Block(3, 0, rows),
        Split(2, 0, rows, (height,)),
        Split(2, 2, 48, (strip,)),
        Reorder(2, (2, 0, 4, 1, 3)),
        Annotate(2, 3, Annotation.UNROLL),
        Annotate(2, 4, Annotation.VECTORIZE),
    )


def test_a_kernel_of_several_programs_computes_the_definition_on_both_sides_of_each_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    program = _dense(te.symbol("n"))
    steps = (*_tile(4, 4, 16), SizeLimit(3, 0, 10), *_tile(24, 6, 16), SizeLimit(3, 0, 100), *_tile(32, 8, 16))
    _check(program, steps, (0, 1, 7, 10, 11, 53, 100, 101, 230))
    # A planted fault: no program is for the largest sizes.
    only, calls = symbolic._only, count()
    monkeypatch.setattr(symbolic, "_only", lambda condition, body: only(condition * (next(calls) < 2), body))
    kernel, rng = _build(program, steps), np.random.default_rng(0)
    check(kernel, program, {"n": 100}, rng, threads=2)
    with pytest.raises(AssertionError):
        check(kernel, program, {"n": 101}, rng, threads=2)


def test_lengths_of_smaller_blocks_divide_their_extents() -> None:
    assert block_plan._fitting(6, (4, 8)) == (1, 6)
    assert block_plan._fitting(12, (2, 8)) == (2, 6)
    assert block_plan._fitting(1, (2, 8)) == (1, 1)


def test_steps_that_name_no_axis_or_no_size_are_refused() -> None:
    program = _dense(te.symbol("n"))
    for step in (Block(3, 1, 8), Block(3, 0, 0), Block(3, 0, 5000), Block(9, 0, 8), Block(0, 0, 8)):
        with pytest.raises(ScheduleError, match="axis"):
            _build(program, (step,))
    with pytest.raises(ScheduleError, match="no axis 7"):
        _build(program, (SizeLimit(3, 7, 8),))
    with pytest.raises(ScheduleError, match="the step BL is for symbolic extents"):
        _build(_dense(16), (Block(3, 0, 8),))
    with pytest.raises(LoweringError, match="several layouts"):
        _build(program, (*_tile(8, 8, 16), SizeLimit(3, 0, 10), *_tile(8, 8, 24)))


def test_the_best_size_of_blocks_gets_half_of_a_round() -> None:
    task = _task(_dense(te.symbol("n")))
    search = BlockSearch(task, RandomModel(), SEARCH)
    first = search.ask(16, 0)
    fast = Block(3, 0, 24)
    search.tell([replace(program, seconds=1.0 if load_steps(program.steps)[0] == fast else 2.0) for program in first])
    assert search.best_seconds == 1.0
    second = search.ask(8, 1)
    assert sum(load_steps(program.steps)[0] == fast for program in second) >= 4
    assert not {program.steps for program in first} & {program.steps for program in second}


def test_the_default_schedule_counts_for_its_sizes() -> None:
    search = BlockSearch(_task(_dense(te.symbol("n"))), RandomModel(), SEARCH)
    search.tell([TaskProgram("", "[]", 3.0)])
    assert search.best_seconds == 3.0
