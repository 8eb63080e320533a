"""Flows that compile a network with its best records, and check that it is right and faster.

Every program is checked and timed once more before it is used. An untested candidate, of a kernel without a record, has
one after that.

    best records → time each again → confirm in a fresh process → compile tuned, untuned → verify against ONNX Runtime
"""

import logging
import math
from dataclasses import replace
from itertools import islice
from time import monotonic
from typing import Any

from prefect import flow
from prefect.runtime import flow_run

from retune.compiler.core.options import FLEET, MACHINE, NETWORK
from retune.compiler.runtime.readable import count
from retune.compiler.tune.extract_dynamic import AnyImport, AnyNetwork, DynamicNetwork
from retune.compiler.tune.operators import label_of
from retune.compiler.tune.precision.request import PrecisionChoice
from retune.compiler.tune.report import CompiledResult, Report
from retune.compiler.tune.winners import (
    SHORTLIST,
    Confirmation,
    confirmations,
    keep_defaults,
    record_candidates,
    resolve,
    shortlist,
)
from retune.flows.device import resolve_device, with_task_runner
from retune.flows.dynamic_network import import_network
from retune.flows.events import PhaseAdvanced, PhaseStarted, announce
from retune.flows.parameters import TuneJob, takes_options
from retune.storage.files import new_id
from retune.tasks.chain import Chain, opaque
from retune.tasks.compile import compile_to
from retune.tasks.extract import extract_tasks
from retune.tasks.fleet.workers import Workers, open_workers
from retune.tasks.precision import choose_precisions
from retune.tasks.store import best_of_every_task, best_records, complete_run, open_run, store
from retune.tasks.train import begin_tuning
from retune.tasks.verify import confirm, limits_of_machine, time_programs, verify
from retune.tasks.write_report import publish

_log = logging.getLogger(__name__)


def assign_precisions(
    chain: Chain, job: TuneJob, network: AnyImport, extracted: AnyNetwork, run_id: str
) -> tuple[AnyNetwork, PrecisionChoice | None]:
    """The network with layers in the precisions of the run, and these; `extracted` as it is where float32 was asked
    for. Raises: OptionError for samples that do not fit.
    """
    request = job.precision
    if request.is_float32 or isinstance(network, DynamicNetwork):
        return extracted, None
    announce(PhaseStarted(f"choosing precisions of layers: {request.precision}"))
    machine, seed = (job.target, job.threads, job.options.winograd), job.options.seed
    choice: PrecisionChoice = chain.run(
        choose_precisions, job.network, job.shapes, opaque(request), machine, seed, job.location, run_id
    )
    if choice.warning:
        _log.warning("%s", choice.warning)
    announce(PhaseStarted(choice.text()))
    network.assign(choice.assignment)
    return chain.run(extract_tasks, network, job.target, job.threads, job.options.winograd), choice


_TO_COMPARE, _TO_CONFIRM = 14.0, 0.4
"""Seconds for the comparison and the report, and for each kernel of a network before them, on two cores of 2021."""
_AT_LEAST = 3.0
"""Seconds for programs of kernels that the search did not reach, even where the command has no time left."""


def run_name() -> str:
    """What the UI calls a run: its network, whatever folder that is in."""
    return f"compile-{label_of(str(flow_run.parameters['network']))}"


@flow(name="compile-network", flow_run_name=run_name)
@takes_options(MACHINE, NETWORK, FLEET)
def compile_network(
    network: str, *, shapes: list[str] | None = None, home: str | None = None, **options: Any
) -> Report:
    """Compile `network` again with the best records on this machine, measuring nothing else: after an upgrade, or when
    other runs have found better programs for its kernels. `shapes` and `home` are as for `tune_network`.

    Raises: OptionError, ModelError, TargetError, StoreError.
    """
    job = resolve_device(TuneJob.of(network, shapes=shapes, home=home, trials=1, **options))
    chain = Chain()
    imported = import_network(job)
    extracted = chain.run(extract_tasks, imported, job.target, job.threads, job.options.winograd)
    with open_run(job.location, f"compile {job.fingerprint(extracted.task_keys)}", job.describe()) as run:
        extracted, choice = assign_precisions(chain, job, imported, extracted, run.run_id)
        measuring = job.measuring(extracted.constant_bytes)
        with open_workers(measuring, job.plan, job.gpu) as workers:
            about = job, extracted, run.run_id, workers
            compiled = chain.run(with_task_runner(compile_best, job), *about, 0, 0.0, choice)
        run_info = job.run_info(run.run_id, measuring)
        nothing = begin_tuning(opaque(extracted), run_info).summary()
        report = chain.run(publish, run.run_id, job.describe(), nothing, compiled, job.run_folder(run.run_id))
        chain.run(complete_run, run.run_id, job.location, report.summary(), report.files)
    return report


