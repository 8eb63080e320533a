"""Networks of fixed and of dynamic shapes: which of them a request is for, and the compilation of the latter."""

from collections.abc import Sequence

from retune.compiler.core.errors import OptionError
from retune.compiler.core.input_shapes import has_sizes, parse_shapes
from retune.compiler.core.target import Target
from retune.compiler.frontend.network import load_network_program
from retune.compiler.graph.precision.layers import FLOAT32
from retune.compiler.tune.extract import ImportedNetwork
from retune.compiler.tune.extract_dynamic import AnyImport, DynamicNetwork, compile_program
from retune.compiler.vm.compiler import VMCompiler
from retune.flows.parameters import THROUGHPUT, TuneJob
from retune.storage.store_url import Location
from retune.tasks.find_programs import symbolic_programs


def compile_dynamic(
    network: str, shapes: Sequence[str], target: str, threads: int, precision: str | None, home: Location
) -> VMCompiler:
    """Compile a network whose shapes may change, with `shapes` as `parse_shapes` reads them, and the best programs for
    distributions of shapes that the store at `home` has.

    Raises: ModelError, TargetError, StoreError; OptionError for a shape, and for a precision of fixed shapes.
    """
    _require_float32(precision)
    program = load_network_program(network, shapes=parse_shapes(shapes))
    machine = Target(target)
    return compile_program(program, machine, threads, symbolic_programs(home, str(machine), threads))


def import_network(job: TuneJob) -> AnyImport:
    """The network of a job, which is read when it is first needed. Raises: OptionError."""
    options = job.options
    if not (has_sizes(job.shapes) or options.sample):
        return ImportedNetwork(job.network, job.shapes)
    _require_float32(options.precision)
    if options.fleet or options.objective == THROUGHPUT:
        raise OptionError(
            "ranges of extents are tuned for the latency on this machine: give no fleet and no throughput"
        )
    return DynamicNetwork(job.network, job.shapes, options.sample, options.seed)


def _require_float32(precision: str | None) -> None:
    if precision not in (None, FLOAT32):
        raise OptionError(f"precision {precision} is for fixed shapes: leave it out, or give each extent as a number")
