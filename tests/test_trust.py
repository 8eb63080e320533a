"""What SECURITY.md promises under "What to trust": what comes from outside is data, and stays it."""

import ast
import base64
import contextlib
import importlib
import io
import json
import os
import pickle
import pkgutil
import pwd
import re
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import psutil
import pytest
from prefect import Flow, Task
from prefect.settings import PREFECT_SERVER_API_HOST

from retune import flows, tasks
from retune.compiler.core.errors import MeasureError, RetuneError
from retune.compiler.frontend.network import load_network
from retune.compiler.measure.logs.log import read_log
from retune.compiler.measure.processes.device_lock import lock_name
from retune.compiler.measure.remote.fleet import BUILD
from retune.compiler.measure.remote.wire import from_bytes
from retune.compiler.model.boosted_trees import XGBModel
from retune.compiler.model.training_data import batches_from_bytes
from retune.compiler.runtime.executor.network import CompiledNetwork
from retune.compiler.runtime.executor.params import load_param_dict
from retune.compiler.runtime.executor.shared_library import load_shared_library
from retune.compiler.runtime.ffi.module import Module
from retune.compiler.schedule.state import replay
from retune.compiler.schedule.steps import dump_steps, load_steps
from retune.compiler.tune.worker_service import serve
from retune.storage.artifacts import ArtifactStore
from retune.storage.parquet import ParquetRecordStore
from retune.storage.runs import RunLedger, rounds_of
from tests.support.doubling_network import doubling_network
from tests.support.flows import second_account
from tests.support.flows.runs import PATIENCE_SECONDS, environment_on, rounds
from tests.support.record_samples import part_paths, timed
from tests.support.sources import name_of, nodes_of
from tests.support.workloads import matmul

ROOT = Path(__file__).parent.parent
PACKAGES = ("compiler", "storage", "tasks", "flows")

UNPICKLERS = {
    "compiler/measure/processes/worker_main.py",  # requests of the process that started this one, through a pipe
    "compiler/schedule/workload_registry.py",  # TVM's `load_workload_func_registry`, whose files hold functions
}
"""Who unpickles."""


@dataclass
class Bomb:
    """Makes a file when it is unpickled."""

    marker: Path

    def __reduce__(self) -> tuple[Callable[..., None], tuple[Path]]:
        return Path.touch, (self.marker,)


@pytest.fixture
def marker(tmp_path: Path) -> Path:
    return tmp_path / "exploded"


@pytest.fixture
def bomb(marker: Path) -> bytes:
    """A pickle that goes off, as it does here once to show that it would."""
    data = pickle.dumps(Bomb(marker))
    pickle.loads(data)
    assert marker.exists()
    marker.unlink()
    return data


def array_of(bomb: Bomb) -> bytes:
    """A NumPy file of one object."""
    buffer = io.BytesIO()
    np.save(buffer, np.array([bomb], dtype=object), allow_pickle=True)
    return buffer.getvalue()


def arrays_of(bomb: Bomb, name: str) -> bytes:
    """A NumPy archive in which the array of a name is one of objects."""
    buffer = io.BytesIO()
    np.savez(buffer, allow_pickle=True, **{name: np.array([bomb], dtype=object)})
    return buffer.getvalue()


def test_a_bombs_array_goes_off_where_pickles_are_allowed(marker: Path) -> None:
    np.load(io.BytesIO(array_of(Bomb(marker))), allow_pickle=True)
    assert marker.exists()


READERS: dict[str, Callable[[Path], object]] = {
    "a compiled network": CompiledNetwork.load,
    "a shared library": load_shared_library,
    "a module": Module.load,
    "a network in ONNX": lambda path: load_network(str(path)),
    "parameters": lambda path: load_param_dict(path.read_bytes()),
    "lessons": lambda path: batches_from_bytes(path.read_bytes()),
    "a cost model": XGBModel.load,
    "a message": lambda path: from_bytes(path.read_bytes()),
    "steps": lambda path: load_steps(path.read_bytes().decode("latin-1")),
    "a log": lambda path: list(read_log(path)),
}


