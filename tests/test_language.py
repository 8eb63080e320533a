"""The words of the field: retired words do not come back in names, docstrings, comments, messages and documents.

A retired word stood for something that TVM, LLVM, optuna or Prefect call otherwise; `RETIRED` says how. Words with a
second, standard meaning (a SIMD lane, "in turn") are retired only as the identifiers or phrases that are listed.
"""

import ast
import io
import re
import tokenize
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SOURCES = ("compiler", "storage", "tasks", "flows", "retune", "benchmarks", "tests")
DOCUMENTS = ("docs", "README.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md")

RETIRED = {
    "errand": "job",
    "errands": "jobs",
    "courier": "queue client",
    "brood": "population",
    "founders": "seeds",
    "lesson": "training data or checkpoint",
    "lessons": "training data or checkpoint",
    "medium": "blob store",
    "veiled": "redacted",
    "unveiled": "unredacted",
    "skeleton": "template state",
    "finalists": "shortlist",
    "workshop": "builder context",
    "guardian": "reaper",
    "surroundings": "VM context",
    "homeless": "missing kernel",
    "foretold": "predicted",
    "processor": "CPU",
    "processors": "CPUs",
    "relaid": "pretransformed",
    "whoever": "what or who it is",
}
"""A word of a name or of prose, and what it is called now."""

_IS = "quantis|specialis|recognis|normalis|initialis|serialis|parallelis|vectoris|canonicalis|memois"
BRITISH = rf"(?i)({_IS})(e|ed|es|er|ers|ing|ation|ations)\b|optimis(e|ed|es|ing|ation)\b|(behavi|col|neighb)our"
"""Spelling of names and prose is American; `centred` is the key of an attribute in saved graphs."""

RETIRED_NAMES = {
    r"\w*Lane_?Writer": "VectorBuilder",
    r"Touch|Touches|touches": "Footprint",
    r"\w*Turn_?Loop": "MainLoop",
    r"_?turns?|\w*(?<!in|ir)_turns?|_?TURNS?|\w*_TURNS?|TURN_\w+|turn_\w+": "iteration, pass or round",
    r"EvenRows|even_rows": "PadRows",
    r"PartedSum|parted_sums?": "SplitK",
    r"TurnSigns": "FlipSignedness",
    r"FoldDigits|FoldUnits": "simplify_div_mod",
    r"\w+Double|\w+_double": "Fake...",
    r"Race": "AdaptiveTimer",
    r"take_turn": "interleave",
    r"remembering": "cache_constants",
    r"finished_steps": "annotated_steps",
    r"published|publish_text": "atomic_write, write_text_atomically",
    r"Tidy": "Canonicalize",
    r"LessonStore": "CheckpointStore",
    r"untuned_(steps|program|schedule)s?": "default_steps",
    r"told_of|_told": "observations_of, or what was told",
}
"""Names, as patterns of the whole name."""

RETIRED_PHRASES = {
    r"\buntuned (programs?|schedules?|kernels?)\b": "default schedule",
    r"\bwhole numbers?\b": "integer",
    r"\b(made|computed|laid out|built) anew\b": "again",
    r"\bsee to it that\b": "ensure that",
    r"\bof one's own\b": "custom",
    BRITISH: "the American spelling",
    r"\bfirst principles\b": "analytical cost model",
    r"\brefused in words\b": "raises a clear error",
    r"\bin front of\b": "before",
    r"\b(a|each|every|one|first|last|next) turn of (a|the|its|that) loops?\b": "iteration",
    r"\A\W*In: .*Out: ": "a first line that says what the module is",
}
"""Phrases of docstrings, comments, messages and documents."""

STANDARD = {
    "processor": ("platform.processor", "multiprocessor", "is not a recognized (processor|feature)"),
    "lessons": ("lessons/<device>", "lessons/<place>"),
}
"""Phrases in which a retired word has another meaning, or names stored data."""

STORED = "without neighbours"
"""A metric in stored results."""

