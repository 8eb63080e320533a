"""In: an optimised graph, a target, the best known program of each task. Out: a `CompiledNetwork`.

Always: every distinct kernel is built once; a task without a usable program gets the default schedule, and the
network's `coverage` says so. Of several ways to compute a layer the one with the fastest record serves. What cannot be
made into code for a GPU is code for the processor, in the same network.
"""

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from retune.compiler import config
from retune.compiler.codegen.backend import backend_of, default_steps_of
from retune.compiler.codegen.build import build_kernel
from retune.compiler.driver.coverage import CoverageReport
from retune.compiler.driver.dispatch import DispatchContext, is_enabled, is_silent, telling_nothing
from retune.compiler.driver.hardware import hardware_of
from retune.compiler.errors import DefinitionError, LoweringError, ScheduleError
from retune.compiler.executor.network import CompiledNetwork, Coverage, Origin
from retune.compiler.graph.ir import Graph
from retune.compiler.graph.partition import Alternative, Partition, partition, with_alternatives
from retune.compiler.graph.to_plan import to_plan
from retune.compiler.graph.winograd import winograd_for
from retune.compiler.measure.record import FIRST_GUESS, FITTED_GUESS, BestProgram, MeasureRecord
from retune.compiler.runtime.artifact import KernelArtifact
from retune.compiler.schedule.layout import LayoutRewriteOption
from retune.compiler.schedule.state import State, replay
from retune.compiler.schedule.steps import Step, dump_steps, load_steps, steps_of
from retune.compiler.schedule.task import SearchTask
from retune.compiler.target import Target

_log = logging.getLogger(__name__)

_ORIGINS = {
    FIRST_GUESS: (Origin.GUESS, "a first guess of the search"),
    FITTED_GUESS: (Origin.TRANSFER, "fitted from a record of a similar kernel"),
}
"""Origin and note of programs by their `mutation`; all others are tuned."""

_BAD_PROGRAM = (DefinitionError, ScheduleError, LoweringError)


KnownProgram = BestProgram | MeasureRecord


@dataclass(frozen=True, slots=True)
class BuildRequest:
    """One kernel to build: `steps` applied to the task's compute graph, under the symbol `name`."""

    task: SearchTask
    steps: tuple[Step, ...]
    name: str


BuildKernels = Callable[[Sequence[BuildRequest]], Sequence[KernelArtifact]]
"""Builds many kernels, in order, maybe in parallel. Raises ScheduleError or LoweringError when one cannot be built."""


def build_in_process(requests: Sequence[BuildRequest]) -> list[KernelArtifact]:
    """Build one kernel after the other, here."""
    return [build_kernel(request.task, request.steps, request.name) for request in requests]


def reuse_kernels(built: Mapping[tuple[str, str], KernelArtifact]) -> BuildKernels:
    """Takes the kernels that were `built`, by workload key and steps text, and builds only the others."""

    def build(requests: Sequence[BuildRequest]) -> list[KernelArtifact]:
        found = [built.get((request.task.workload_key, dump_steps(request.steps))) for request in requests]
        return [
            kernel
            if kernel is not None and (kernel.name, kernel.target) == (request.name, str(request.task.target))
            else build_kernel(request.task, request.steps, request.name)
            for kernel, request in zip(found, requests, strict=True)
        ]

    return build


@dataclass(frozen=True, slots=True)
class _Choice:
    request: BuildRequest
    record_id: str | None
    origin: Origin
    note: str = ""
    on_processor: bool = False
    """Whether code for the processor is to serve although the network is for a GPU."""

    @property
    def label(self) -> str:
        """Where the program comes from, in words."""
        return f"record {self.record_id}" if self.record_id else "the guessed program"


def compile_graph(
    graph: Graph,
    target: Target,
    best: Mapping[str, KnownProgram] | None = None,
    *,
    threads: int = 1,
    cut: Partition | None = None,
    build: BuildKernels = build_in_process,
    metadata: Mapping[str, object] | None = None,
) -> CompiledNetwork:
    """Compile `graph`, which has been through the graph passes.

    `best` maps a workload key to the program to use, a `MeasureRecord` for instance; where it has none, a dispatch
    context that was entered is asked (`with ApplyHistoryBest(log):`), unless the pass context says not to. Where
    records are used, one warning names the kernels worth tuning that none serves; another one names those of a network
    for a GPU that run on the processor. `threads` is the number of threads that the network is meant to run on. `cut`
    is the partition, when the caller has it already; its alternatives are those that may serve. `metadata` takes the
    place of the facts that a network which is saved needs; to gather these all constants are read.
    Raises: DefinitionError or LoweringError when even a default schedule cannot be built.
    """
    cut = cut or partition(graph, target, hardware_of(target, threads), winograd_for(target))
    best = best or {}
    rewritten, cut = with_alternatives(graph, cut, fastest_alternatives(cut, best))
    with telling_nothing():
        choices = [
            _choose(task, best.get(task.workload_key), heavy)
            for task, heavy in zip(cut.tasks, cut.tunable, strict=True)
        ]
    choices, artifacts = _build(choices, build, threads)
    plan, constants = to_plan(rewritten, cut, {artifact.name: artifact for artifact in artifacts})
    coverage = tuple(
        Coverage(
            task.name, task.workload_key, weight, tunable, choice.record_id, choice.note, choice.origin, task.flop_count
        )
        for task, weight, tunable, choice in zip(cut.tasks, cut.weights, cut.tunable, choices, strict=True)
    )
    if metadata is None:  # the fingerprint reads all constants
        by_processor = any(choice.on_processor for choice in choices)
        facts = made_for(target, threads, by_processor=by_processor)
        metadata = {"network": graph.name, "fingerprint": graph.fingerprint(), **facts}
    network = CompiledNetwork(plan, tuple(artifacts), constants, coverage, metadata)
    network.verify()
    if (best or is_enabled()) and not is_silent() and (fallen := CoverageReport.of(coverage).fallback_text()):
        _log.warning("%s: %s", graph.name, fallen)
    if moved := [choice for choice in choices if choice.on_processor]:
        names = ", ".join(choice.request.name for choice in moved)
        _log.warning("%s: kernels without code for GPUs, which run on the processor: %s", graph.name, names)
    return network


