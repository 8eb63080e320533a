"""The flow that spends a window of time on the networks and operators that gain most from more tuning.

    until the window is over: judge each by its records → tune the most promising one for a slice
A network that cannot be tuned is named, left out, and makes the run fail at its end, after the others had their time.
"""

import math
import time
from dataclasses import replace
from typing import Any

from prefect import flow, get_run_logger

from retune.compiler.core.errors import OptionError, RetuneError
from retune.compiler.core.options import FLEET, MACHINE, SEARCH
from retune.compiler.tune.operators import is_operator
from retune.compiler.tune.report import Report
from retune.compiler.tune.stale import most_promising
from retune.flows.device import resolve_device
from retune.flows.parameters import THROUGHPUT, TuneJob, takes_options
from retune.flows.tune_network import tune_job
from retune.flows.tune_operator import tune_operator_job
from retune.tasks.chain import Chain
from retune.tasks.stale import judge

SHORTEST_SLICE = 1.0
"""Minutes: less does not repay the start of a run."""


@flow(name="retune-stale", flow_run_name="retune-stale")
@takes_options(MACHINE, SEARCH, FLEET)
def retune_stale(
    networks: list[str],
    window_minutes: float = 240.0,
    slice_minutes: float = 15.0,
    least_gain: float = 0.0005,
    *,
    home: str | None = None,
    **options: Any,
) -> list[Report]:
    """Tune those of `networks` again that are expected to gain most, for `window_minutes` in all. They are names of the
    zoo, paths, or operators such as `operator:["retune.matmul", 512, 512, 512]`, see
    `retune.compiler.tune.operators`.

    Each slice lasts at most `slice_minutes`. The run ends early when no network is expected to lose the share
    `least_gain` of its latency in a minute of tuning, or at once when none is listed. `home` is as for `tune_network`.
    Raises: OptionError for parameters that make no sense; RetuneError at the end when a network could not be tuned.
    """
    logger = get_run_logger()
    if not networks:
        logger.warning("no networks are listed, so nothing is tuned: list yours in deployments/prefect.yaml")
        return []
    if not (math.isfinite(window_minutes) and window_minutes >= SHORTEST_SLICE):
        raise OptionError(f"the window must be at least {SHORTEST_SLICE:g} minute, not {window_minutes}")
    job = resolve_device(TuneJob.of(networks[0], home=home, minutes=slice_minutes, **options))
    if job.options.objective == THROUGHPUT:
        raise OptionError("give the threads of one instance: only tune-network chooses instances, for throughput")
    jobs = {name: replace(job, network=name) for name in networks}
    chain = Chain()
    end = time.monotonic() + window_minutes * 60
    reports: list[Report] = []
    failures: dict[str, str] = {}
    while (left := (end - time.monotonic()) / 60) >= SHORTEST_SLICE:
        estimates = []
        for name, job in jobs.items():
            if name not in failures:
                try:
                    estimates.append(chain.run(judge, name, job.location, job.target, job.device, job.threads))
                    logger.info("%s", estimates[-1])
                except RetuneError as error:
                    # One network must not cost the others their night: it is named at the end.
                    failures[name] = str(error)
        # Judged again after every slice, since its records change what is expected.
        chosen = most_promising(estimates, least_gain)
        if chosen is None:
            break
        job = jobs[chosen.network]
        try:
            reports.append(tune_again(chain, job, min(slice_minutes, left)))
        except RetuneError as error:
            failures[chosen.network] = str(error)
    if failures:
        raise RetuneError("; ".join(f"{name} could not be tuned: {reason}" for name, reason in failures.items()))
    return reports


def tune_again(chain: Chain, job: TuneJob, minutes: float) -> Report:
    """Tune the job's network or operator for some minutes, after the last run of `chain`."""
    job = replace(job, options=replace(job.options, minutes=minutes))
    if is_operator(job.network):
        return chain.run(tune_operator_job, job)
    return chain.run(tune_job, job)
