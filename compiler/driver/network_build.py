"""Builds a `Library` that runs a network on a target, with the programs that dispatch contexts provide.

Kernels without a record use the default schedule, and one warning lists them all.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from retune.compiler.core.target import Target
from retune.compiler.driver.compile_network import compile_graph
from retune.compiler.driver.hardware import threads_of
from retune.compiler.driver.network_source import graph_of
from retune.compiler.driver.parallel_build import build_in_parallel
from retune.compiler.driver.pass_context import PassContext
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
    graph = optimized(graph_of(mod, shapes, params))
    return Library(compile_graph(graph, machine, threads=threads_of(machine, threads), build=build_in_parallel))


def optimized(graph: Graph) -> Graph:
    """The graph after the passes that the pass context asks for."""
    # As TVM's opt_level 0: no optimization, but what code generation cannot do without.
    return optimize(graph, PIPELINE if PassContext.current().opt_level else NECESSARY)
