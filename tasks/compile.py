"""The Prefect task that compiles a network with its winners.

A kernel without a winner uses the default schedule, and the file says so.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from prefect import task
from prefect.cache_policies import NO_CACHE

from retune.compiler.driver.compile_network import reuse_kernels
from retune.compiler.driver.parallel_build import build_in_parallel
from retune.compiler.measure.record import TaskProgram
from retune.compiler.runtime.artifact import KernelArtifact
from retune.compiler.runtime.kernel_row import KernelRow
from retune.compiler.tune.extract_dynamic import AnyNetwork, ExtractedDynamic


@dataclass(frozen=True, slots=True)
class SavedNetwork:
    """A compiled network's file and its kernels."""

    path: Path
    kernels: tuple[KernelRow, ...]


@task(name="compile", task_run_name="compile-{label}", cache_policy=NO_CACHE)
def compile_to(
    label: str,
    extracted: AnyNetwork,
    best: Mapping[str, TaskProgram],
    path: Path,
    kernels: Mapping[tuple[str, str], KernelArtifact],
    instances: int = 1,
) -> SavedNetwork:
    """Compile a network with the best program of each task, by workload key, and save it at `path`. `kernels` are those
    that were built when the programs were confirmed. What the kernels use is in the report, and not logged. The file
    says how many `instances` are meant to run at a time.
    """
    if isinstance(extracted, ExtractedDynamic):
        compiled = extracted.compile(best)
        return SavedNetwork(compiled.save(path), compiled.coverage)
    network = extracted.compile(best, build=reuse_kernels(kernels, build_in_parallel))
    if instances > 1:
        network = replace(network, metadata={**network.metadata, "instances": instances})
    return SavedNetwork(network.save(path), network.coverage)
