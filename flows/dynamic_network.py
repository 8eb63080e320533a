"""Compiles and tunes networks of dynamic shapes, in this process and without Prefect.

Kernels are tuned for a sample of the network's shapes. Confirmed programs become records, which every later compilation
of the network uses.
"""

from collections.abc import Callable, Sequence

from retune.compiler.core.errors import OptionError
from retune.compiler.core.input_shapes import parse_shape
from retune.compiler.core.target import Target
from retune.compiler.frontend.network import load_network_program
from retune.compiler.graph.precision.layers import FLOAT32
from retune.compiler.measure.measurer import LocalMeasurer
from retune.compiler.runtime.readable import milliseconds
from retune.compiler.tune.by_shape import log_uniform, read_sample, tune_by_shape, with_shapes
from retune.compiler.tune.tuning import RunHeader
from retune.compiler.tune.tuning_loop import Budget
from retune.compiler.tune.winners import Confirmation, confirmations, record_candidates
from retune.compiler.vm.compiler import VMCompiler
from retune.compiler.vm.subgraph import is_symbolic
from retune.flows.parameters import THROUGHPUT, TuneJob
from retune.storage.files import new_id
from retune.storage.parquet import ParquetRecordStore
from retune.storage.store_url import Location
from retune.tasks.find_programs import best_programs


def compile_dynamic(
    network: str, shapes: Sequence[str], target: str, threads: int, precision: str | None, home: Location
) -> VMCompiler:
    """Compile a network whose shapes may change, with `shapes` as `parse_shape` reads them, and the best programs for
    distributions of shapes that the store at `home` has.

    Raises: ModelError, TargetError, StoreError; OptionError for a shape, and for a precision of fixed shapes.
    """
    if precision not in (None, FLOAT32):
        raise OptionError(f"precision {precision} is for fixed shapes: leave it out, or give each extent as a number")
    program = load_network_program(network, shapes=dict(map(parse_shape, shapes)))
    known = best_programs(home, str(Target(target)), threads).items()
    compiler = VMCompiler(threads=threads, best={key: best for key, best in known if is_symbolic(key)})
    compiler.lower(program, target)
    compiler.codegen()
    return compiler


def tune_dynamic(job: TuneJob, tell: Callable[[str], None], trials_each: int | None = None) -> VMCompiler:
    """Spend the budget of `job`, or `trials_each` for each kernel worth tuning, and compile the network with the
    programs found. `tell` is called with lines about the progress.

    Raises: as `compile_dynamic`; OptionError when no kernel can be tuned; MeasureError.
    """
    if job.options.fleet or job.options.objective == THROUGHPUT:
        raise OptionError(
            "ranges of extents are tuned for the latency on this machine: give no fleet and no throughput"
        )
    compiler = _compile(job)
    program = compiler.get_exec().program
    if job.options.sample:
        sample = read_sample(job.options.sample, program)
    else:
        ranges = {symbol: (max(low, 1), high) for symbol, (low, high) in program.ranges.items()}
        sample = log_uniform(ranges, seed=job.options.seed)
    shaped = [(with_shapes(task, symbols, sample), weight) for task, weight, symbols in compiler.symbolic_tasks]
    tasks = [(task, float(weight)) for task, weight in shaped if task is not None]
    if not tasks:
        raise OptionError(
            f"{job.network} has no kernel to tune whose extents all have ranges: give one for each symbol"
        )
    budget = Budget(trials_each * len(tasks), None) if trials_each else job.budget
    measuring = job.measuring(sum(array.nbytes for array in program.constants.values()))
    with LocalMeasurer.with_options(measuring) as measurer:
        options = job.options
        confirmed = tune_by_shape(
            tasks, measurer, budget, seed=options.seed, tell=tell, patience=options.early_stopping
        )
    _store(job, confirmed, job.run_info(new_id(), measuring))
    for winner in confirmed:
        tell(
            f"{winner.task.name}: {milliseconds(winner.seconds)} ms, default {milliseconds(winner.default_seconds)} ms"
        )
    return _compile(job)


def _compile(job: TuneJob) -> VMCompiler:
    return compile_dynamic(job.network, job.shapes, job.target, job.threads, job.options.precision, job.location)


def _store(job: TuneJob, confirmed: Sequence[Confirmation], run_info: RunHeader) -> None:
    """Store the programs that were confirmed, and their times."""
    winners, records = record_candidates(confirmed, run_info, new_id)
    ParquetRecordStore(job.location).append([*records, *confirmations(winners, run_info, new_id)])
