"""In: a network. Out: the tasks that are worth tuning in it, and how often each of them runs.

Always: equal computations are one task; they are tuned for weights that are laid out beforehand, as a network's are.
"""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from compiler.auto_scheduler.search_task import SearchTask
from compiler.config import usable_processors
from compiler.driver.dispatch import DispatchContext, FallbackContext
from compiler.driver.hardware import completed, hardware_of
from compiler.errors import ModelFormatError
from compiler.frontend.network import load_network
from compiler.frontend.onnx.importer import load_model
from compiler.graph.ir import Graph
from compiler.graph.partition import partition
from compiler.graph.pipeline import optimize
from compiler.graph.winograd import winograd_for
from compiler.runtime.artifact import Array
from compiler.target import HardwareParams, Target


def extract_tasks(
    mod: Any,
    params: Mapping[str, Array] | None,
    target: Target | str,
    target_host: Target | str | None = None,
    hardware_params: HardwareParams | None = None,
    include_simple_tasks: bool = False,
    *,
    winograd: bool = False,
) -> tuple[list[SearchTask], list[int]]:
    """The tuning tasks of a network, and how often each appears.

    `mod` is a `compiler.graph.ir.Graph`, an ONNX model or its path, or a name of the zoo. `params` are arrays for
    inputs that are constants, by name. `include_simple_tasks` adds the kernels without data reuse. With `winograd` the
    tasks that compute a convolution in a transformed space follow the direct one, with the same weight; a network that
    is compiled inside `ApplyHistoryBest` takes the way whose record is the fastest.
    Raises: ModelError when the network cannot be read or a parameter fits no input, TargetError.
    """
    machine = target if isinstance(target, Target) else Target(target)
    given = hardware_of(machine, len(usable_processors()))
    hardware = given if hardware_params is None else completed(hardware_params, machine)
    rewrites = winograd_for(machine) if winograd else ()
    cut = partition(optimize(_bound(_graph_of(mod), params or {})), machine, hardware, rewrites)
    direct, weights = (cut.tasks, cut.weights) if include_simple_tasks else cut.worth_tuning()
    ways = [(task, *(other.task for other in cut.alternatives_of(task))) for task in direct]
    tasks = [task for found in ways for task in found]
    counts = [weight for found, weight in zip(ways, weights, strict=True) for _ in found]
    found = [
        SearchTask(
            compute_dag=task.dag,
            target=machine,
            target_host=target_host,
            hardware_params=hardware,
            layout_rewrite_option=task.layout,
            desc=task.name,
        )
        for task in tasks
    ]
    return found, counts


def is_auto_scheduler_enabled() -> bool:
    """Whether networks that this thread compiles use tuning records: it is inside a dispatch context that was entered,
    such as `with ApplyHistoryBest(log):`.
    """
    return not isinstance(DispatchContext.current(), FallbackContext)


def _graph_of(mod: Any) -> Graph:
    if isinstance(mod, Graph):
        return mod
    if isinstance(mod, (str, Path)):
        return load_network(str(mod))
    return load_model(mod)


def _bound(graph: Graph, params: Mapping[str, Array]) -> Graph:
    """The graph with constants in place of the inputs that `params` names."""
    known = {value.name: value for value in graph.inputs}
    for name, array in params.items():
        if name in graph.constants:
            continue
        if name not in known:
            raise ModelFormatError(f"the network has no input {name}; its inputs are {', '.join(known)}")
        value = known[name]
        if np.shape(array) != tuple(value.shape) or np.asarray(array).dtype.name != value.dtype:
            raise ModelFormatError(f"the input {name} is {value.dtype}{list(value.shape)}, which its parameter is not")
    inputs = tuple(value for value in graph.inputs if value.name not in params)
    constants = {**graph.constants, **{name: np.asarray(array) for name, array in params.items()}}
    return replace(graph, inputs=inputs, constants=constants) if params else graph
