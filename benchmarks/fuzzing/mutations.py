"""Mutations of valid bytes and messages, determined by a source of random numbers.

Byte mutations flip bits, truncate, splice, repeat pieces and write endless lengths. Content mutations change the type
of a value, drop, repeat, swap or rename fields, and nest endlessly.
"""

import hashlib
import io
import json
import math
import re
import zipfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from random import Random
from typing import Any

from retune.compiler.runtime.archive import MANIFEST

Mutate = Callable[[bytes, Random], bytes]

LENGTHS = (0, 1, 2, 7, 127, 128, 255, 256, 1 << 15, (1 << 31) - 1, 1 << 31, (1 << 32) - 1, 1 << 40, (1 << 63) - 1)
"""What stands where a length does."""

_NUMBERS = (*LENGTHS, -1, -2, -(1 << 31), -(1 << 63), 1 << 63, 1 << 64, 10**400, 0.5, -0.0, 1e308, math.nan, math.inf)
_WORDS = ("", "x", "float32", "int64", "V2", "object", "O", "f4,i8", "../x", "\0", "é", "a" * 3000, "__nop", "-1")
_DEEP = "what is nested without end"
_NESTED = (20, 400, 1200, 100_000)
_FIELD = re.compile(r'"[^"\\]{0,40}":\s*(-?\d+|"[^"\\]{0,60}"|\[[^\[\]]{0,80}\])')
_DIGITS = re.compile(rb"\d+")


def mutated_bytes(data: bytes, draw: Random) -> bytes:
    """One to four changes of bytes."""
    for _ in range(draw.choice((1, 1, 1, 2, 4))):
        data = draw.choice(_EDITS)(data, draw)
    return data


def spliced(one: bytes, other: bytes, draw: Random) -> bytes:
    """The beginning of one and the end of the other."""
    return one[: draw.randint(0, len(one))] + other[draw.randint(0, len(other)) :]


def mutated_json(data: bytes, draw: Random) -> bytes:
    """JSON that says something else, or is hardly JSON any more."""
    if draw.random() < 0.15:
        return mutated_bytes(data, draw)
    value = json.loads(data)
    for _ in range(draw.choice((1, 1, 1, 2, 3))):
        value = _edited(value, draw)
    text = json.dumps(value)
    if _DEEP in text:
        opened, closed = draw.choice((("[", "]"), ('{"a":', "}")))
        levels = draw.choice(_NESTED)
        text = text.replace(f'"{_DEEP}"', opened * levels + "1" + closed * levels, 1)
    if draw.random() < 0.1:
        text = _with_field_twice(text, draw)
    return text.encode("utf-8", "surrogatepass")


def mutated_lines(data: bytes, draw: Random) -> bytes:
    """Lines of JSON of which one says something else; or lines that are lost, repeated or exchanged."""
    lines = data.splitlines(keepends=True)
    place = draw.randrange(len(lines))
    kind = draw.random()
    if kind < 0.7:
        lines[place] = mutated_json(lines[place], draw) + b"\n"
    elif kind < 0.8:
        lines.insert(place, draw.choice(lines)[: draw.randrange(200)])
    elif kind < 0.9:
        del lines[place]
    else:
        return mutated_bytes(data, draw)
    return b"".join(lines)


def mutated_members(members: dict[str, bytes], draw: Random, inside: Callable[[str], Mutate]) -> dict[str, bytes]:
    """Named parts of which one is changed as `inside` says of its name, lost, renamed, or exchanged with another."""
    names = list(members)
    name, other = draw.choice(names), draw.choice(names)
    kind = draw.random()
    changed = dict(members)
    if kind < 0.7:
        changed[name] = inside(name)(members[name], draw)
    elif kind < 0.8:
        del changed[name]
    elif kind < 0.9:
        changed[draw.choice((f"{name}x", "../x", other))] = changed.pop(name)
    else:
        changed[name], changed[other] = members[other], members[name]
    return changed


