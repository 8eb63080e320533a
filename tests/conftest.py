"""Fixtures and options of all tests: an environment without network access that leaves nothing behind.

It is set before Prefect is imported, which only the tests of the flows do: the import takes seconds.
"""

import gc
import os
import signal
import sys
import tempfile
from collections.abc import Generator, Iterator

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
        "XDG_CACHE_HOME": f"{_STATE.name}/cache",
        "RETUNE_CHECK": "1",  # every kernel that a test builds is verified after every pass
    }
)

# Tests start hundreds of processes, which would each compile all that they import.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# A shell lets its background jobs ignore Ctrl-C, and so would every process that a test starts and interrupts.
signal.signal(signal.SIGINT, signal.default_int_handler)

import pytest  # noqa: E402 - Prefect reads the environment when something imports it
from hypothesis import HealthCheck, settings  # noqa: E402

from tests.support.s3_server import s3_endpoint, s3_place  # noqa: E402, F401 - fixtures

# The same examples in every run, and no verdict on how long one takes.
settings.register_profile(
    "suite", derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True
)
settings.load_profile("suite")

_PROPERTY_SEED = "--property-seed"
_UPDATE_GOLDEN = "--update-golden"


def pytest_addoption(parser: pytest.Parser) -> None:
    """The seed of the random programs, the same everywhere unless asked otherwise; whether the cases are written."""
    parser.addoption(_PROPERTY_SEED, type=int, default=0, help="seed of the random programs in tests/property")
    parser.addoption(_UPDATE_GOLDEN, action="store_true", help="rewrite the files in tests/cases")


def pytest_report_header(config: pytest.Config) -> str:
    """The seed, to make a run again."""
    return f"random programs: {_PROPERTY_SEED} {config.getoption(_PROPERTY_SEED)}"


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collect without looking for garbage, and never look among what was collected: it stays to the end."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.collect()
        gc.freeze()
        gc.enable()


@pytest.fixture(scope="session")
def property_seed(request: pytest.FixtureRequest) -> int:
    """The seed of the random programs."""
    number: int = request.config.getoption(_PROPERTY_SEED)
    return number


@pytest.fixture(scope="session")
def update_golden(request: pytest.FixtureRequest) -> bool:
    """Whether the cases are rewritten instead of compared."""
    return bool(request.config.getoption(_UPDATE_GOLDEN))


@pytest.fixture(scope="session")
def prefect_api() -> Iterator[None]:
    """A temporary Prefect database and server, one for the whole session."""
    from prefect.testing.utilities import prefect_test_harness

    with prefect_test_harness(server_startup_timeout=120):
        yield
