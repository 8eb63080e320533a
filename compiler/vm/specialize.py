"""Compiles the regions of an executable for the input shapes that calls bring.

Until a region is compiled NumPy computes it, with equal results. Each region keeps its compiled forms for the shapes
(and values of inputs that determine shapes) of its last calls.
"""

import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property

from retune.compiler.core.errors import RetuneError, UnknownValueError
from retune.compiler.core.target import Target
from retune.compiler.graph.ir import Graph
from retune.compiler.graph.partition.memoize import MemoizedConstants, cache_constants
from retune.compiler.graph.region import Region, Shape
from retune.compiler.runtime.artifact import Array
from retune.compiler.runtime.executor.executors import gpu_count
from retune.compiler.runtime.kernel_row import KernelRow
from retune.compiler.vm.device_run import DeviceRun
from retune.compiler.vm.kernel_store import STORE
from retune.compiler.vm.plan_run import Callee, PlanRun
from retune.compiler.vm.program_constants import POOL
from retune.compiler.vm.resources import BACKGROUND, Resources
from retune.compiler.vm.subgraph import TunedPrograms, compile_subgraph
from retune.compiler.vm.symbolic_plan import SymbolicPlan
from retune.compiler.vm.values import passed_inputs

_log = logging.getLogger(__name__)
Key = tuple[tuple[Shape, ...], tuple[tuple[str, bytes], ...]]
Run = PlanRun | DeviceRun


@dataclass(frozen=True, slots=True)
class Specialization:
    """A region, ready for inputs of some shapes: what its kernels were built from, the seconds that it took, and how
    many kernels had to be built for it.
    """

    region: str
    shapes: Mapping[str, Shape]
    coverage: tuple[KernelRow, ...]
    seconds: float
    built: int

    def __str__(self) -> str:
        shapes = ", ".join(f"{name} {list(shape)}" for name, shape in self.shapes.items())
        origins = [row.origin for row in self.coverage if row.tunable]
        counts = ", ".join(f"{origins.count(origin)} {origin}" for origin in dict.fromkeys(origins))
        return f"{self.region}({shapes}): {self.seconds:.2f} s, {self.built} kernels built; {counts or 'none to tune'}"


@dataclass(slots=True)
class _Entry:
    """A graph until it is compiled, and then the code."""

    passed: tuple[int, ...]
    graph: Graph | None
    run: Run | None = None
    report: Specialization | None = None
    waits: "Future[None] | None" = None


class RegionCompiler:
    """Compiles the regions of one machine."""

    def __init__(self, resources: Resources, constants: Mapping[str, Array]) -> None:
        """`constants` are those of the program."""
        self.library = resources.library
        self.constants = constants
        self.options = resources.options
        self._resources = resources
        self._programs = TunedPrograms(self.library.programs)
        self._warned: set[str] = set()
        self.memoized = MemoizedConstants(self.options.prepared_bytes)

    @cached_property
    def target(self) -> Target:
        """What is compiled for. Raises: TargetError."""
        return Target(str(self.library.about.get("target", "llvm")))

    @cached_property
    def pool(self) -> ThreadPoolExecutor:
        """Where regions are compiled in the background, one after the other."""
        # One thread: compilations would compete with each other and with the calls for cores.
        return ThreadPoolExecutor(1, "retune-vm")

    def tell(self, name: str, shapes: Mapping[str, Shape], error: Exception) -> None:
        """Say, once for each error, that a region could not be compiled."""
        text = f"{type(error).__name__}: {error}"
        # Once for each cause: a shape is met on every call.
        if text not in self._warned:
            self._warned.add(text)
            where = None if isinstance(error, RetuneError) else error  # which is a bug of ours
            _log.warning("region %s is left to NumPy for %s: %s", name, dict(shapes), text, exc_info=where)

    def compile(self, graph: Graph, name: str, shapes: Mapping[str, Shape]) -> tuple[Run, Specialization]:
        """Compile a graph. Raises: an error of ours when it cannot be."""
        start, before = time.perf_counter(), STORE.use.built
        with cache_constants(self.memoized):
            network = compile_subgraph(graph, self.target, self._resources.threads, self._programs)
        kernels = {kernel.name: STORE.kernel(kernel) for kernel in network.kernels if kernel.device is None}
        run: Run
        if gpu_count(network):
            run = DeviceRun(network, kernels, self._resources)
        else:
            constants = {number: POOL.intern(array) for number, array in network.constants.items()}
            run = PlanRun(SymbolicPlan(network.plan), kernels, constants, {}, self._resources)
        built = STORE.use.built - before
        return run, Specialization(name, dict(shapes), network.coverage, time.perf_counter() - start, built)


