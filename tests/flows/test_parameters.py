"""What `TuneJob` accepts, and what makes two requests the same run."""

import json
from dataclasses import Field, fields, replace
from pathlib import Path
from typing import Any

import pytest

from retune.compiler.core import config
from retune.compiler.core.errors import OptionError, TargetError
from retune.compiler.core.options import TuneOptions, flag_of, info_of
from retune.compiler.core.settings import resolve
from retune.compiler.measure.options import MeasureOptions
from retune.compiler.tune.operators import extract
from retune.compiler.tune.worker_service import DeviceFacts
from retune.flows import device as device_module
from retune.flows.allocate_trials import allocate_trials
from retune.flows.cli.app import load
from retune.flows.parameters import DEFAULT_TRIALS, TuneJob
from retune.flows.tune_network import tune_network
from retune.tasks.fleet import plan
from retune.tasks.fleet.workers import open_workers
from tests.support.fake_cuda import DEVICE


def job(**options: Any) -> TuneJob:
    return TuneJob.of("mlp", **options)


def test_a_job_for_a_gpu_is_for_the_one_that_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = job(target="cuda", threads=1)
    monkeypatch.setattr(device_module, "gpu_here", lambda _: DEVICE)
    found = device_module.resolve_device(asked)
    assert (found.target, found.device) == ("cuda -arch=sm_90a", DEVICE.identity)
    monkeypatch.setattr(device_module, "gpu_here", lambda _: None)
    assert device_module.resolve_device(asked) == asked


@pytest.mark.parametrize(
    ("asked", "has", "target"),
    [
        (None, "cuda -arch=sm_90", "cuda -arch=sm_90"),
        ("cuda -math=tf32", "cuda -arch=sm_90", "cuda -arch=sm_90 -math=tf32"),
        ("cuda -arch=sm_80", "cuda -arch=sm_90", "cuda -arch=sm_80"),
        ("llvm -mcpu=znver4", "llvm -mcpu=znver5", "llvm -mcpu=znver4"),
    ],
)
def test_a_job_for_a_fleet_is_for_what_its_device_has(
    asked: str | None, has: str, target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    facts = DeviceFacts("there", has, 4, 1 << 20)
    monkeypatch.setattr(device_module, "with_task_runner", lambda *_: lambda *_: facts)
    found = device_module.resolve_device(job(target=asked, fleet="prefect", on_device="cuda"))
    assert (found.target, found.device, found.threads) == (target, "there", 4)


def test_a_device_of_a_fleet_does_not_time_what_is_for_another_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    for asked, has, words in (
        ("cuda", "llvm -mcpu=znver5", "the device here is a CPU: it does not time programs for cuda;"),
        ("llvm", "cuda -arch=sm_90", "the device here is a GPU: it does not time programs for llvm;"),
    ):
        facts = DeviceFacts("there", has, 4, 1 << 20)
        monkeypatch.setattr(device_module, "with_task_runner", lambda *_, facts=facts: lambda *_: facts)
        with pytest.raises(OptionError, match=words):
            device_module.resolve_device(job(target=asked, fleet="prefect", on_device="here"))


def test_defaults_are_filled_in() -> None:
    made = job().options
    assert made.trials == DEFAULT_TRIALS
    assert made.threads == config.usable_cores()
    assert job(minutes=2.0).options.trials is None
    assert job(target="llvm -num-cores=1").threads == 1
    assert job(target="llvm -num-cores=1", threads=config.usable_cores()).threads == config.usable_cores()


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"trials": 0}, "trials must be at least 1, not"),
        ({"trials": -3}, "trials must be at least 1, not"),
        ({"minutes": 0.0}, "minutes must be"),
        ({"minutes": float("nan")}, "minutes must be"),
        ({"minutes": float("inf")}, "minutes must be"),
        ({"threads": 0}, "threads must be between 1 and"),
        ({"threads": 100_000}, "threads must be between 1 and"),
        ({"seed": -1}, "seed"),
        ({"batch": 0}, "batch"),
        ({"early_stopping": -1}, "early_stopping must be at least 0"),
        ({"weights": "hot"}, "weights must be one of"),
        ({"strategy": "best"}, "strategy must be one of gradient, round-robin"),
        ({"alpha": 1.5}, "alpha must be between 0 and 1"),
        ({"beta": 0.5}, "beta must be at least 1"),
        ({"backward_window": 0}, "backward_window must be between 1 and"),
        ({"fleet": "slurm"}, "a fleet is prefect"),
        ({"fleet": "folder"}, "start `dask scheduler`"),
    ],
)
def test_invalid_options_are_refused_by_name(options: dict[str, Any], named: str) -> None:
    with pytest.raises(OptionError, match=named):
        job(**options)


def test_a_job_for_an_engine_that_is_not_installed_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan, "find_spec", lambda _: None)
    with pytest.raises(OptionError, match="needs the package prefect-dask"):
        job(fleet="dask://host:8786")
    assert job(fleet="prefect").plan is not None


