"""The command line: a user's mistake is one sentence on stderr and exit code 2, before Prefect is started."""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
import typer

from retune.compiler.runtime.cuda.driver import why_not
from retune.compiler.runtime.executor import executors
from retune.compiler.runtime.executor.library import Library
from retune.compiler.runtime.ffi.linking import link_objects
from retune.compiler.tune.extract import ImportedNetwork
from retune.flows.cli import app as cli
from retune.flows.cli import exits
from retune.flows.cli.commands import run as run_command
from retune.flows.parameters import TuneJob
from tests.support.doubling_network import doubling_network
from tests.support.flows.command_line import Refused, run
from tests.support.flows.networks import write_mlp, write_unsupported
from tests.support.gpu_network import network_with_gpu
from tests.support.ir_kernels import artifact

FAULTY_MODULE = """
from retune.compiler import auto_scheduler
auto_scheduler.register_workload("quotient", lambda n: 1 / n, override=True)
"""


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("tune", "missing.onnx"), ("missing.onnx", "retune networks")),
        (("tune", "text.onnx"), ("text.onnx", "not an ONNX model")),
        (("tune", "unsupported.onnx"), ("MaxRoiPool", "pooled", "MaxPool", "docs/reference/onnx.md")),
        (("tune", "dynamic.onnx"), ("static", "many")),
        (("tune", "dynamic.onnx", "--shape", "x=2,many"), ("dimension 1 of x is 16 in the model",)),
        (("tune", "dynamic.onnx", "--shape", "y=2,16"), ("y",)),
        (("tune", "mlp", "--trials", "0"), ("trials", "at least 1")),
        (("tune", "mlp", "--trials", "-5"), ("trials", "-5")),
        (("tune", "mlp", "--minutes", "0"), ("minutes", "more than 0")),
        (("tune", "mlp", "--threads", "0"), ("threads",)),
        (("tune", "mlp", "--threads", "100000"), ("threads", "100000")),
        (("tune", "mlp", "--minutes", "nan"), ("minutes", "finite")),
        (("tune", "mlp", "--minutes", "inf"), ("minutes", "inf")),
        (("tune", "mlp", "--seed", "-1"), ("seed", "-1")),
        (("tune", "mlp", "--batch", "0"), ("batch", "0")),
        (("tune", "mlp", "--batch", "99999"), ("batch", "99999")),
        (("tune", "mlp", "--shape", "=1,2"), ("=1,2",)),
        (("tune", "mlp", "--shape", "x=0,16"), ("x",)),
        (("tune", "mlp", "--shape", "x=-1,16"), ("x",)),
        (("tune", "mlp", "--target", "llvm -mcpu=abacus"), ("abacus",)),
        (("tune", ""), ("no network given",)),
        (("tune", "a\nb\u202e"), ("a", "b")),
        (("tune", "."), ("is a folder",)),
        (("tune", "mlp", "--early-stopping", "-1"), ("early_stopping", "-1")),
        (("tune", "mlp", "--weights", "hot"), ("weights", "cached", "hot")),
        (("tune", "mlp", "--target", "abacus"), ("abacus", "llvm")),
        (("tune", "mlp", "--store", "text.onnx"), ("text.onnx",)),
        (("tune", 'operator:["retune.matmul", 64'), ("is no operator", 'operator:["retune.matmul", 512, 512, 512]')),
        (("tune", 'operator:["retune.matrix", 64, 64]'), ("no operator 'matrix'", "matmul, batch_matmul")),
        (("tune", 'operator:["retune.matmul", 64, 64]'), ("matmul(rows: int, columns: int, inner: int): missing",)),
        (("tune", 'operator:["retune.matmul", 64, "a", 64]'), ("integers of at least 1", "'a'")),
        (("tune", 'operator:["retune.softmax", 4, 4]', "--shape", "x=4,4"), ("--shape and --shapes are for networks",)),
        (("tune", 'operator:no_such_module:["f", 1]'), ("no_such_module cannot be imported",)),
        (("tune", 'operator:faulty:["quotient", 0]'), ("ZeroDivisionError", "quotient")),
        (("tune", 'operator:faulty:["product", 0]'), ("product is not registered",)),
        (("run", "text.onnx"), ("text.onnx",)),
        (("run", "missing.retune"), ("missing.retune",)),
        (("run", "."), ("is no file: it is a folder",)),
        (("run", "good.retune/x"), ("good.retune/x is no file: a part of the path is no folder",)),
        (("serve", "a/b=good.retune"), ("'a/b'", "no slash")),
        (("serve", "=good.retune"), ("''", "give it letters")),
        (("explain", "good.retune"), ("good.retune is a compiled network", "name its model, or a run")),
        (("run", "other.so"), ("other.so", "no library of a network")),
        (("run", "good.retune", "--threads", "0"), ("threads", "0")),
        (("records", "show", "NOBODY"), ("NOBODY",)),
    ],
)
def test_a_mistake_is_one_sentence_and_exit_code_2(
    arguments: tuple[str, ...], words: tuple[str, ...], folder: Path, refused: Refused
) -> None:
    (folder / "text.onnx").write_text("this is no network")
    doubling_network().save(folder / "good.retune")
    link_objects([artifact("good").object_code], folder / "other.so")
    write_unsupported(folder / "unsupported.onnx")
    write_mlp(folder / "dynamic.onnx", batch="many")
    (folder / "faulty.py").write_text(FAULTY_MODULE)
    said = refused(*arguments)
    for word in words:
        assert word in said


