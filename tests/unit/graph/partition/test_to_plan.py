"""Plans of random graphs, run in NumPy on the very memory that they lay out."""

from math import prod
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from numpy.typing import NDArray

from retune.compiler.core.errors import LoweringError
from retune.compiler.core.packing import Packing
from retune.compiler.core.target import HardwareParams, Target
from retune.compiler.graph.evaluate import evaluate as evaluate_graph
from retune.compiler.graph.ir import Graph
from retune.compiler.graph.partition.partition import Partition, partition
from retune.compiler.graph.partition.to_plan import to_plan
from retune.compiler.runtime.artifact import ArgSpec, KernelArtifact
from retune.compiler.runtime.executor.plan import BufferKind, Plan
from retune.compiler.schedule.task import SearchTask
from retune.compiler.te.evaluate import evaluate
from tests.support.small_graphs import bias, conv, small_graphs, start

Arrays = dict[int, NDArray[Any]]


def _kernel(task: SearchTask, packed: str = "") -> KernelArtifact:
    """The interface of a task's kernel, without code; the argument `packed` is stored transposed."""
    outputs = {id(tensor) for tensor in task.dag.outputs}
    args = []
    for tensor in (*task.dag.inputs, *task.dag.outputs):
        rank = len(tensor.shape)
        packing = Packing(tensor.shape, tuple(reversed(range(rank)))) if tensor.name == packed else None
        args.append(ArgSpec(tensor.name, tensor.shape, tensor.dtype, id(tensor) in outputs, packing))
    return KernelArtifact(task.name, b"", tuple(args), 0, "llvm")


def _memory(plan: Plan, constants: Arrays) -> Arrays:
    arena = np.full(plan.arena_bytes, 0xFF, np.uint8)
    owned: Arrays = {}
    for number, buffer in enumerate(plan.buffers):
        if buffer.storage != number:
            continue
        owned[number] = np.full(buffer.shape, np.nan, buffer.dtype)
        if buffer.kind is BufferKind.CONSTANT:
            owned[number] = constants[number]
        if buffer.kind is BufferKind.INTERMEDIATE:
            owned[number] = arena[buffer.offset : buffer.offset + buffer.nbytes].view(buffer.dtype)
    return {
        number: owned[buffer.storage].reshape(-1)[: prod(buffer.shape)].reshape(buffer.shape)
        for number, buffer in enumerate(plan.buffers)
    }


def _run(cut: Partition, plan: Plan, memory: Arrays) -> list[NDArray[Any]]:
    for call, kernel in zip(plan.calls, cut.kernels, strict=True):
        dag = kernel.task.dag
        *reads, write = (memory[number] for number in call.buffers)
        feeds = {t: a.reshape(t.shape) for t, a in zip(dag.inputs, reads, strict=True)}
        (result,) = evaluate(dag.outputs, feeds)
        write[...] = np.nan
        write[...] = result.reshape(write.shape)
    return [memory[number].copy() for number in plan.outputs]


def _planned(graph: Graph) -> tuple[Partition, Plan, Arrays]:
    cut = partition(graph, Target.host(), HardwareParams(num_cores=1))
    kernels = {task.name: _kernel(task) for task in cut.tasks}
    plan, constants = to_plan(graph, cut, kernels)
    plan.verify(kernels)
    return cut, plan, constants


@settings(max_examples=60, deadline=None)
@given(small_graphs())
def test_no_value_is_overwritten_while_it_is_needed(graph: Graph) -> None:
    cut, plan, constants = _planned(graph)
    memory = _memory(plan, constants)
    inputs = {"x": np.random.default_rng(0).standard_normal((1, 4, 4, 8)).astype(np.float32)}
    memory[plan.inputs[0]][...] = inputs["x"]
    for _ in range(2):
        wanted: Any
        for found, wanted in zip(_run(cut, plan, memory), evaluate_graph(graph, inputs), strict=True):
            np.testing.assert_allclose(found, wanted, rtol=1e-3, atol=1e-4)


def test_a_constant_is_stored_once_for_each_layout() -> None:
    builder, x = start()
    shared = bias(builder)
    first = builder.emit("add", (conv(builder, x), shared))
    second = builder.emit("add", (builder.emit("relu", (conv(builder, first),)), shared))
    graph = builder.finish({"out": second})
    _, plan, constants = _planned(graph)
    assert sorted(plan.buffers[number].name for number in constants) == ["b", "w", "w_1"]


def test_constants_are_packed_as_the_kernel_wants() -> None:
    builder, x = start()
    graph = builder.finish({"out": conv(builder, x)})
    cut = partition(graph, Target.host(), HardwareParams(num_cores=1))
    plan, constants = to_plan(graph, cut, {cut.tasks[0].name: _kernel(cut.tasks[0], packed="p1")})
    ((number, array),) = constants.items()
    assert plan.calls[0].buffers[1] == number
    np.testing.assert_array_equal(array, np.asarray(graph.constants["w"]).transpose(3, 2, 1, 0).ravel())


def test_a_kernel_cannot_ask_for_a_packed_input() -> None:
    builder, x = start()
    graph = builder.finish({"out": conv(builder, x)})
    cut = partition(graph, Target.host(), HardwareParams(num_cores=1))
    with pytest.raises(LoweringError, match="wants x packed, but it is no constant"):
        to_plan(graph, cut, {cut.tasks[0].name: _kernel(cut.tasks[0], packed="p0")})
