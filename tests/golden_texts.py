"""Golden texts: what a test prints, kept in `tests/golden`."""

from pathlib import Path

GOLDEN = Path(__file__).parent / "golden"


def compared(name: str, text: str, update: bool) -> None:
    """Compare with the golden text of that name, or write it."""
    path = GOLDEN / f"{name}.txt"
    if update:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    assert path.exists(), f"no golden text {path.name}; pytest --update-golden writes it"
    assert text == path.read_text(encoding="utf-8")
