"""Cases as text files: what goes in, the pass, and what comes out, under `tests/cases/STAGE`.

A file is `SUBJECT.txt`, or `SUBJECT.PART.txt` where a subject has several: one for each pass that changes it. It has
sections, each below a line `== TITLE`. `pytest --update-golden` writes the files: read the difference before you keep
it.
"""

import re
from collections.abc import Iterable, Mapping
from pathlib import Path

FOLDER = Path(__file__).parents[1] / "cases"
Sections = Mapping[str, str]


def check_case(stage: str, subject: str, sections: Sections, update: bool) -> None:
    """Compare the one case of a subject with its file, or write it."""
    check_cases(stage, subject, {"": sections}, update)


def check_cases(stage: str, subject: str, cases: Mapping[str, Sections], update: bool) -> None:
    """Compare the cases of a subject, by part, with their files, or write them and remove stale ones."""
    folder = FOLDER / stage
    texts = {f"{subject}.{part}" if part else subject: _written(sections) for part, sections in cases.items()}
    if update:
        folder.mkdir(parents=True, exist_ok=True)
        for name in _files_of(folder, subject) - set(texts):
            (folder / f"{name}.txt").unlink()
        for name, text in texts.items():
            (folder / f"{name}.txt").write_text(text, encoding="utf-8")
    assert _files_of(folder, subject) == set(texts), "pytest --update-golden writes the files"
    for name, text in texts.items():
        assert text == (folder / f"{name}.txt").read_text(encoding="utf-8"), f"{name}: see `pytest --update-golden`"


def read_cases(stage: str) -> dict[str, Sections]:
    """The sections of every file of a stage, by the name of the case."""
    return {path.stem: _read(path.read_text(encoding="utf-8")) for path in sorted((FOLDER / stage).glob("*.txt"))}


def check_subjects(stage: str, subjects: Iterable[str]) -> None:
    """Every file of a stage belongs to one of its subjects."""
    assert {path.name.partition(".")[0] for path in (FOLDER / stage).iterdir()} == set(subjects)


def _files_of(folder: Path, subject: str) -> set[str]:
    return {path.stem for path in folder.glob("*.txt") if subject in (path.stem, path.name.partition(".")[0])}


def _read(text: str) -> Sections:
    _, *sections = re.split(r"^== ", text, flags=re.MULTILINE)
    return {title: content.strip() for title, _, content in (section.partition("\n") for section in sections)}


def _written(sections: Sections) -> str:
    return "\n".join(f"== {title}\n{text}\n" for title, text in sections.items())
