"""TVM-compatible `debug_executor`: a graph executor that times every node and keeps every value.

Every value has memory of its own, so nothing is written over and a node can be run again at any time; that takes more
memory than `GraphModule` does. What it writes lies in one folder, which `exit` removes. A temporary folder is also
removed when the executor is dropped.

    ROOT/_tvmdbg_device_CPU_0/   the names are those that viewers of TVM's dumps look for; CUDA_0 for the first GPU
        _tvmdbg_graph_dump.json         the graph, from the beginning
        _tvmdbg_execution_trace.json    the nodes of the last run, for trace viewers
        output_tensors.params           all values of the last run, see `load_param_dict`
        table.txt                       the times of the last run
"""

import hashlib
import json
import shutil
import tempfile
import time
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from retune.compiler.core.errors import ArtifactError, OptionError
from retune.compiler.runtime.arguments import path_of
from retune.compiler.runtime.artifact import Array
from retune.compiler.runtime.device import AnyArray
from retune.compiler.runtime.executor.argument_checks import copy_to
from retune.compiler.runtime.executor.debug_report import NodeTime, Report, make_report, time_table, trace_json
from retune.compiler.runtime.executor.graph_executor import GraphExecutor
from retune.compiler.runtime.executor.graph_import import NOP, GraphNode, ImportedGraph
from retune.compiler.runtime.executor.library import Library
from retune.compiler.runtime.executor.params import save_param_dict_to_file
from retune.compiler.runtime.executor.plan import BufferSpec
from retune.compiler.runtime.ffi.host_array import HostArray
from retune.compiler.runtime.timing import BenchmarkResult, TimeEvaluator
from retune.compiler.tvm.graph_executor import Devices, FunctionTable, GraphModule, create_executor, import_graph_for

__all__ = ["GraphModuleDebug", "Report", "create"]

_GRAPH = "_tvmdbg_graph_dump.json"
_TRACE = "_tvmdbg_execution_trace.json"
_VALUES = "output_tensors.params"
_TABLE = "table.txt"
# As TVM's profile: the first runs touch new pages and cold caches.
_WARM_UPS = 3


def create(
    graph_json_str: str, libmod: Library | FunctionTable, device: Devices, dump_root: str | Path | None = None
) -> "GraphModuleDebug":
    """An executor of a graph that times its nodes; it writes under `dump_root`, by default a new temporary folder.

    Raises: as `retune.compiler.tvm.graph_executor.create`; ArtifactError when the folder cannot be written,
    OptionError when `dump_root` is no path.
    """
    # Unshared: in an arena a node would overwrite what an earlier node, run again alone, still has to read.
    graph = import_graph_for(graph_json_str, libmod).without_sharing()
    return GraphModuleDebug(create_executor(graph.plan, libmod, device), graph, json.loads(graph_json_str), dump_root)