class SpecializedRegion:
    """A region that is compiled for each set of shapes."""

    def __init__(self, region: Region, fixed: Mapping[str, Array], compiler: RegionCompiler, meanwhile: Callee) -> None:
        """`meanwhile` computes the region while there are no kernels for a shape."""
        self.name = region.name
        self._region = region
        self._fixed = dict(fixed)
        self._compiler = compiler
        self._meanwhile = meanwhile
        self._passed = passed_inputs(region, fixed)
        self._needed = {name for name in region.determining if name not in fixed}
        self._entries: OrderedDict[Key, _Entry] = OrderedDict()
        self._lock = threading.Lock()

    @property
    def reports(self) -> tuple[Specialization, ...]:
        """Reports on the compiled graphs that are kept, in the order of their last use."""
        with self._lock:
            return tuple(entry.report for entry in self._entries.values() if entry.report is not None)

    def __call__(self, inputs: Sequence[Array]) -> Sequence[Array]:
        """The results. Raises: an error of ours when the inputs do not fit."""
        entry = self._entry(inputs)
        if entry.waits is not None and entry.waits.done():
            entry.waits = None
        if entry.run is not None:
            return entry.run([inputs[number] for number in entry.passed])
        # The kernels are being compiled.
        return self._meanwhile(inputs)

    def wait(self) -> None:
        """Wait for what is compiled in the background."""
        for entry in list(self._entries.values()):
            if entry.waits is not None:
                entry.waits.result()

    def _key(self, inputs: Sequence[Array]) -> Key:
        shapes = tuple([array.shape for array in inputs])
        if not self._needed:
            return shapes, ()
        # By content: equal values in different arrays make the same graph.
        return shapes, tuple((name, array.tobytes()) for name, array in self._values(inputs).items())

    def _values(self, inputs: Sequence[Array]) -> dict[str, Array]:
        named = zip(self._passed, inputs, strict=True)
        return {name: array for name, array in named if name in self._needed}

    def _entry(self, inputs: Sequence[Array]) -> _Entry:
        key = self._key(inputs)
        entry = self._entries.get(key)
        if entry is None:
            return self._new(inputs)
        if len(self._entries) > 1:
            self._entries.move_to_end(key)
        return entry

    def _new(self, inputs: Sequence[Array]) -> _Entry:
        """Make the graph for shapes that were not met yet, and compile it if that is wanted now."""
        shapes = {name: array.shape for name, array in zip(self._passed, inputs, strict=True)}
        graph = self._graph(shapes, inputs)
        numbers = {name: number for number, name in enumerate(self._passed)}
        passed = tuple(numbers[value.name] for value in graph.inputs if value.name in numbers)
        entry = _Entry(passed, graph)
        policy = self._compiler.options.specialize
        if policy == BACKGROUND:
            entry.waits = self._compiler.pool.submit(self._compile_quietly, entry, shapes)
        else:
            self._compile(entry, shapes)
        with self._lock:
            self._entries[self._key(inputs)] = entry
            while len(self._entries) > self._compiler.options.specializations:
                # LRU: a server that sees ever new lengths must not keep kernels of all of them.
                self._entries.popitem(last=False)
        return entry

    def _graph(self, shapes: Mapping[str, Shape], inputs: Sequence[Array]) -> Graph:
        """The region's graph. More inputs than the region said may turn out to decide on shapes."""
        shapes = {**shapes, **{name: array.shape for name, array in self._fixed.items()}}
        constants = self._compiler.constants
        # Ends: each round but the last adds an input to `_needed`, of which there are finitely many.
        while True:
            try:
                with cache_constants(self._compiler.memoized):
                    return self._region.specialize(shapes, self._values(inputs) | self._fixed, constants)
            except UnknownValueError as error:
                missing = set(error.inputs) & set(self._passed) - self._needed
                if not missing:
                    raise
                with self._lock:
                    self._needed |= missing
                    self._entries.clear()  # their keys do not have these values

    def _compile(self, entry: _Entry, shapes: Mapping[str, Shape]) -> None:
        assert entry.graph is not None, "an entry is compiled once"
        run, entry.report = self._compiler.compile(entry.graph, self.name, shapes)
        # The report is set before the run: who sees the run in another thread finds the report too. The graph is not
        # needed any longer, and holds its constants.
        entry.run, entry.graph = run, None
        _log.info("%s", entry.report)

    def _compile_quietly(self, entry: _Entry, shapes: Mapping[str, Shape]) -> None:
        """In the background an error has no caller: NumPy goes on computing, and a warning says why."""
        try:
            self._compile(entry, shapes)
        except Exception as error:  # of any kind: it would be lost otherwise
            self._compiler.tell(self.name, shapes, error)
