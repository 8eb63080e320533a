"""A run on workers in other processes: what one of them loses another does; nothing is lost and nothing comes twice."""

import os
import re
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import asdict
from functools import partial
from itertools import pairwise
from pathlib import Path

import pytest
from prefect import get_client
from prefect.settings import PREFECT_API_URL

from benchmarks.fleet import requests_in, scheduling, serving
from benchmarks.simulated import Simulation, command, simulated
from benchmarks.simulated_worker import SimulatedWorker
from retune.compiler import auto_scheduler, te
from retune.compiler.core import config
from retune.compiler.core.errors import MeasureError, OptionError
from retune.compiler.core.target import HardwareParams, Target
from retune.compiler.measure.options import MeasureOptions
from retune.compiler.measure.processes.device_lock import device_lock, lock_name, lock_path
from retune.compiler.measure.record import Measurement
from retune.compiler.measure.remote.fleet import BUILD, CHUNK, FleetBuilder, device_queue
from retune.compiler.model.base import RandomModel
from retune.compiler.schedule.steps import load_steps
from retune.compiler.schedule.task import SearchTask
from retune.compiler.search.policy import SketchPolicy
from retune.compiler.te.tensor import Tensor
from retune.compiler.tvm.auto_scheduler import remote
from retune.compiler.tvm.auto_scheduler.remote import DaskEngine
from retune.flows.parameters import TuneJob
from retune.flows.tune_network import tune_network
from retune.storage.parquet import ParquetRecordStore
from retune.tasks.fleet import engines
from tests.support.flows import runs
from tests.support.flows.fleet_workers import strike_at_work, wait_until, worker
from tests.support.flows.fleets import DEVICE, FLEETS, Fleet, prefect_fleet
from tests.support.flows.networks import write_mlp
from tests.support.flows.servers import free_port
from tests.support.flows.simulated_runs import Outcome, outcome
from tests.support.workloads import matmul

pytestmark = pytest.mark.usefixtures("prefect_api")

TRIALS = 24


@pytest.fixture(params=FLEETS)
def fleet(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Fleet]:
    """A fleet of each engine, with a worker that builds and one that times."""
    with FLEETS[request.param](tmp_path) as found:
        yield found


@pytest.fixture
def dask(tmp_path: Path) -> Iterator[str]:
    """A scheduler of Dask."""
    pytest.importorskip("prefect_dask")
    with scheduling(tmp_path) as name:
        yield name


@pytest.mark.slow
@pytest.mark.parametrize("victim", [BUILD, device_queue(DEVICE)])
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_a_worker_that_is_killed_or_hangs_costs_nothing_but_time(
    number: signal.Signals, victim: str, fleet: Fleet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engines, "_longest", lambda _: 30.0)
    network, home = write_mlp(tmp_path / "small.onnx"), tmp_path / "state"

    def strike() -> None:
        struck = fleet.strike(victim, number)
        log = fleet.replace(victim)
        if log and victim != BUILD and number == signal.SIGSTOP:  # it still holds the device, so a person ends it
            wait_until(lambda: f"process {struck} holds" in log.read_text(), 300.0)
            os.kill(struck, signal.SIGKILL)

    with ThreadPoolExecutor(1) as threads:
        striking = threads.submit(strike)
        report = tune_network(str(network), trials=TRIALS, threads=1, home=str(home), fleet=fleet.name)
        striking.result()
    records = ParquetRecordStore(home).records()
    assert report.is_right
    assert len(records) == TRIALS
    assert Counter((record.task_key, record.steps) for record in records).most_common(1)[0][1] == 1
    assert sum(bool(record.costs) for record in records) > TRIALS / 2
    assert {record.device for record in records} == {config.device_name()}


@pytest.mark.slow
def test_two_runs_share_a_device_whose_lock_nobody_else_holds(fleet: Fleet, tmp_path: Path) -> None:
    network = write_mlp(tmp_path / "small.onnx", widths=(64, 96, 32), batch=8)

    def command_for(home: Path) -> list[str]:
        job = TuneJob.of(str(network), trials=TRIALS, threads=1, batch=8, home=str(home), fleet=fleet.name)
        return command(Simulation(job.parameters()))

    wait_for_the_device(command_for, tmp_path)