def test_an_unknown_target_is_refused() -> None:
    with pytest.raises(TargetError, match="abacus"):
        job(target="abacus")


def test_the_budget_and_the_folder_are_no_part_of_a_runs_identity() -> None:
    keys = ("a", "b")
    first = job(trials=10, home="/somewhere").fingerprint(keys)
    assert job(minutes=3.0, home="/elsewhere", early_stopping=64).fingerprint(keys) == first
    assert job(trials=10).fingerprint(("b", "a")) == first


@pytest.mark.parametrize(
    "options",
    [
        {"seed": 1},
        {"batch": 32},
        {"weights": "cached"},
        {"target": "llvm -mcpu=znver4"},
        {"strategy": "round-robin"},
        {"beta": 3.0},
    ],
)
def test_everything_else_is(options: dict[str, Any]) -> None:
    assert job(**options).fingerprint(("a",)) != job().fingerprint(("a",))


def test_a_run_of_a_version_without_the_schedulers_options_is_resumed() -> None:
    asked = job(
        trials=5,
        threads=1,
        target="llvm -mcpu=znver4",
        seed=3,
        batch=32,
        shapes=["x=2,16"],
        early_stopping=7,
        strategy="gradient",
    )
    assert replace(asked, machine="there").fingerprint(("b", "a")) == (
        '{"batch": 32, "device": "there", "network": "mlp", "seed": 3, "shapes": ["x=2,16"], '
        '"target": "llvm -mcpu=znver4", "tasks": ["a", "b"], "threads": 1, "weights": "auto", "winograd": true}'
    )


def test_other_tasks_are_another_run() -> None:
    assert job().fingerprint(("a",)) != job().fingerprint(("a", "b"))


def test_records_may_be_kept_at_a_url(tmp_path: Path) -> None:
    local, remote = job(home=str(tmp_path)), job(home="s3://bucket/retune")
    assert (local.home, local.store, local.location) == (str(tmp_path), "", tmp_path)
    assert (remote.store, remote.location) == ("s3://bucket/retune", "s3://bucket/retune")
    assert remote.home == job().home
    assert job(home=f"file://{tmp_path}").home == str(tmp_path)
    assert local.fingerprint(["w0"]) == remote.fingerprint(["w0"])


OPTIONS = fields(TuneOptions)


@pytest.mark.parametrize("one", OPTIONS, ids=lambda one: one.name)
def test_an_option_is_a_parameter_an_option_of_the_command_line_and_a_setting(one: Field[Any]) -> None:
    parameter = tune_network.parameters.properties[one.name]
    assert parameter["description"] == info_of(one).meaning
    assert parameter["default"] is None
    assert parameter.get("enum", []) == [*info_of(one).choices]
    words = {word for option in load("tune").params for word in (*option.opts, *option.secondary_opts)}
    assert f"--{flag_of(one)}" in words
    assert info_of(one).setting or one.name in {origin.name for origin in resolve({}, Path())[1]}
    assert info_of(one).group


def test_a_job_is_made_again_of_its_parameters(tmp_path: Path) -> None:
    made = job(minutes=2.0, shapes=["x=2,16"], home=str(tmp_path), winograd=False, strategy="round-robin")
    assert TuneJob.of(**json.loads(json.dumps(made.parameters()))) == made


def test_what_is_given_takes_the_place_of_a_setting_and_one_limit_of_both(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("TRIALS", "7"), ("BETA", "3"), ("STRATEGY", "round-robin"), ("DEVICE", "board")):
        monkeypatch.setenv(f"RETUNE_{name}", value)
    options = job(minutes=1.0, beta=4.0).options
    assert (options.trials, options.minutes, options.beta, options.strategy) == (None, 1.0, 4.0, "round-robin")
    assert options.on_device is None, "there is no fleet"
    assert job(fleet="prefect").options.on_device == "board"


def test_prefect_stores_the_names_of_what_is_no_plain_value() -> None:
    extracted = extract("mlp", "llvm", 1)
    with open_workers(MeasureOptions(), None, None) as workers:
        given = {"job": job(), "extracted": extracted, "run_id": "R", "workers": workers}
        stored = allocate_trials.serialize_parameters(given)
        assert (stored["extracted"], stored["workers"]) == ("<ExtractedNetwork>", "<Workers>")
        assert stored["job"]["network"] == "mlp"
        validated = allocate_trials.validate_parameters(given)
    assert validated["extracted"] is extracted
    assert validated["workers"] is workers


def test_a_fleet_is_not_asked_for_throughput() -> None:
    with pytest.raises(OptionError, match="neither a fleet nor a GPU"):
        job(fleet="prefect", objective="throughput")


@pytest.mark.parametrize("network", ["b\udcff.onnx", "mlp"])
def test_a_name_that_is_not_utf_8_is_refused(network: str, tmp_path: Path) -> None:
    home = tmp_path / ("state" if network != "mlp" else "s\udcff")
    with pytest.raises(OptionError, match=r"\\udcff.*' is not UTF-8, as Prefect needs: rename it"):
        TuneJob.of(network, home=str(home))
