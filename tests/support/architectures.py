"""What an import of PyTorch's architectures gives: kernels, work and bytes, one line of a table for each.

Numbers are those of one target, whatever the machine. PyTorch must be installed to import, not to read the table.
"""

import re
from collections.abc import Sequence
from dataclasses import astuple, dataclass, fields, replace
from pathlib import Path
from typing import Any

from benchmarks.torch_models import TorchModel, make, versions
from retune.compiler.core.errors import RetuneError
from retune.compiler.core.target import HardwareParams, Target
from retune.compiler.frontend.importer import load_model
from retune.compiler.graph.ir import Graph
from retune.compiler.graph.partition.partition import Partition, partition
from retune.compiler.graph.pipeline import optimize

TABLE = Path(__file__).parents[1] / "ecosystem" / "architectures.txt"
TARGET, HARDWARE = Target("llvm -mcpu=x86-64-v3"), HardwareParams(num_cores=2)
NOT_RUN = "-"

_MEGA, _GIGA = 1e6, 1e9


@dataclass(frozen=True, slots=True)
class Row:
    """A line of the table: calls of kernels; distinct ones; those worth tuning; GFLOP of an inference; MB of weights,
    and MB that all kernels read and write; percent of these and of the FLOPs that kernels not worth tuning have; and
    `result`: right, wrong, "-" where it has not been run, or why it was not imported.
    """

    kernels: int = 0
    tasks: int = 0
    tunable: int = 0
    gflop: float = 0.0
    weights_mb: float = 0.0
    moved_mb: float = 0.0
    default_bytes: float = 0.0
    default_flop: float = 0.0
    result: str = NOT_RUN

    @property
    def is_imported(self) -> bool:
        """Whether there are kernels."""
        return self.kernels > 0

    def with_result_of(self, other: "Row") -> "Row":
        """The row with the result of another, if both are imported."""
        return replace(self, result=other.result) if self.is_imported and other.is_imported else self


@dataclass(frozen=True, slots=True)
class Imported:
    """An architecture, its graph, and the graph's kernels."""

    model: TorchModel
    graph: Graph
    cut: Partition

    def row(self) -> Row:
        """The counts of the import."""
        moved = [_bytes_of(self.graph, (*call.inputs, *call.outputs)) for call in self.cut.kernels]
        flops = [call.task.flop_count for call in self.cut.kernels]
        tuned = {task.workload_key for task, worth in zip(self.cut.tasks, self.cut.tunable, strict=True) if worth}
        default = [call.task.workload_key not in tuned for call in self.cut.kernels]
        return Row(
            len(self.cut.kernels),
            len(self.cut.tasks),
            sum(self.cut.tunable),
            _rounded(sum(flops) / _GIGA),
            _rounded(sum(array.nbytes for array in self.graph.constants.values()) / _MEGA),
            _rounded(sum(moved) / _MEGA),
            _share(moved, default),
            _share(flops, default),
        )


def import_architecture(name: str) -> Imported | Row:
    """The architecture as a graph, or the row that says why it is none."""
    from retune.models import export_onnx

    model = make(name)
    try:
        proto, _ = export_onnx(model.module, model.args, model.kwargs or {})
        graph = optimize(load_model(proto))
    except RetuneError as error:
        return Row(result=re.sub(r"\s+", " ", str(error))[:160])
    return Imported(model, graph, partition(graph, TARGET, HARDWARE))


def read_table() -> tuple[dict[str, str], dict[str, Row]]:
    """The versions of the libraries that the table was made with, and its rows by architecture."""
    known: dict[str, str] = {}
    rows: dict[str, Row] = {}
    for line in TABLE.read_text(encoding="utf-8").splitlines() if TABLE.exists() else ():
        if line.startswith("# ") and "==" in line:
            known |= dict(part.split("==") for part in line[2:].split())
        elif line and not line.startswith("#"):
            name, *numbers, result = line.split(maxsplit=len(fields(Row)))
            values: list[Any] = [float(number) if "." in number else int(number) for number in numbers]
            rows[name] = Row(*[*values, result])
    return known, rows


def write_row(name: str, row: Row) -> None:
    """Write one row into the table, with the versions that are installed."""
    _, rows = read_table()
    rows[name] = row
    lines = [
        "# What an import of each architecture gives; `pytest tests/ecosystem --update-golden` writes it. See Row.",
        "# " + " ".join(f"{package}=={version}" for package, version in versions().items()),
        "# " + _columns(("architecture", *(field.name for field in fields(Row)))),
    ]
    lines += ["  " + _columns((name, *astuple(rows[name]))) for name in sorted(rows)]
    TABLE.write_text("\n".join(lines) + "\n", encoding="utf-8")


def _columns(values: tuple[Any, ...]) -> str:
    name, *numbers, result = values
    return f"{name:45}" + "".join(f"{number:>14}" for number in numbers) + f"  {result}"


def _bytes_of(graph: Graph, names: Sequence[str]) -> int:
    return sum(graph.values[name].nbytes for name in dict.fromkeys(names))


def _rounded(number: float) -> float:
    """Three digits."""
    return float(f"{number:.3g}")  # printed with a point always


def _share(numbers: Sequence[float], chosen: Sequence[bool]) -> float:
    """Percent of the chosen ones."""
    part = sum(number for number, one in zip(numbers, chosen, strict=True) if one)
    return round(100 * part / (sum(numbers) or 1.0), 1)
