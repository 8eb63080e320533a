"""The command `retune compile`: compiles a network with its best records and names the kernels that have none.

Nothing is measured and Prefect is not started; the flow `compile-network` times the best programs again.
"""

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from retune.compiler.core import config
from retune.compiler.core.errors import ArtifactError, DynamicShapeError
from retune.compiler.core.input_shapes import has_sizes
from retune.compiler.core.options import TuneOptions, tune_options
from retune.compiler.core.target import Target
from retune.compiler.driver.dispatch import ApplyHistoryBest, suppress_dispatch_warnings
from retune.compiler.driver.hardware import target_on, threads_of
from retune.compiler.measure.runner import gpu_here, gpu_of_key
from retune.compiler.runtime.arguments import require_thread_count
from retune.compiler.runtime.atomic_write import require_writable
from retune.compiler.runtime.executor.library import NETWORK_SUFFIX, Library, require_suffix
from retune.compiler.runtime.kernel_row import CoverageReport
from retune.compiler.runtime.readable import count
from retune.compiler.tune.extract import ImportedNetwork
from retune.compiler.tune.operators import label_of
from retune.compiler.tune.precision.choose import choose_for_network
from retune.compiler.tune.precision.request import AUTO, PrecisionChoice, PrecisionRequest, require_precision
from retune.flows.cli.commands.arguments import Network, Shapes, Store, home_of, option_of
from retune.flows.cli.commands.output import Output
from retune.flows.dynamic_network import compile_dynamic
from retune.flows.parameters import add_options
from retune.storage.store_url import Location
from retune.tasks.find_programs import best_programs, find_programs, threads_of_records

_log = logging.getLogger(__name__)

HOST = "llvm"
"""The target of this machine."""


def compile_network(
    output: Output,
    network: Network,
    to: Annotated[
        Path | None, typer.Option("--output", "-o", help="The file: .retune, or .so. Default: NAME.retune, here.")
    ] = None,
    log: Annotated[
        list[Path] | None,
        typer.Option(help="A tuning log in TVM's form, or a folder of them, where the store has no record."),
    ] = None,
    *,
    shape: Shapes = None,
    store: Store = None,
    **given: object,
) -> None:
    """Compile a network with the best records there are; only `--precision auto` measures. Prints which kernels have no
    record.
    """
    options = TuneOptions.of(config.load(), **given)
    require_precision(options, given)
    machine = Target(options.target or HOST)
    threads = threads_of(machine, options.threads)
    require_thread_count(threads)
    gpu_number = gpu_of_key(machine.traits.device)
    gpu = None if gpu_number is None else gpu_here(gpu_number)
    if gpu is not None and not machine.arch:
        machine = target_on(machine, gpu)
    path = to or Path(f"{label_of(network)}.retune")
    require_suffix(path)
    # Before the work, which takes minutes for a large network.
    require_writable(path)
    texts = tuple(shape or ())
    imported = None if has_sizes(texts) else _import(network, texts)
    if imported is None:
        with suppress_dispatch_warnings(), ApplyHistoryBest(list(log or ())):
            lines, fields = _compile_dynamic(network, texts, options, str(machine), threads, home_of(store), path)
        output.say("\n".join(lines), **fields, network=path)
        return
    choice = choose_precisions(imported, PrecisionRequest.of(options), options, threads, home_of(store))
    extracted = imported.extract(str(machine), threads, options.winograd)
    with ApplyHistoryBest(list(log or ())):
        compiled = extracted.compile(find_programs(extracted, home_of(store), gpu))
    Library(compiled).export_library(path)
    coverage = CoverageReport.of(compiled.coverage)
    lines = [f"{coverage}", coverage.fallback_text() or "no kernel worth tuning uses the default schedule", f"{path}"]
    counts = threads_of_records(extracted, home_of(store), gpu, {each.task_key for each in coverage.fallbacks})
    if counts:
        numbers = " and ".join(count(each, "thread") for each in counts)
        lines.insert(2, f"records of these kernels are for {numbers}: `--threads {counts[-1]}` uses them")
    fields = coverage_fields(coverage)
    if choice is not None:
        lines.insert(0, choice.text())
        fields["precision"] = choice.to_json()
    output.say("\n".join(lines), **fields, threads_of_records=counts, network=path)


add_options(
    compile_network,
    tune_options("threads", "target", "winograd", "precision", "tolerance", "metric", "calibrate"),
    option_of,
)


def _import(network: str, shapes: Sequence[str]) -> ImportedNetwork | None:
    """The network; None where its file has symbols as extents, and no shape is given."""
    imported = ImportedNetwork(network, shapes)
    try:
        imported.check()
    except DynamicShapeError:
        if shapes:
            raise
        return None
    return imported


def _compile_dynamic(
    network: str, shapes: Sequence[str], options: TuneOptions, target: str, threads: int, home: Location, path: Path
) -> tuple[list[str], dict[str, object]]:
    """Write the file of a network whose shapes may change; lines and fields to print."""
    if path.suffix != NETWORK_SUFFIX:
        raise ArtifactError(f"{path}: a network of dynamic shapes is written to {NETWORK_SUFFIX}")
    compiler = compile_dynamic(network, shapes, target, threads, options.precision, home)
    executable = compiler.get_exec()
    executable.export_library(path)
    program = executable.program
    ranges = {symbol: f"{low}..{high}" for symbol, (low, high) in program.ranges.items()}
    lines = [f"input {param}" for param in program.inputs]
    lines += [f"{symbol} is {ends}" for symbol, ends in ranges.items()]
    lines += [str(compiler.coverage)]
    lines += [f"compiled for each shape: {name}: {reason}" for name, reason in executable.per_shape.items()]
    lines += [f"compiled for each shape unless {limits}: {name}" for name, limits in executable.limits.items()]
    inputs = {param.name: {"dtype": param.dtype, "shape": param.dims} for param in program.inputs}
    facts = {"inputs": inputs, "ranges": ranges, "per_shape": executable.per_shape, "limits": executable.limits}
    return [*lines, str(path)], {**coverage_fields(compiler.coverage), **facts}


def choose_precisions(
    network: ImportedNetwork, request: PrecisionRequest, options: TuneOptions, threads: int, home: Location
) -> PrecisionChoice | None:
    """Assign precisions to the layers of a network; None for float32. Raises: OptionError."""
    if request.is_float32:
        return None
    target = str(Target(options.target or HOST))
    best = best_programs(home, target, threads) if request.precision == AUTO else {}
    choice = choose_for_network(network, request, target, threads, options.winograd, best, options.seed)
    if choice.warning:
        _log.warning("%s", choice.warning)
    network.assign(choice.assignment)
    return choice


def coverage_fields(coverage: CoverageReport) -> dict[str, object]:
    """The fields of `--json` about a network's kernels."""
    fallbacks = [
        {"kernel": kernel.name, "task_key": kernel.task_key, "uses": kernel.weight, "note": kernel.note}
        for kernel in coverage.fallbacks
    ]
    shares = {str(share.origin): share.share_of_flops for share in coverage.shares}
    counts = {"kernels": len(coverage.kernels), "tunable": len(coverage.tunable)}
    return {**counts, "fallbacks": fallbacks, "shares": shares}
