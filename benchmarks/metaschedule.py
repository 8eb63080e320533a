"""Runs TVM's MetaSchedule on an operator: its tuning curve, and times of its best program.

TVM runs in a separate process (`benchmarks/tvm_peer.py`), which ends with the context.
"""

import math
from dataclasses import asdict, is_dataclass

from benchmarks.peer_process import PeerProcess
from benchmarks.problems import EPSILON, LayerNorm, Problem
from retune.compiler.core import config

TVM = "tvm-metaschedule"

Point = tuple[int, float, float]
"""Trials, seconds of tuning, seconds of the best program's call so far (infinite before the first one that ran)."""


class MetaSchedule(PeerProcess):
    """An operator tuned by TVM. `curve` has a point for each round; `told` is what a line says of the search."""

    def __init__(self, interpreter: str, problem: Problem, threads: int, trials: int, seed: int) -> None:
        """Tune. Raises: MeasureError with the last output when the interpreter or its TVM cannot."""
        asked = {
            "problem": fields_of(problem),
            "threads": threads,
            "trials": trials,
            "seed": seed,
            "cores": config.usable_cores(),
        }
        super().__init__(interpreter, "tvm_peer.py", asked, "MetaSchedule", {"TVM_NUM_THREADS": str(threads)})
        answer = self.ready
        self.curve = tuple(
            (int(count), float(spent), math.inf if best is None else float(best))
            for count, spent, best in answer["curve"]
        )
        self.told: dict[str, object] = {
            "trials": self.curve[-1][0] if self.curve else 0,
            "seconds": round(answer["seconds"], 2),
            "failed": answer["failed"],
            "version": answer["version"],
        }


def fields_of(problem: Problem) -> dict[str, object]:
    """An operator as plain data: the name of its class as `kind`, and its fields."""
    assert is_dataclass(problem), "every operator of benchmarks.problems is one"
    fields: dict[str, object] = {"kind": type(problem).__name__, **asdict(problem)}
    return {**fields, "epsilon": EPSILON} if isinstance(problem, LayerNorm) else fields
