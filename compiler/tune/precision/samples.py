"""Samples of a network's inputs: from files of NumPy, from Python, or drawn at random."""

import hashlib
import io
import itertools
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from tokenize import TokenError
from typing import Any
from zipfile import BadZipFile, is_zipfile

import numpy as np

from retune.compiler.core.dtype import is_float
from retune.compiler.core.errors import OptionError
from retune.compiler.graph.ir import Value
from retune.compiler.runtime.artifact import Array
from retune.compiler.runtime.atomic_write import atomic_write
from retune.compiler.runtime.readable import count

Sample = Mapping[str, Array]

_DAMAGED = (OSError, ValueError, EOFError, RuntimeError, MemoryError, BadZipFile, TokenError, zlib.error)
"""What zipfile and NumPy raise for a file that is no archive of arrays."""

RANDOM = 8
"""Samples that are drawn where none are given."""
MOST = 64
"""Most samples that are used: more change ranges little, and cost time."""
_HELD_OUT = 4
"""The last fourth of the samples is held out, at least one sample where there are several."""


def read_samples(calibrate: Any, inputs: Sequence[Value], seed: int) -> tuple[Sample, ...]:
    """Samples of a network's `inputs` in `calibrate`: the path of a `.npz` or of a folder of them, or an iterable of
    dictionaries, of sequences in the order of the inputs, or of arrays for a network with one input. An array has the
    shape of its input, or a further first axis of samples. None: random inputs.

    Raises: OptionError with the name of the input and what is wrong.
    """
    if calibrate is None:
        rng = np.random.default_rng(seed)
        return tuple(_draw(inputs, rng) for _ in range(RANDOM))
    samples: list[Sample] = []
    for where, arrays in _entries(calibrate, inputs):
        samples += _split(where, arrays, inputs)
        if len(samples) >= MOST:
            break
    if not samples:
        raise OptionError("there are no samples to calibrate with")
    return tuple(samples[:MOST])