class GraphModuleDebug(GraphModule):
    """A graph module that looks inside. Use it as a context manager, or call `exit` at the end."""

    def __init__(
        self,
        module: GraphExecutor,
        graph: ImportedGraph,
        data: Mapping[str, object],
        dump_root: str | Path | None = None,
    ) -> None:
        """`data` is what the JSON text of the graph says, which goes into the folder."""
        super().__init__(module)
        root = Path(tempfile.mkdtemp(prefix="retune-debug-")) if dump_root is None else path_of(dump_root)
        temporary = dump_root is None
        # Unlike `__del__`, a finalizer runs at the end of the interpreter too.
        self._remove = weakref.finalize(self, shutil.rmtree, root, ignore_errors=True) if temporary else None
        self._nodes = graph.nodes
        self._first = graph.first_entries
        computing = [number for number, node in enumerate(graph.nodes) if node.function not in ("", NOP)]
        self._calls = {number: index for index, number in enumerate(computing)}
        self._times: tuple[NodeTime, ...] = ()
        self._device = module.devices[-1]
        self.folder = root / f"_tvmdbg_device_{self._device.kind.upper()}_{self._device.device_id}"
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._write(_GRAPH, json.dumps(self._dump(data), indent=1))
        except OSError as error:
            raise ArtifactError(f"cannot write {self.folder}: {error}") from error

    def __enter__(self) -> "GraphModuleDebug":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.exit()

    def exit(self) -> None:
        """Remove what was written."""
        if self._remove is None:
            shutil.rmtree(self.folder, ignore_errors=True)
        else:
            self._remove()

    def get_graph_nodes(self) -> list[dict[str, Any]]:
        """The nodes: name, op ("param" or a function), shape and dtype of the first output, names of what it reads."""
        return [
            {
                "name": node.name,
                "op": node.function or "param",
                "shape": list(self._spec(number).shape),
                "dtype": self._spec(number).dtype,
                "inputs": [self._nodes[source].name for source, _ in node.inputs],
                "attrs": dict(node.attrs),
            }
            for number, node in enumerate(self._nodes)
        ]

    def run(  # type: ignore[override]
        self,
        number: int = 10,
        repeat: int = 1,
        min_repeat_ms: float = 1,
        limit_zero_time_iterations: int = 100,
        cooldown_interval_ms: float = 0,
        repeats_to_cooldown: int = 1,
        sort_by_time: bool = True,
        **input_dict: Array,
    ) -> None:
        """Set the given inputs, run the graph, time every node, and write trace, values and table into the folder.

        Raises: OptionError; what a function of the graph raises; ArtifactError when the folder cannot be written.
        """
        counts = (number, repeat, min_repeat_ms, limit_zero_time_iterations)
        evaluator = TimeEvaluator(*counts, cooldown_interval_ms, repeats_to_cooldown)
        with self.module.lock:
            self._run(evaluator, sort_by_time, input_dict)

    def _run(self, evaluator: TimeEvaluator, sort_by_time: bool, input_dict: Mapping[str, Array]) -> None:
        self.module.run(**input_dict)
        self._times = tuple(self._node_time(node, self._time(node, evaluator)) for node in range(len(self._nodes)))
        try:
            self._write(_TRACE, trace_json(self._times))
            self._write(_TABLE, self.get_debug_result(sort_by_time) + "\n")
        except OSError as error:
            raise ArtifactError(f"cannot write {self.folder}: {error}") from error
        values = {
            f"{node.name}____{index}": self.get_node_output(number, index)
            for number, node in enumerate(self._nodes)
            for index in range(node.num_outputs)
        }
        save_param_dict_to_file(values, self.folder / _VALUES)

    def get_debug_result(self, sort_by_time: bool = True) -> str:
        """The times of the last run as a table. Raises: OptionError before the first."""
        if not self._times:
            raise OptionError("no node has been timed yet: call run first")
        return time_table(self._times, sort_by_time)

    def run_individual(
        self,
        number: int,
        repeat: int = 1,
        min_repeat_ms: float = 0,
        limit_zero_time_iterations: int = 100,
        cooldown_interval_ms: float = 0,
        repeats_to_cooldown: int = 1,
    ) -> list[list[float]]:
        """Seconds of every node, `repeat` of them each. Raises: OptionError."""
        options = (limit_zero_time_iterations, cooldown_interval_ms, repeats_to_cooldown)
        nodes = range(len(self._nodes))
        results = (self.run_individual_node(node, number, repeat, min_repeat_ms, *options) for node in nodes)
        return [list(result.results) for result in results]

    def run_individual_node(
        self,
        index: int,
        number: int = 10,
        repeat: int = 1,
        min_repeat_ms: float = 0,
        limit_zero_time_iterations: int = 100,
        cooldown_interval_ms: float = 0,
        repeats_to_cooldown: int = 1,
    ) -> BenchmarkResult:
        """Seconds of one node on the values of the last run; one 0 for a node that computes nothing.

        Raises: OptionError when there is no such node, or an option makes no sense.
        """
        counts = (number, repeat, min_repeat_ms, limit_zero_time_iterations)
        evaluator = TimeEvaluator(*counts, cooldown_interval_ms, repeats_to_cooldown)
        with self.module.lock:
            return self._time(self._node(index), evaluator)

    def execute_node(self, index: int) -> None:
        """Run one node on what its inputs hold. Raises: OptionError when there is no such node."""
        call = self._calls.get(self._node(index))
        if call is not None:
            self.module.call(call)

    def get_node_output(self, index: int, out_ind: int = 0) -> Array:
        """A copy of what an output of a node holds. Raises: OptionError when there is none."""
        node = self._node(index)
        if not isinstance(out_ind, int) or not 0 <= out_ind < self._nodes[node].num_outputs:
            raise OptionError(f"node {node} ({self._nodes[node].name}) has no output {out_ind!r}")
        with self.module.lock:
            return self.module.value(self._first[node] + out_ind).copy().view(HostArray)

    def debug_get_output(self, node: int | str, out: AnyArray | None = None) -> Array:
        """Run the graph up to a node, by number or name, and copy its first output, into `out` when given.

        Raises: OptionError when there is no such node, or `out` does not fit.
        """
        last = self._node(node)
        with self.module.lock:
            for number in range(last + 1):
                self.execute_node(number)
            value = copy_to(out, self.module.value(self._first[last]), self._spec(last), "the array for the value")
        return value.view(HostArray) if out is None else value

    def profile(self, collectors: Sequence[object] | None = None, **input_dict: Array) -> Report:
        """Time every node of one run, after three that are not timed. There are no `collectors` of further metrics.

        Raises: OptionError.
        """
        if collectors is not None and not (isinstance(collectors, Sequence) and not collectors):
            raise OptionError("there are no collectors of metrics beside the time; leave them out")
        with self.module.lock:
            self.module.set_input(**input_dict)
            for _ in range(_WARM_UPS):
                self.module.run()
            numbers = range(len(self._nodes))
            times = [self._node_time(number, BenchmarkResult((self._once(number),))) for number in numbers]
        codes = ((kernel.name, kernel.object_code) for kernel in self.module.network.kernels)
        hashes = {name: hashlib.sha256(code).hexdigest()[:16] for name, code in codes if code}
        return make_report(times, hashes, f"{self._device.kind}{self._device.device_id}", self.module.threads)

    def _spec(self, number: int) -> BufferSpec:
        """The first output of a node."""
        return self.module.network.plan.buffers[self._first[number]]

    def _node(self, key: int | str) -> int:
        names = {node.name: number for number, node in enumerate(self._nodes)}
        number = names.get(key, -1) if isinstance(key, str) else key
        if isinstance(number, bool) or not isinstance(number, int) or not 0 <= number < len(self._nodes):
            raise OptionError(f"the graph has no node {key!r}; it has {len(self._nodes)} nodes")
        return number

    def _time(self, number: int, evaluator: TimeEvaluator) -> BenchmarkResult:
        call = self._calls.get(number)
        if call is None:
            return BenchmarkResult((0.0,) * evaluator.repeat)
        self.module.stage_inputs(call)
        return evaluator(self.module.single_call(call))

    def _once(self, number: int) -> float:
        """Seconds of one call of a node; 0 for one that computes nothing."""
        if number not in self._calls:
            return 0.0
        self.module.stage_inputs(self._calls[number])
        call = self.module.single_call(self._calls[number])
        start = time.perf_counter_ns()
        call()
        return (time.perf_counter_ns() - start) / 1e9

    def _node_time(self, number: int, result: BenchmarkResult) -> NodeTime:
        node: GraphNode = self._nodes[number]
        op, shape = node.function or "param", self._spec(number).shape
        return NodeTime(node.name, "param" if op == NOP else op, shape, len(node.inputs), node.num_outputs, result)

    def _dump(self, data: Mapping[str, object]) -> dict[str, object]:
        return {
            **data,
            "node_row_ptr": list(self._first),
            "nodes": [
                {**row, "attrs": {**row["attrs"], "T": f"type: {row['dtype']}"}} for row in self.get_graph_nodes()
            ],
        }

    def _write(self, name: str, text: str) -> None:
        (self.folder / name).write_text(text, encoding="utf-8")