@pytest.mark.parametrize("reader", READERS.values(), ids=READERS)
def test_readers_of_files_do_not_unpickle(
    reader: Callable[[Path], object], bomb: bytes, marker: Path, tmp_path: Path
) -> None:
    file = tmp_path / "file.onnx"
    for data in (bomb, array_of(Bomb(marker)), arrays_of(Bomb(marker), "header")):
        file.write_bytes(data)
        with pytest.raises(RetuneError):
            reader(file)
        assert not marker.exists()


def test_a_constant_of_a_network_is_no_object(marker: Path, tmp_path: Path) -> None:
    good, bad = tmp_path / "good.retune", tmp_path / "bad.retune"
    doubling_network().save(good)
    with zipfile.ZipFile(good) as archive, zipfile.ZipFile(bad, "w") as changed:
        for name in archive.namelist():
            data = array_of(Bomb(marker)) if name.startswith("constants/") else archive.read(name)
            changed.writestr(name, data)
    with pytest.raises(RetuneError):
        CompiledNetwork.load(bad)
    assert not marker.exists()


def test_names_in_an_archive_lead_nowhere(tmp_path: Path) -> None:
    """A network with a part that wants to lie elsewhere is read as ever, and nothing is written."""
    path = tmp_path / "in" / "network.retune"
    path.parent.mkdir()
    doubling_network().save(path)
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("../../outside.txt", "here")
    CompiledNetwork.load(path)
    assert [entry.name for entry in tmp_path.rglob("*")] == ["in", "network.retune"]


def test_pickles_in_the_store_are_damage(bomb: bytes, marker: Path, tmp_path: Path) -> None:
    store = ParquetRecordStore(tmp_path)
    store.append([timed("w0", 1e-3)])
    store.append([timed("w1", 1e-3)])
    part_paths(tmp_path)[0].write_bytes(bomb)
    assert [record.task_key for record in ParquetRecordStore(tmp_path).records()] == ["w1"]
    ledger = RunLedger(tmp_path)
    with ledger.open_or_resume("first", {}) as run:
        (tmp_path / "runs" / f"{run.run_id}.json").write_bytes(bomb)
    (tmp_path / "runs" / run.run_id).mkdir()
    (tmp_path / "runs" / run.run_id / "rounds.jsonl").write_bytes(bomb + b"\n")
    assert ledger.list() == ()
    assert rounds_of(tmp_path, run.run_id) == []
    artifacts = ArtifactStore(tmp_path)
    artifacts.put("key", {"file": b"1"})
    (tmp_path / "artifacts" / "key.json").write_bytes(bomb)
    with pytest.raises(RetuneError):
        artifacts.get("key")
    assert not marker.exists()


def test_a_worker_of_a_fleet_is_asked_with_data(bomb: bytes, marker: Path) -> None:
    with pytest.raises(MeasureError):
        serve(BUILD, bomb)
    assert not marker.exists()


TOUCH = "__import__('pathlib').Path('exploded').touch()"
"""What makes a file when it is evaluated."""


