"""Compiled networks on an open GPU: time and outputs, ours and PyTorch's.

Only the GPU's work is timed: inputs are on the device before, and outputs stay there.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from benchmarks.gpu_interleaved import Makers
from benchmarks.gpu_torch import network_makers
from benchmarks.network_peers import seeded_inputs
from retune.compiler.driver.compile_network import compile_graph
from retune.compiler.measure.record import TaskProgram
from retune.compiler.runtime.cuda.driver_interface import Driver
from retune.compiler.runtime.cuda.program import Stopwatch
from retune.compiler.runtime.executor.cuda_memory import CudaMemory
from retune.compiler.runtime.executor.graph_executor import GraphExecutor
from retune.compiler.runtime.executor.placement import FIRST_GPU
from retune.compiler.tune.extract import ExtractedNetwork


class OurNetwork:
    """A compiled network, all kernels of which run on the GPU number `number`."""

    def __init__(
        self,
        driver: Driver,
        number: int,
        network: ExtractedNetwork,
        best: Mapping[str, TaskProgram],
        inputs: Mapping[str, NDArray[Any]],
    ) -> None:
        store = CudaMemory(driver, number)
        compiled = compile_graph(network.graph, network.target, best, cut=network.partition)
        self.coverage = compiled.coverage
        self._executor = GraphExecutor(compiled, memories=[store])
        self._executor.run(**{name: np.asarray(array) for name, array in inputs.items()})
        calls = self._executor.calls_on(FIRST_GPU)

        def run() -> None:
            for call in calls:
                call()

        self._run = run
        self._watch = Stopwatch(driver, store.stream)
        self._roughly = self._watch.probe(run)

    def seconds(self) -> float:
        """How long a run takes, measured now."""
        return self._watch.passes(self._run, 1, self._roughly)[0]

    def result(self) -> NDArray[Any]:
        """The first output."""
        return self._executor.get_output(0)


def torch_networks(model: onnx.ModelProto, number: int, *, tf32: bool) -> Makers:
    """What makes the same network ready in PyTorch, eager and compiled, where it is installed."""
    given = [np.array(array) for array in seeded_inputs(model).values()]
    return network_makers(model, given, number, tf32=tf32)
