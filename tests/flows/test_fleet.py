"""A run on workers in other processes: what one of them loses another does; nothing is lost and nothing comes twice."""

import signal
import socket
import subprocess
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path

import psutil
import pytest
from prefect import get_client
from prefect.settings import PREFECT_API_URL

from benchmarks.fleet import requests_in, scheduling, serving
from benchmarks.simulated import Simulation, simulated
from benchmarks.simulated_worker import SimulatedWorker
from retune.compiler import auto_scheduler, config, te
from retune.compiler.auto_scheduler import remote
from retune.compiler.auto_scheduler.remote import DaskEngine
from retune.compiler.cost_model.random import RandomModel
from retune.compiler.errors import MeasureError, OptionError
from retune.compiler.measure.device_lock import lock_name
from retune.compiler.measure.fleet import BUILD, FleetBuilder, device_queue
from retune.compiler.measure.options import MeasureOptions
from retune.compiler.measure.results import BuildResult
from retune.compiler.schedule.task import SearchTask
from retune.compiler.search.policy import SketchPolicy
from retune.compiler.target import HardwareParams, Target
from retune.compiler.te.tensor import Tensor
from retune.flows.parameters import TuneJob
from retune.flows.tune_network import tune_network
from retune.storage.parquet import ParquetRecordStore
from retune.tasks import engines
from tests.flows.fleet_workers import wait_until, worker
from tests.flows.networks import write_mlp
from tests.flows.test_faults import Outcome, outcome
from tests.unit.search.workloads import matmul

pytestmark = pytest.mark.usefixtures("prefect_api")

TRIALS = 24
TTL_SECONDS = 8


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[str]:
    """A scheduler of Dask that gives a silent worker up after a few seconds."""
    pytest.importorskip("prefect_dask")
    settings = {"DASK_DISTRIBUTED__SCHEDULER__WORKER_TTL": f"{TTL_SECONDS} s"}
    with scheduling(tmp_path, settings=settings) as name:
        yield name


def strike_at_work(process: "subprocess.Popen[bytes]", number: int) -> None:
    """Send a worker a signal once it has processes that build or time."""
    wait_until(lambda: bool(psutil.Process(process.pid).children()), 240.0)
    process.send_signal(number)


@pytest.mark.slow
@pytest.mark.parametrize("victim", ["build", "device"])
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_a_worker_that_is_killed_or_hangs_costs_nothing_but_time(
    number: signal.Signals, victim: str, fleet: str, tmp_path: Path
) -> None:
    network, home = write_mlp(tmp_path / "small.onnx"), tmp_path / "state"
    options = ("--build", "--processes", "1") if victim == "build" else ("--device", "cpu")
    others = ("--device", "cpu") if victim == "build" else ("--build", "--processes", "1")
    with ExitStack() as workers:
        first = workers.enter_context(worker(tmp_path / "first.log", *options, "--fleet", fleet))
        workers.enter_context(worker(tmp_path / "other.log", *others, "--fleet", fleet))
        second = workers.enter_context(ExitStack())

        def replace_first() -> None:
            strike_at_work(first, number)
            second.enter_context(worker(tmp_path / "second.log", *options, "--fleet", fleet))
            if victim == "device" and number == signal.SIGSTOP:  # it still holds the device, so a person ends it
                wait_until(lambda: f"process {first.pid} holds" in (tmp_path / "second.log").read_text(), 300.0)
                first.kill()

        striking = threading.Thread(target=replace_first)
        striking.start()
        report = tune_network(str(network), trials=TRIALS, threads=1, home=str(home), fleet=fleet)
        striking.join()
    records = ParquetRecordStore(home).records()
    assert report.is_right
    assert len(records) == TRIALS
    assert Counter((record.task_key, record.steps) for record in records).most_common(1)[0][1] == 1
    assert sum(bool(record.costs) for record in records) > TRIALS / 2
    assert {record.device for record in records} == {config.device_name()}


