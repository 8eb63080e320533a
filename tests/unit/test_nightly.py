"""The script that tries new versions of packages, with a pip and a pytest that do nothing."""

from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def nightly() -> ModuleType:
    loader = SourceFileLoader("nightly", str(ROOT / ".ci" / "nightly"))
    spec = spec_from_loader("nightly", loader)
    assert spec is not None
    module = module_from_spec(spec)
    loader.exec_module(module)
    return module


def test_the_newest_release_of_the_newest_minor_versions_is_tried(nightly: ModuleType) -> None:
    versions = ["2.4.6", "2.10.0", "2.10.1", "2.9.3", "2.11.0rc1", "2.9.12", "1.26.4"]
    assert nightly.newest_minors(versions) == ["2.10.1", "2.9.12"]
    assert nightly.newest_minors(["3.0", "2.9.0.post1"]) == ["3.0"]


def test_every_test_of_a_package_exists(nightly: ModuleType) -> None:
    paths = [*nightly.SMOKE, *(path for tests in nightly.TESTS.values() for path in tests)]
    assert [path for path in paths if not (ROOT / path).exists()] == []


def test_the_table_says_what_came_of_each_version(
    nightly: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(command: list[str], **_options: Any) -> SimpleNamespace:
        text = " ".join(command)
        if "index versions" in text:
            return SimpleNamespace(stdout="onnx (1.9.1)\nAvailable versions: 1.9.1, 1.9.0, 1.8.2\n", returncode=0)
        if "install" in command:
            fails = "onnx==1.8.2" in text
            return SimpleNamespace(stdout="", stderr="ERROR: ResolutionImpossible\n" * fails, returncode=int(fails))
        return SimpleNamespace(stdout="12 passed\n", stderr="", returncode=0)

    monkeypatch.setattr(nightly.subprocess, "run", run)
    assert nightly.main(["onnx"]) == 1
    assert capsys.readouterr().out.splitlines() == [
        "package  version  result",
        "onnx     1.9.1    passes",
        "onnx     1.8.2    not installed: ERROR: ResolutionImpossible",
    ]
    assert nightly.main(["nothing"]) == 2
    assert "no tests are known for nothing" in capsys.readouterr().err


def test_a_failure_names_the_tests_else_the_last_line(nightly: ModuleType) -> None:
    summary = "...\nFAILED tests/a.py::b - assert 1\nERROR tests/c.py\n1 failed, 1 error in 3.00s\n"
    assert nightly.reason(summary) == "tests/a.py::b - assert 1; tests/c.py"
    assert nightly.reason("ERROR: No matching distribution\n\n") == "ERROR: No matching distribution"
    assert nightly.reason("a\nb\n") == "b"
