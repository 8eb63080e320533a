"""Import of Prefect that takes settings from the environment and the user's profile, and from no file of the working
directory: an unpacked model is data, and Prefect's settings can name code.

The workers of a local Dask cluster load this module first.
"""

from contextlib import chdir
from importlib import import_module
from pathlib import Path
from typing import Any


def import_prefect() -> None:
    """Import Prefect's settings. From then on `.env`, `prefect.toml` and `pyproject.toml` are not read."""
    with chdir(Path(__file__).parent):  # has no such file, and is code already
        sources: Any = import_module("prefect.settings.sources")
    # Prefect reads them again with every change of its settings.
    sources.TomlConfigSettingsSourceBase._read_files = lambda *_, **__: {}
    sources.FilteredDotEnvSettingsSource._read_env_files = lambda _: {}


def dask_setup(worker: object) -> None:
    """Dask calls this in a worker before the worker gets tasks."""
    import_prefect()
