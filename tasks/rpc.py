"""In: the address of a Prefect server. Out: the way to the workers of its fleet, for scripts. Always: settings of the
script's own Prefect stay as they are.
"""

import logging

import httpx
from prefect import get_client
from prefect.exceptions import PrefectException
from prefect.settings import PREFECT_API_URL, temporary_settings

from retune.compiler import config
from retune.compiler.errors import OptionError
from retune.storage.errands import ErrandStore
from retune.tasks.courier import StoreCourier
from retune.tasks.wakes import background_task

PATIENCE_SECONDS = 300.0
"""So long a script waits for a worker to take what it asks for."""

_LOG = logging.getLogger(__name__)


def prefect_courier(host: str, port: int, priority: int) -> StoreCourier:
    """The way to the workers that the server at `host` and `port` wakes.

    Raises: OptionError when it does not answer.
    """
    url = f"http://{host}:{port}/api"
    with temporary_settings({PREFECT_API_URL: url}), get_client(sync_client=True) as client:
        failure = client.api_healthcheck()
    if failure is not None:
        raise OptionError(f"there is no Prefect server at {url} ({failure})")

    def wake(queue: str) -> None:
        try:
            with temporary_settings({PREFECT_API_URL: url}):
                background_task(queue).delay()
        except (httpx.HTTPError, PrefectException, OSError) as error:
            _LOG.warning("the workers of %s could not be woken: %s", queue, error)

    settings = config.load()
    place = settings.fleet_storage or str(settings.home / "fleet")
    return StoreCourier(ErrandStore(place), wake, priority, patience_s=PATIENCE_SECONDS)
