"""The JSON documents of a store: their types, and the one reader that validates them."""

import logging
from typing import Annotated, Any, NotRequired, TypeVar

from pydantic import BeforeValidator, ConfigDict, Field, TypeAdapter, ValidationError
from typing_extensions import TypedDict

from retune.compiler.core.errors import CorruptRecordError, UnknownFormError
from retune.compiler.measure.record import MOMENTS
from retune.compiler.runtime.kernel_row import KernelRow
from retune.storage.blob_store import BlobStore

logger = logging.getLogger(__name__)

Count = Annotated[int, Field(ge=0, lt=2**63)]
# Finite, and far from overflow when pages multiply or add such numbers.
Number = Annotated[float, Field(ge=-1e30, le=1e30)]
Seconds = Annotated[float, Field(gt=0, le=1e30)]
Moment = Annotated[float, Field(ge=0, lt=MOMENTS.stop)]
"""Seconds since 1970."""
# Bounded to what DuckDB's BIGINT holds: a larger number would be an error of every SQL query.
Integer = Annotated[int, Field(ge=-(2**63), lt=2**63)]

Document = TypeVar("Document")


class Marker(TypedDict):
    """`store.json`."""

    schema_version: Count


class Summary(TypedDict, total=False):
    """What the ledger keeps of a finished run; fields that are not listed stay as they are."""

    __pydantic_config__ = ConfigDict(extra="allow")  # type: ignore[misc] # pydantic's way to configure a TypedDict
    trials: Count | None
    untuned_seconds: float | None
    tuned_seconds: float | None
    artifact: object


class Contender(TypedDict):
    """One way to run the network."""

    name: str
    seconds: Seconds | None
    error: Number | None


class Comparison(TypedDict):
    """All ways to run the network."""

    reference: str
    contenders: list[Contender]
    note: NotRequired[str | None]


def _kernel_row(row: Any) -> KernelRow:
    """The row of a kernel from JSON. Raises: ValueError."""
    # Bounded to what DuckDB's BIGINT holds; NaN is in no range.
    numbers = [value for value in row.values() if isinstance(value, int | float)] if isinstance(row, dict) else []
    if not all(0 <= number < 2**63 for number in numbers):
        raise ValueError("a number is out of range")
    return KernelRow.of(row)


Row = Annotated[KernelRow, BeforeValidator(_kernel_row)]


class Limits(TypedDict):
    """What the machine can do at best."""

    threads: Count
    peak_gflops: Seconds
    memory_gbs: Seconds
    cache_gbs: Seconds


class RunReport(TypedDict, total=False):
    """`report.json` of a network or an operator: the fields that pages show."""

    trials: Count
    elapsed: Number
    comparison: Comparison
    tasks: list[Row]
    limits: Limits | None
    is_right: bool
    contention: Number
    artifact: str
    records: str


MARKER_KIND = TypeAdapter(Marker)
REPORT = TypeAdapter(RunReport)
ROUND = TypeAdapter(dict[str, str | Integer | Number | None])
"""A line of `rounds.jsonl`."""


def read_document(blobs: BlobStore, name: str, kind: TypeAdapter[Document]) -> Document:
    """A document of a store. Raises: FileNotFoundError, StoreError; CorruptRecordError for one of another form."""
    return parse_document(blobs.read(name), kind, blobs.where(name))


def parse_document(data: bytes, kind: TypeAdapter[Document], where: str) -> Document:
    """A document from its bytes; `where` names it in errors. Raises: CorruptRecordError, UnknownFormError."""
    try:
        return kind.validate_json(data)
    except ValidationError as error:
        first: Any = error.errors(include_url=False, include_input=False)[0]
        path = ".".join(map(str, first["loc"]))[:80]
        # A path in the error means that the JSON was parsed: the form is unknown, as of a newer version, not damaged.
        kind_of_error = UnknownFormError if path else CorruptRecordError
        raise kind_of_error(f"{where} cannot be read: {f'{path}: ' if path else ''}{first['msg']}") from error


def set_aside(blobs: BlobStore, name: str, error: CorruptRecordError) -> None:
    """Quarantine a file that is no JSON object. Others stay, with a warning: newer versions may read them."""
    if isinstance(error, UnknownFormError):
        logger.warning("ignored, and left as it is: %s", error)
    else:
        blobs.quarantine(name, error)
