"""A run on workers in other processes: what one of them loses another does; nothing is lost and nothing comes twice."""

import signal
import subprocess
import threading
from collections import Counter
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path

import pytest
from prefect import get_client
from prefect.client.schemas.filters import TaskRunFilter, TaskRunFilterName
from prefect.settings import PREFECT_API_URL

from benchmarks.fleet import errands_in, serving
from benchmarks.simulated import Simulation, simulated
from benchmarks.simulated_worker import SimulatedWorker
from retune.compiler import auto_scheduler, config, te
from retune.compiler.cost_model.random import RandomModel
from retune.compiler.errors import MeasureError, OptionError
from retune.compiler.measure.fleet import BUILD, FleetBuilder, device_queue
from retune.compiler.schedule.task import SearchTask
from retune.compiler.search.policy import SketchPolicy
from retune.compiler.target import HardwareParams, Target
from retune.compiler.te.tensor import Tensor
from retune.flows.parameters import TuneJob
from retune.flows.tune_network import tune_network
from retune.storage.errands import ErrandStore
from retune.storage.parquet import ParquetRecordStore
from retune.storage.place import open_medium
from retune.tasks import courier, rpc
from retune.tasks.courier import StoreCourier
from retune.tasks.lanes import lane_name
from tests.flows.fleet_workers import wait_until, worker
from tests.flows.networks import write_mlp
from tests.flows.test_faults import Outcome, outcome
from tests.unit.search.workloads import matmul

pytestmark = pytest.mark.usefixtures("prefect_api")

