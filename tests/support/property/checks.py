"""Checks that the kernel of a graph and a schedule computes the definition and stays within its buffers.

Every buffer, including the workspace, is between inaccessible pages: once as close to the upper one as alignment allows
and once directly after the lower one, with a different filler. Inputs are write-protected, and the loop IR is verified
after every pass. A read that strays into a filler makes two runs differ.

An access to a guard page ends the process, so `judge` is called in a worker process.
"""

import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pytest

from retune.compiler.codegen.dot_instructions import dots_of
from retune.compiler.core.errors import LoweringError
from retune.compiler.core.target import HardwareParams, Target
from retune.compiler.driver.build import build_kernel, kernel_source
from retune.compiler.ir.expr import Dot, is_float
from retune.compiler.ir.stmt import Allocate, For, If, LoopFunction, LoopKind, exprs_of, walk_stmt
from retune.compiler.ir.visit import walk
from retune.compiler.lower.build_loops import build_loops
from retune.compiler.lower.pipeline import lower
from retune.compiler.runtime.artifact import KernelArtifact
from retune.compiler.runtime.buffers import CANARY, FencedArray
from retune.compiler.runtime.loader import load_kernels
from retune.compiler.schedule.dag import ComputeDAG
from retune.compiler.schedule.default.layout import LayoutRewriteOption
from retune.compiler.schedule.state import replay
from retune.compiler.schedule.steps import Step, dump_steps
from retune.compiler.schedule.task import SearchTask
from retune.compiler.te.evaluate import evaluate
from retune.compiler.te.tensor import ComputeOp, Tensor
from tests.support.property.graphs import full_inputs
from tests.support.property.programs import inputs_of

HARDWARE = HardwareParams(2)
USUAL_TOLERANCE = 5e-5
_FILLERS = (CANARY, 0xFF)

Values = Mapping[Tensor, np.ndarray]


@dataclass(frozen=True, slots=True)
class Verdict:
    """The outcome of a program: a `failure` or a `refusal`, with its message, both empty if it is correct.

    `facts` are the tags of its steps and properties of its loops.
    """

    failure: str = ""
    refusal: str = ""
    facts: frozenset[str] = frozenset()


def judge(
    dag: ComputeDAG, steps: tuple[Step, ...], tolerances: Sequence[float] | None, seed: int, threads: int
) -> Verdict:
    """Check one program on inputs of a seed; an exception that is no refusal is a failure."""
    try:
        return Verdict(facts=checked(dag, steps, full_inputs(dag, seed), threads, tolerances))
    except LoweringError as refusal:
        if ", after " in str(refusal):  # what the verifier finds is a defect
            return Verdict(failure=str(refusal))
        return Verdict(refusal=str(refusal))
    except Exception:
        return Verdict(failure=traceback.format_exc())


def checked(
    dag: ComputeDAG,
    steps: tuple[Step, ...],
    values: Values,
    threads: int,
    tolerances: Sequence[float] | None = None,
    layout: LayoutRewriteOption = LayoutRewriteOption.REWRITE_FOR_PRE_TRANSFORMED,
    target: Target | None = None,
) -> frozenset[str]:
    """Build and run a program, compare it with the oracle; what it is like.

    `layout` is what is done about inputs of free layout. `tolerances` has one absolute difference an output; without,
    it is `USUAL_TOLERANCE`, also relative. Without a `target` it is the host.
    Raises: AssertionError when it is wrong, LoweringError when it is refused.
    """
    task = SearchTask("random", dag, Target.host() if target is None else target, HARDWARE, layout=layout)
    loops = lower(replay(dag, steps), "kernel", HARDWARE, layout, dots=dots_of(task), check=True)
    artifact = build_kernel(task, steps, "kernel")
    runs = [_run(artifact, dag, values, threads, at_start) for at_start in (False, True)]
    for first, second, tensor in zip(*runs, dag.outputs, strict=True):
        assert first.tobytes() == second.tobytes(), f"{tensor.name} depends on memory around the buffers"
    expected = evaluate(dag.outputs, values)
    for place, (found, wanted) in enumerate(zip(runs[0], expected, strict=True)):
        absolute = USUAL_TOLERANCE if tolerances is None else tolerances[place]
        relative = USUAL_TOLERANCE if tolerances is None else 0.0
        _compare(dag.outputs[place].name, found, wanted, absolute, relative)
    return _facts(dag, steps, loops)