@pytest.mark.slow
def test_two_runs_without_a_fleet_share_the_device_of_their_machine(tmp_path: Path) -> None:
    network = write_mlp(tmp_path / "small.onnx", widths=(64, 96, 32), batch=8)
    wait_for_the_device(partial(runs.command, network), tmp_path)


def wait_for_the_device(command_for: Callable[[Path], list[str]], folder: Path) -> None:
    """Begin two runs, by their folders for state, while the lock of this machine's CPU is held, and let them go on."""
    homes, log = [folder / "first", folder / "second"], folder / "runs.txt"
    with device_lock():
        running = begin_runs([command_for(home) for home in homes], log)
        wait_until(lambda: is_awaited(lock_path()), 240.0)
        assert not any(ParquetRecordStore(home).records() for home in homes)
    assert wait_for_runs(running) == [0, 0], log.read_text()
    for home in homes:
        records = ParquetRecordStore(home).records()
        assert len({(record.task_key, record.steps) for record in records}) == len(records) == TRIALS


@pytest.mark.slow
@pytest.mark.parametrize("is_shared", [True, False], ids=["one device", "two devices"])
def test_two_runs_on_two_workers_of_one_device_never_time_at_once(dask: str, is_shared: bool, tmp_path: Path) -> None:
    """Two workers that do not share a device do time at once, so the test would see it."""
    queue = device_queue("board")
    network = write_mlp(tmp_path / "small.onnx", widths=(64, 96, 32), batch=8)
    logs = [tmp_path / "first.log", tmp_path / "second.log"]
    with ExitStack() as stack:
        stack.enter_context(serving(SimulatedWorker(dask, (BUILD,)), tmp_path / "build.log"))
        for log in logs:
            timing = SimulatedWorker(dask, (queue,), time_seconds=0.05, is_shared=is_shared)
            stack.enter_context(serving(timing, log))
        homes, said = [tmp_path / "one", tmp_path / "two"], tmp_path / "runs.txt"
        jobs = [
            TuneJob.of(
                str(network), trials=64, threads=1, batch=32, home=str(home), fleet=dask, on_device="board"
            ).parameters()
            for home in homes
        ]
        running = begin_runs([command(Simulation(job)) for job in jobs], said)
        assert wait_for_runs(running) == [0, 0], said.read_text()
    for home in homes:
        assert len(ParquetRecordStore(home).records()) == 64
    spans = [timings_in(log) for log in logs]
    assert all(spans), "each worker has timed"
    assert sum(map(len, spans)) >= 2 * 64 / CHUNK
    in_order = sorted(span for each in spans for span in each)
    assert any(end > begin for (_, end), (begin, _) in pairwise(in_order)) != is_shared


def timings_in(log: Path) -> list[tuple[float, float]]:
    """When a simulated worker began and ended to time, by the clock of all processes."""
    found = re.findall(r"^timed from (\S+) to (\S+)$", log.read_text(), re.MULTILINE)
    return [(float(begin), float(end)) for begin, end in found]


def begin_runs(commands: Sequence[Sequence[str]], log: Path) -> list["subprocess.Popen[bytes]"]:
    """Runs in processes of their own, on the Prefect server of this one."""
    paths = os.pathsep.join(entry for entry in sys.path if entry)
    environment = config.child_environment({"PYTHONPATH": paths, "PREFECT_API_URL": str(PREFECT_API_URL.value())})
    with log.open("wb") as stream:
        return [subprocess.Popen(each, stdout=stream, stderr=stream, env=environment) for each in commands]


def wait_for_runs(running: Sequence["subprocess.Popen[bytes]"]) -> list[int]:
    """The exit codes of runs."""
    return [run.wait(300) for run in running]


def is_awaited(path: Path) -> bool:
    """Whether a process waits for the lock on a file."""
    number = str(path.stat().st_ino)
    waiting = [line for line in Path("/proc/locks").read_text().splitlines() if "-> FLOCK" in line]
    return any(line.split()[-3].rpartition(":")[2] == number for line in waiting)


