"""Runs TVM's MetaSchedule on an operator: its tuning curve, and times of its best program.

TVM runs in a separate process (`benchmarks/tvm_peer.py`), which ends with the context.
"""

import json
import math
import subprocess
from dataclasses import asdict, is_dataclass
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, Self

from benchmarks.problems import EPSILON, LayerNorm, Problem
from retune.compiler.core import config
from retune.compiler.core.errors import MeasureError

TVM = "tvm-metaschedule"

_SCRIPT = Path(__file__).with_name("tvm_peer.py")
_OUTPUT_CHARACTERS = 2000

Point = tuple[int, float, float]
"""Trials, seconds of tuning, seconds of the best program's call so far (infinite before the first one that ran)."""


class MetaSchedule:
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
        self._stderr = TemporaryFile("w+", encoding="utf-8", errors="replace")  # noqa: SIM115 (`close` closes it)
        try:
            self._process = subprocess.Popen(
                [interpreter, str(_SCRIPT), json.dumps(asked)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._stderr,
                text=True,
                env=config.child_environment({"TVM_NUM_THREADS": str(threads)}),
            )
        except OSError as error:
            self._stderr.close()
            raise MeasureError(f"the interpreter {interpreter!r} for TVM cannot be started: {error}") from None
        try:
            answer = self._answer()
        except MeasureError:
            self.close()
            raise
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

    def times(self, seconds: float) -> list[float]:
        """Seconds of single calls of the best program, timed for about `seconds`; none where no program ran."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{seconds}\n")
        self._process.stdin.flush()
        return [float(each) for each in self._answer()["times"]]

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.communicate()
        self._stderr.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            self._stderr.seek(0)
            output = self._stderr.read()[-_OUTPUT_CHARACTERS:]
            raise MeasureError(f"MetaSchedule ended early; its last output:\n{output}")
        answer: dict[str, Any] = json.loads(line)
        return answer


def fields_of(problem: Problem) -> dict[str, object]:
    """An operator as plain data: the name of its class as `kind`, and its fields."""
    assert is_dataclass(problem), "every operator of benchmarks.problems is one"
    fields: dict[str, object] = {"kind": type(problem).__name__, **asdict(problem)}
    return {**fields, "epsilon": EPSILON} if isinstance(problem, LayerNorm) else fields