def zip_members(data: bytes) -> dict[str, bytes]:
    """The members of a zip by name."""
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def zip_of(members: dict[str, bytes]) -> bytes:
    """A zip of members by name."""
    sink = io.BytesIO()
    with zipfile.ZipFile(sink, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        for name, content in members.items():
            archive.writestr(zipfile.ZipInfo(name), content, zipfile.ZIP_DEFLATED)  # at the same time, whenever it is
    return sink.getvalue()


def archive_of(members: dict[str, bytes]) -> bytes:
    """An archive of members by name, each with its right checksum if the manifest can be read."""
    changed = dict(members)
    with suppress(ValueError, TypeError, KeyError, AttributeError, RecursionError):
        manifest = json.loads(members[MANIFEST])
        for name, facts in manifest["members"].items():
            facts["sha256"] = hashlib.sha256(members.get(name, b"")).hexdigest()
        changed[MANIFEST] = json.dumps(manifest).encode()
    return zip_of(changed)


def mutated_message(message: Any, draw: Random) -> None:
    """Change one field of a protocol message, or of one inside it: another value, or one field less, twice or again."""
    fields = message.ListFields()
    while fields:
        field, value = draw.choice(fields)
        repeated = not isinstance(value, int | float | str | bytes) and not hasattr(value, "ListFields")
        chosen = draw.randrange(len(value)) if repeated and len(value) else None
        inner = value[chosen] if chosen is not None else value
        if hasattr(inner, "ListFields") and inner.ListFields() and draw.random() < 0.8:
            message, fields = inner, inner.ListFields()
            continue
        _change_field(message, field.name, value, chosen, draw)
        return


def _change_field(message: Any, name: str, value: Any, chosen: int | None, draw: Random) -> None:
    if draw.random() < 0.2:
        message.ClearField(name)
    elif chosen is None:
        if not hasattr(value, "ListFields"):
            _set(lambda new: setattr(message, name, new), value, draw)
    elif draw.random() < 0.25:
        del value[chosen]
    elif draw.random() < 0.3:
        value.append(value[chosen])
    elif draw.random() < 0.3:
        kept = [_copied(each) for each in value]
        draw.shuffle(kept)
        message.ClearField(name)
        getattr(message, name).extend(kept)
    elif not hasattr(value[chosen], "ListFields"):
        _set(lambda new: value.__setitem__(chosen, new), value[chosen], draw)


def _copied(value: Any) -> Any:
    if not hasattr(value, "ListFields"):
        return value
    copy = type(value)()
    copy.CopyFrom(value)
    return copy


def _set(store: Callable[[Any], object], value: object, draw: Random) -> None:
    """Store another value of the same kind; one that the field has no room for is not stored."""
    if isinstance(value, bytes):
        new: object = mutated_bytes(value, draw)
    elif isinstance(value, str):
        new = draw.choice((*_WORDS, value + "x", value[:-1]))
    else:
        new = draw.choice(_NUMBERS)
    try:
        store(new)
    except (ValueError, TypeError):
        return


def _flip(data: bytes, draw: Random) -> bytes:
    changed = bytearray(data)
    for _ in range(draw.choice((1, 1, 2, 8))):
        if changed:
            changed[draw.randrange(len(changed))] ^= 1 << draw.randrange(8)
    return bytes(changed)


def _cut(data: bytes, draw: Random) -> bytes:
    return data[: draw.randint(0, len(data))]


def _gap(data: bytes, draw: Random) -> bytes:
    start = draw.randint(0, len(data))
    return data[:start] + data[start + draw.choice((1, 2, 8, 64, 1000)) :]


def _again(data: bytes, draw: Random) -> bytes:
    start = draw.randint(0, len(data))
    piece = data[start : start + draw.choice((1, 4, 32, 500))]
    return data[:start] + piece * draw.choice((2, 3, 50)) + data[start:]


def _stray(data: bytes, draw: Random) -> bytes:
    start = draw.randint(0, len(data))
    return data[:start] + draw.randbytes(draw.choice((1, 4, 40))) + data[start:]


def _length(data: bytes, draw: Random) -> bytes:
    size = draw.choice((1, 2, 4, 8))
    start = draw.randint(0, max(0, len(data) - size))
    number = draw.choice(LENGTHS) & ((1 << 8 * size) - 1)
    return data[:start] + number.to_bytes(size, draw.choice(("little", "big"))) + data[start + size :]


def _digits(data: bytes, draw: Random) -> bytes:
    found = list(_DIGITS.finditer(data[:100_000]))
    if not found:
        return data
    place = draw.choice(found)
    return data[: place.start()] + str(draw.choice(_NUMBERS)).encode() + data[place.end() :]


def _moved(data: bytes, draw: Random) -> bytes:
    first, second = sorted(draw.randint(0, len(data)) for _ in range(2))
    return data[second:] + data[first:second] + data[:first]


_EDITS: Sequence[Mutate] = (_flip, _flip, _flip, _cut, _gap, _again, _stray, _length, _length, _digits, _moved)


def _edited(value: Any, draw: Random) -> Any:
    """The JSON value with one place changed."""
    places: list[tuple[Any, Any]] = []
    waiting = [value] if isinstance(value, dict | list) else []
    while waiting:
        holder = waiting.pop()
        keys = list(holder) if isinstance(holder, dict) else range(len(holder))
        places += [(holder, key) for key in keys]
        waiting += [holder[key] for key in keys if isinstance(holder[key], dict | list)]
    if not places or draw.random() < 0.03:
        return _other(value, draw)
    holder, key = draw.choice(places)
    kind = draw.random()
    if kind < 0.6:
        holder[key] = _other(holder[key], draw)
    elif kind < 0.75:
        del holder[key]
    elif kind < 0.85:
        further, place = draw.choice(places)
        if _still(further, place):
            holder[key] = json.loads(json.dumps(further[place]))
    elif isinstance(holder, list):
        _change_list(holder, key, draw)
    else:
        holder[draw.choice((f"{key}x", "", *map(str, holder)))] = holder.pop(key)
    return value


def _still(holder: Any, key: Any) -> bool:
    return key in holder if isinstance(holder, dict) else key < len(holder)


def _change_list(holder: list[Any], key: int, draw: Random) -> None:
    kind = draw.random()
    if kind < 0.4:
        holder.insert(key, json.loads(json.dumps(holder[key])))
    elif kind < 0.5:
        holder.extend([holder[key]] * draw.choice((10, 1000)))
    elif kind < 0.8:
        draw.shuffle(holder)
    else:
        holder.reverse()


def _other(value: Any, draw: Random) -> Any:
    """Another value: often of the same kind, else of any."""
    kind = draw.random()
    if kind < 0.4 and isinstance(value, int | float) and not isinstance(value, bool):
        return value + draw.choice((-1, 1, 7, -value, value))
    if kind < 0.4 and isinstance(value, str):
        return value[: draw.randint(0, len(value))] + draw.choice(("", "x", "7", "\ud800"))
    plain: tuple[Any, ...] = (None, True, False, [], {}, [[]], [0], {"a": 1}, _DEEP)
    return draw.choice((draw.choice(_NUMBERS), draw.choice(_WORDS), *plain))


def _with_field_twice(text: str, draw: Random) -> str:
    """The text with a field that stands there twice, with two values."""
    found = list(_FIELD.finditer(text))
    if not found:
        return text
    field = draw.choice(found)
    name = field.group(0).partition(":")[0]
    return f"{text[: field.start()]}{name}: {json.dumps(_other(0, draw))}, {text[field.start() :]}"