def run_on_fleet(tmp_path: Path, fleet: str, name: str) -> Outcome:
    """A run with made-up times on the workers of the fleet; what it has stored."""
    network, home = write_mlp(tmp_path / "small.onnx", widths=(64, 96, 32), batch=8), tmp_path / name
    job = TuneJob.of(str(network), trials=96, threads=1, batch=32, home=str(home), fleet=fleet, on_device="board")
    simulated(asdict(Simulation(job.parameters())))
    return outcome(home)


@pytest.mark.slow
def test_workers_share_the_work_come_and_go_and_the_run_ends_the_same(dask: str, tmp_path: Path) -> None:
    build = SimulatedWorker(dask, (BUILD,), build_seconds=0.03)
    timing = SimulatedWorker(dask, (device_queue("board"),), time_seconds=0.005)
    first, second, timer = (tmp_path / f"{name}.log" for name in ("first", "second", "timer"))
    with ExitStack() as workers:
        workers.enter_context(serving(build, first))
        workers.enter_context(serving(timing, timer))
        alone = run_on_fleet(tmp_path, dask, "alone")
        assert len(alone) == 96
        assert requests_in(first) >= 12
        helper = workers.enter_context(serving(build, second))

        def kill_at_work() -> None:
            wait_until(lambda: requests_in(second) > 0, 240.0)
            helper.kill()

        killing = threading.Thread(target=kill_at_work)
        killing.start()
        assert run_on_fleet(tmp_path, dask, "disturbed") == alone
        killing.join()


@pytest.mark.slow
def test_a_scheduler_that_is_killed_ends_the_run_which_goes_on_with_a_new_one(tmp_path: Path) -> None:
    pytest.importorskip("prefect_dask")
    port = free_port()
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
    """Tune on a fleet, and check that the records are those of a run."""
    report = tune_network(str(network), trials=trials, threads=1, home=str(home), fleet=fleet)
    records = ParquetRecordStore(home).records()
    assert report.is_right
    assert len(records) == trials
    assert any(record.costs for record in records)


@pytest.mark.slow
def test_a_worker_of_background_tasks_leaves_its_limit_and_ends_on_a_signal(tmp_path: Path) -> None:
    with prefect_fleet(tmp_path) as fleet:
        records_of(write_mlp(tmp_path / "small.onnx"), tmp_path / "state", fleet.name)
        with get_client(sync_client=True) as client:
            assert client.read_global_concurrency_limit_by_name(lock_name()).limit == 1
        for served in fleet.workers.values():
            served.send_signal(signal.SIGTERM)
            assert served.wait(120) == 143


@pytest.mark.slow
def test_the_same_flow_runs_on_a_local_cluster(tmp_path: Path) -> None:
    pytest.importorskip("prefect_dask")
    records_of(write_mlp(tmp_path / "small.onnx"), tmp_path / "state", "dask")


@pytest.mark.slow
def test_stopped_worker_returns_its_job_to_the_queue(dask: str, tmp_path: Path) -> None:
    task = SearchTask("matmul", matmul(64, 64, 64), Target.host(), HardwareParams(num_cores=1))
    steps = [load_steps(candidate.steps) for candidate in SketchPolicy(task, RandomModel()).ask(48, 0)]
    builder = FleetBuilder(DaskEngine(dask.replace("dask", "tcp")), MeasureOptions(), at_once=48)
    found: list[Measurement] = []
    with ExitStack() as workers:
        common = ("--build", "--processes", "1", "--fleet", dask)
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
def test_a_script_times_on_a_device_of_the_fleet(dask: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    host, _, port = dask.removeprefix("dask://").partition(":")
    monkeypatch.setenv("RETUNE_HOME", str(tmp_path))
    with worker(tmp_path / "worker.log", "--device", "board", "--fleet", dask):
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
        ("dask://host", "a fleet is"),
        ("dask://host:port", "a fleet is"),
        ("dask://host:8786/x", "a fleet is"),
    ],
)
def test_a_fleet_that_does_not_exist(fleet: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=said):
        tune_network("mlp", trials=1, home=str(tmp_path), fleet=fleet)


def test_a_device_without_a_fleet(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="the device board belongs to a fleet"):
        tune_network("mlp", trials=1, home=str(tmp_path), on_device="board")
