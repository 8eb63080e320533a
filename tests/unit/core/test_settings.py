"""Settings come from defaults, a file, the environment and flags; the later wins, and mistakes are named."""

from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from retune.compiler.core.errors import OptionError
from retune.compiler.core.options import TuneOptions, info_of, tune_options
from retune.compiler.core.settings import Settings, Value, resolve, unknown_variables


def sources(environment: dict[str, str], folder: Path, flags: dict[str, Value] | None = None) -> dict[str, str]:
    return {one.name: one.source for one in resolve(environment, folder, flags)[1]}


def test_without_anything_all_is_as_the_class_says(tmp_path: Path) -> None:
    settings, origins = resolve({}, tmp_path)
    assert settings == Settings(home=tmp_path / ".retune")
    assert {one.source for one in origins} == {"default"}
    assert all(one.meaning and one.variable for one in origins)


def test_the_later_source_wins(tmp_path: Path) -> None:
    file = tmp_path / "retune.toml"
    file.write_text("batch = 1\nseed = 1\nminutes = 3\nhome = 'here'\n")
    environment = {"RETUNE_SEED": "2", "RETUNE_BATCH": "2", "RETUNE_WEIGHTS": ""}
    settings, _ = resolve(environment, tmp_path, {"batch": 3, "threads": None})
    assert (settings.minutes, settings.seed, settings.batch) == (3.0, 2, 3)
    assert settings.home == tmp_path / "here"
    assert settings.weights == "auto"
    found = sources(environment, tmp_path, {"batch": 3, "threads": None})
    assert (found["minutes"], found["seed"], found["batch"]) == (str(file), "RETUNE_SEED", "flag --batch")
    assert found["threads"] == "default"


def test_paths_are_relative_to_where_they_are_written(tmp_path: Path) -> None:
    (tmp_path / "far").mkdir()
    (tmp_path / "far" / "other.toml").write_text("home = 'state'\n")
    assert resolve({"RETUNE_CONFIG": "far/other.toml"}, tmp_path)[0].home == tmp_path / "far" / "state"
    assert resolve({"RETUNE_HOME": "state"}, tmp_path)[0].home == tmp_path / "state"
    assert resolve({}, tmp_path, {"home": "/absolute"})[0].home == Path("/absolute")


@pytest.mark.parametrize("name", ["fleet", "fleet_storage", "prefect_api"])
def test_a_file_of_the_working_directory_does_not_say_who_runs_code(name: str, tmp_path: Path) -> None:
    (tmp_path / "retune.toml").write_text(f"{name} = 'dask://10.0.0.5:8786'\n")
    with pytest.raises(OptionError, match=f"retune.toml may not set {name}, .* or RETUNE_CONFIG=retune.toml if"):
        resolve({}, tmp_path)
    settings, _ = resolve({"RETUNE_CONFIG": "retune.toml"}, tmp_path)
    assert getattr(settings, name) == "dask://10.0.0.5:8786"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("trails = 3\n", ("retune.toml", "'trails'", "'trials'")),
        ("[tune]\ntrials = 3\n", ("retune.toml", "'tune'")),
        ("trials = 'many'\n", ("retune.toml: trials", "an integer", "'many'")),
        ("trials = true\n", ("an integer", "True")),
        ("trials = 0\n", ("at least 1", "0")),
        ("trials = 1.5\n", ("an integer", "1.5")),
        ("minutes = inf\n", ("finite", "inf")),
        ("weights = 3\n", ("a string", "3")),
        ("home = ''\n", ("a path", "''")),
        ("home = 's3://bucket/folder'\n", ("retune.toml: home", "a folder of this machine", "s3://bucket/folder")),
        ("winograd = 1\n", ("retune.toml: winograd", "true or false", "1")),
        ("winograd = 'no'\n", ("true or false", "'no'")),
        ("batch = = 3\n", ("retune.toml", "not TOML", "line 1")),
    ],
)
def test_a_mistake_in_the_file_is_named(text: str, words: tuple[str, ...], tmp_path: Path) -> None:
    (tmp_path / "retune.toml").write_text(text)
    with pytest.raises(OptionError) as raised:
        resolve({}, tmp_path)
    for word in words:
        assert word in str(raised.value)


