"""Extraction: a network's optimized graph, cut into kernels and tuning tasks.

It is deterministic and takes seconds, so a run extracts once and passes the result on.
"""

from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

from retune.compiler.core.input_shapes import fixed_shapes
from retune.compiler.core.target import Target
from retune.compiler.driver.compile_network import BuildKernels, compile_graph
from retune.compiler.driver.dispatch import suppress_dispatch_warnings
from retune.compiler.driver.hardware import hardware_of
from retune.compiler.driver.parallel_build import build_in_parallel
from retune.compiler.frontend import zoo
from retune.compiler.frontend.network import load_network
from retune.compiler.graph.ir import Graph
from retune.compiler.graph.partition.partition import Partition, partition
from retune.compiler.graph.partition.winograd import winograd_for
from retune.compiler.graph.pipeline import optimize, prepare
from retune.compiler.graph.precision.assign import assign_precisions
from retune.compiler.graph.precision.layers import Assignment
from retune.compiler.measure.record import TaskProgram
from retune.compiler.runtime.executor.network import CompiledNetwork
from retune.compiler.schedule.task import SampledShape, SearchTask


class Extracted:
    """A network or an operator that is ready to be tuned: `source` as it was asked for, its tuning `tasks` with their
    `weights`, and the bytes of all weights of the network. Tasks with the same number in `layers` compute the same,
    and only the fastest of them will run: each of the `ways` is a task, its weight and its layer. A network of dynamic
    shapes has a `sample` of the shapes that it is tuned for.

    It has slots and no `__dict__`: as a parameter of a flow, Prefect stores its name and does not write it as JSON.
    """

    __slots__ = ("constant_bytes", "layers", "name", "sample", "source", "target", "tasks", "threads", "weights")

    def __init__(
        self,
        source: str,
        name: str,
        target: Target,
        threads: int,
        ways: Sequence[tuple[SearchTask, int, int]],
        constant_bytes: int = 0,
        sample: Sequence[SampledShape] = (),
    ) -> None:
        self.source = source
        self.name = name
        self.target = target
        self.threads = threads
        self.tasks = tuple(task for task, _, _ in ways)
        self.weights = tuple(weight for _, weight, _ in ways)
        self.layers = tuple(layer for _, _, layer in ways)
        self.constant_bytes = constant_bytes
        self.sample = tuple(sample)

    @property
    def ways(self) -> list[tuple[int, tuple[SearchTask, ...]]]:
        """The weight of each layer, and the tasks that compute it."""
        weights = dict(zip(self.layers, self.weights, strict=True))
        pairs = list(zip(self.layers, self.tasks, strict=True))
        return [(weight, tuple(task for layer, task in pairs if layer == own)) for own, weight in weights.items()]

    @property
    def task_keys(self) -> tuple[str, ...]:
        """The workload keys of the tuning tasks, in their order."""
        return tuple(task.workload_key for task in self.tasks)


class ExtractedNetwork(Extracted):
    """A network that can also be compiled: its `graph`, optimized, and its kernels, the `partition`."""

    __slots__ = ("graph", "partition")

    def __init__(self, source: str, target: Target, threads: int, graph: Graph, cut: Partition) -> None:
        ways = [(task, layer.weight, number) for number, layer in enumerate(cut.layers()) for task in layer.tasks]
        constant_bytes = sum(array.nbytes for array in graph.constants.values())
        super().__init__(source, graph.name, target, threads, ways, constant_bytes)
        self.graph = graph
        self.partition = cut

    def compile(
        self, best: Mapping[str, TaskProgram], build: BuildKernels = build_in_parallel, *, release: bool = False
    ) -> CompiledNetwork:
        """The network with the programs `best`, as by `compile_graph`; a report says which kernels have none."""
        with suppress_dispatch_warnings():
            return compile_graph(
                self.graph, self.target, best, threads=self.threads, cut=self.partition, build=build, release=release
            )


class ImportedNetwork:
    """A network that is imported once, when that is first needed, and extracted as often as needed.

    `network` is a name of the zoo or the path of an ONNX file; `shapes` fixes dynamic inputs, each by a string such as
    `image=1,3,224,224`. It has slots as `Extracted` has.
    """

    __slots__ = ("_assignment", "_begun", "_graph", "network", "shapes")

    def __init__(self, network: str, shapes: Sequence[str] = ()) -> None:
        self.network = network
        self.shapes = fixed_shapes(shapes, "tuning")
        self._graph: Graph | None = None
        self._assignment = Assignment()
        self._begun: tuple[tuple[str, int, bool], Future[ExtractedNetwork]] | None = None

    def __str__(self) -> str:
        return self.network

    def check(self, target: str = "") -> None:
        """Check that the network can be imported and that LLVM knows the target, if it is given. The zoo's networks can
        be imported, so they are read only if they are given shapes. Raises: as `extract`.
        """
        if target:
            hardware_of(Target(target), 1)
        if self.shapes or self.network not in zoo.NAMES:
            self._graph = load_network(self.network, shapes=self.shapes)

    def prepared(self) -> Graph:
        """The graph in the form in which precisions are assigned. Raises: ModelError."""
        return prepare(self._import_graph())

    def assign(self, assignment: Assignment) -> None:
        """Compute layers in these precisions from the next `extract` on."""
        self._assignment, self._begun = assignment, None

    def begin(self, target: str, threads: int, winograd: bool) -> None:
        """Begin in a thread what the next `extract` with these arguments returns."""
        pool = ThreadPoolExecutor(1)
        self._begun = (target, threads, winograd), pool.submit(self._extract, target, threads, winograd)
        pool.shutdown(wait=False)

    def extract(self, target: str, threads: int, winograd: bool = True) -> ExtractedNetwork:
        """Optimize and cut the network. `winograd` says whether convolutions may be computed in transformed spaces,
        where that is measured to be faster. Raises: ModelFormatError, UnsupportedOperatorError, DynamicShapeError,
        TargetError, OptionError.
        """
        begun, self._begun = self._begun, None
        asked = target, threads, winograd
        return begun[1].result() if begun and begun[0] == asked else self._extract(*asked)

    def _extract(self, target: str, threads: int, winograd: bool) -> ExtractedNetwork:
        graph = self._import_graph()
        if self._assignment.layers:
            graph = assign_precisions(prepare(graph), self._assignment)
        return extract_part(self.network, graph, Target(target), threads, winograd)

    def _import_graph(self) -> Graph:
        self._graph = self._graph or load_network(self.network, shapes=self.shapes)
        return self._graph


def extract_network(
    network: str, target: str, threads: int, shapes: Sequence[str] = (), winograd: bool = True
) -> ExtractedNetwork:
    """Read, optimize and cut `network`, see `ImportedNetwork`. Raises: as its `extract`."""
    return ImportedNetwork(network, shapes).extract(target, threads, winograd)


def extract_part(
    network: str, graph: Graph, target: Target, threads: int, winograd: bool = True, names: set[str] | None = None
) -> ExtractedNetwork:
    """Optimize and cut a graph, which is `network` or a part of it. Kernels get other names than those in `names`, to
    which theirs are added.
    """
    graph = optimize(graph)
    rewrites = winograd_for(target) if winograd else ()
    cut = partition(graph, target, hardware_of(target, threads), rewrites, names)
    return ExtractedNetwork(network, target, threads, graph, cut)
