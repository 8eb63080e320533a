"""Extraction of a network of dynamic shapes: its kernels with symbolic extents, each a tuning task with a sample of
shapes.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from retune.compiler.core.errors import OptionError
from retune.compiler.core.input_shapes import parse_shapes
from retune.compiler.core.target import Target
from retune.compiler.driver.hardware import hardware_of
from retune.compiler.frontend.network import load_network_program
from retune.compiler.graph.program import Program
from retune.compiler.measure.record import TaskProgram
from retune.compiler.runtime.kernel_row import KernelRow
from retune.compiler.schedule.task import SampledShape, SearchTask
from retune.compiler.tune.by_shape import sample_of, with_shapes
from retune.compiler.tune.extract import Extracted, ExtractedNetwork, ImportedNetwork
from retune.compiler.vm.compiler import VMCompiler
from retune.compiler.vm.executable import Executable


@dataclass(frozen=True, slots=True)
class CompiledDynamic:
    """A compiled network of dynamic shapes, and a row on each of its kernels."""

    executable: Executable
    coverage: tuple[KernelRow, ...]

    def save(self, path: Path) -> Path:
        """Write the network into a file. Raises: ArtifactError."""
        path.parent.mkdir(parents=True, exist_ok=True)
        self.executable.export_library(path)
        return path


class ExtractedDynamic(Extracted):
    """A network of dynamic shapes, the `program`, that is ready to be tuned for the shapes in `sample`."""

    __slots__ = ("program",)

    def __init__(
        self, source: str, program: Program, target: Target, threads: int, sample: Sequence[SampledShape]
    ) -> None:
        tasks: dict[str, tuple[SearchTask, int]] = {}
        for task, weight, symbols in compile_program(program, target, threads).symbolic_tasks:
            shaped = with_shapes(task, symbols, sample)
            if shaped is not None:
                first, known = tasks.get(shaped.workload_key, (shaped, 0))
                tasks[shaped.workload_key] = first, known + weight
        if not tasks:
            raise OptionError(f"{source} has no kernel to tune whose extents all have ranges: give one for each symbol")
        ways = [(task, weight, number) for number, (task, weight) in enumerate(tasks.values())]
        constant_bytes = sum(array.nbytes for array in program.constants.values())
        super().__init__(source, program.name, target, threads, ways, constant_bytes, sample)
        self.program = program

    def compile(self, best: Mapping[str, TaskProgram]) -> CompiledDynamic:
        """The network with the programs `best`, by task key, for all shapes."""
        compiler = compile_program(self.program, self.target, self.threads, best)
        return CompiledDynamic(compiler.get_exec(), tuple(compiler.coverage.kernels))


class DynamicNetwork:
    """A network that is imported when it is first needed. `shapes` are as `parse_shapes` reads them, and `sample` the
    path of a file of shapes with weights, None for a sample over the ranges.

    It has slots as `Extracted` has.
    """

    __slots__ = ("_program", "network", "sample", "seed", "shapes")

    def __init__(self, network: str, shapes: Sequence[str] = (), sample: str | None = None, seed: int = 0) -> None:
        self.network = network
        self.shapes = parse_shapes(shapes)
        self.sample = sample
        self.seed = seed
        self._program: Program | None = None

    def __str__(self) -> str:
        return self.network

    @property
    def program(self) -> Program:
        """The network. Raises: ModelError; OptionError for shapes that do not fit."""
        self._program = self._program or load_network_program(self.network, shapes=self.shapes)
        return self._program

    def check(self, target: str = "") -> None:
        """Check that the network can be imported, that its sample fits, and that LLVM knows the target, if it is given.

        Raises: as `extract`.
        """
        if target:
            hardware_of(Target(target), 1)
        sample_of(self.program, self.sample, self.seed)

    def begin(self, target: str, threads: int, winograd: bool) -> None:
        """Nothing: the extraction compiles, which a thread beside it would only delay."""

    def extract(self, target: str, threads: int, winograd: bool = True) -> ExtractedDynamic:  # noqa: ARG002
        """Compile the network, and give the kernels worth tuning their shapes. Raises: ModelError, TargetError,
        OptionError.
        """
        sample = sample_of(self.program, self.sample, self.seed)
        return ExtractedDynamic(self.network, self.program, Target(target), threads, sample)


AnyNetwork = ExtractedNetwork | ExtractedDynamic
"""A network that is ready to be tuned."""
AnyImport = ImportedNetwork | DynamicNetwork
"""A network that can be extracted."""


def compile_program(
    program: Program, target: Target, threads: int, best: Mapping[str, TaskProgram] | None = None
) -> VMCompiler:
    """Compile a program for all shapes, with `best` programs by task key."""
    compiler = VMCompiler(threads=threads, best=best)
    compiler.lower(program, target)
    compiler.codegen()
    return compiler
