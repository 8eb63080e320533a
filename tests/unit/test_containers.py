"""The container files name things that are there. Nothing is built here: that needs a container engine."""

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from flows.cli import app

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
    folders = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]
    copied = " ".join(rest for word, rest in instructions(FOLDER / "worker.Dockerfile") if word == "COPY")
    assert all(f"{package} " in copied for package in folders["packages"])


def commands() -> list[list[str]]:
    """Every command of ours in a container file or the compose file."""
    found = [service["command"] for service in COMPOSE["services"].values() if "command" in service]
    for path in FILES:
        found += [yaml.safe_load(rest) for word, rest in instructions(path) if word == "CMD"]
    split = [part.split() for command in found if command[0] == "sh" for part in command[2].split("&&")]
    return [command for command in [*found, *split] if command[0] == "retune"]


@pytest.mark.parametrize("command", commands(), ids=" ".join)
def test_commands_of_ours_exist(command: list[str]) -> None:
    shown = CliRunner().invoke(app, [command[1], "--help"], env={"COLUMNS": "200", "TERM": "dumb"})
    assert shown.exit_code == 0
    assert all(option in shown.output for option in command if option.startswith("--"))


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
