"""In: a network's name or file, a target, a thread count. Out: its optimised graph, cut into kernels and tuning
tasks.

Always: deterministic; a broken network is a `ModelError`.
"""

from functools import lru_cache
from pathlib import Path

from retune.compiler.driver.hardware import hardware_of
from retune.compiler.errors import OptionError
from retune.compiler.frontend.network import load_network
from retune.compiler.graph.ir import Graph
from retune.compiler.graph.partition import Partition, partition
from retune.compiler.graph.pipeline import optimize
from retune.compiler.graph.winograd import winograd_for
from retune.compiler.schedule.task import SearchTask
from retune.compiler.target import Target


class ExtractedNetwork:
    """A network that is ready to be tuned and compiled: `source` as it was asked for, `graph` optimised, `partition`
    its kernels.

    `tasks` are the tuning tasks with their `weights`; those with the same number in `layers` compute the same, and only
    the fastest of them will run.
    """

    def __init__(self, source: str, target: Target, threads: int, graph: Graph, cut: Partition) -> None:
        self.source = source
        self.target = target
        self.threads = threads
        self.graph = graph
        self.partition = cut
        ways = [(task, layer.weight, number) for number, layer in enumerate(cut.layers()) for task in layer.tasks]
        self.tasks: tuple[SearchTask, ...] = tuple(task for task, _, _ in ways)
        self.weights: tuple[int, ...] = tuple(weight for _, weight, _ in ways)
        self.layers: tuple[int, ...] = tuple(number for _, _, number in ways)

    @property
    def name(self) -> str:
        """A short name: that of the zoo, or the file's without its ending."""
        return self.graph.name

    @property
    def constant_bytes(self) -> int:
        """Bytes of all weights: what one run of the network has to read of them."""
        return sum(array.nbytes for array in self.graph.constants.values())

    @property
    def task_keys(self) -> tuple[str, ...]:
        """The workload keys of the tuning tasks, in their order."""
        return tuple(task.workload_key for task in self.tasks)


def extract_network(
    network: str, target: str, threads: int, shapes: tuple[str, ...] = (), winograd: bool = True
) -> ExtractedNetwork:
    """Read, optimise and cut `network`, which is a name of the zoo or the path of an ONNX file.

    `shapes` fixes dynamic inputs, each by a text such as `image=1,3,224,224`. `winograd` says whether convolutions may
    be computed in transformed spaces, where that is measured to be faster. Within a process the last answer is
    kept, for as long as the file does not change.
    Raises: ModelFormatError, UnsupportedOperatorError, DynamicShapeError, TargetError, OptionError.
    """
    path = Path(network)
    stamp = path.stat().st_mtime_ns if path.is_file() else 0
    return _extract(network, target, threads, shapes, winograd, stamp)


def parse_shape(text: str) -> tuple[str, tuple[int, ...]]:
    """The input and its shape that a text such as `image=1,3,224,224` names.

    Raises: OptionError.
    """
    name, sign, numbers = text.rpartition("=")
    extents = [number.strip() for number in numbers.split(",")]
    if not name or not sign or not all(extent.isdecimal() and int(extent) > 0 for extent in extents):
        raise OptionError(f"cannot read the shape {text!r}; write it as NAME=1,3,224,224")
    return name, tuple(map(int, extents))


@lru_cache(maxsize=1)
def _extract(
    network: str,
    target: str,
    threads: int,
    shapes: tuple[str, ...],
    winograd: bool,
    stamp: int,  # noqa: ARG001 - part of the cache's key
) -> ExtractedNetwork:
    machine = Target(target)
    graph = optimize(load_network(network, shapes=dict(map(parse_shape, shapes))))
    cut = partition(graph, machine, hardware_of(machine, threads), winograd_for(machine) if winograd else ())
    return ExtractedNetwork(network, machine, threads, graph, cut)