def explained(dag: ComputeDAG, steps: Sequence[Step]) -> str:
    """A program in words, to put beside its failure: graph, steps, loops."""
    task = SearchTask("random", dag, Target.host(), HARDWARE)
    try:
        loops = kernel_source(task, steps, "loops")
    except Exception as error:
        loops = f"no loops: {error}"
    return f"{dag}\n{dump_steps(steps)}\n{loops}"


def _run(artifact: KernelArtifact, dag: ComputeDAG, values: Values, threads: int, at_start: bool) -> list[np.ndarray]:
    """The outputs of one run in fences.

    Raises: AssertionError when something around a buffer was written.
    """
    filler = _FILLERS[at_start]
    fences = {}
    for spec, tensor in zip(artifact.args, (*dag.inputs, *dag.outputs), strict=True):
        fence = fences[spec.name] = FencedArray(spec.buffer_shape, spec.dtype, at_start=at_start, filler=filler)
        if spec.is_output:
            fence.array.reshape(-1).view("uint8")[:] = filler if spec.dtype != "bool" else at_start
            continue
        value = values[tensor]
        fence.array.reshape(-1)[:] = value.reshape(-1) if spec.packing is None else spec.packing.pack(value)
        fence.protect(writable=False)
    outputs = [fences[spec.name].array for spec in artifact.outputs]
    if artifact.workspace_bytes:
        room = FencedArray((artifact.workspace_bytes,), "uint8", at_start=at_start, filler=filler)
        room.array[:] = filler
        fences["the workspace"] = room
    load_kernels([artifact])["kernel"].bind([fence.array for fence in fences.values()], threads)()
    for name, fence in fences.items():
        assert fence.damage() == "", f"{name}: {fence.damage()}"
    return outputs


def _compare(name: str, found: np.ndarray, wanted: np.ndarray, absolute: float, relative: float) -> None:
    if not is_float(wanted.dtype.name):
        np.testing.assert_array_equal(found, wanted, err_msg=name)
        return
    right = wanted.astype("float64")
    # A bound on rounding may exceed what cancels or underflows: whatever it is, zeros are wrong.
    absolute = min(absolute, 0.3 * float(np.abs(right[np.isfinite(right)]).max(initial=0.0)) or absolute)
    np.testing.assert_allclose(found.astype("float64"), right, rtol=relative, atol=absolute, err_msg=name)


def _facts(dag: ComputeDAG, steps: Sequence[Step], loops: LoopFunction) -> frozenset[str]:
    facts = {step.tag for step in steps}
    kinds = {LoopKind.VECTOR: "vectorized", LoopKind.PARALLEL: "parallelized", LoopKind.UNROLL: "unrolled"}
    for stmt in walk_stmt(loops.body):
        if isinstance(stmt, For) and stmt.kind in kinds:
            facts.add(kinds[stmt.kind])
    for stmt in walk_stmt(build_loops(replay(dag, steps), "kernel").body):
        if isinstance(stmt, If):
            facts.add("guarded")
        elif isinstance(stmt, Allocate):
            facts.add("attached")
    if any(isinstance(node, Dot) for stmt in walk_stmt(loops.body) for expr in exprs_of(stmt) for node in walk(expr)):
        facts.add("dot products")
    for op in dag.ops:
        facts.add(op.dtype)
        if isinstance(op, ComputeOp):
            facts.update(f"extent {axis.extent}" for axis in (*op.axes, *op.reduce_axes))
    if loops.packings:
        facts.add("packed")
    return frozenset(facts)


def check(dag: ComputeDAG, steps: tuple[Step, ...], rng: np.random.Generator, threads: int) -> None:
    """Build, run in fenced buffers and compare.

    Raises: AssertionError when the program is wrong, LoweringError when it is refused.
    """
    try:
        checked(dag, steps, inputs_of(dag, rng), threads)
    except LoweringError as error:
        if ", after " in str(error):  # what the verifier found is a defect, not a refusal
            pytest.fail(f"{error}\n{dag}\n{dump_steps(steps)}")
        raise
    except AssertionError as error:
        pytest.fail(f"{error}\n{explained(dag, steps)}")
