"""Lines of the product by folder, checked against the budget in pyproject.toml.

`python .ci/size.py` prints the table and exits with 1 if a folder exceeds its budget. A code line holds a token of
code: blank lines and comments count nothing, a docstring counts one line. A change that needs more lines raises the
budget in the same commit and says what it replaced, or why nothing could go.
"""

import ast
import io
import sys
import tokenize
import tomllib
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("compiler", "flows", "storage", "tasks", "retune")

NO_CODE = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}


def code_lines(source: str) -> int:
    """Count the lines of `source` with a token of code; each docstring, of any length, counts one."""
    tree = ast.parse(source)
    lines = {
        line
        for token in tokenize.generate_tokens(io.StringIO(source).readline)
        if token.type not in NO_CODE
        for line in range(token.start[0], token.end[0] + 1)
    }
    for node in ast.walk(tree):
        # Texts below a constant or a field document it as a docstring does.
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            lines -= set(range(node.lineno + 1, (node.end_lineno or node.lineno) + 1))
    return len(lines)


def measure(folder: Path) -> dict[str, tuple[int, int, int]]:
    """Map each room of `folder` to its numbers of files, physical lines and code lines.

    A room is a folder directly below; the files of `folder` itself are the room ".".
    """
    files: Counter[str] = Counter()
    physical: Counter[str] = Counter()
    code: Counter[str] = Counter()
    for path in sorted(folder.rglob("*.py")):
        inner = path.relative_to(folder)
        room = inner.parts[0] if len(inner.parts) > 1 else "."
        if (folder / room).is_symlink():
            continue
        source = path.read_text()
        files[room] += 1
        physical[room] += source.count("\n")
        code[room] += code_lines(source)
    return {room: (files[room], physical[room], code[room]) for room in sorted(files)}


def main() -> int:
    """Print the table and return the exit code."""
    budget = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["retune"]["size"]
    print(f"{'':24}{'files':>8}{'physical':>10}{'code':>9}")
    totals = [0, 0, 0]
    failures = [f"{package} has no budget in pyproject.toml" for package in PACKAGES if package not in budget]
    for package, limits in budget.items():
        rooms = measure(ROOT / package)
        sums = [sum(column) for column in zip(*rooms.values(), strict=True)]
        totals = [total + number for total, number in zip(totals, sums, strict=True)]
        for room, row in rooms.items():
            print(f"  {package + '/' + room:22}{row[0]:8,}{row[1]:10,}{row[2]:9,}")
        print(f"{package:24}{sums[0]:8,}{sums[1]:10,}{sums[2]:9,}   budget {limits['physical']:,} {limits['code']:,}")
        for kind, lines in zip(("physical", "code"), sums[1:], strict=True):
            if lines > limits[kind]:
                failures.append(f"{package}: {lines:,} {kind} lines, {limits[kind]:,} are its budget in pyproject.toml")
    print(f"{'product':24}{totals[0]:8,}{totals[1]:10,}{totals[2]:9,}")
    for failure in failures:
        print(failure, file=sys.stderr)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
