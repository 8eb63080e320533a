"""The Prefect task that chooses the precision of every layer of a network."""

from collections.abc import Sequence

from prefect import task
from prefect.cache_policies import NO_CACHE

from retune.compiler.measure.processes.worker_process import WorkerProcess
from retune.compiler.tune.extract import ImportedNetwork
from retune.compiler.tune.precision.request import AUTO, PrecisionChoice, PrecisionRequest
from retune.storage.runs import RunLedger
from retune.storage.store_url import Location
from retune.tasks.chain import task_name
from retune.tasks.find_programs import best_programs

_CHOOSE = "retune.compiler.tune.precision.choose:choose_for_network"


@task(name="choose-precisions", task_run_name=task_name("choose-precisions", "network"), cache_policy=NO_CACHE)
def choose_precisions(
    network: str,
    shapes: Sequence[str],
    request: PrecisionRequest,
    machine: tuple[str, int, bool],
    seed: int,
    home: Location,
    run_id: str,
) -> PrecisionChoice:
    """The precisions that a run keeps: those it chose before it was interrupted, or else a choice made now, in a fresh
    process. `machine` is the target, the number of threads, and whether Winograd's transforms are used.
    """
    ledger = RunLedger(home)
    known = ledger.get(run_id).precision
    if known is None:
        target, threads, _ = machine
        best = best_programs(home, target, threads) if request.precision == AUTO else {}
        with WorkerProcess() as worker:
            choice: PrecisionChoice = worker.call(
                _CHOOSE, ImportedNetwork(network, shapes), request, *machine, best, seed
            )
        known = ledger.set_once(run_id, "precision", choice.to_json())
    return PrecisionChoice.from_json(known)
