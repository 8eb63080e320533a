"""The command `retune compile`: compiles a network with its best records and names the kernels that have none.

Nothing is measured and Prefect is not started; the flow `compile-network` times the best programs again.
"""

from pathlib import Path
from typing import Annotated, Any

import typer

from retune.compiler import config
from retune.compiler.driver.compile_network import compile_graph
from retune.compiler.driver.coverage import CoverageReport
from retune.compiler.driver.dispatch import ApplyHistoryBest, telling_nothing
from retune.compiler.driver.extract import ExtractedNetwork, extract_network
from retune.compiler.driver.hardware import target_on
from retune.compiler.driver.operators import label_of
from retune.compiler.executor.library import Library, require_suffix
from retune.compiler.measure.cuda_runner import gpu_here, gpu_of_key
from retune.compiler.measure.record import BestProgram, MeasureRecord
from retune.compiler.options import TuneOptions, tune_options
from retune.compiler.runtime.arguments import require_thread_count
from retune.compiler.runtime.atomic_write import require_writable
from retune.compiler.runtime.cuda_driver import GpuDevice
from retune.compiler.target import Target
from retune.flows.commands.arguments import Network, Shapes, Store, home_of, option_of
from retune.flows.commands.output import Json, Output, Quiet
from retune.flows.parameters import add_options
from retune.storage.parquet import ParquetRecordStore
from retune.storage.store_url import Place

HOST = "llvm"
"""The target of this machine."""


def compile_network(
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
    as_json: Json = False,
    quiet: Quiet = False,
    **given: Any,
) -> None:
    """Compile a network with the best records there are, measuring nothing. Prints which kernels have no record."""
    output = Output(as_json, quiet)
    options = TuneOptions.of(config.load(), **given)
    count, target = options.threads or config.thread_count(config.usable_cores()), options.target
    require_thread_count(count)
    number = gpu_of_key(Target(target or HOST).traits.device)
    gpu = None if number is None else gpu_here(number)
    if gpu is not None and not Target(target or HOST).arch:
        target = str(target_on(Target(target or HOST), gpu))
    path = to or Path(f"{label_of(network)}.retune")
    require_suffix(path)
    # Before the work, which takes minutes for a large network.
    require_writable(path)
    extracted = extract_network(network, target or HOST, count, tuple(shape or ()), options.winograd)
    with ApplyHistoryBest(list(log or ())), telling_nothing():
        compiled = compile_graph(
            extracted.graph,
            extracted.target,
            BestProgram.of_each(known_records(extracted, home_of(store), gpu)),
            threads=extracted.threads,
            cut=extracted.partition,
        )
    Library(compiled).export_library(path)
    coverage = CoverageReport.of(compiled.coverage)
    lines = [f"{coverage}", coverage.fallback_text() or "no kernel worth tuning uses the default schedule", f"{path}"]
    output.say("\n".join(lines), **coverage_fields(coverage), network=path)


add_options(compile_network, tune_options("threads", "target", "winograd"), option_of)


def known_records(extracted: ExtractedNetwork, home: Place, gpu: GpuDevice | None) -> dict[str, MeasureRecord]:
    """The best records of the network's tasks on this machine; for a GPU that this one lacks, of all machines."""
    known = ParquetRecordStore(home).best_per_task(**record_scope(extracted, gpu))
    return {key: known[key] for key in extracted.task_keys if key in known}


def record_scope(extracted: ExtractedNetwork, gpu: GpuDevice | None) -> dict[str, Any]:
    """Which records count for a network here, as arguments of a store's queries: target, device and threads."""
    device: str | None = config.device_name()
    threads: int | None = extracted.threads
    if not extracted.target.traits.uses_threads:
        # A GPU's records count for any number of CPU threads, and where this machine lacks the GPU those of all
        # machines.
        device = gpu.identity if gpu is not None and gpu.arch == extracted.target.arch else None
        threads = None
    return {"target": str(extracted.target), "device": device, "threads": threads}


def coverage_fields(coverage: CoverageReport) -> dict[str, Any]:
    """What `--json` says of a network's kernels."""
    fallbacks = [
        {"kernel": kernel.task, "task_key": kernel.workload_key, "uses": kernel.weight, "note": kernel.note}
        for kernel in coverage.fallbacks
    ]
    shares = {str(share.origin): share.share_of_flops for share in coverage.shares}
    counts = {"kernels": len(coverage.kernels), "tunable": len(coverage.tunable)}
    return {**counts, "fallbacks": fallbacks, "shares": shares}
