"""Builds the kernels of a network in several processes, where that pays."""

import logging
from collections.abc import Sequence

from retune.compiler.core.config import usable_cpus
from retune.compiler.driver.compile_network import BUILD_ERRORS, BuildError, ChosenProgram, build_in_process
from retune.compiler.ir import trace
from retune.compiler.measure.processes.worker_pool import WorkerPool
from retune.compiler.measure.processes.worker_process import WorkerProcess
from retune.compiler.runtime.artifact import KernelArtifact

_log = logging.getLogger(__name__)

_BUILD = "retune.compiler.codegen.build:build_kernel"
_KERNELS_EACH = 24
"""A process takes as long to start as it takes to build so many kernels."""


def build_in_parallel(programs: Sequence[ChosenProgram]) -> list[KernelArtifact | BuildError]:
    """Build the kernels in processes, a core and 24 kernels or more for each; in this process where they are few, or
    where their stages are to be printed.
    """
    processes = min(len(usable_cpus()), len(programs) // _KERNELS_EACH)
    if processes < 2 or trace.is_active():
        return build_in_process(programs)
    pool = WorkerPool([WorkerProcess() for _ in range(processes)])
    try:
        return pool.map(_build, programs)
    except Exception as error:
        # Processes may be forbidden or killed, and cannot know what was registered in this process.
        _log.warning("building the kernels in one process, since others failed: %s", error)
        return build_in_process(programs)
    finally:
        pool.stop()
        pool.close()


def _build(worker: WorkerProcess, program: ChosenProgram) -> KernelArtifact | BuildError:
    try:
        kernel: KernelArtifact = worker.call(_BUILD, program.task, program.steps, program.task.name)
    except BUILD_ERRORS as error:
        return error
    return kernel