def test_a_mistake_in_the_environment_is_named(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="RETUNE_TRIALS must be an integer, not 'many'"):
        resolve({"RETUNE_TRIALS": "many"}, tmp_path)
    with pytest.raises(OptionError, match=r"missing\.toml"):
        resolve({"RETUNE_CONFIG": "missing.toml"}, tmp_path)


def test_numbers_without_bound_are_refused(tmp_path: Path) -> None:
    for digits in (20, 400, 5_000):
        number = "1" * digits
        for name in ("RETUNE_NUM_THREADS", "OMP_NUM_THREADS", "RETUNE_SEED"):
            with pytest.raises(OptionError, match=f"^{name} must be ") as refused:
                resolve({name: number}, tmp_path)
            assert len(str(refused.value)) < 200
        for line in (f"num_threads = {number}", f"minutes = {number}", f"target = {number}", "seed = 0x" + number):
            (tmp_path / "retune.toml").write_text(line)
            with pytest.raises(OptionError) as refused:
                resolve({}, tmp_path)
            assert len(str(refused.value)) < 400
        (tmp_path / "retune.toml").unlink()


def test_a_file_that_is_nested_deep_is_refused(tmp_path: Path) -> None:
    (tmp_path / "retune.toml").write_text("seed = " + "[" * 100_000)
    with pytest.raises(OptionError, match="nested too deep"):
        resolve({}, tmp_path)


def test_numbers_of_threads_are_read_as_openmp_reads_them(tmp_path: Path) -> None:
    assert resolve({"OMP_NUM_THREADS": "3,2"}, tmp_path)[0].num_threads == 3
    assert resolve({"OMP_NUM_THREADS": "3", "RETUNE_NUM_THREADS": "4"}, tmp_path)[0].num_threads == 4
    assert resolve({"OMP_NUM_THREADS": "3", "RETUNE_NUM_THREADS": "none"}, tmp_path)[0].num_threads == 3


@pytest.mark.parametrize(("text", "value"), [("0", False), ("Off", False), ("no", False), ("1", True), ("TRUE", True)])
def test_yes_and_no(text: str, value: bool, tmp_path: Path) -> None:
    assert resolve({}, tmp_path)[0].winograd is True
    assert resolve({"RETUNE_WINOGRAD": text}, tmp_path)[0].winograd is value
    (tmp_path / "retune.toml").write_text("winograd = false\n")
    assert resolve({}, tmp_path)[0].winograd is False
    assert resolve({"RETUNE_WINOGRAD": text}, tmp_path)[0].winograd is value
    assert resolve({"RETUNE_WINOGRAD": text}, tmp_path, {"winograd": True})[0].winograd is True
    with pytest.raises(OptionError, match="RETUNE_WINOGRAD must be true or false, not 'perhaps'"):
        resolve({"RETUNE_WINOGRAD": "perhaps"}, tmp_path)


def test_variables_that_set_nothing_are_found() -> None:
    environment = {"RETUNE_TRAILS": "3", "RETUNE_SEED": "3", "RETUNE_ROOT": "/", "RETUNE_SESSION": "x", "PATH": "/bin"}
    assert unknown_variables(environment) == {"RETUNE_TRAILS": "RETUNE_TRIALS"}


def test_settings_are_listed_as_the_options_of_a_run_are_then_the_others(tmp_path: Path) -> None:
    names = [one.name for one in resolve({}, tmp_path)[1]]
    options = [info_of(one).setting or one.name for one in tune_options()]
    assert names[: len(options)] == options
    assert names[0] == "trials"
    assert names[len(options)] == "home"
    assert set(names) == {info_of(one).setting or one.name for one in fields(Settings)}


def test_numbers_of_numpy_are_numbers() -> None:
    given: dict[str, Any] = {"tolerance": np.float32(0.25), "trials": np.int64(7)}
    options = TuneOptions(precision="auto", **given)
    assert (options.tolerance, options.trials) == (0.25, 7)
    assert all(type(number) in (int, float) for number in (options.tolerance, options.trials))
    with pytest.raises(OptionError, match="trials must be an integer"):
        TuneOptions(**{**given, "trials": np.float32(7)})
