"""What the doctor says of machines and folders, healthy and not."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread

import pytest

from retune.compiler.core import config
from retune.flows.doctor import machine, services
from retune.flows.doctor.machine import Finding, Verdict
from tests.support.fake_cuda import FakeDriver
from tests.support.flows.command_line import run


def write(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def is_sound(finding: Finding) -> bool:
    """Fine, or with advice."""
    return (finding.verdict is Verdict.OK) == (finding.advice == "") and bool(finding.found)


def test_this_machine_can_build_and_run_a_kernel() -> None:
    findings = list(machine.everything())
    assert all(is_sound(finding) for finding in findings)
    verdicts = {finding.name: finding.verdict for finding in findings}
    assert verdicts["compiler"] is Verdict.OK
    assert set(verdicts) == {"cores", "frequency", "load", "compiler", "CUDA"}


@pytest.mark.parametrize(
    ("missing", "driver", "verdict", "words"),
    [
        ("", "", Verdict.OK, "Double 0 (sm_90a), Double 1 (sm_90a)"),
        ("the packages are missing", "", Verdict.OK, "no NVIDIA driver: CPUs only"),
        ("the packages are missing", "NVRM version: 570\nGCC", Verdict.WARN, "NVRM version: 570"),
    ],
)
def test_a_gpu_that_can_be_used_is_named(
    missing: str, driver: str, verdict: Verdict, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever of the driver is to be seen in this container."""
    monkeypatch.setattr(machine, "why_not", lambda: missing)
    monkeypatch.setattr(machine, "gpus", FakeDriver(count=2).devices)
    finding = machine.cuda(write(tmp_path, {"version": driver}) / "version")
    assert finding.verdict is verdict
    assert words in finding.found
    assert finding.advice == (missing if verdict is Verdict.WARN else "")


def test_a_wrong_result_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("retune.flows.doctor.machine.np.allclose", lambda *_, **__: False)
    assert machine.code_generation().verdict is Verdict.FAIL


@pytest.mark.parametrize(
    ("files", "verdict", "words"),
    [
        ({}, Verdict.OK, "not controlled"),
        ({"cpu0/cpufreq/scaling_governor": "performance\n", "cpufreq/boost": "1"}, Verdict.OK, "boost on"),
        ({"cpu0/cpufreq/scaling_governor": "powersave", "intel_pstate/no_turbo": "1"}, Verdict.WARN, "turbo off"),
    ],
)
def test_doctor_judges_the_clock_frequency(files: dict[str, str], verdict: Verdict, words: str, tmp_path: Path) -> None:
    finding = machine.frequency(write(tmp_path, files))
    assert finding.verdict is verdict
    assert words in finding.found
    assert is_sound(finding)


def test_a_containers_limit_is_seen(tmp_path: Path) -> None:
    finding = machine.cores(tmp_path / "none", quota=0.5)
    assert finding.verdict is Verdict.WARN
    assert "a quota leaves 0.5 at a time: 1 by default" in finding.found
    assert "quota" not in machine.cores(tmp_path / "none", quota=1000).found


def test_doctor_counts_cores_apart_from_hardware_threads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(config, "usable_cpus", lambda: (0, 1, 2, 3))
    monkeypatch.setattr("os.cpu_count", lambda: 4)
    files = {f"cpu{n}/topology/thread_siblings_list": f"{n % 2},{n % 2 + 2}" for n in range(4)}
    assert "--threads 2" in machine.cores(write(tmp_path, files)).advice
    files = {f"cpu{n}/topology/thread_siblings_list": f"{n}" for n in range(4)}
    assert machine.cores(write(tmp_path, files)).verdict is Verdict.OK


def test_other_programs_at_work_are_seen() -> None:
    assert machine.load(0.0).verdict is Verdict.OK
    assert machine.load(100.0).verdict is Verdict.WARN


def test_the_state_folder(tmp_path: Path) -> None:
    assert services.state_folder(tmp_path / "new").verdict is Verdict.OK
    assert not (tmp_path / "new").exists()
    (tmp_path / "file").write_text("")
    assert services.state_folder(tmp_path / "file").verdict is Verdict.FAIL
    assert services.state_folder(Path("/proc/nowhere")).verdict is Verdict.FAIL


def test_missing_packages_are_installed_from_the_clone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(services, "find_spec", lambda _: None)
    finding = services.versions()
    assert finding.verdict is Verdict.WARN
    assert finding.advice == (
        "pip install -e '.[report]' in the root of Retune's clone "
        "(onnxruntime: the comparison in reports; duckdb: `retune records query`)"
    )


@contextmanager
def server(status: int) -> Iterator[str]:
    """An address that answers every request with `status`."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    listening = HTTPServer(("127.0.0.1", 0), Handler)
    Thread(target=listening.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{listening.server_port}/api"
    finally:
        listening.shutdown()
        listening.server_close()


def test_doctor_judges_the_prefect_server() -> None:
    assert services.prefect(None).verdict is Verdict.OK
    with server(200) as url:
        assert services.prefect(url).verdict is Verdict.OK
    assert services.prefect(url).verdict is Verdict.FAIL  # it has stopped
    with server(500) as url:
        assert services.prefect(url).verdict is Verdict.FAIL
    assert services.prefect("file:///etc/hostname").verdict is Verdict.FAIL


def test_the_command_fails_when_something_fails(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(machine, "everything", lambda: iter([machine.load(100.0)]))
    assert run(monkeypatch, "doctor") == 0
    assert "→ other programs" in capsys.readouterr().out
    (folder / "file").write_text("")
    assert run(monkeypatch, "doctor", "--store", str(folder / "file"), "--json") == 1
    rows = {row["name"]: row for row in map(json.loads, capsys.readouterr().out.splitlines())}
    assert rows["state folder"]["verdict"] == "fail"
    assert rows["Prefect"]["verdict"] == "ok"
    assert run(monkeypatch, "doctor", "--store", str(folder / "file"), "--quiet") == 1
    assert capsys.readouterr().out == ""
    (folder / "retune.toml").write_text("trails = 3\n")
    assert run(monkeypatch, "doctor") == 2
    assert "'trials'" in capsys.readouterr().err


def test_a_url_of_a_folder_is_that_folder(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "there").mkdir()
    before = set(folder.iterdir())
    findings = {one.name: one for one in services.everything(f"file://{folder}/there")}
    assert str(folder / "there") in findings["state folder"].found.split(":")[0]
    for store, home in ((f"file://{folder}/there", folder / "there"), ("s3://bucket/there", folder / "state")):
        assert run(monkeypatch, "config", "--store", store, "--json") == 0
        rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
        assert [row["value"] for row in rows if row["name"] == "home"] == [str(home)]
    assert set(folder.iterdir()) == before