def run_on_fleet(tmp_path: Path, fleet: str, name: str) -> Outcome:
    """A run with made-up times on whoever serves the fleet; what it has stored."""
    network, home = write_mlp(tmp_path / "small.onnx", widths=(64, 96, 32), batch=8), tmp_path / name
    job = TuneJob.of(str(network), trials=96, threads=1, batch=32, home=str(home), fleet=fleet, on_device="board")
    simulated(asdict(Simulation(job.parameters())))
    return outcome(home)


@pytest.mark.slow
def test_workers_share_the_work_come_and_go_and_the_run_ends_the_same(fleet: str, tmp_path: Path) -> None:
    build = SimulatedWorker(fleet, (BUILD,), build_seconds=0.03)
    timing = SimulatedWorker(fleet, (device_queue("board"),), time_seconds=0.005)
    first, second, timer = (tmp_path / f"{name}.log" for name in ("first", "second", "timer"))
    with ExitStack() as workers:
        workers.enter_context(serving(build, first))
        workers.enter_context(serving(timing, timer))
        alone = run_on_fleet(tmp_path, fleet, "alone")
        assert len(alone) == 96
        assert requests_in(first) >= 12
        helper = workers.enter_context(serving(build, second))

        def kill_at_work() -> None:
            wait_until(lambda: requests_in(second) > 0, 240.0)
            helper.kill()

        killing = threading.Thread(target=kill_at_work)
        killing.start()
        assert run_on_fleet(tmp_path, fleet, "disturbed") == alone
        killing.join()


@pytest.mark.slow
def test_a_scheduler_that_is_killed_ends_the_run_which_goes_on_with_a_new_one(tmp_path: Path) -> None:
    pytest.importorskip("prefect_dask")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
    queues = (BUILD, device_queue("board"))
    with ExitStack() as stack:
        first = stack.enter_context(ExitStack())
        fleet = first.enter_context(scheduling(tmp_path, port))
        log = tmp_path / "worker.log"
        stack.enter_context(serving(SimulatedWorker(fleet, queues, 0.05, 0.01), log))

        def kill_scheduler() -> None:
            wait_until(lambda: requests_in(log) > 10, 240.0)
            first.close()

        killing = threading.Thread(target=kill_scheduler)
        killing.start()
        with pytest.raises(MeasureError, match="the same command goes on from there"):
            run_on_fleet(tmp_path, fleet, "state")
        killing.join()
        assert 0 < len(ParquetRecordStore(tmp_path / "state").records()) < 96
        stack.enter_context(scheduling(tmp_path, port))
        found = run_on_fleet(tmp_path, fleet, "state")
    assert len(found) == 96
    assert len({one[:3] for one in found}) == 96


