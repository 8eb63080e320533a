"""What comes of errors of the engines of a fleet."""

import errno
from asyncio import CancelledError

import pytest

from retune.compiler.errors import MeasureError, OptionError
from retune.tasks.engines import engine_errors


@pytest.mark.parametrize(
    "error", [ConnectionError("timeout"), OSError("no scheduler"), TimeoutError(), CancelledError()]
)
def test_an_engine_that_fails_ends_the_run_with_a_sentence(error: BaseException) -> None:
    said = r"the fleet ray://h:1 failed \(.*the same command goes on from there"
    with pytest.raises(MeasureError, match=said), engine_errors("ray://h:1"):
        raise error


@pytest.mark.parametrize("error", [OptionError("a mistake"), OSError(errno.ENOSPC, "full"), ValueError("a fault")])
def test_errors_that_are_not_of_the_engine_stay_what_they_are(error: Exception) -> None:
    with pytest.raises(type(error)) as caught, engine_errors("dask"):
        raise error
    assert caught.value is error
