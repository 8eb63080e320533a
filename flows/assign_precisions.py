"""Assigns the precisions that a run chose, or chooses now, to the layers of its network."""

import logging

from retune.compiler.tune.extract import ExtractedNetwork, ImportedNetwork
from retune.compiler.tune.precision.request import PrecisionChoice
from retune.flows.parameters import TuneJob
from retune.flows.progress import PhaseStarted, announce
from retune.tasks.chain import Chain
from retune.tasks.extract import extract_tasks
from retune.tasks.opaque import opaque
from retune.tasks.precision import choose_precisions

_log = logging.getLogger(__name__)


def assign_precisions(
    chain: Chain, job: TuneJob, network: ImportedNetwork, extracted: ExtractedNetwork, run_id: str
) -> tuple[ExtractedNetwork, PrecisionChoice | None]:
    """The network with layers in the precisions of the run, and these; `extracted` as it is where float32 was asked
    for. Raises: OptionError for samples that do not fit.
    """
    request = job.precision
    if request.is_float32:
        return extracted, None
    announce(PhaseStarted(f"choosing precisions of layers: {request.precision}"))
    machine, seed = (job.target, job.threads, job.options.winograd), job.options.seed
    choice: PrecisionChoice = chain.run(
        choose_precisions, job.network, job.shapes, opaque(request), machine, seed, job.place, run_id
    )
    if choice.warning:
        _log.warning("%s", choice.warning)
    announce(PhaseStarted(choice.text()))
    network.assign(choice.assignment)
    return chain.run(extract_tasks, network, job.target, job.threads, job.options.winograd), choice
