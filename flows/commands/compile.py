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
from retune.compiler.errors import OptionError
from retune.compiler.executor.library import Library, require_suffix
from retune.compiler.measure.cuda_runner import gpu_here
from retune.compiler.measure.record import MeasureRecord
from retune.compiler.runtime.arguments import MOST_THREADS, is_thread_count
from retune.compiler.runtime.cuda_driver import GpuDevice
from retune.compiler.runtime.published import require_writable
from retune.compiler.target import Target
from retune.flows.commands.arguments import Network, Shapes, Store, TargetText, Threads, home_of
from retune.flows.commands.output import Json, Output, Quiet
from retune.storage.parquet import ParquetRecordStore
from retune.storage.place import Place

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
    threads: Threads = None,
    target: TargetText = None,
    shape: Shapes = None,
    winograd: Annotated[bool, typer.Option(help="Let Winograd's transforms serve where records say so.")] = True,
    store: Store = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Compile a network with the best records there are, measuring nothing. Prints which kernels have no record."""
    output = Output(as_json, quiet)
    count = config.thread_count(config.usable_cores()) if threads is None else threads
    if not is_thread_count(count):
        raise OptionError(f"threads must be a whole number from 1 to {MOST_THREADS}, not {count}")
    gpu = gpu_here(0) if Target(target or HOST).is_gpu else None
    if gpu is not None and not Target(target or HOST).arch:
        target = str(target_on(Target(target or HOST), gpu))
    path = to or Path(f"{label_of(network)}.retune")
    require_suffix(path)
    require_writable(path)
    extracted = extract_network(network, target or HOST, count, tuple(shape or ()), winograd)
    with ApplyHistoryBest(list(log or ())), telling_nothing():
        compiled = compile_graph(
            extracted.graph,
            extracted.target,
            _records(extracted, home_of(store), gpu),
            threads=extracted.threads,
            cut=extracted.partition,
        )
    Library(compiled).export_library(path)
    coverage = CoverageReport.of(compiled.coverage)
    lines = [f"{coverage}", coverage.fallback_text() or "no kernel worth tuning uses the default schedule", f"{path}"]
    output.say("\n".join(lines), **_fields(coverage), network=path)


def _records(extracted: ExtractedNetwork, home: Place, gpu: GpuDevice | None) -> dict[str, MeasureRecord]:
    """The best records of the network's tasks on this machine; for a GPU that this one lacks, of all machines."""
    device: str | None = config.device_name()
    threads: int | None = extracted.threads
    if extracted.target.is_gpu:
        device = gpu.identity if gpu is not None and gpu.arch == extracted.target.arch else None
        threads = None  # of the host, which computes nothing
    known = ParquetRecordStore(home).best_per_task(target=str(extracted.target), device=device, threads=threads)
    return {key: known[key] for key in extracted.task_keys if key in known}


def _fields(coverage: CoverageReport) -> dict[str, Any]:
    fallbacks = [
        {"kernel": kernel.task, "task_key": kernel.workload_key, "uses": kernel.weight, "note": kernel.note}
        for kernel in coverage.fallbacks
    ]
    shares = {str(share.origin): share.share_of_flops for share in coverage.shares}
    counts = {"kernels": len(coverage.kernels), "tunable": len(coverage.tunable)}
    return {**counts, "fallbacks": fallbacks, "shares": shares}
