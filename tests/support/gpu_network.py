"""Networks on a GPU that is not there: one made by hand, out = 8 * x, of which the second doubling is done on it, and
any other one, compiled.
"""

from collections.abc import Collection, Mapping, Sequence

import numpy as np

from retune.compiler.core.errors import LoweringError
from retune.compiler.core.target import HardwareParams, Target
from retune.compiler.driver.build import build_kernel
from retune.compiler.driver.compile_network import BuildError, ChosenProgram, compile_graph
from retune.compiler.graph.ir import Graph
from retune.compiler.ir.kernel import DeviceFunction
from retune.compiler.lower.gpu.pipeline import lower_for_gpu
from retune.compiler.measure.record import TaskProgram
from retune.compiler.runtime.artifact import Array, KernelArtifact
from retune.compiler.runtime.executor.cuda_memory import CudaMemory
from retune.compiler.runtime.executor.graph_executor import GraphExecutor
from retune.compiler.runtime.executor.network import CompiledNetwork
from retune.compiler.runtime.executor.plan import BufferKind, BufferSpec, Call, Plan
from retune.compiler.schedule.default.cpu import default_steps
from retune.compiler.schedule.state import Annotation, replay
from retune.compiler.schedule.steps import Annotate
from retune.compiler.schedule.task import SearchTask
from tests.support.fake_cuda import FakeDriver
from tests.support.small_computations import doubled
from tests.support.workloads import GPU


def plan_of(*calls: Call) -> Plan:
    """Input 0, constant 1, temporary buffers 2 to 4, output 5."""
    kinds = [BufferKind.INPUT, BufferKind.CONSTANT, *[BufferKind.INTERMEDIATE] * 3, BufferKind.OUTPUT]
    buffers = tuple(
        BufferSpec(f"b{place}", (16,), "float32", kind, place, 64 * (place - 2) if 2 <= place <= 4 else 0)
        for place, kind in enumerate(kinds)
    )
    return Plan("net", buffers, calls, (0,), (5,), 192)


def network_with_gpu() -> tuple[CompiledNetwork, FakeDriver]:
    """The network, and a GPU that knows its kernel."""
    dag = doubled(16)
    on_host = build_kernel(SearchTask("t", dag, Target.host(), HardwareParams(1)), default_steps(dag), "host")
    steps = (Annotate(1, 0, Annotation.THREAD_X),)
    on_gpu = build_kernel(SearchTask("t", dag, Target("cuda"), GPU), steps, "gpu")
    driver = FakeDriver([lower_for_gpu(replay(dag, steps), "gpu", GPU)])
    plan = plan_of(Call("host", (0, 2)), Call("gpu", (2, 3), device=1), Call("host", (3, 5)))
    return CompiledNetwork(plan, (on_host, on_gpu), {1: np.zeros(16, "float32")}), driver


def compiled_for_gpu(
    graph: Graph, target: Target, best: Mapping[str, TaskProgram] | None = None, *, refused: Collection[str] = ()
) -> tuple[CompiledNetwork, FakeDriver]:
    """A network compiled for a GPU, and one that knows its kernels; those called as in `refused` cannot be built."""
    functions: dict[str, DeviceFunction] = {}

    def build(requests: Sequence[ChosenProgram]) -> list[KernelArtifact | BuildError]:
        return [built(request) for request in requests]

    def built(request: ChosenProgram) -> KernelArtifact | BuildError:
        task, steps, name = request.task, request.steps, request.task.name
        if task.target.is_gpu:
            if name in refused:
                return LoweringError(f"{name}: no code for GPUs for this")
            functions[name] = lower_for_gpu(replay(task.dag, steps), name, task.hardware)
        return build_kernel(task, steps, name)

    network = compile_graph(graph, target, best, build=build)
    return network, FakeDriver(list(functions.values()))


def run_on_gpu(network: CompiledNetwork, driver: FakeDriver, inputs: Mapping[str, Array]) -> list[Array]:
    """The outputs of a network, of which all kernels for a GPU are executed thread by thread."""
    executor = GraphExecutor(network, memories=[CudaMemory(driver)])
    executor.run(**inputs)
    return [executor.get_output(index) for index in range(executor.get_num_outputs())]