def test_a_store_of_a_newer_schema_is_refused(folder: Path, refused: Refused) -> None:
    state = folder / "state"
    state.mkdir()
    (state / "store.json").write_text(json.dumps({"schema_version": 999}))
    assert "999" in refused("tune", "mlp")


def test_a_dynamic_network_with_a_given_shape_is_accepted(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_mlp(folder / "dynamic.onnx", batch="many")
    networks: list[ImportedNetwork] = []
    monkeypatch.setattr(sys, "argv", ["retune", "tune", "dynamic.onnx", "--shape", "x=2,16"])
    run_flow = "retune.flows.cli.commands.tune.run_flow"
    monkeypatch.setattr(run_flow, lambda _job, _mode, network: networks.append(network))
    with contextlib.suppress(SystemExit):
        cli.main()
    assert networks[0].extract("llvm", 1).graph.inputs[0].shape == (2, 16)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ((), "reading mlp\nconnecting to Prefect at http://me:***@host/api\n"),
        (
            ("--json",),
            '{"event": "phase_started", "text": "reading mlp"}\n'
            '{"event": "phase_started", "text": "connecting to Prefect at http://me:***@host/api"}\n',
        ),
        (("--quiet",), ""),
    ],
)
def test_a_run_says_at_once_what_it_does(
    options: tuple[str, ...],
    said: str,
    folder: Path,  # noqa: ARG001
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    shown: list[str] = []
    monkeypatch.setenv("PREFECT_API_URL", "http://me:secret@host/api")
    checked = "retune.flows.cli.commands.tune.ImportedNetwork.check"
    monkeypatch.setattr(checked, lambda *_: shown.append(capsys.readouterr().out))
    monkeypatch.setattr("retune.flows.cli.commands.tune.run_flow", lambda *_: None)
    monkeypatch.setattr(sys, "argv", ["retune", "tune", "mlp", *options])
    with contextlib.suppress(SystemExit):
        cli.main()
    shown.append(capsys.readouterr().out)
    assert "".join(shown) == said
    assert shown[0].count("\n") == (1 if said else 0), "the first line comes before the network is read"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("tune", "mlp", "--trials", "many"), ("--trials", "integer", "retune tune --help")),
        (("tune",), ("network", "retune tune --help")),
        (("tune", "mlp", "--trails", "3"), ("--trails", "--trials")),
        (("tun",), ("'tun'", "'tune'", "retune --help")),
        (("records", "show"), ("record_id", "retune records show --help")),
        (("networks", "--json", "--quiet"), ("--json", "--quiet")),
    ],
)
def test_a_mistyped_command_is_one_sentence_too(
    arguments: tuple[str, ...], words: tuple[str, ...], folder: Path, refused: Refused
) -> None:
    said = refused(*arguments)
    assert all(word in said for word in words)
    assert not list(folder.iterdir())


def test_a_group_without_a_command_shows_what_there_is(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, "records") == 2
    assert "compact" in capsys.readouterr().out


