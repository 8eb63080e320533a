"""What comes of errors of the engines of a fleet."""

import errno
from asyncio import CancelledError
from importlib import import_module
from typing import Any, cast

import pytest
from prefect.futures import PrefectFuture
from prefect.settings import PREFECT_API_URL, temporary_settings

from retune.compiler.core.errors import MeasureError, OptionError
from retune.compiler.measure.remote.wire import to_bytes
from retune.tasks.fleet.engines import FlowEngine, _FleetRun, engine_errors, task_runner_of
from retune.tasks.fleet.plan import DASK, FleetPlan


@pytest.mark.parametrize(
    "error", [ConnectionError("timeout"), OSError("no scheduler"), TimeoutError(), CancelledError()]
)
def test_an_engine_that_fails_ends_the_run_with_a_sentence(error: BaseException) -> None:
    said = r"the fleet dask://h:1 failed \(.*the same command goes on from there"
    with pytest.raises(MeasureError, match=said), engine_errors("dask://h:1"):
        raise error


@pytest.mark.parametrize("error", [OptionError("a mistake"), OSError(errno.ENOSPC, "full"), ValueError("a fault")])
def test_errors_that_are_not_of_the_engine_stay_what_they_are(error: Exception) -> None:
    with pytest.raises(type(error)) as caught, engine_errors("dask"):
        raise error
    assert caught.value is error


class Answers:
    """A future whose results are given; those that are errors are raised."""

    def __init__(self, *answers: bytes | Exception) -> None:
        self.answers = list(answers)

    def result(self, timeout: float | None = None) -> bytes:  # noqa: ARG002 - as Prefect's
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


def result_of(*answers: bytes | Exception) -> object:
    return _FleetRun(DASK, "build", lambda: cast("PrefectFuture[Any]", Answers(*answers)), 60.0, "").result()


def test_a_state_that_the_server_is_just_changing_is_waited_for() -> None:
    missing = RuntimeError("Task run 1 has no state which means it hasn't started yet.")
    assert result_of(missing, TimeoutError(), to_bytes("built")) == "built"


def test_other_errors_of_a_worker_are_the_run_s() -> None:
    with pytest.raises(RuntimeError, match="a fault"):
        result_of(RuntimeError("a fault"))


def test_a_fleet_starts_no_server_without_a_login() -> None:
    plan = FleetPlan(DASK, "", "cpu")
    with (
        temporary_settings(restore_defaults={PREFECT_API_URL}),
        pytest.raises(OptionError, match="set PREFECT_API_URL"),
        FlowEngine(plan=plan)._place("build"),
    ):
        raise AssertionError("placed")


def test_a_local_cluster_of_dask_takes_nobody_without_its_keys() -> None:
    distributed = pytest.importorskip("distributed")
    runner: Any = task_runner_of(DASK, ("build",))
    assert import_module("dask").config.get("distributed.admin.large-graph-warning-threshold") == "1GB"
    kind = {**runner.cluster_kwargs, "n_workers": 0}
    with distributed.LocalCluster(**kind) as cluster, distributed.Client(cluster) as client:
        address = client.scheduler_info()["address"]
        assert address.startswith("tls://")
        # In the event loop of this client: that of a second one has 10 s to start, which a busy machine exceeded.
        with pytest.raises((TypeError, OSError)):  # Dask's own client does not go there without keys
            client.sync(distributed.comm.connect, address, timeout=3)
        with pytest.raises(OSError):  # noqa: PT011 - closed or timed out
            client.sync(distributed.comm.connect, address.replace("tls:", "tcp:"), timeout=3)
