"""Values read from JSON: the type of an object, and checks of single values.

Code that reads a `JsonObject` takes its fields as they should be; whatever that raises for another form is in
`retune.compiler.runtime.archive.DAMAGE`, and its caller reports the damage.
"""

from collections.abc import Mapping
from typing import Any

JsonObject = Mapping[str, Any]
"""An object of JSON, whose fields are unchecked."""


def integer(value: object) -> int:
    """An integer of JSON. Raises: ValueError for anything else, also for true and false."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError(f"{value!r:.80} is not an integer")
    return value


def string(value: object) -> str:
    """A string of JSON. Raises: ValueError for anything else."""
    if not isinstance(value, str):
        raise ValueError(f"{value!r:.80} is not a string")
    return value