@pytest.mark.parametrize("arguments", [("networks",), ("--help",), ("config", "--json")])
def test_output_that_cannot_be_written_is_one_sentence(arguments: tuple[str, ...]) -> None:
    with Path("/dev/full").open("w") as full:
        command = [sys.executable, "-P", "-m", "retune.flows.cli.app", *arguments]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, timeout=300, check=False)
    assert done.stderr == "retune: cannot write the output: No space left on device\n"
    assert done.returncode == exits.USER_ERROR


def test_internal_error_and_user_error_have_different_exit_codes(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("retune.flows.cli.commands.networks.zoo.NAMES", None)
    assert run(monkeypatch, "networks") == exits.BUG
    said = capsys.readouterr().err
    assert "Traceback" in said
    assert "please report it: TypeError" in said


def commands() -> dict[str, Any]:
    """Every command with its callback, those of groups too."""
    found = {name: cli.load(name) for name in cli.COMMANDS}
    groups = [found.pop(name) for name in [*found] if hasattr(found[name], "commands")]
    return found | {name: command for group in groups for name, command in group.commands.items()}


def test_every_command_that_prints_has_json_and_quiet() -> None:
    for name, command in commands().items():
        assert {"as_json", "quiet"} <= {one.name for one in command.params}, name


def test_every_command_is_documented() -> None:
    text = (Path(__file__).parents[2] / "docs/reference/cli.md").read_text(encoding="utf-8")
    table, _, _ = text.partition("## Exit codes")
    for name in commands():
        assert re.search(rf"`(records )?{name}[ `]", table), name


@pytest.mark.parametrize("name", cli.COMMANDS)
def test_the_summary_of_a_command_is_the_first_sentence_of_its_help(name: str) -> None:
    _, summary = cli.COMMANDS[name]
    assert cli.load(name).get_short_help_str(1000) == summary


def test_the_help_shows_summaries_in_full(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(monkeypatch, "--help") == exits.OK
    shown = " ".join(capsys.readouterr().out.split())
    for name, (_, summary) in cli.COMMANDS.items():
        assert f" {name} {summary}" in shown


def test_the_version_is_that_of_the_package(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, "--version") == exits.OK
    assert capsys.readouterr().out == f"retune {metadata.version('retune-compiler')}\n"


@pytest.mark.parametrize("option", ["--help", "--version"])
def test_the_help_imports_no_heavy_module(option: str) -> None:
    code = (
        "import atexit, sys; from retune.flows.cli import app as cli; sys.argv = ['retune', sys.argv[1]];"
        "heavy = {'prefect', 'xgboost', 'scipy', 'pyarrow', 'llvmlite', 'onnx', 'numpy', 'retune.compiler.tune'};"
        "atexit.register(lambda: print('heavy:', *sorted(heavy & {*sys.modules})));"
        "cli.main()"
    )
    done = subprocess.run([sys.executable, "-c", code, option], capture_output=True, text=True, timeout=300, check=True)
    assert done.stdout.splitlines()[-1] == "heavy:"


@pytest.mark.usefixtures("folder")
def test_quiet_prints_nothing(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in (("networks",), ("config",), ("records", "list"), ("records", "check"), ("records", "compact")):
        assert run(monkeypatch, *arguments, "--quiet") == 0
    assert capsys.readouterr().out == ""


def test_settings_are_shown_with_their_sources(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "retune.toml").write_text("batch = 32\nseed = 5\n")
    monkeypatch.setenv("RETUNE_SEED", "7")
    assert run(monkeypatch, "config", "--json", "--store", "elsewhere") == 0
    rows = {row["name"]: row for row in map(json.loads, capsys.readouterr().out.splitlines())}
    assert rows["home"]["value"] == str(folder / "elsewhere")
    assert {name: rows[name]["source"] for name in ("home", "batch", "seed", "weights")} == {
        "home": "flag --store",
        "batch": str(folder / "retune.toml"),
        "seed": "RETUNE_SEED",
        "weights": "default",
    }
    assert (rows["batch"]["value"], rows["seed"]["value"]) == (32, 7)
    monkeypatch.setenv("RETUNE_SED", "7")
    assert run(monkeypatch, "config") == 0
    shown = capsys.readouterr().out
    assert "RETUNE_SED is set" in shown
    assert "most programs measured in one round" in shown


def test_a_run_takes_its_defaults_from_the_settings(folder: Path) -> None:
    (folder / "retune.toml").write_text("batch = 32\ntrials = 17\nthreads = 1\nweights = 'memory'\n")
    made = TuneJob.of("mlp", seed=3).options
    assert (made.batch, made.trials, made.threads, made.weights, made.seed) == (32, 17, 1, "memory", 3)
    assert TuneJob.of("mlp", minutes=1.0).options.trials is None


def test_the_zoo_is_listed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(monkeypatch, "networks") == 0
    assert capsys.readouterr().out.splitlines() == ["bert_base", "mlp", "mobilenet_v2", "resnet18", "resnet50"]


def test_a_network_for_a_gpu_is_timed_where_there_is_one(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    network, driver = network_with_gpu()
    network.save(folder / "gpu.retune")
    monkeypatch.setattr(executors, "driver", lambda: driver)
    monkeypatch.setattr(run_command, "gpus", driver.devices)
    assert run(monkeypatch, "run", "gpu.retune", "--json", "--threads", "1") == 0
    told = json.loads(capsys.readouterr().out)
    assert told["inputs"] == {"b0": {"dtype": "float32", "shape": [16]}}
    assert (told["threads"], told["gpu"]) == (1, driver.devices()[0].identity)
    assert len(told["seconds"]) == 10
    assert set(driver.launches()) == {"gpu_kernel0"}
    driver.count = 2
    assert run(monkeypatch, "run", "gpu.retune", "--json", "--device", "cuda:1") == 0
    assert json.loads(capsys.readouterr().out)["gpu"] == driver.devices()[1].identity
    for wrong, words in {
        "cuda:2": "there is no GPU number 2; this machine has 2",
        "cpu": "compiled for one GPU, and given is no GPU: name it",
        "rack-7": "no device is called 'rack-7'",
    }.items():
        assert run(monkeypatch, "run", "gpu.retune", "--device", wrong) == exits.USER_ERROR
        error = capsys.readouterr().err
        assert words in error
        assert error.count("\n") == 1


def test_a_network_for_a_gpu_says_what_is_missing_where_there_is_none(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if why_not() == "":
        pytest.skip("there is a GPU here")
    network_with_gpu()[0].save(folder / "gpu.retune")
    assert run(monkeypatch, "run", "gpu.retune") == exits.USER_ERROR
    error = capsys.readouterr().err
    assert re.match(r"retune: .*(packages for CUDA are missing|no NVIDIA driver|no GPU)", error)
    assert error.count("\n") == 1


def test_an_empty_store_is_no_error(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, "records", "list", "--store", str(folder / "nothing")) == 0
    assert run(monkeypatch, "records", "best", "--store", str(folder / "nothing")) == 0
    assert "task" in capsys.readouterr().out


def test_the_command_line_does_not_import_prefect() -> None:
    code = (
        "import sys; from retune.flows.cli import app as cli; [*map(cli.load, cli.COMMANDS)]; "
        "sys.exit('prefect' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=300).returncode == 0


@pytest.mark.parametrize(("signum", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_stopped_command_prints_a_sentence_and_cleans_up(
    signum: int, code: int, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    before, left = signal.getsignal(signal.SIGTERM), []

    def command() -> None:
        try:
            os.kill(os.getpid(), signum)
            time.sleep(10)
        finally:
            left.append(folder)

    app = typer.Typer()
    app.command()(command)
    monkeypatch.setattr(cli, "load", lambda _: typer.main.get_command(app))
    try:
        assert run(monkeypatch, "runs") == code
    finally:
        signal.signal(signal.SIGTERM, before)
    assert left == [folder]
    assert capsys.readouterr().err.splitlines()[-1] == "retune: stopped"


def test_run_times_a_shared_library(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    Library(doubling_network()).export_library(folder / "doubling.so")
    assert run(monkeypatch, "run", "doubling.so", "--json", "--threads", "1") == 0
    (line,) = capsys.readouterr().out.splitlines()
    assert len(json.loads(line)["seconds"]) == 10
