"""Extracts the tuning tasks of a network and how often each occurs.

Equal computations are one task. Tasks are tuned for pre-packed weights, since compilation packs a network's weights.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from retune.compiler.core.config import usable_cpus
from retune.compiler.core.errors import OptionError
from retune.compiler.core.target import HardwareParams, Target
from retune.compiler.driver.dispatch import is_enabled
from retune.compiler.driver.hardware import complete, hardware_of
from retune.compiler.driver.network_build import graph_of, optimize_for_context
from retune.compiler.driver.pass_context import PassContext
from retune.compiler.graph.partition.partition import partition
from retune.compiler.graph.partition.winograd import winograd_for
from retune.compiler.runtime.artifact import Array
from retune.compiler.tvm.auto_scheduler.search_task import SearchTask


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
    """The tuning tasks of a network, and how often each occurs.

    `mod` is a `retune.compiler.graph.ir.Graph`, an ONNX model or its path, or a name of the zoo. `params` are arrays
    for constant inputs, by name; `shapes` gives static shapes to inputs with dynamic dimensions. `include_simple_tasks`
    adds the kernels without data reuse. `dump_workload_to_dag_log` is a JSON file for the text of every task's graph by
    its key. `opt_level` is `PassContext`'s: with 0 the tasks are of the graph nearly as imported. With `winograd` the
    tasks of transformed convolutions follow the direct task, with the same weight; a network compiled inside
    `ApplyHistoryBest` uses the fastest record's.
    Raises: ModelError when the network cannot be read or a parameter fits no input, TargetError, OptionError when the
    file cannot be written.
    """
    machine = target if isinstance(target, Target) else Target(target)
    own_hardware = hardware_of(machine, machine.num_cores or len(usable_cpus()))
    hardware = own_hardware if hardware_params is None else complete(hardware_params, machine)
    rewrites = winograd_for(machine) if winograd else ()
    with PassContext(opt_level):
        graph = optimize_for_context(graph_of(mod, shapes, params))
    cut = partition(graph, machine, hardware, rewrites)
    direct, weights = (cut.tasks, cut.weights) if include_simple_tasks else cut.of_reductions().worth_tuning()
    groups = [(task, *(other.task for other in cut.alternatives_of(task))) for task in direct]
    # Each alternative is a task of full weight: the scheduler does not know that they exclude each other, since TVM's
    # has no such layers.
    tasks = [task for group in groups for task in group]
    counts = [weight for group, weight in zip(groups, weights, strict=True) for _ in group]
    search_tasks = [
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
        _dump(search_tasks, Path(dump_workload_to_dag_log))
    return search_tasks, counts


def _dump(tasks: list[SearchTask], path: Path) -> None:
    try:
        path.write_text(json.dumps({task.workload_key: str(task.compute_dag) for task in tasks}), encoding="utf-8")
    except OSError as error:
        raise OptionError(f"cannot write the graphs of the tasks to {path}: {error.strerror}") from error


def is_auto_scheduler_enabled() -> bool:
    """Whether networks compiled by this thread use tuning records: as `PassContext(config={"use_auto_scheduler": ...})`
    says, otherwise inside any dispatch context, such as `with ApplyHistoryBest(log):`.
    """
    return is_enabled()
