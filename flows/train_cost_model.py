"""The flow that trains a cost model on stored records of networks and operators. Later runs on this machine start from
that model. Nothing is measured.
"""

import time
from dataclasses import dataclass
from typing import Any

from prefect import flow, get_run_logger
from prefect.artifacts import create_table_artifact

from retune.compiler.core.errors import OptionError
from retune.compiler.core.options import MACHINE
from retune.compiler.tune.operators import extract
from retune.flows.parameters import TuneJob, takes_options
from retune.storage.files import new_id
from retune.tasks.train import learn_records, save_checkpoint


@dataclass(frozen=True, slots=True)
class TrainingReport:
    """How the training went; see `retune.compiler.tune.train.TrainedModel`."""

    tasks: int
    programs: int
    judged: int
    pair_accuracy: float | None
    top_recall: float | None
    seconds: float


@flow(name="train-cost-model", flow_run_name="train-cost-model")
@takes_options(MACHINE, "seed")
def train_cost_model(
    networks: list[str], *, holdout: float = 0.2, home: str | None = None, **options: Any
) -> TrainingReport:
    """Train the cost model on all records of `networks` (names, paths, or operators as `retune-stale` takes them) on
    this machine, and keep what it learned for later runs.

    The latest share `holdout` of every task's records is predicted before it is learned, which says how good the model
    is. `home` is as for `tune_network`.
    Raises: OptionError, ModelError, TargetError, StoreError.
    """
    if not networks:
        raise OptionError("no networks given: name some of the zoo, the paths of ONNX files, or operators")
    began = time.monotonic()
    job = TuneJob.of(networks[0], home=home, trials=1, **options)
    subjects = [extract(name, job.target, job.threads) for name in networks]
    tasks = list({task.workload_key: task for subject in subjects for task in subject.tasks}.values())
    # The largest network decides, as measuring options are part of what every record has in common.
    run_info = job.run_info(new_id(), job.measuring(max(subject.constant_bytes for subject in subjects)))
    trained = learn_records(tasks, job.location, run_info, holdout)
    save_checkpoint(job.location, trained.tuning)
    report = TrainingReport(
        len(tasks),
        trained.programs,
        trained.judged,
        trained.pair_accuracy,
        trained.top_recall,
        round(time.monotonic() - began, 3),
    )
    get_run_logger().info("%s", report)
    create_table_artifact(
        [{"figure": name, "value": getattr(report, name)} for name in TrainingReport.__dataclass_fields__],
        key="cost-model",
        description="How well the cost model foretells programs it has not seen",
    )
    return report
