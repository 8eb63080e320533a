"""In: nothing. Out: an environment in which tests call nobody and leave nothing behind.

Always: set before Prefect is imported.
"""

import os
import tempfile
from collections.abc import Iterator

_STATE = tempfile.TemporaryDirectory(prefix="retune-tests-")
os.environ.update(
    {
        "DO_NOT_TRACK": "1",
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        "PREFECT_HOME": f"{_STATE.name}/prefect",
        "PREFECT_PROFILES_PATH": f"{_STATE.name}/prefect/profiles.toml",
        "PREFECT_SERVER_LOGGING_LEVEL": "CRITICAL",
        "PREFECT_LOGGING_TO_API_WHEN_MISSING_FLOW": "ignore",
        "RETUNE_HOME": f"{_STATE.name}/retune",
    }
)

import pytest  # noqa: E402 - Prefect reads the environment when something imports it
from prefect.testing.utilities import prefect_test_harness  # noqa: E402


@pytest.fixture(scope="session")
def prefect_api() -> Iterator[None]:
    """A temporary Prefect database and server, one for the whole session."""
    with prefect_test_harness(server_startup_timeout=120):
        yield
