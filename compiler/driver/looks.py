"""In: a run, and what earlier processes kept of what its programs look like. Out: a replay that need not look at them
again; what there is to keep now.

Always: the run is the same with and without.
"""

import logging
from collections.abc import Iterable

from retune.compiler.driver.tuning import TaskProgress, Tuning
from retune.compiler.errors import StoreError
from retune.compiler.measure.record import MeasureRecord
from retune.compiler.search.looks import identity_of, looks_from_bytes, looks_to_bytes
from retune.compiler.search.policy import SketchPolicy

KEEP_ROUNDS = 8
"""After so many rounds what their programs look like is worth keeping; what is lost with a process is made anew."""

_log = logging.getLogger(__name__)


def recall_looks(tuning: Tuning, kept: Iterable[bytes], records: Iterable[MeasureRecord]) -> None:
    """Before `Tuning.replay` of `records`: take over what was kept of their programs; bytes that cannot be read are
    left out.
    """
    texts: dict[str, list[str]] = {}
    for record in records:
        texts.setdefault(record.task_key, []).append(record.steps)
    policies = {name: policy for name, policy in _policies(tuning) if policy.task.workload_key in texts}
    for data in kept:
        try:
            found = looks_from_bytes(data, policies.keys())
        except StoreError as error:
            _log.info("%s", error)
            continue
        for name, looks in found.items():
            policies[name].told.recall(texts[policies[name].task.workload_key], looks)


def fresh_looks(tuning: Tuning) -> tuple[bytes, int] | None:
    """What was looked at since this was asked last, to be kept, and how many programs; None when there are none."""
    found = {name: policy.told.fresh() for name, policy in _policies(tuning)}
    count = sum(map(len, found.values()))
    return (looks_to_bytes({name: looks for name, looks in found.items() if looks}), count) if count else None


def _policies(tuning: Tuning) -> list[tuple[str, SketchPolicy]]:
    """The policies that look at programs, each with the identity of its task."""

    def policy_of(task: TaskProgress) -> SketchPolicy | None:
        return task.policy if isinstance(task.policy, SketchPolicy) else None

    found = (policy_of(task) for task in tuning.tasks)
    return [(identity_of(policy.task, policy.options), policy) for policy in found if policy is not None]