def hold_out(samples: Sequence[Sample]) -> tuple[Sequence[Sample], Sequence[Sample]]:
    """Samples that ranges come from, and samples that errors are checked on; the same if there is a single sample."""
    last = max(1, len(samples) // _HELD_OUT)
    return (samples[:-last], samples[-last:]) if len(samples) > 1 else (samples, samples)


def files_of(path: Path) -> list[Path]:
    """The file, or those of the folder. Raises: OptionError when there are none."""
    files = sorted(path.glob("*.npz")) if path.is_dir() else [path]
    if not files:
        raise OptionError(f"the folder {path} has no .npz to calibrate with")
    return files


def digest_of(calibrate: str) -> str:
    """A hash of the content of files of samples: other samples are another request. Raises: OptionError."""
    digest = hashlib.sha256()
    for file in files_of(Path(calibrate)):
        try:
            digest.update(hashlib.sha256(file.read_bytes()).digest())
        except OSError as error:
            raise OptionError(f"cannot read samples from {file}: {error}") from error
    return digest.hexdigest()[:16]


def save_samples(samples: Sequence[Sample], folder: Path) -> str:
    """Write samples into a folder of files in `folder`, named by their content, and return its path."""
    files: list[bytes] = []
    for sample in samples:
        buffer = io.BytesIO()
        np.savez(buffer, **sample)  # type: ignore[arg-type]
        files.append(buffer.getvalue())
    content = hashlib.sha256(b"".join(hashlib.sha256(data).digest() for data in files)).hexdigest()[:16]
    path = folder / f"samples-{content}"
    path.mkdir(parents=True, exist_ok=True)
    for number, data in enumerate(files):
        with atomic_write(path / f"{number:03d}.npz") as temporary:
            temporary.write_bytes(data)
    return str(path)


def _draw(inputs: Sequence[Value], rng: np.random.Generator) -> Sample:
    """Normal floats; integers are 0 or 1, which are legal indices everywhere."""
    return {
        value.name: rng.standard_normal(value.shape).astype(value.dtype)
        if is_float(value.dtype)
        else rng.integers(0, 2, value.shape).astype(value.dtype)
        for value in inputs
    }


def _entries(calibrate: Any, inputs: Sequence[Value]) -> Iterator[tuple[str, Mapping[str, object]]]:
    """Where samples come from, for messages, and their arrays by name."""
    if isinstance(calibrate, str | Path):
        for file in files_of(Path(calibrate)):
            yield str(file), _read(file)
        return
    entries = [calibrate] if isinstance(calibrate, Mapping) or hasattr(calibrate, "__array__") else calibrate
    if not isinstance(entries, Iterable):
        raise OptionError(f"calibrate is a path or an iterable of samples, not {calibrate!r:.80}")
    for number, entry in enumerate(itertools.islice(entries, MOST)):
        where = f"sample {number}"
        if isinstance(entry, Mapping):
            yield where, entry
            continue
        arrays = entry if isinstance(entry, tuple | list) else (entry,)
        if len(arrays) != len(inputs):
            wanted = count(len(inputs), "input")
            raise OptionError(f"{where} has {count(len(arrays), 'array')}, and the network has {wanted}")
        yield where, {value.name: array for value, array in zip(inputs, arrays, strict=True)}


def _read(path: Path) -> dict[str, Array]:
    try:
        with path.open("rb") as file:
            if not is_zipfile(file):
                raise ValueError("it is no .npz; numpy.savez writes one, with an array for each input by name")
            file.seek(0)
            loaded = np.load(file, allow_pickle=False)
            return {name: loaded[name] for name in loaded.files}
    except _DAMAGED as error:
        raise OptionError(f"cannot read samples from {path}: {error}") from error


def _split(where: str, arrays: Mapping[str, object], inputs: Sequence[Value]) -> list[Sample]:
    """The samples of an entry, whose arrays may have an axis of samples."""
    known = {value.name: value for value in inputs}
    for name in arrays:
        if name not in known:
            raise OptionError(f"{where}: the network has no input {name!r}; its inputs are {', '.join(known)}")
    if missing := [name for name in known if name not in arrays]:
        raise OptionError(f"{where}: no array for the input {missing[0]!r}")
    columns = {name: _check(where, value, arrays[name]) for name, value in known.items()}
    lengths = {len(column) for column in columns.values()}
    if len(lengths) > 1:
        raise OptionError(f"{where}: the inputs have different numbers of samples: {sorted(lengths)}")
    return [{name: column[number] for name, column in columns.items()} for number in range(next(iter(lengths), 0))]


def _check(where: str, value: Value, given: object) -> list[Array]:
    """The array of an input in each sample, in its type."""
    try:
        array = np.asarray(given)
    except (ValueError, TypeError, RuntimeError) as error:  # lists of unequal lengths, tensors with gradients
        raise OptionError(f"{where}: {value} got no array: {error}") from error
    shape = tuple(array.shape)
    is_batch = value.shape[:1] == (1,) and shape[1:] == value.shape[1:]
    if value.shape not in (shape, shape[1:]) and not is_batch:
        raise OptionError(f"{where}: {value} got the shape {list(shape)}")
    if array.dtype.kind not in "biuf" and not is_float(array.dtype.name):
        raise OptionError(f"{where}: {value} got {array.dtype}")
    if is_float(array.dtype.name) and not is_float(value.dtype):
        raise OptionError(f"{where}: {value} got {array.dtype}")
    with np.errstate(over="ignore"):
        stored = array.astype(value.dtype)
    if is_float(value.dtype) and not np.isfinite(stored.astype(np.float64)).all():
        raise OptionError(f"{where}: the input {value.name!r} has a NaN or an infinity")
    if not is_float(value.dtype) and value.dtype != "bool" and (stored != array).any():
        raise OptionError(f"{where}: the input {value.name!r} has a number that {value.dtype} has not")
    rows = stored[None] if shape == value.shape else stored
    return [np.ascontiguousarray(row.reshape(value.shape)) for row in rows]
