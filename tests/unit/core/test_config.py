"""Settings from the environment, and the environments made for others."""

from pathlib import Path

import pytest

from retune.compiler.core import config


def test_state_folder_defaults_to_dot_retune_in_the_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert config.load({}).home == tmp_path / ".retune"
    assert config.load({"RETUNE_HOME": ""}).home == tmp_path / ".retune"
    assert config.load({"RETUNE_HOME": "/elsewhere"}).home == Path("/elsewhere")


def test_the_embedded_api_keeps_to_its_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PREFECT_API_URL", "PREFECT_HOME", "PREFECT_PROFILES_PATH", "DO_NOT_TRACK"):
        monkeypatch.delenv(name, raising=False)
    made = config.prefect_environment(Path("/state"))
    assert made["PREFECT_HOME"] == "/state/prefect"
    assert made["PREFECT_PROFILES_PATH"] == "/state/prefect/profiles.toml"
    assert made["PYTHONSAFEPATH"] == "1"
    assert made["DO_NOT_TRACK"] == "1"


def test_a_users_own_server_and_settings_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PREFECT_HOME", "PREFECT_PROFILES_PATH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PREFECT_API_URL", "http://127.0.0.1:4200/api")
    monkeypatch.setenv("DO_NOT_TRACK", "0")
    made = config.prefect_environment(Path("/state"))
    assert "PREFECT_HOME" not in made
    assert made["PREFECT_PROFILES_PATH"] == str(Path.home() / ".prefect" / "profiles.toml")
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


@pytest.mark.parametrize(
    ("groups", "files", "quota"),
    [
        ("0::/a/b\n", {"a/b/cpu.max": "50000 100000"}, 0.5),
        ("0::/a/b\n", {"a/b/cpu.max": "max 100000", "a/cpu.max": "150000 100000", "cpu.max": "9 1"}, 1.5),
        ("0::/host/path\n", {"cpu.max": "200000 100000"}, 2.0),  # a container's own group is the mount
        ("0::/../sibling\n", {"cpu.max": "200000 100000"}, 2.0),
        ("0::/a\n", {"a/cpu.max": "max 100000"}, None),
        (
            "5:memory:/m\n4:cpu,cpuacct:/c\n0::/\n",
            {"cpu/c/cpu.cfs_quota_us": "300000", "cpu/c/cpu.cfs_period_us": "100000"},
            3.0,
        ),
        ("4:cpu:/c\n", {"cpu/c/cpu.cfs_quota_us": "-1", "cpu/c/cpu.cfs_period_us": "100000"}, None),
        ("0::/\n", {"cpu.max": "100000 0"}, None),
        ("", {}, None),
    ],
)
def test_the_quota_of_the_process_and_of_the_groups_above_it_is_found(
    groups: str, files: dict[str, str], quota: float | None, tmp_path: Path
) -> None:
    for name, text in files.items():
        (tmp_path / "cgroup" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "cgroup" / name).write_text(text)
    (tmp_path / "self").write_text(groups)
    assert config.cpu_quota(tmp_path / "cgroup", tmp_path / "self") == quota


@pytest.mark.parametrize(("quota", "cores"), [(None, 4), (8.0, 4), (2.5, 2), (0.5, 1)])
def test_usable_cores_follow_affinity_and_quota(
    quota: float | None, cores: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(config, "usable_cpus", lambda: (0, 1, 2, 3))
    monkeypatch.setattr(config, "cpu_quota", lambda: quota)
    assert config.usable_cores() == cores