@pytest.mark.parametrize(
    "text",
    [
        TOUCH,
        f'[["SP", 0, 0, "{TOUCH}", [1], 1]]',
        f'[["SP", 0, 0, 64, ["{TOUCH}", 1], 1]]',
        f'[["PR", 0, 0, "auto_unroll_max_step${TOUCH}"]]',
        f'[["{TOUCH}", 0, 0]]',
    ],
)
def test_steps_are_parsed_and_not_evaluated(text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Refused, or taken as the text that it is, as that of a pragma; and so are replayed."""
    monkeypatch.chdir(tmp_path)
    with contextlib.suppress(RetuneError):
        steps = load_steps(text)
        assert load_steps(dump_steps(steps)) == steps
        replay(matmul(8, 8, 8), steps)
    assert list(tmp_path.iterdir()) == []


@cache
def calls() -> tuple[tuple[str, str, ast.Call], ...]:
    """Every call in the packages: where, what, and the call. Read once, by the first test that asks."""
    return tuple(_calls())


def _calls() -> Iterator[tuple[str, str, ast.Call]]:
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            for node in nodes_of(path):
                if isinstance(node, ast.Call):
                    yield path.relative_to(ROOT).as_posix(), name_of(node.func), node


def places(*names: str) -> set[str]:
    """The files that call something of these names."""
    return {path for path, name, _ in calls() if name in names or name.rpartition(".")[2] in names}


def test_nothing_is_unpickled_but_by_two_modules_that_say_so() -> None:
    loaders = {path for path, name, _ in calls() if name in ("pickle.loads", "pickle.load", "pickle.Unpickler")}
    assert loaders == UNPICKLERS
    strangers = {"dill", "cloudpickle", "joblib", "shelve", "marshal", "jsonpickle"}
    assert not {(path, name) for path, name, _ in calls() if name.partition(".")[0] in strangers}


def test_no_text_becomes_code_and_no_shell_is_asked() -> None:
    assert not [(path, name) for path, name, _ in calls() if name in ("eval", "exec", "runpy.run_path")]
    assert not places("system", "popen", "getoutput")
    assert not [path for path, _, call in calls() if any(keyword.arg == "shell" for keyword in call.keywords)]


def test_arrays_are_read_without_pickles_and_archives_are_not_unpacked() -> None:
    readers = [(path, call) for path, name, call in calls() if name in ("np.load", "np.lib.format.read_array")]
    assert readers
    for path, call in readers:
        allowed = [ast.unparse(each.value) for each in call.keywords if each.arg == "allow_pickle"]
        assert allowed == ["False"], path
    assert not places("extractall", "unpack_archive", "fromfile")
    assert not [name for _, name, _ in calls() if re.search(r"(archive|zip|tar)\w*\.extract$", name)]


def test_results_of_flows_and_tasks_are_not_kept_by_prefect() -> None:
    """Prefect would pickle them. What a background task returns is a number, kept as JSON."""
    found = []
    for package in (tasks, flows):
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if module.name != "retune.flows.cli.launch":
                found += [one for one in vars(importlib.import_module(module.name)).values() if is_ours(one)]
    assert len(found) > 20
    assert not [one.name for one in found if one.persist_result or one.result_serializer or one.result_storage]


def is_ours(value: object) -> bool:
    return isinstance(value, Flow | Task)


def hostile(folder: Path, marker: Path) -> None:
    """Files of Prefect's settings, each of which runs a command where Prefect reads it."""
    folder.mkdir(parents=True)
    logging = f"version: 1\nformatters:\n  a:\n    (): os.system\n    command: touch {marker}"
    (folder / "logging.yml").write_text(logging)
    path = folder / "logging.yml"
    (folder / "prefect.toml").write_text(f'[logging]\nconfig_path = "{path}"\n[results]\npersist_by_default = true\n')
    (folder / "pyproject.toml").write_text(f'[tool.prefect.logging]\nconfig_path = "{path}"\n')
    (folder / ".env").write_text(f"PREFECT_LOGGING_CONFIG_PATH={path}\nPREFECT_PROFILES_PATH={folder}/profiles.toml\n")
    profile = f'active = "a"\n[profiles.a]\nPREFECT_LOGGING_CONFIG_PATH = "{path}"\n'
    (folder / "profiles.toml").write_text(profile)


_IMPORTS = """
import sys
{guard}
import prefect.main
from prefect.settings import PREFECT_API_URL, get_current_settings, temporary_settings
with temporary_settings({{PREFECT_API_URL: "http://127.0.0.1:1/api"}}):
    settings = get_current_settings()
print(settings.results.persist_by_default, settings.logging.config_path.exists())
"""


@pytest.mark.long
@pytest.mark.parametrize("is_guarded", [True, False])
def test_prefect_is_imported_without_files_of_the_working_directory(
    is_guarded: bool, tmp_path: Path, marker: Path
) -> None:
    """They would run code, as Prefect does without us."""
    hostile(tmp_path / "work", marker)
    guard = "from retune.tasks.prefect_import import import_prefect; import_prefect()" if is_guarded else ""
    ours = {"PREFECT_PROFILES_PATH": str(tmp_path / "profiles.toml")} if is_guarded else {}
    done = subprocess.run(
        [sys.executable, "-P", "-c", _IMPORTS.format(guard=guard)],
        cwd=tmp_path / "work",
        capture_output=True,
        text=True,
        check=True,
        env=environment_on(tmp_path, HOME=str(tmp_path), **ours),
    )
    assert done.stdout.split() == (["False", "False"] if is_guarded else ["True", "True"])
    assert marker.exists() != is_guarded


SHADOWS = ("multiprocessing", "distributed", "numpy", "prefect", "pickle")
"""Modules that every process of a run imports."""


@pytest.mark.long
def test_workers_of_a_local_dask_cluster_take_no_code_of_the_working_directory(tmp_path: Path, marker: Path) -> None:
    """They are begun by `python -c`, which looks for modules there, and import Prefect on their own."""
    pytest.importorskip("prefect_dask")
    hostile(tmp_path / "work", marker)
    for name in SHADOWS:
        (tmp_path / "work" / f"{name}.py").write_text(f"import os\nos.system('touch {marker}')\nraise ImportError\n")
    script = tmp_path / "retune"  # as pip makes it
    script.write_text("from retune.flows.cli.launch import main\nmain()\n")
    command = [sys.executable, str(script), "tune", "mlp", "--trials", "2", "--batch", "2", "--fleet", "dask"]
    done = subprocess.run(
        [*command, "--store", "../state"],
        cwd=tmp_path / "work",
        capture_output=True,
        text=True,
        check=False,
        env=environment_on(tmp_path),
        timeout=500,
    )
    assert done.returncode == 0, done.stderr
    assert not marker.exists()


@dataclass
class Run:
    """A run of the command line that another account attacks."""

    process: "subprocess.Popen[bytes]"
    home: Path
    log: Path

    def until(self, holds: Callable[[], object]) -> None:
        """Wait."""
        limit = time.monotonic() + PATIENCE_SECONDS
        while not holds():
            assert self.process.poll() is None, self.log.read_text()
            assert time.monotonic() < limit, self.log.read_text()
            time.sleep(0.05)

    def children(self) -> list[psutil.Process]:
        """Its processes."""
        return psutil.Process(self.process.pid).children(recursive=True)

    def server(self) -> psutil.Process:
        """Its server of Prefect."""
        (found,) = (child for child in self.children() if "uvicorn" in " ".join(child.cmdline()))
        return found


@contextlib.contextmanager
def attacked_run(tmp_path: Path, marker: Path, account: str) -> Iterator[Run]:
    """`retune tune` in a folder, on a store and with a temporary folder in which another account has been."""
    shared, home, log = tmp_path / "shared", tmp_path / "state", tmp_path / "log.txt"
    hostile(tmp_path / "work", marker)
    hostile(home / "prefect", marker)
    shared.mkdir()
    (shared / f"{lock_name()}.lock").write_text("another's")
    if account:
        os.chown(shared / f"{lock_name()}.lock", pwd.getpwnam(account).pw_uid, -1)
        (shared / f"{lock_name()}.lock").chmod(0o600)
    shared.chmod(0o1777)
    command = [
        sys.executable,
        "-P",
        "-m",
        "retune.flows.cli.launch",
        "retune.flows.cli.app",
        "tune",
        "mlp",
        "--trials",
        "8",
    ]
    with log.open("wb") as stream:
        process = subprocess.Popen(
            [*command, "--batch", "2", "--store", "../state"],
            cwd=tmp_path / "work",
            stdout=stream,
            stderr=stream,
            env=environment_on(home, TMPDIR=str(shared)),
        )
    try:
        yield Run(process, home, log)
    finally:
        process.kill()
        process.wait()


def routes_of(run: Run) -> tuple[int, list[str]]:
    """The port of Prefect's server, and all that it answers to one who knows its login: the account that runs it."""
    login = run.server().environ()["PREFECT_API_AUTH_STRING"]
    (port,) = {each.laddr.port for each in run.server().net_connections("tcp4") if each.status == "LISTEN"}
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/api/openapi.json",
        headers={"Authorization": f"Basic {base64.b64encode(login.encode()).decode()}"},
    )
    with urllib.request.urlopen(request, timeout=60) as answer:
        found = json.load(answer)["paths"]
    return port, [f"{way.upper()} {f'/api{path}'}" for path, ways in found.items() for way in ways]


