"""Kinds of damage to one file: each replaces the file at a path by something else."""

import json
import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

Damage = Callable[[Path], None]

_WRONG: tuple[tuple[str, Any], ...] = (
    ("null", None),
    ("a list", []),
    ("an object", {}),
    ("a string", "abc"),
    ("a huge number", 1e300),
    ("infinity", float("inf")),
    ("not a number", float("nan")),
    ("long ago", -1e18),
    ("a long integer", 10**400),
    ("a bool", True),
    ("half a character", "\ud800"),
)


def _contents(path: Path, data: bytes) -> None:
    path.unlink()
    path.write_bytes(data)


def _bytes(change: Callable[[bytes], bytes]) -> Damage:
    return lambda path: _contents(path, change(path.read_bytes()))


def _flips(seed: int, count: int) -> Damage:
    def change(data: bytes) -> bytes:
        draw, copy = random.Random(seed), bytearray(data or b"0")
        for _ in range(count):
            copy[draw.randrange(len(copy))] ^= 1 << draw.randrange(8)
        return bytes(copy)

    return _bytes(change)


def _values(value: Any, nth: int) -> Damage:
    """Every nth leaf of the JSON of a file (of each of its lines) becomes `value`; other files become its JSON."""

    def change(data: bytes) -> bytes:
        counter = iter(range(10**9))

        def visit(node: Any) -> Any:
            if isinstance(node, dict):
                return {key: visit(item) for key, item in node.items()}
            if isinstance(node, list):
                return [visit(item) for item in node]
            return value if next(counter) % nth == 0 else node

        try:
            try:
                return json.dumps(visit(json.loads(data))).encode()
            except ValueError:
                return b"\n".join(json.dumps(visit(json.loads(line))).encode() for line in data.splitlines())
        except ValueError:
            return json.dumps(value).encode()

    return _bytes(change)


def _instead(make: Callable[[Path], None]) -> Damage:
    def damage(path: Path) -> None:
        path.unlink()
        make(path)

    return damage


DAMAGES: dict[str, Damage] = {
    "empty": _bytes(lambda _: b""),
    "cut in half": _bytes(lambda data: data[: len(data) // 2]),
    "without its end": _bytes(lambda data: data[:-3]),
    "twice": _bytes(lambda data: data + data),
    "zeros": _bytes(lambda data: bytes(len(data))),
    "text": _bytes(lambda _: b"hello\n"),
    "not UTF-8": _bytes(lambda data: b"\xff\xfe" + data),
    "nested deep": _bytes(lambda _: b"[" * 200_000),
    "objects nested deep": _bytes(lambda _: b'{"a":' * 100_000 + b"1" + b"}" * 100_000),
    "a number with 1e400": _bytes(lambda _: b'{"round": 1e400, "schema_version": 1e400}'),
    "a pipe": _instead(os.mkfifo),
    "a link to nothing": _instead(lambda path: path.symlink_to("/nowhere/at/all")),
    "a link to itself": _instead(lambda path: path.symlink_to(path.name)),
    "a link without end": _instead(lambda path: path.symlink_to("/dev/zero")),
    "a folder": _instead(Path.mkdir),
    "gone": Path.unlink,
    **{f"{count} bits turned, {seed}": _flips(seed, count) for seed, count in ((1, 1), (2, 1), (3, 4), (4, 64))},
    **{f"all of it {name}": _bytes(lambda _, value=value: json.dumps(value).encode()) for name, value in _WRONG},  # type: ignore[misc]
    **{f"every value {name}": _values(value, 1) for name, value in _WRONG},
    **{f"some values {name}": _values(value, 3) for name, value in _WRONG[:6]},
}