def fastest_alternatives(cut: Partition, best: Mapping[str, KnownProgram]) -> tuple[Alternative, ...]:
    """Those alternatives that are known to be faster than the direct task and all others: by the programs in `best`, or
    else by what the dispatch context knows. A program that does not fit its task makes no alternative fast.
    """

    def seconds(task: SearchTask) -> float:
        known = best.get(task.workload_key)
        if known is not None:
            return known.seconds if _fits(task, known) else math.inf
        if not is_enabled():
            return math.inf
        return DispatchContext.current().expected_seconds(task.target, task.workload_key)

    found = []
    for task in cut.tasks:
        others = cut.alternatives_of(task)
        first = min(others, key=lambda other: seconds(other.task), default=None)
        if first is not None and seconds(first.task) < seconds(task):
            found.append(first)
    return tuple(found)


def _fits(task: SearchTask, known: KnownProgram) -> bool:
    try:
        replay(task.dag, load_steps(known.steps))
    except _BAD_PROGRAM:
        return False
    return True


def _choose(task: SearchTask, best: KnownProgram | None, heavy: bool) -> _Choice:
    """The recorded program, when there is one that can be read; else what the dispatch context knows."""
    if best is None:
        if not is_enabled():
            return _default(task)
        state = DispatchContext.current().query(task.target, task.workload_key, heavy, task.dag)
        return _default(task) if state is None else _told(task, state)
    try:
        request = BuildRequest(task, load_steps(best.steps), task.name)
    except _BAD_PROGRAM as error:
        return _default(task, f"record {best.record_id} cannot be read: {error}")
    otherwise = (Origin.RECORD, "") if best.record_id else _ORIGINS[FIRST_GUESS]
    origin, note = _ORIGINS.get(best.mutation, otherwise)
    return _Choice(request, best.record_id or None, origin, note)


def _told(task: SearchTask, state: State) -> _Choice:
    request = BuildRequest(task, steps_of(state), task.name)
    return _Choice(request, None, Origin.CONTEXT, "the program of the dispatch context")


def _default(task: SearchTask, note: str = "") -> _Choice:
    if note:
        _log.info("%s: %s; using the default schedule", task.name, note)
    return _Choice(BuildRequest(task, default_steps_of(task), task.name), None, Origin.DEFAULT, note)


def _on_processor(choice: _Choice, threads: int, why: Exception) -> _Choice:
    """The same task in its untuned program on the processor of this machine, since a GPU cannot run it."""
    target = Target.host()
    layout = LayoutRewriteOption.get_target_default(target, in_relay_integration=True)
    task = replace(choice.request.task, target=target, hardware=hardware_of(target, threads), layout=layout)
    request = BuildRequest(task, default_steps_of(task), task.name)
    _log.info("%s runs on the processor: %s", task.name, why)
    return _Choice(request, None, Origin.DEFAULT, f"on the processor: {why}", on_processor=True)


def _build(choices: list[_Choice], build: BuildKernels, threads: int) -> tuple[list[_Choice], list[KernelArtifact]]:
    """All kernels at once; when that fails one by one, with something else in place of those that cannot be built."""
    try:
        return choices, list(build([choice.request for choice in choices]))
    except _BAD_PROGRAM as error:
        _log.info("building the kernels one by one, since one of them failed: %s", error)
    final, artifacts = [], []
    for choice in choices:
        used, artifact = _build_or_else(choice, build, threads)
        final.append(used)
        artifacts.append(artifact)
    return final, artifacts


def _build_or_else(choice: _Choice, build: BuildKernels, threads: int) -> tuple[_Choice, KernelArtifact]:
    """The program, else the default schedule, else on a GPU the default schedule of the processor."""
    try:
        (artifact,) = build([choice.request])
        return choice, artifact
    except _BAD_PROGRAM as error:
        task = choice.request.task
        if choice.origin is not Origin.DEFAULT:
            other = _default(task, f"{choice.label} cannot be built: {error}")
        elif task.target.kind != Target.host().kind:
            other = _on_processor(choice, threads, error)
        else:
            raise
    return _build_or_else(other, build, threads)


def made_for(target: Target, threads: int, *, by_processor: bool = False) -> dict[str, object]:
    """What a file of compiled code says of the machine that it is for, and of what made it; `by_processor` says that
    some code of one for a GPU is for the processor of this machine. Raises: TargetError.
    """
    triple, cpu, features = backend_of(target).describe(target)
    if by_processor:
        features = backend_of(Target.host()).describe(Target.host())[2]
    return {
        "target": str(target),
        "triple": triple,
        "cpu": cpu,
        "needs": sorted(word[1:] for word in features.split(",") if word.startswith("+")),
        "threads": threads,
        "versions": {name: config.package_version(name) for name in ("retune", "llvmlite", "numpy")},
    }
