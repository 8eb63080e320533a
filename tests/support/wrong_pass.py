"""Finds the pass of the CPU's pipeline that changes what a program computes, by executing the IR after every pass.

The IR is executed by the simulator of GPU programs, with one thread: about a millisecond for each operation, so the
computation should be a small one, such as the same operator with short extents.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from retune.compiler.codegen.dot_instructions import dots_of
from retune.compiler.core.errors import OptionError, RetuneError
from retune.compiler.core.target import Target
from retune.compiler.ir.kernel import DeviceFunction, Kernel
from retune.compiler.ir.stmt import LoopFunction
from retune.compiler.lower.build_loops import build_loops
from retune.compiler.lower.passes import pass_name
from retune.compiler.lower.pipeline import cpu_passes
from retune.compiler.measure.check import Expected, roundings_of
from retune.compiler.runtime.artifact import Array
from retune.compiler.schedule.default.layout import LayoutRewriteOption
from retune.compiler.schedule.state import replay
from retune.compiler.schedule.steps import Step
from retune.compiler.schedule.task import SearchTask
from retune.compiler.te.evaluate import evaluate
from retune.compiler.tune.explain import difference
from tests.support.simt.execute import execute


@dataclass(frozen=True, slots=True)
class WrongPass:
    """The first pass whose result is wrong, `reason` in words, and the lines of the IR that it changed."""

    name: str
    reason: str
    difference: str

    def __str__(self) -> str:
        return f"{self.name}: {self.reason}\n{self.difference}"


def find_wrong_pass(task: SearchTask, steps: Sequence[Step], seed: int = 0) -> WrongPass | None:
    """Execute the IR of a program after every pass on random inputs, and compare with the definition.

    Returns None where every pass is right: then look at code generation, with RETUNE_DEBUG=4.
    Raises: OptionError for a GPU, whose passes the simulator checks as a whole; ScheduleError, LoweringError.
    """
    if task.target.kind != Target.host().kind:
        raise OptionError(f"the passes of a CPU can be checked one by one, not those for {task.target}")
    random = np.random.default_rng(seed)
    inputs = [random.standard_normal(one.shape).astype(one.dtype) for one in task.dag.inputs]
    values = evaluate(task.dag.outputs, dict(zip(task.dag.inputs, inputs, strict=True)))
    pairs = zip(task.dag.outputs, values, strict=True)
    wanted = [Expected.of(tensor.name, value, *roundings_of(task.dag)) for tensor, value in pairs]
    before = ""
    for name, function in _reached(task, steps):
        text = str(function)
        if reason := _wrong(function, inputs, wanted):
            return WrongPass(name, reason, difference(before, text))
        before = text
    return None


def _reached(task: SearchTask, steps: Sequence[Step]) -> Iterator[tuple[str, LoopFunction]]:
    """The IR after every pass, without packed inputs, whose layout the definition does not know."""
    function = build_loops(replay(task.dag, steps), "kernel")
    yield "build-loops", function
    for loop_pass in cpu_passes(task.hardware, LayoutRewriteOption.NO_REWRITE, dots_of(task)):
        function = loop_pass(function)
        yield pass_name(loop_pass), function


def _wrong(function: LoopFunction, inputs: Sequence[Array], wanted: Sequence[Expected]) -> str:
    """What is wrong with the outputs; empty if nothing is."""
    # A grid of one thread runs loops in order, which is what the CPU's IR means without its parallel annotations.
    one_thread = Kernel(function, (1, 1, 1), (1, 1, 1))
    device = DeviceFunction(function.name, function.params, function.workspace, function.outputs, (one_thread,))
    try:
        results = execute(device, inputs)
    except RetuneError as error:
        return str(error)
    return next(filter(None, (right.mismatch(result) for right, result in zip(wanted, results, strict=True))), "")
