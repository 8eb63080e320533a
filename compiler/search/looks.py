"""In: programs of tasks as a search saw them: where they lie in its spaces, and their features. Out: bytes, and the
same again in a process that goes on with the search.

Always: nothing but a saving of time. What was kept by another version, is damaged, or does not name the same program
any more, is left out, and whoever needs it looks at the program anew.
"""

import hashlib
import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from io import BytesIO
from typing import Any

import numpy as np
from numpy.typing import NDArray

from retune.compiler import config
from retune.compiler.cost_model.lessons import UNREADABLE, unpacked
from retune.compiler.errors import CorruptRecordError
from retune.compiler.features import FEATURE_NAMES, FEATURE_VERSION
from retune.compiler.schedule.steps import dump_steps
from retune.compiler.schedule.task import SearchTask
from retune.compiler.search.genome import Rows, keys_of
from retune.compiler.search.options import SearchOptions
from retune.compiler.search.scored import Features
from retune.compiler.search.space import SketchSpace

_DIGEST = 16
_NOWHERE = -1
"""The number of the space of a program that none contains."""
_LARGEST = 2**31
"""No column of a program of ours holds so much."""


@dataclass(frozen=True, slots=True, eq=False)
class Look:
    """A program as the model sees it: its features (S, F), None where its steps do not fit the task; and, of one that a
    space contains, the number of that space, its key and its row there.
    """

    features: Features | None
    space: int = 0
    key: int = 0
    row: Rows | None = None


def identity_of(task: SearchTask, options: SearchOptions) -> str:
    """What features and spaces of a task depend on, as 64 hexadecimal digits."""
    text = f"{FEATURE_VERSION} {config.engine_version()} {task.identity} {options}"
    return hashlib.sha256(text.encode()).hexdigest()


@dataclass(frozen=True, slots=True, eq=False)
class KeptLooks:
    """What was kept of N programs of one task: the place of each by the digest of its steps text, its space (N,), its
    row (N, G) filled up with zeros, and R rows of features (R, F), of which `ends` (N,) says where each program's end.
    """

    places: Mapping[bytes, int]
    spaces: NDArray[np.int64]
    rows: Rows
    ends: NDArray[np.int64]
    features: Features

    def at(self, texts: Collection[str], spaces: Sequence[SketchSpace]) -> dict[str, Look]:
        """The looks at those programs that were kept and that `spaces` still contain at the same place."""
        looks: dict[str, Look] = {}
        placed: dict[int, list[tuple[str, int]]] = {}
        for text in texts:
            place = self.places.get(_digest(text))
            if place is not None:
                placed.setdefault(int(self.spaces[place]), []).append((text, place))
        for number, found in placed.items():
            if number == _NOWHERE:
                looks |= {text: Look(self._features(place)) for text, place in found}
            elif 0 <= number < len(spaces):
                looks |= self._in_space(found, number, spaces[number])
        return looks

    def _in_space(self, found: Sequence[tuple[str, int]], number: int, space: SketchSpace) -> dict[str, Look]:
        width = space.layout.width
        if width > self.rows.shape[1]:
            return {}
        rows = self.rows[[place for _, place in found], :width]
        keys = keys_of(number, rows)
        return {
            text: Look(self._features(place), number, int(key), row)
            for (text, place), row, key in zip(found, rows, keys, strict=True)
            if _is_row(space, row) and dump_steps(space.steps(row)) == text
        }

    def _features(self, place: int) -> Features:
        return self.features[self.ends[place - 1] if place else 0 : self.ends[place]]


def _is_row(space: SketchSpace, row: Rows) -> bool:
    """Whether a row can be one of the space."""
    depths = [column for _, column in space.layout.parallel]
    return bool(
        0 <= row.min() <= row.max() < _LARGEST
        and row[space.layout.placement] < len(space.placements)
        and (row[depths] <= space.deepest).all()
    )


def looks_to_bytes(looks: Mapping[str, Mapping[str, Look]]) -> bytes:
    """Looks by the identity of their task and by steps text, in one compressed archive of arrays; those without
    features are left out.
    """
    arrays: dict[str, NDArray[Any]] = {}
    for number, found in enumerate(looks.values()):
        kept = {text: look for text, look in found.items() if look.features is not None}
        width = max((len(look.row) for look in kept.values() if look.row is not None), default=0)
        rows = np.zeros((len(kept), width), dtype=np.int64)
        for row, look in zip(rows, kept.values(), strict=True):
            if look.row is not None:
                row[: len(look.row)] = look.row
        blocks = [look.features for look in kept.values() if look.features is not None]
        spaces = [_NOWHERE if look.row is None else look.space for look in kept.values()]
        digests = b"".join(map(_digest, kept))
        arrays[f"digests{number}"] = np.frombuffer(digests, dtype=np.uint8).reshape(-1, _DIGEST)
        arrays[f"spaces{number}"] = np.array(spaces, dtype=np.int64)
        arrays[f"rows{number}"] = rows
        arrays[f"ends{number}"] = np.cumsum([len(block) for block in blocks], dtype=np.int64)
        arrays[f"features{number}"] = np.concatenate([np.empty((0, len(FEATURE_NAMES)), np.float32), *blocks])
    header = json.dumps({"tasks": list(looks)}).encode()
    buffer = BytesIO()
    np.savez_compressed(buffer, allow_pickle=False, header=np.frombuffer(header, dtype=np.uint8), **arrays)
    return buffer.getvalue()


def looks_from_bytes(data: bytes, identities: Collection[str]) -> dict[str, KeptLooks]:
    """What `looks_to_bytes` wrote of the tasks of these identities. Raises: CorruptRecordError; StoreError when
    there is too little memory.
    """
    try:
        with unpacked(data) as arrays:
            tasks = json.loads(arrays["header"].tobytes())["tasks"]
            wanted = ((number, name) for number, name in enumerate(tasks) if name in identities)
            return {name: _kept(arrays, number) for number, name in wanted}
    except UNREADABLE as error:
        raise CorruptRecordError(f"these are no looks at programs: {error}") from error


def _kept(arrays: Mapping[str, NDArray[Any]], number: int) -> KeptLooks:
    """Raises: an error of `UNREADABLE` for arrays that do not fit each other."""
    digests, spaces, rows, ends, features = (
        arrays[f"{name}{number}"] for name in ("digests", "spaces", "rows", "ends", "features")
    )
    count = len(digests)
    shapes = (digests.shape[1:], spaces.shape, rows.shape[:1], ends.shape, features.shape[1:])
    if shapes != ((_DIGEST,), (count,), (count,), (count,), (len(FEATURE_NAMES),)) or rows.ndim != 2:
        raise ValueError(f"the arrays of task {number} do not fit each other")
    kinds = [str(one.dtype) for one in (digests, spaces, rows, ends, features)]
    if kinds != ["uint8", "int64", "int64", "int64", "float32"]:
        raise TypeError(f"the arrays of task {number} are of other types")
    edges = np.concatenate([[0], ends, [len(features)]])
    if (np.diff(edges) < 0).any() or edges[-2] != len(features) or not np.isfinite(features).all():
        raise ValueError(f"the features of task {number} are none")
    places = {digest.tobytes(): place for place, digest in enumerate(digests)}
    return KeptLooks(places, spaces, rows, ends, features)


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode("utf-8", "backslashreplace")).digest()[:_DIGEST]