PRODUCT = ("compiler", "storage", "tasks", "flows", "retune")
PRONOUN = "one as a pronoun"
CEILINGS = {"one": 5, "found": 12, "place": 45, PRONOUN: 310}
"""The most identifiers of these names, and uses of the pronoun in docstrings, comments and messages, in the whole
product: a name says what it holds, a sentence names its subject. Lower a number as soon as the product is below it.
"""

PARTICIPLE = re.compile(
    r"_*(?:[a-z]+ed|held|kept|built|made|sent|found|known|given|drawn|written|chosen|hidden|forgotten|taken|left)"
)
"""A name that is one participle: a function is called by what it does (a verb) or what it gives (a noun)."""
VERBS_AND_NOUNS = {"embed", "feed", "need", "seed", "shed", "speed"}
ADJECTIVES = {"applied", "elapsed", "filled", "known", "prepared", "searched", "unsupported"}
"""Names of functions that say what their result is like; `applied` and `searched` are of the public face."""

_NAME_FIELDS: dict[type[ast.AST], str] = {
    ast.Name: "id", ast.arg: "arg", ast.keyword: "arg", ast.Attribute: "attr", ast.FunctionDef: "name",
    ast.ClassDef: "name", ast.ExceptHandler: "name", ast.MatchAs: "name", ast.alias: "asname",
}  # fmt: skip
_AFTER_PRONOUN = (
    "of|that|which|who|whose|is|are|was|has|may|can|must|with|without|for|in|on|to|and|or|but|by|as|at|from"
)
_PRONOUN = re.compile(
    rf"\b(?:ones|one(?=[.,;:!?)]|\s*\Z|\s+(?:{_AFTER_PRONOUN}|if|where|when|while|than|the|an?|its?)\b))\b",
    re.IGNORECASE,
)

_RETIRED_WORD = re.compile(rf"\b({'|'.join(RETIRED)})\b")
_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")


@cache
def source_files() -> tuple[Path, ...]:
    found = (path for folder in SOURCES for path in (ROOT / folder).rglob("*.py"))
    return tuple(path for path in sorted(found) if path != Path(__file__))


def documents() -> Iterator[Path]:
    for name in DOCUMENTS:
        path = ROOT / name
        yield from sorted(path.rglob("*.md")) if path.is_dir() else [path]


def words_of(name: str) -> list[str]:
    """The words of an identifier: `first_lessonStore` has first, lesson and store."""
    return [word.lower() for word in _WORD.findall(name)]


@cache
def wrong_name(name: str) -> str | None:
    """What a name is called now, if it is retired."""
    for word in words_of(name):
        if word in RETIRED:
            return f"{word} -> {RETIRED[word]}"
    for pattern, term in RETIRED_NAMES.items():
        if re.fullmatch(pattern, name):
            return f"{name} -> {term}"
    if re.search(BRITISH, name.replace("_", " ")):
        return f"{name} -> the American spelling"
    return None


def wrong_prose(text: str) -> str | None:
    """What a retired word or phrase of a text is called now, if there is one; code in backticks is left out."""
    text = re.sub(r"``[^`]*``|`[^`\n]*`", "", text).replace(STORED, "")
    lower = text.lower()
    for word in sorted(set(_RETIRED_WORD.findall(lower))):
        for phrase in STANDARD.get(word, ()):
            lower = lower.replace(phrase, "")
        if re.search(rf"\b{word}\b", lower):
            return f"{word} -> {RETIRED[word]}"
    for pattern, term in RETIRED_PHRASES.items():
        if found := re.search(pattern, text, re.DOTALL):
            return f"{found[0][:40]!r} -> {term}"
    return None


def findings(path: Path) -> Iterator[str]:
    """The retired words of a Python file, each with its line."""
    text = path.read_text(encoding="utf-8")
    where = path.relative_to(ROOT)
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        wrong = None
        if token.type == tokenize.NAME and f"platform.{token.string}" not in token.line:
            wrong = wrong_name(token.string)
        elif token.type == tokenize.COMMENT or (token.type == tokenize.STRING and " " in token.string):
            wrong = wrong_prose(token.string)
        if wrong:
            yield f"{where}:{token.start[0]}: {wrong}"