def attack(**request: object) -> dict[str, str]:
    """What came of the steps of another account's attack."""
    command = [sys.executable, "-P", second_account.__file__]
    done = subprocess.run(command, input=json.dumps(request), capture_output=True, text=True, check=False, timeout=500)
    assert done.returncode == 0, done.stderr
    found: dict[str, str] = json.loads(done.stdout)
    return found


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that other accounts can look into, which those of pytest are not."""
    with tempfile.TemporaryDirectory(prefix="retune-tests-") as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


@pytest.mark.long
@pytest.mark.parametrize("account", ["", "nobody"])
def test_another_account_gets_nothing_of_a_run(account: str, open_folder: Path) -> None:
    """Without another account, what needs no rights is tried from this one."""
    if account and (os.geteuid() != 0 or account not in {each.pw_name for each in pwd.getpwall()}):
        pytest.skip("only root can become another account, nobody")
    marker = open_folder / "exploded"
    with attacked_run(open_folder, marker, account) as run:
        run.until(lambda: rounds(run.home))
        os.kill(run.process.pid, signal.SIGSTOP)  # its server answers, and it does not end meanwhile
        server, (port, routes) = run.server(), routes_of(run)
        assert len(routes) > 100
        watched = [run.process.pid, *(child.pid for child in run.children())] if account else []
        private = Path(server.environ()["PREFECT_HOME"])
        assert (private / "prefect.db").exists()
        folders = [str(private), str(private.parent)] if account else []
        found = attack(account=account, uid=os.getuid(), port=port, pids=watched, folders=folders, routes=routes)
        server.kill()  # the moment of which a squatter dreams
        while server.status() != psutil.STATUS_ZOMBIE:  # its parent is stopped
            time.sleep(0.05)
        taken = attack(account=account, port=port)
        os.kill(run.process.pid, signal.SIGCONT)
        code = run.process.wait(PATIENCE_SECONDS)
    said = run.log.read_text()
    assert code == 0, said
    assert "answers again" in said
    assert not marker.exists()
    for step, came in (*found.items(), *taken.items()):
        expected = {"200"} if step in second_account.PUBLIC else {"401", "PermissionError", "OSError", "[]"}
        if step.startswith("websocket"):
            expected = {"closed 1008", "status 403"}
        if "filter at" in step:
            expected = {"401", "404"}
        assert came in expected, f"{step}: {came}"
    limit = time.monotonic() + PATIENCE_SECONDS
    while private.parent.exists():  # which the run's reaper removes
        assert time.monotonic() < limit
        time.sleep(0.1)


def test_a_prefect_server_listens_on_this_machine_only() -> None:
    assert PREFECT_SERVER_API_HOST.value() == "127.0.0.1"


def test_every_promise_is_in_security_md() -> None:
    text = (ROOT / "SECURITY.md").read_text(encoding="utf-8")
    _, _, rest = text.partition("## What to trust")
    section, _, _ = rest.partition("\n## ")
    for word in ("unpickles nothing", "native code", "evaluated", "loopback", "not a sandbox", "Dask"):
        assert word in section, word
