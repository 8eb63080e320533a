"""Settings from the environment, and the environments made for others."""

from pathlib import Path

import pytest

from retune.compiler import config


def test_state_folder_defaults_to_dot_retune_in_the_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert config.load({}).home == tmp_path / ".retune"
    assert config.load({"RETUNE_HOME": ""}).home == tmp_path / ".retune"
    assert config.load({"RETUNE_HOME": "/elsewhere"}).home == Path("/elsewhere")


def test_the_embedded_api_keeps_to_the_state_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PREFECT_API_URL", "PREFECT_HOME", "PREFECT_PROFILES_PATH", "DO_NOT_TRACK"):
        monkeypatch.delenv(name, raising=False)
    made = config.prefect_environment(Path("/state"))
    assert made["PREFECT_HOME"] == "/state/prefect"
    assert made["DO_NOT_TRACK"] == "1"


def test_a_users_own_server_and_settings_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PREFECT_HOME", raising=False)
    monkeypatch.setenv("PREFECT_API_URL", "http://127.0.0.1:4200/api")
    monkeypatch.setenv("DO_NOT_TRACK", "0")
    made = config.prefect_environment(Path("/state"))
    assert "PREFECT_HOME" not in made
    assert "DO_NOT_TRACK" not in made


def test_a_child_gets_this_environment_with_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RETUNE_TEST", "old")
    assert config.child_environment({"RETUNE_TEST": "new"})["RETUNE_TEST"] == "new"
    assert config.child_environment({})["RETUNE_TEST"] == "old"


def test_identities_are_stable_and_not_empty() -> None:
    assert config.device_name() == config.device_name() != ""
    assert config.engine_version()
    assert config.llvm_version().startswith("llvmlite ")
    assert config.usable_cores() >= 1