TRIALS = 24


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder that the fleet shares."""
    monkeypatch.setenv("RETUNE_FLEET_STORAGE", str(tmp_path / "fleet"))
    monkeypatch.setattr(courier, "SILENCE_SECONDS", 4.0)
    return tmp_path / "fleet"


def kill_at_work(process: "subprocess.Popen[bytes]", queue: str, place: Path) -> None:
    """Kill a worker in the middle of an errand."""
    store = ErrandStore(place)
    name = f"process {process.pid}"

    def is_at_work() -> bool:
        return any(
            standing.claimed and not standing.is_answered and name in store.claimant(queue, ticket, standing.attempt)
            for ticket, standing in store.standings(queue).items()
        )

    wait_until(is_at_work, 240.0)
    process.kill()


@pytest.mark.slow
@pytest.mark.parametrize("victim", ["build", "device-cpu"])
def test_a_lost_worker_costs_nothing_but_time(victim: str, place: Path, tmp_path: Path) -> None:
    network, home = write_mlp(tmp_path / "small.onnx"), tmp_path / "state"
    common = ("--fleet", "folder", "--storage", str(place))
    with ExitStack() as workers:
        builders = [
            workers.enter_context(worker(tmp_path / f"build{each}.log", "--build", "--processes", "1", *common))
            for each in range(2)
        ]
        timer = workers.enter_context(worker(tmp_path / "time.log", "--device", "cpu", *common))
        killer = threading.Thread(
            target=kill_at_work, args=(builders[0] if victim == "build" else timer, victim, place)
        )
        killer.start()
        if victim != "build":
            workers.enter_context(worker(tmp_path / "second.log", "--device", "cpu", *common))
        report = tune_network(str(network), trials=TRIALS, threads=1, home=str(home), fleet="folder")
        killer.join()
        assert (builders[0] if victim == "build" else timer).wait(120) == -signal.SIGKILL
    records = ParquetRecordStore(home).records()
    assert report.is_right
    assert len(records) == TRIALS
    assert Counter((record.task_key, record.steps) for record in records).most_common(1)[0][1] == 1
    assert sum(bool(record.costs) for record in records) > TRIALS / 2
    assert {record.device for record in records} == {config.device_name()}
    assert left_in(place) == []


def run_on_fleet(tmp_path: Path, place: Path, name: str) -> Outcome:
    """A run with made-up times on whoever serves the fleet; what it has stored."""
    network, home = write_mlp(tmp_path / "small.onnx", widths=(64, 96, 32), batch=8), tmp_path / name
    job = TuneJob.of(str(network), trials=96, threads=1, batch=32, home=str(home), fleet="folder", on_device="board")
    simulated(asdict(Simulation(job.parameters())))
    assert left_in(place) == []
    return outcome(home)


def test_workers_share_the_work_come_and_go_and_the_run_ends_the_same(place: Path, tmp_path: Path) -> None:
    """One of each kind; then two that build, and one that times is added when the run waits for it; then a builder is
    killed at work. The run is the same every time.
    """
    build = SimulatedWorker(str(place), (BUILD,), build_seconds=0.03)
    timing = SimulatedWorker(str(place), (device_queue("board"),), time_seconds=0.005)
    first, second, former, added = (tmp_path / f"{name}.log" for name in ("first", "second", "former", "added"))
    with ExitStack() as workers:
        workers.enter_context(serving(build, first))
        with serving(timing, former):
            alone = run_on_fleet(tmp_path, place, "alone")
        assert len(alone) == 96
        builds, timings = errands_in(first), errands_in(former)
        assert builds >= 12

        helper = workers.enter_context(serving(build, second))

        over = threading.Event()

        def add() -> None:
            """A worker ends with the thread that started it."""
            wait_until(lambda: bool(ErrandStore(place).standings(device_queue("board"))), 240.0)
            with serving(timing, added):
                over.wait(120.0)

        adding = threading.Thread(target=add)
        adding.start()
        assert run_on_fleet(tmp_path, place, "joined") == alone
        over.set()
        adding.join()
        assert errands_in(second) >= 1
        assert errands_in(first) - builds + errands_in(second) == builds, "every errand is taken once"
        assert errands_in(added) == timings

        workers.enter_context(serving(timing, tmp_path / "last.log"))
        killing = threading.Thread(target=kill_at_work, args=(helper, BUILD, place))
        killing.start()
        assert run_on_fleet(tmp_path, place, "disturbed") == alone
        killing.join()
        assert helper.wait(120) == -signal.SIGKILL
        assert ", attempt 2" in first.read_text(), "what was lost is done by another"


def test_errands_and_object_code_travel_through_an_object_store(
    s3_place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RETUNE_FLEET_STORAGE", s3_place)
    both = SimulatedWorker(s3_place, (BUILD, device_queue("board")))
    with serving(both, tmp_path / "worker.log"):
        assert len(run_on_fleet(tmp_path, tmp_path / "fleet", "state")) == 96
    assert errands_in(tmp_path / "worker.log") > 10
    assert [name for folder in ("queues", "objects") for name in open_medium(s3_place).files(folder)] == []
    assert not (tmp_path / "fleet").exists()


def left_in(place: Path) -> list[str]:
    """What is left in the storage of a fleet, but for the file that a killed worker was just writing."""
    return [path.name for path in place.rglob("*") if path.is_file() and not path.name.startswith(".")]


def records_of(network: Path, home: Path, fleet: str, trials: int = 8) -> None:
    """Tune on a fleet, and see that the records are those of a run."""
    report = tune_network(str(network), trials=trials, threads=1, home=str(home), fleet=fleet)
    records = ParquetRecordStore(home).records()
    assert report.is_right
    assert len(records) == trials
    assert any(record.costs for record in records)


@pytest.mark.slow
def test_workers_are_woken_by_background_tasks_and_hold_the_lane(place: Path, tmp_path: Path) -> None:
    network, home, log = write_mlp(tmp_path / "small.onnx"), tmp_path / "state", tmp_path / "worker.log"
    settings = {"PREFECT_API_URL": str(PREFECT_API_URL.value())}
    options = ("--build", "--device", "cpu", "--fleet", "prefect", "--storage", str(place))
    with worker(log, *options, settings=settings) as process:
        records_of(network, home, "prefect")
        with get_client(sync_client=True) as client:
            assert client.read_global_concurrency_limit_by_name(lane_name()).limit == 1
            woken = client.read_task_runs(task_run_filter=TaskRunFilter(name=TaskRunFilterName(like_="serve-")))
        queues = {"build", "device-cpu"}
        assert {queue for run in woken for queue in queues if queue in run.name} == queues
        assert any(run.state_name == "Completed" for run in woken)
        process.send_signal(signal.SIGTERM)
        assert process.wait(120) == 128 + signal.SIGTERM, log.read_text()


@pytest.mark.slow
@pytest.mark.parametrize("fleet", ["dask", "ray"])
def test_the_same_flow_runs_on_a_local_cluster(fleet: str, place: Path, tmp_path: Path) -> None:
    pytest.importorskip(f"prefect_{fleet}")
    records_of(write_mlp(tmp_path / "small.onnx"), tmp_path / "state", fleet)
    assert left_in(place) == []


def test_a_worker_that_is_told_to_end_hands_its_errand_on(place: Path, tmp_path: Path) -> None:
    store = ErrandStore(place)
    task = SearchTask("matmul", matmul(64, 64, 64), Target.host(), HardwareParams(num_cores=1))
    steps = [candidate.steps for candidate in SketchPolicy(task, RandomModel()).ask(48, 0)]
    with ExitStack() as workers:
        common = ("--build", "--processes", "1", "--fleet", "folder", "--storage", str(place))
        first = workers.enter_context(worker(tmp_path / "first.log", *common))
        way = StoreCourier(store, lambda _: None, silence_s=300.0)
        builder = FleetBuilder(way, at_once=48)
        ticket = builder.send(task, steps)
        wait_until(lambda: store.standings("build")[ticket].claimed, 240.0)
        first.send_signal(signal.SIGTERM)
        assert first.wait(120) == 128 + signal.SIGTERM, (tmp_path / "first.log").read_text()
        assert store.standings("build")[ticket].attempt == 1
        workers.enter_context(worker(tmp_path / "second.log", *common))
        kernels = builder.received(way.next([ticket])[1])
    assert len(kernels) == 48
    assert all(kernel.name for kernel in kernels)
    way.close()


@pytest.mark.slow
def test_a_script_times_on_a_device_of_the_fleet(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    host, _, port = str(PREFECT_API_URL.value()).removeprefix("http://").removesuffix("/api").partition(":")
    settings = {"PREFECT_API_URL": str(PREFECT_API_URL.value())}
    monkeypatch.setenv("RETUNE_HOME", str(tmp_path))
    options = ("--device", "board", "--fleet", "prefect", "--storage", str(place))
    with worker(tmp_path / "worker.log", *options, settings=settings):
        task = auto_scheduler.SearchTask(func=product, args=(32, 32, 32), target="llvm")
        log = str(tmp_path / "log.json")
        with auto_scheduler.RPCRunner("board", host, int(port), n_parallel=2, repeat=2, min_repeat_ms=1) as runner:
            told = [auto_scheduler.RecordToFile(log)]
            task.tune(auto_scheduler.TuningOptions(4, runner=runner, measure_callbacks=told, verbose=0))
    inputs, results = auto_scheduler.RecordReader(log).read_lines()
    assert len(inputs) == 4
    assert all(result.error_no or 1 <= len(result.costs) <= 2 for result in results)
    assert any(len(result.costs) == 2 for result in results)
    monkeypatch.setattr(rpc, "PATIENCE_SECONDS", 0.5)
    with pytest.raises(MeasureError, match="no worker of device-nowhere"):
        auto_scheduler.RPCRunner("nowhere", host, int(port))


@auto_scheduler.register_workload("product of the fleet's test", override=True)
def product(n: int, m: int, k: int) -> list[Tensor]:
    """A matrix product."""
    a, b, r = te.placeholder((n, k), name="A"), te.placeholder((k, m), name="B"), te.reduce_axis(k, "k")
    return [a, b, te.compute((n, m), lambda i, j: te.sum(a[i, r] * b[r, j], r), "C")]


@pytest.mark.parametrize(
    ("fleet", "said"),
    [("slurm", "a fleet is folder, prefect"), ("folder://x", "a fleet is"), ("dask://", "a fleet is")],
)
def test_a_fleet_that_does_not_exist(fleet: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=said):
        tune_network("mlp", trials=1, home=str(tmp_path), fleet=fleet)


def test_a_device_without_a_fleet(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="the device board belongs to a fleet"):
        tune_network("mlp", trials=1, home=str(tmp_path), on_device="board")
