"""Lines of tuning logs."""

import json
from pathlib import Path

KEY = '["product", 128]'


def line(seconds: float, key: str = KEY) -> dict[str, object]:
    task = [key, "llvm -mcpu=znver4", [8, 64, 64, 0, 0, 0, 0, 0], "", 1, []]
    return {"i": [task, [[], [["CI", 2]]]], "r": [[seconds], 0, 0.5, 1700000000], "v": "v0.6"}


def write(path: Path, lines: list[dict[str, object]]) -> None:
    path.write_text("".join(json.dumps(entry) + "\n" for entry in lines), encoding="utf-8")