def records_of(network: Path, home: Path, fleet: str, trials: int = 8) -> None:
    """Tune on a fleet, and see that the records are those of a run."""
    report = tune_network(str(network), trials=trials, threads=1, home=str(home), fleet=fleet)
    records = ParquetRecordStore(home).records()
    assert report.is_right
    assert len(records) == trials
    assert any(record.costs for record in records)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_background_tasks_of_a_prefect_server_build_and_measure(
    number: signal.Signals, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Prefect does not notice a worker that is killed: what it was doing is begun again after a while."""
    monkeypatch.setenv("RETUNE_FLEET_STORAGE", str(tmp_path / "fleet"))
    monkeypatch.setattr(engines, "SLACK_SECONDS", 10.0)
    network, home, log = write_mlp(tmp_path / "small.onnx"), tmp_path / "state", tmp_path / "worker.log"
    settings = {"PREFECT_API_URL": str(PREFECT_API_URL.value())}
    options = ("--build", "--device", "cpu", "--fleet", "prefect", "--storage", str(tmp_path / "fleet"))
    with ExitStack() as workers:
        first = workers.enter_context(worker(log, *options, settings=settings))
        if number == signal.SIGKILL:
            second = workers.enter_context(ExitStack())

            def replace_first() -> None:
                strike_at_work(first, number)
                second.enter_context(worker(tmp_path / "second.log", *options, settings=settings))

            threading.Thread(target=replace_first).start()
        records_of(network, home, "prefect")
        with get_client(sync_client=True) as client:
            assert client.read_global_concurrency_limit_by_name(lock_name()).limit == 1
        if number == signal.SIGTERM:
            first.send_signal(number)
        assert first.wait(120) == (143 if number == signal.SIGTERM else -number), log.read_text()


@pytest.mark.slow
@pytest.mark.parametrize("fleet", ["dask", "ray"])
def test_the_same_flow_runs_on_a_local_cluster(fleet: str, tmp_path: Path) -> None:
    pytest.importorskip(f"prefect_{fleet}")
    records_of(write_mlp(tmp_path / "small.onnx"), tmp_path / "state", fleet)


@pytest.mark.slow
def test_a_worker_that_is_told_to_end_hands_its_work_on(fleet: str, tmp_path: Path) -> None:
    task = SearchTask("matmul", matmul(64, 64, 64), Target.host(), HardwareParams(num_cores=1))
    steps = [candidate.steps for candidate in SketchPolicy(task, RandomModel()).ask(48, 0)]
    builder = FleetBuilder(DaskEngine(fleet.replace("dask", "tcp")), MeasureOptions(), at_once=48)
    found: list[BuildResult] = []
    with ExitStack() as workers:
        common = ("--build", "--processes", "1", "--fleet", fleet)
        first = workers.enter_context(worker(tmp_path / "first.log", *common))
        building = threading.Thread(target=lambda: found.extend(builder.build(task, steps)))
        building.start()
        strike_at_work(first, signal.SIGTERM)
        assert first.wait(120) == 128 + signal.SIGTERM, (tmp_path / "first.log").read_text()
        workers.enter_context(worker(tmp_path / "second.log", *common))
        building.join()
    assert len(found) == 48
    assert all(build.artifact is not None for build in found)


@pytest.mark.slow
def test_a_script_times_on_a_device_of_the_fleet(fleet: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    host, _, port = fleet.removeprefix("dask://").partition(":")
    monkeypatch.setenv("RETUNE_HOME", str(tmp_path))
    with worker(tmp_path / "worker.log", "--device", "board", "--fleet", fleet):
        task = auto_scheduler.SearchTask(func=product, args=(32, 32, 32), target="llvm")
        log = str(tmp_path / "log.json")
        with auto_scheduler.RPCRunner("board", host, int(port), n_parallel=2, repeat=2, min_repeat_ms=1) as runner:
            told = [auto_scheduler.RecordToFile(log)]
            task.tune(auto_scheduler.TuningOptions(4, runner=runner, measure_callbacks=told, verbose=0))
    inputs, results = auto_scheduler.RecordReader(log).read_lines()
    assert len(inputs) == 4
    assert all(result.error_no or 1 <= len(result.costs) <= 2 for result in results)
    assert any(len(result.costs) == 2 for result in results)
    monkeypatch.setattr(remote, "PATIENCE_SECONDS", 0.5)
    with pytest.raises(MeasureError, match="no worker of device-nowhere"):
        auto_scheduler.RPCRunner("nowhere", host, int(port))


@auto_scheduler.register_workload("product of the fleet's test", override=True)
def product(n: int, m: int, k: int) -> list[Tensor]:
    """A matrix product."""
    a, b, r = te.placeholder((n, k), name="A"), te.placeholder((k, m), name="B"), te.reduce_axis(k, "k")
    return [a, b, te.compute((n, m), lambda i, j: te.sum(a[i, r] * b[r, j], r), "C")]


@pytest.mark.parametrize(
    ("fleet", "said"),
    [
        ("slurm", "a fleet is prefect"),
        ("folder", "start `dask scheduler`"),
        ("prefect://x", "a fleet is"),
        ("dask://", "a fleet is"),
    ],
)
def test_a_fleet_that_does_not_exist(fleet: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=said):
        tune_network("mlp", trials=1, home=str(tmp_path), fleet=fleet)


def test_a_device_without_a_fleet(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="the device board belongs to a fleet"):
        tune_network("mlp", trials=1, home=str(tmp_path), on_device="board")