@pytest.mark.parametrize("folder", SOURCES)
def test_sources_use_the_words_of_the_field(folder: str) -> None:
    found = [line for path in source_files() if path.is_relative_to(ROOT / folder) for line in findings(path)]
    assert not found, "\n".join(found)


def test_documents_use_the_words_of_the_field() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{number}: {wrong}"
        for path in documents()
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if (wrong := wrong_prose(line))
    ]
    assert not found, "\n".join(found)


def test_modules_and_tests_have_no_retired_names() -> None:
    found = [str(path.relative_to(ROOT)) for path in source_files() if wrong_name(path.stem)]
    assert not found, "\n".join(found)


def participles(text: str) -> Iterator[str]:
    """The functions of a Python file that are named by one participle; properties are adjectives of their object."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and PARTICIPLE.fullmatch(node.name):
            name = node.name.strip("_")
            if name not in VERBS_AND_NOUNS and not any("property" in ast.unparse(mark) for mark in node.decorator_list):
                yield name


def test_functions_are_verbs_or_nouns() -> None:
    sources = [path for path in source_files() if path.relative_to(ROOT).parts[0] in PRODUCT]
    found = {(name, path) for path in sources for name in participles(path.read_text(encoding="utf-8"))}
    wrong = [f"{path.relative_to(ROOT)}: {name}" for name, path in sorted(found) if name not in ADJECTIVES]
    assert not wrong, "\n".join(wrong)
    assert {name for name, _ in found} == ADJECTIVES


@pytest.mark.parametrize(("text", "names"), [("def _pooled(x): ...", ["pooled"]), ("def pool_planes(x): ...", [])])
def test_participles_are_found(text: str, names: list[str]) -> None:
    assert [*participles(text)] == names


def is_prose(token: tokenize.TokenInfo) -> bool:
    return token.type == tokenize.COMMENT or (token.type == tokenize.STRING and " " in token.string)


@cache
def vague_words() -> Counter[str]:
    """How often the words of `CEILINGS` stand in the product."""
    counts: Counter[str] = Counter()
    for path in source_files():
        if path.relative_to(ROOT).parts[0] not in PRODUCT:
            continue
        text = path.read_text(encoding="utf-8")
        for node in ast.walk(ast.parse(text)):
            if field := _NAME_FIELDS.get(type(node)):
                counts[str(getattr(node, field))] += 1
        for token in filter(is_prose, tokenize.generate_tokens(io.StringIO(text).readline)):
            counts[PRONOUN] += len(_PRONOUN.findall(token.string))
    return counts


@pytest.mark.parametrize("word", CEILINGS)
def test_vague_words_stay_below_their_ceilings(word: str) -> None:
    assert vague_words()[word] <= CEILINGS[word], f"more often than {CEILINGS[word]} times: {word}"


@pytest.mark.parametrize("text", ["the one that is read", "of earlier ones", "a new one.", "each of one of them"])
def test_pronouns_are_counted(text: str) -> None:
    assert _PRONOUN.search(text)


@pytest.mark.parametrize("text", ["one element of an array", "at least one axis", "none of them", "zones"])
def test_numerals_are_not_counted(text: str) -> None:
    assert not _PRONOUN.search(text)


@pytest.mark.parametrize(
    "name",
    [
        "LessonStore",
        "open_medium",
        "DriverDouble",
        "check_processor",
        "TURN_SECONDS",
        "turn",
        "told_of",
        "_quantised",
        "COLOURS",
    ],
)
def test_retired_names_are_found(name: str) -> None:
    assert wrong_name(name)


@pytest.mark.parametrize(
    "name", ["lanes", "multiprocessors", "returns", "trace", "double", "Checkpoint", "optimism", "precision"]
)
def test_standard_names_pass(name: str) -> None:
    assert wrong_name(name) is None


@pytest.mark.parametrize(
    "text", ["the untuned program", "as whole numbers", "In: a graph. Out: a plan.", "on the processor", "optimised"]
)
def test_retired_phrases_are_found(text: str) -> None:
    assert wrong_prose(text)


@pytest.mark.parametrize("text", ["each in turn", "of a multiprocessor", "`processor` is a field", "the whole graph"])
def test_standard_phrases_pass(text: str) -> None:
    assert wrong_prose(text) is None
