"""The container files name things that are there. Nothing is built here: that needs a container engine."""

import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import prefect.settings
import pytest
import yaml
from prefect.cli import app as prefect_app
from typer.testing import CliRunner

from retune.compiler.core import config
from retune.compiler.core.settings import unknown_variables
from retune.flows.cli.app import app

ROOT = Path(__file__).parent.parent.parent
FOLDER = ROOT / "deployments" / "containers"
FILES = sorted(FOLDER.glob("*.Dockerfile"))
COMPOSE: dict[str, Any] = yaml.safe_load((FOLDER / "compose.yaml").read_text(encoding="utf-8"))
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def instructions(path: Path) -> list[tuple[str, str]]:
    """The instructions of a Dockerfile with their arguments; lines that go on are joined."""
    lines = [line for line in path.read_text(encoding="utf-8").splitlines() if not line.startswith("#")]
    joined = re.sub(r"\\\n\s*", "", "\n".join(lines))
    return [(word, rest) for word, _, rest in (line.partition(" ") for line in joined.splitlines() if line.strip())]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_a_container_file_is_sound(path: Path) -> None:
    found = instructions(path)
    known = {"FROM", "ARG", "ENV", "RUN", "WORKDIR", "COPY", "USER", "VOLUME", "EXPOSE", "HEALTHCHECK", "CMD"}
    assert {word for word, _ in found} <= known
    assert next(word for word, _ in found if word != "ARG") == "FROM"
    image = next(rest for word, rest in found if word == "FROM")
    assert re.fullmatch(r"python:3\.\d+-slim-\w+|\$\{WORKER\}", image)
    for word, rest in found:
        if word == "COPY":
            assert all((ROOT / source).exists() for source in rest.split()[:-1]), rest
        if word == "RUN" and "apt-get install" in rest:
            assert "--no-install-recommends" in rest
            assert "rm -rf /var/lib/apt/lists" in rest
        if word in ("CMD",):
            assert rest.startswith("["), "the form that passes signals on"
    assert path.name == "gpu.Dockerfile" or ("USER", "retune") in found


def test_what_pip_installs_is_what_the_project_says() -> None:
    server = " ".join(rest for word, rest in instructions(FOLDER / "server.Dockerfile") if word == "RUN")
    pinned = [requirement for requirement in PROJECT["dependencies"] if requirement.startswith(("prefect", "fastapi"))]
    assert len(pinned) == 2
    assert all(f'"{requirement}"' in server for requirement in pinned)
    worker = " ".join(rest for word, rest in instructions(FOLDER / "worker.Dockerfile") if word == "RUN")
    (extras,) = re.findall(r'pip install "\.\[([\w,]+)\]"', worker)
    assert set(extras.split(",")) <= set(PROJECT["optional-dependencies"])
    gpu = " ".join(rest for word, rest in instructions(FOLDER / "gpu.Dockerfile") if word == "RUN")
    assert re.findall(r'"/opt/retune\[(\w+)\]"', gpu) == ["cuda"]
    assert "cuda" in PROJECT["optional-dependencies"]
    folders = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]
    copied = " ".join(rest for word, rest in instructions(FOLDER / "worker.Dockerfile") if word == "COPY")
    parts = [part.name for package in folders["packages"] for part in (ROOT / package).iterdir() if part.is_symlink()]
    assert sorted(parts) == ["compiler", "flows", "storage", "tasks"]
    assert all(f"{package} " in copied for package in [*folders["packages"], *parts])


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_what_is_copied_goes_to_the_builder_and_nothing_else(path: Path) -> None:
    ignored = [line for line in path.with_name(f"{path.name}.dockerignore").read_text().split() if line[0] in "*!"]
    copied = [source for word, rest in instructions(path) if word == "COPY" for source in rest.split()[:-1]]
    assert ignored[0] == "*"
    assert [line[1:] for line in ignored if line.startswith("!")] == copied
    assert not copied or "**/.env" in ignored


@pytest.mark.parametrize("path", [*FILES, FOLDER / "compose.yaml"], ids=lambda path: path.name)
def test_settings_are_known_to_those_who_read_them(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    for name in set(re.findall(r"\bPREFECT_[A-Z_]+\b", text)):
        assert getattr(prefect.settings, name).name == name
    ours = set(re.findall(r"\bRETUNE_[A-Z_]+\b", text)) - {"RETUNE_API_AUTH", "RETUNE_ROOT"}
    assert not unknown_variables(dict.fromkeys(ours, "1"))


def test_the_container_of_a_worker_installs_what_it_copies(tmp_path: Path) -> None:
    """The project's metadata is read from the copied files alone, as pip does, and names only what is among them."""
    copies = [rest.split()[:-1] for word, rest in instructions(FOLDER / "worker.Dockerfile") if word == "COPY"]
    for source in (source for sources in copies for source in sources):
        target = tmp_path / source
        if (ROOT / source).is_dir():
            shutil.copytree(ROOT / source, target, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            target.write_bytes((ROOT / source).read_bytes())
    assert (tmp_path / PROJECT["readme"]).exists()
    code = "import retune.flows.cli.app; print(retune.flows.cli.app.__file__)"
    environment = config.child_environment({"PYTHONPATH": str(tmp_path)})
    command = [sys.executable, "-P", "-c", code]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(str(tmp_path))


def commands(program: str) -> list[list[str]]:
    """Every command that starts a program, in a container file or the compose file."""
    found = [service["command"] for service in COMPOSE["services"].values() if "command" in service]
    for path in FILES:
        found += [yaml.safe_load(rest) for word, rest in instructions(path) if word == "CMD"]
    split = [part.split() for command in found if command[0] == "sh" for part in command[2].split("&&")]
    return [command for command in [*found, *split] if command[0] == program]


@pytest.mark.parametrize("command", commands("retune"), ids=" ".join)
def test_commands_of_ours_exist(command: list[str]) -> None:
    shown = CliRunner().invoke(app, [command[1], "--help"], env={"COLUMNS": "200", "TERM": "dumb"})
    assert shown.exit_code == 0
    assert all(option in shown.output for option in command if option.startswith("--"))


@pytest.mark.parametrize("command", commands("prefect"), ids=" ".join)
def test_commands_of_prefect_exist(
    command: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [word for word in command[1:] if word in ("worker", "server", "start", "deploy")]
    monkeypatch.setattr("sys.argv", ["prefect", *words, "--help"])
    monkeypatch.setenv("COLUMNS", "200")
    with pytest.raises(SystemExit) as end:
        prefect_app()
    assert not end.value.code
    shown = capsys.readouterr().out
    assert " ".join(words) in shown
    assert all(option in shown for option in command if option.startswith("--") and option != "--no-prompt")


def test_the_compose_file_fits_together() -> None:
    services = COMPOSE["services"]
    assert {image for service in services.values() if (image := service["image"]).startswith("retune-")} == {
        "retune-server",
        "retune-worker",
    }
    for service in services.values():
        assert set(service.get("depends_on", {})) <= set(services)
        for volume in service.get("volumes", []):
            assert volume.partition(":")[0] in COMPOSE["volumes"]
        if "build" in service:
            assert (FOLDER / service["build"]["context"]).resolve() == ROOT
            assert (ROOT / service["build"]["dockerfile"]).exists()
    assert services["server"]["ports"] == ["127.0.0.1:4200:4200"]
    wanted = set(re.findall(r"\$\{(\w+)", (FOLDER / "compose.yaml").read_text(encoding="utf-8")))
    given = {line.partition("=")[0] for line in (FOLDER / "example.env").read_text().splitlines() if "=" in line}
    assert wanted == given
