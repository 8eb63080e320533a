"""Extracts the tuning tasks of a network and how often each occurs.

Equal computations are one task. Tasks are tuned for pre-packed weights, since a network packs them when it is compiled.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from retune.compiler.auto_scheduler.search_task import SearchTask
from retune.compiler.config import usable_cpus
from retune.compiler.driver.dispatch import is_enabled
from retune.compiler.driver.hardware import completed, hardware_of
from retune.compiler.driver.network_build import optimized
from retune.compiler.driver.network_source import graph_of
from retune.compiler.driver.pass_context import PassContext
from retune.compiler.errors import OptionError
from retune.compiler.graph.partition import partition
from retune.compiler.graph.winograd import winograd_for
from retune.compiler.runtime.artifact import Array
from retune.compiler.target import HardwareParams, Target


def extract_tasks(
    mod: Any,
    params: Mapping[str, Array] | None,
    target: Target | str,
    target_host: Target | str | None = None,
    hardware_params: HardwareParams | None = None,
    include_simple_tasks: bool = False,
    dump_workload_to_dag_log: str | Path | None = None,
    opt_level: int = 3,
    *,
    winograd: bool = False,
    shapes: Mapping[str, Sequence[int]] | None = None,
) -> tuple[list[SearchTask], list[int]]:
    """The tuning tasks of a network, and how often each appears.

    `mod` is a `retune.compiler.graph.ir.Graph`, an ONNX model or its path, or a name of the zoo. `params` are arrays
    for inputs that are constants, by name; `shapes` gives static shapes to inputs with dynamic dimensions.
    `include_simple_tasks` adds the kernels without data reuse.
    `dump_workload_to_dag_log` is a file that gets the text of every task's graph by its key, as JSON. `opt_level` is
    that of `PassContext`: with 0 the tasks are of the graph nearly as it was imported. With `winograd` the
    tasks that compute a convolution in a transformed space follow the direct one, with the same weight; a network that
    is compiled inside `ApplyHistoryBest` takes the way whose record is the fastest.
    Raises: ModelError when the network cannot be read or a parameter fits no input, TargetError, OptionError when the
    file cannot be written.
    """
    machine = target if isinstance(target, Target) else Target(target)
    given = hardware_of(machine, machine.num_cores or len(usable_cpus()))
    hardware = given if hardware_params is None else completed(hardware_params, machine)
    rewrites = winograd_for(machine) if winograd else ()
    with PassContext(opt_level):
        graph = optimized(graph_of(mod, shapes, params))
    cut = partition(graph, machine, hardware, rewrites)
    direct, weights = (cut.tasks, cut.weights) if include_simple_tasks else cut.of_reductions().worth_tuning()
    ways = [(task, *(other.task for other in cut.alternatives_of(task))) for task in direct]
    # Each way is a task of full weight: the scheduler does not know that they exclude each other, TVM's has no such
    # layers.
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
    if dump_workload_to_dag_log is not None:
        _dump(found, Path(dump_workload_to_dag_log))
    return found, counts


def _dump(tasks: list[SearchTask], path: Path) -> None:
    try:
        path.write_text(json.dumps({task.workload_key: str(task.compute_dag) for task in tasks}), encoding="utf-8")
    except OSError as error:
        raise OptionError(f"cannot write the graphs of the tasks to {path}: {error.strerror}") from error


def is_auto_scheduler_enabled() -> bool:
    """Whether networks that this thread compiles use tuning records: as
    `PassContext(config={"use_auto_scheduler": ...})` says, or else inside any dispatch context that was entered, such
    as `with ApplyHistoryBest(log):`.
    """
    return is_enabled()
