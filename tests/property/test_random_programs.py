"""2,000 random graphs under random legal steps compute their definition, with the guards up; a failing one is made
small and printed with its graph, its steps and its loops.

The seed is in the header of the test run; `--property-seed N` uses another one.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from hypothesis.vendor.pretty import RepresentationPrinter

from retune.compiler.measure.processes.worker_process import WorkerFailedError, WorkerProcess
from retune.compiler.schedule.dag import ComputeDAG
from retune.compiler.schedule.steps import Step, dump_steps, load_steps
from tests.support.property.checks import Verdict, explained
from tests.support.property.computations import random_computation
from tests.support.property.draws import Drawn
from tests.support.property.graphs import random_graph
from tests.support.property.programs import random_program, random_steps
from tests.support.property.wild import wild_steps

SHARDS = 8
DRAWS = 3
"""How often a shard draws at most: Hypothesis draws by the numbers that stand in the code, too, so a change of the code
may leave out of one draw what is rare.
"""

WANTED = 250
DRAWN = 600
"""Programs drawn for a shard. Many come twice, which counts once, and some are refused, which counts for nothing."""

LEAST = {
    "right": WANTED,
    **dict.fromkeys(("AN", "FU", "PR", "RE", "SP", "FSP", "FFSP", "SA", "CA", "CI", "CR", "CHR", "CHW", "RF"), 1),
    **dict.fromkeys(("vectorized", "parallelized", "unrolled", "guarded", "attached"), WANTED // 10),
    **dict.fromkeys(("float16", "bfloat16", "float32", "float64"), 5),
    **dict.fromkeys(("int8", "int16", "int32", "int64", "uint8", "bool"), 5),
    **dict.fromkeys(("extent 1", "extent 3", "extent 7", "extent 17"), 20),
    "packed": 2,
}
"""In how many of a shard's programs each of these occurs at least: steps by their tag, loops, types, extents."""


@dataclass(frozen=True, slots=True)
class Program:
    """One random program and what it runs on."""

    dag: ComputeDAG
    steps: tuple[Step, ...]
    tolerances: tuple[float, ...] | None
    inputs: int
    threads: int

    def _repr_pretty_(self, printer: RepresentationPrinter, _cycle: bool) -> None:
        """How Hypothesis prints a failing program."""
        printer.text(f"on inputs {self.inputs} and {self.threads} threads\n{explained(self.dag, self.steps)}\n")


@st.composite
def programs(draw: st.DrawFn) -> Program:
    """Mostly random graphs under wild steps; now and then known computations, under tamer steps too."""
    source = Drawn(draw)
    inputs, threads = source.integers(1 << 16), 1 + source.integers(2)
    kind = source.integers(8)
    if kind == 7:
        dag = random_program(source)
        return Program(dag, random_steps(dag, source), None, inputs, threads)
    if kind == 6:
        dag = random_computation(source)
        return Program(dag, wild_steps(dag, source), None, inputs, threads)
    graph = random_graph(source)
    return Program(graph.dag, wild_steps(graph.dag, source), graph.tolerances, inputs, threads)


@pytest.fixture(scope="module")
def worker() -> Iterator[WorkerProcess]:
    with WorkerProcess() as process:
        yield process


def judged(worker: WorkerProcess, program: Program) -> Verdict:
    """The verdict on a program; one whose process ends has failed."""
    try:
        verdict: Verdict = worker.call(
            "tests.support.property.checks:judge",
            program.dag,
            program.steps,
            program.tolerances,
            program.inputs,
            program.threads,
            timeout_s=60.0,
        )
    except WorkerFailedError as lost:
        return Verdict(failure=str(lost).partition(";")[0])
    return verdict


def test_a_hundred_draws_of_random_programs_compute_their_definition(worker: WorkerProcess, property_seed: int) -> None:
    met: set[str] = set()
    _drawn(lambda program: _hold(worker, program, property_seed, met, Counter()), property_seed, 100)
    assert len(met) >= 20


@pytest.mark.long
@pytest.mark.parametrize("shard", range(SHARDS))
def test_random_programs_compute_their_definition(shard: int, worker: WorkerProcess, property_seed: int) -> None:
    met: set[str] = set()
    facts: Counter[str] = Counter()

    def holds(program: Program) -> None:
        _hold(worker, program, property_seed, met, facts)

    rare: dict[str, int] = {}
    for draw in range(DRAWS):
        _drawn(holds, (property_seed * SHARDS + shard) * DRAWS + draw, DRAWN)
        rare = {name: facts[name] for name, least in LEAST.items() if facts[name] < least}
        if not rare:
            break
    assert not rare, f"too few of {rare} among {len(met)} programs"


def _hold(worker: WorkerProcess, program: Program, seed_option: int, met: set[str], facts: Counter[str]) -> None:
    """Check one program that was not met before, and count what it is like where it is not refused."""
    assert load_steps(dump_steps(program.steps)) == program.steps
    name = f"{program.dag}{dump_steps(program.steps)}"
    if name in met:
        return
    verdict = judged(worker, program)
    assert verdict.failure == "", f"--property-seed {seed_option}: {verdict.failure}"
    met.add(name)
    if not verdict.refusal:
        facts.update(["right", *verdict.facts])


def _drawn(holds: Callable[[Program], None], number: int, count: int) -> None:
    """Look at `count` programs that are drawn with a seed."""

    @seed(number)
    @settings(
        max_examples=count,
        deadline=None,
        database=None,
        phases=(Phase.generate, Phase.shrink),
        suppress_health_check=list(HealthCheck),
    )
    @given(programs())
    def each(program: Program) -> None:
        holds(program)

    each()