def seconds_to_compile(extracted: AnyNetwork) -> float:
    """About how long `compile_best` and the report after it take."""
    return _TO_COMPARE + _TO_CONFIRM * len(extracted.ways)


def _candidate_deadline(job: TuneJob, layers: int) -> float:
    """Until when programs may be tried for kernels that the search did not reach, of so many layers in all; without
    limit where the budget is in trials.
    """
    return math.inf if job.options.minutes is None else monotonic() + max(_AT_LEAST, _TO_CONFIRM * layers)


@flow(name="compile-best", flow_run_name="compile-{job.label}")
def compile_best(
    job: TuneJob,
    extracted: AnyNetwork,
    run_id: str,
    workers: Workers,
    rounds: int = 0,
    elapsed: float = 0.0,
    choice: PrecisionChoice | None = None,
) -> CompiledResult:
    """Compile the network of `job` with the best records on this machine, whichever run they come from, after so many
    rounds and seconds of tuning. `choice` is what the precisions of its layers are.
    """
    announce(PhaseStarted("selecting the best programs"))
    folder, chain = job.run_folder(run_id), Chain()
    known = chain.run(best_of_every_task, job.location, job.target, job.device, job.threads)
    best = chain.run(best_records, job.location, extracted.tasks, job.target, job.device, job.threads, SHORTLIST)
    # Those that matter most come first: the time for programs that no record knows may not suffice for all.
    layers = sorted(extracted.ways, key=lambda layer: -layer[0] * layer[1][0].flop_count)
    announce(PhaseStarted(f"confirming the best programs of {count(len(layers), 'layer')}"))
    timed: list[list[Confirmation]] = []
    until = _candidate_deadline(job, len(layers))
    for number, (_, tasks) in enumerate(layers, 1):
        programs = shortlist(tasks, best, known if monotonic() < until else None)
        timed.append([])
        for task, each in programs:
            timed[-1].append(chain.run(time_programs, task.name, workers, opaque(task), opaque(each)))
        announce(PhaseAdvanced(number, len(layers)))
    confirmed = iter(chain.run(confirm, workers, opaque([program for layer in timed for program in layer])))
    workers.close()  # what comes now is to have the memory of the machine, and of its GPU
    chosen = [program for layer in timed for program in resolve(list(islice(confirmed, len(layer))))]
    run_info = job.run_info(run_id, job.measuring(extracted.constant_bytes))
    run_info = replace(run_info, round=rounds, elapsed=elapsed)
    winners, candidates = record_candidates(chosen, run_info, new_id)
    if candidates:
        chain.run(store, "untested-candidates", job.location, opaque(candidates))
    winning = {winner.task.workload_key: winner.program for winner in winners if winner.used}
    announce(PhaseStarted("compiling the network, untuned and tuned"))
    file = f"{extracted.name}.retune"
    kernels = dict(pair for winner in chosen for pair in winner.kernels.items())
    # Its own folder: a network that is called "untuned" would otherwise replace it.
    path, built, instances = folder / file, opaque(kernels), job.instances
    untuned = chain.run(compile_to, "untuned", opaque(extracted), {}, folder / "untuned" / file, built, instances)
    tuned = chain.run(compile_to, "tuned", opaque(extracted), opaque(winning), path, built, instances)
    announce(PhaseStarted("comparing outputs and times"))
    paths = {"untuned": untuned.path, "tuned": tuned.path}
    # How far outputs may be off where layers are in other precisions than float32.
    request = job.precision if choice is not None and choice.is_mixed else None
    comparison = chain.run(
        verify,
        job.network,
        paths,
        job.threads,
        job.options.seed,
        job.plan,
        job.gpu,
        job.instances,
        opaque(request),
        opaque(extracted.sample),
    )
    if comparison.keeps_defaults:
        announce(PhaseStarted("keeping the default schedules: with the programs found the network is no faster"))
        tuned = chain.run(compile_to, "defaults", opaque(extracted), {}, path, built, instances)
        used = {row.task_key for row in tuned.kernels}
        comparison, winners = comparison.of_defaults(), keep_defaults(winners, extracted.tasks, used)
    chain.run(store, "confirmations", job.location, opaque(confirmations(winners, run_info, new_id)))
    announce(PhaseStarted("measuring what the machine can do at best"))
    limits = chain.run(limits_of_machine, job.threads * job.instances, job.plan)
    return CompiledResult(tuned.path, winners, comparison, tuned.kernels, limits, choice)
