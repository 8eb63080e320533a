"""Builds a `Library` that runs a network on a target, with the programs that dispatch contexts provide.

Kernels without a record use the default schedule, and one warning lists them all.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from retune.compiler.core.errors import ModelFormatError
from retune.compiler.core.target import Target
from retune.compiler.driver.compile_network import compile_graph
from retune.compiler.driver.hardware import threads_of
from retune.compiler.driver.parallel_build import build_in_parallel
from retune.compiler.driver.pass_context import PassContext
from retune.compiler.frontend.importer import load_model
from retune.compiler.frontend.network import load_network
from retune.compiler.graph.ir import Graph
from retune.compiler.graph.pipeline import NECESSARY, PIPELINE, optimize
from retune.compiler.runtime.artifact import Array
from retune.compiler.runtime.executor.library import Library


def build_network(
    mod: Any,
    target: Target | str | None = None,
    params: Mapping[str, Array] | None = None,
    *,
    threads: int | None = None,
    shapes: Mapping[str, Sequence[int]] | None = None,
) -> Library:
    """Compile a network for the graph executor.

    `mod` is an ONNX model or its path, a name of the zoo, or a graph; `params` are arrays for inputs that are
    constants, by name; `threads` is the number of threads that it is meant to run on, all cores unless
    given; `shapes` gives static shapes to inputs with dynamic dimensions, by name. Tuned programs come from the
    dispatch contexts that were entered (`with ApplyHistoryBest(log):`), and `PassContext` says whether to ask them, and
    whether the graph is optimized. `CoverageReport.of(library.network.coverage)` tells what became of every kernel.
    Raises: ModelError, TargetError; LoweringError when even a default schedule cannot be built.
    """
    machine = target if isinstance(target, Target) else Target(target) if target else Target.host()
    graph = optimize_for_context(graph_of(mod, shapes, params))
    return Library(compile_graph(graph, machine, threads=threads_of(machine, threads), build=build_in_parallel))


def optimize_for_context(graph: Graph) -> Graph:
    """The graph after the passes that the pass context asks for."""
    # As TVM's opt_level 0: no optimization, but what code generation cannot do without.
    return optimize(graph, PIPELINE if PassContext.current().opt_level else NECESSARY)


def graph_of(
    mod: Any, shapes: Mapping[str, Sequence[int]] | None = None, params: Mapping[str, Array] | None = None
) -> Graph:
    """The graph of a network: a `Graph`, an ONNX model or its path, or a name of the zoo. `shapes` gives static shapes
    to inputs with dynamic dimensions, `params` values to inputs and constants, by name. Raises: ModelError.
    """
    if isinstance(mod, Graph):
        return bind_parameters(mod, params or {})
    constants = {name: np.asarray(array) for name, array in (params or {}).items()}
    if isinstance(mod, (str, Path)):
        return load_network(str(mod), shapes=shapes, constants=constants)
    return load_model(mod, shapes=shapes, constants=constants)


def bind_parameters(graph: Graph, params: Mapping[str, Array]) -> Graph:
    """The graph with constants in place of the inputs and constants that `params` names.

    Raises: ModelFormatError when a parameter fits none.
    """
    known = {value.name: (value.dtype, tuple(value.shape)) for value in graph.inputs}
    own = {name: (array.dtype.name, array.shape) for name, array in graph.constants.items()}
    bound = {name: np.asarray(array) for name, array in params.items()}
    for name, array in bound.items():
        if name not in known | own:
            raise ModelFormatError(f"the network has no input {name}; its inputs are {', '.join(known)}")
        dtype, shape = (known | own)[name]
        if (array.dtype.name, array.shape) != (dtype, shape):
            raise ModelFormatError(f"the input {name} is {dtype}{list(shape)}, which its parameter is not")
    inputs = tuple(value for value in graph.inputs if value.name not in params)
    constants = {**graph.constants, **bound}
    return replace(graph, inputs=inputs, constants=constants) if params else graph
