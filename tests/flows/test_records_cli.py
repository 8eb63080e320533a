"""`retune records import` and `export`: a tuning log goes into the store and comes out again as it was."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from retune.compiler.core import config
from retune.storage.parquet import ParquetRecordStore
from tests.support.flows.command_line import Refused, run
from tests.support.flows.tuning_logs import line, write
from tests.support.record_samples import timed


def read(path: Path) -> list[dict[str, object]]:
    return sorted((json.loads(text) for text in path.read_text().splitlines()), key=json.dumps)


def test_a_log_goes_in_and_comes_out(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = [line(0.1), line(0.2), line(0.3, '["other"]')]
    write(folder / "tune.json", lines)
    assert run(monkeypatch, "records", "import", "tune.json") == 0
    assert run(monkeypatch, "records", "import", "tune.json") == 0
    records = ParquetRecordStore(folder / "state").records()
    assert sorted(record.seconds for record in records) == [0.1, 0.2, 0.3]
    assert {record.device for record in records} == {"unknown"}
    assert run(monkeypatch, "records", "export", "again.json") == 0
    assert read(folder / "again.json") == sorted(lines, key=json.dumps)
    assert run(monkeypatch, "records", "export", "one.json", "--task", "other") == 0
    assert read(folder / "one.json") == [lines[2]]


def test_a_log_that_is_imported_again_adds_what_is_new_in_it(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write(folder / "tune.json", [line(0.1), line(0.1), line(0.2)])
    run(monkeypatch, "records", "import", "tune.json")
    write(folder / "tune.json", [line(0.1), line(0.2), line(0.3), line(0.3, '["other"]')])
    for added in (2, 0):
        capsys.readouterr()
        assert run(monkeypatch, "records", "import", "tune.json") == 0
        assert capsys.readouterr().out == f"4 trials of 2 tasks read from tune.json, {added} of them new\n"
    assert run(monkeypatch, "records", "check", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["files"], found["rows"], found["repeats"]) == (3, 4, 0)


def test_an_imported_task_has_the_name_that_the_store_knows(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    key = '["0123456789abcdef0123456789abcdef", [1, 64], [64, 8], [1, 8]]'
    write(folder / "tune.json", [line(0.1, key)])
    run(monkeypatch, "records", "import", "tune.json")
    store = ParquetRecordStore(folder / "state")
    (imported,) = store.records()
    assert imported.task_name == "01234567: 1x64, 64x8 to 1x8"
    store.append([replace(imported, record_id="own", task_name="matmul_1x8", timestamp=imported.timestamp + 1)])
    write(folder / "more.json", [line(0.2, key)])
    run(monkeypatch, "records", "import", "more.json")
    names = {record.seconds: record.task_name for record in ParquetRecordStore(folder / "state").records()}
    assert names[0.2] == "matmul_1x8"


def test_only_what_ran_on_this_machine_is_best_here(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(folder / "elsewhere.json", [line(0.01)])
    write(folder / "here.json", [line(0.1), line(0.2)])
    assert run(monkeypatch, "records", "import", "elsewhere.json", "--device", "that machine") == 0
    assert run(monkeypatch, "records", "import", "here.json", "--device", "this") == 0
    devices = {record.device for record in ParquetRecordStore(folder / "state").records()}
    assert devices == {"that machine", config.device_name()}
    assert run(monkeypatch, "records", "export", "best.json", "--best") == 0
    assert read(folder / "best.json") == [line(0.1)]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("import", "missing.json"), ("missing.json", "cannot read")),
        (("import", "bad.json"), ("bad.json:2", "no record")),
        (("export", "bad.json"), ("bad.json", "exists")),
        (("export", "new.json"), ("no record", "state")),
        (("export", "new.json", "--task", "nobody"), ("nobody",)),
    ],
)
def test_a_mistake_is_one_sentence(
    arguments: tuple[str, ...], words: tuple[str, ...], folder: Path, refused: Refused
) -> None:
    write(folder / "bad.json", [line(0.1)])
    with (folder / "bad.json").open("a") as file:
        file.write("not json\n")
    said = refused("records", *arguments)
    assert all(word in said for word in words)
    assert not (folder / "new.json").exists()


def test_sql_over_the_records(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write(folder / "tune.json", [line(0.1), line(0.2), line(0.3, '["other"]')])
    run(monkeypatch, "records", "import", "tune.json")
    capsys.readouterr()
    sql = "SELECT task_name, count(*) AS trials FROM records GROUP BY ALL ORDER BY ALL"
    assert run(monkeypatch, "records", "query", sql, "--json") == 0
    rows = [json.loads(text) for text in capsys.readouterr().out.splitlines()]
    assert rows == [{"task_name": "other", "trials": 1}, {"task_name": "product(128)", "trials": 2}]
    assert run(monkeypatch, "records", "query", sql) == 0
    assert "product" in capsys.readouterr().out


@pytest.mark.parametrize(
    "sql", ["SELECT nonsense", "SELECT * FROM read_text('/etc/hostname')", "COPY records TO 'stolen.csv'"]
)
def test_a_query_reads_records_and_nothing_else(
    sql: str, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], refused: Refused
) -> None:
    write(folder / "tune.json", [line(0.1)])
    run(monkeypatch, "records", "import", "tune.json")
    capsys.readouterr()
    refused("records", "query", sql)
    assert not (folder / "stolen.csv").exists()


def test_compact_and_check(folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    for number in range(3):
        write(folder / "tune.json", [line(0.1 + number)])
        run(monkeypatch, "records", "import", "tune.json")
    capsys.readouterr()
    assert run(monkeypatch, "records", "compact") == 0
    assert run(monkeypatch, "records", "check") == 0
    assert capsys.readouterr().out == "3 files with 3 records became 1\n1 files with 3 records are sound\n"


def test_what_need_not_stay_goes(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write(folder / "tune.json", [line(0.1), line(0.2), line(0.3, '["other"]')])
    assert run(monkeypatch, "records", "import", "tune.json") == 0
    capsys.readouterr()
    assert run(monkeypatch, "records", "compact", "--keep-days", "1e6") == 0
    assert len(ParquetRecordStore(folder / "state").records()) == 3
    assert run(monkeypatch, "records", "compact", "--keep-best", "1", "--keep-days", "30") == 0
    assert "1 were dropped" in capsys.readouterr().out
    assert sorted(record.seconds for record in ParquetRecordStore(folder / "state").records()) == [0.1, 0.3]
    assert run(monkeypatch, "records", "compact", "--keep-best", "0") == 2


def test_a_store_may_be_a_url(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(folder / "tune.json", [line(0.1), line(0.2)])
    place = "memory://records-cli/store"
    assert run(monkeypatch, "records", "import", "tune.json", "--store", place) == 0
    assert len(ParquetRecordStore(place).records()) == 2
    assert run(monkeypatch, "records", "list", "--store", place) == 0
    assert run(monkeypatch, "records", "check", "--store", place) == 0
    assert run(monkeypatch, "records", "query", "SELECT count(*) FROM records", "--store", place) == 0
    assert run(monkeypatch, "records", "check", "--store", f"file://{folder}/state") == 0
    assert run(monkeypatch, "records", "check", "--store", "nonsense://x") == 2
    assert not (folder / "memory:").exists()


@pytest.mark.parametrize("timestamp", [300_000_000_000, -62_135_596_801, 253_402_300_800])
def test_import_refuses_years_that_no_list_can_show(timestamp: int, folder: Path, refused: Refused) -> None:
    entry = line(0.1)
    entry["r"] = [[0.1], 0, 0.5, timestamp]
    write(folder / "tune.json", [line(0.2), entry])
    assert "tune.json:2" in refused("records", "import", "tune.json")
    assert ParquetRecordStore(folder / "state").records() == []


@pytest.mark.parametrize("timestamp", [-62_135_596_800, 253_402_300_799])
def test_the_first_and_the_last_year_are_listed(timestamp: int, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    entry = line(0.1)
    entry["r"] = [[0.1], 0, 0.5, timestamp]
    write(folder / "tune.json", [entry])
    for words in (["import", "tune.json"], ["list"], ["query", "FROM records"], ["export", "out.json"]):
        assert run(monkeypatch, "records", *words) == 0


def test_a_record_of_a_later_year_that_is_stored_already_is_listed(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("retune.storage.schema.MOMENTS", range(10**15))
    ParquetRecordStore(folder / "state").append([replace(timed("w0", 0.1), timestamp=3e11)])
    for words in (["list"], ["best"], ["check"]):
        assert run(monkeypatch, "records", *words) == 0


def test_an_exported_log_that_is_imported_adds_nothing(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    own = [replace(timed("w0", seconds), steps='[["CI", 2]]') for seconds in (0.1, 0.25)]
    ParquetRecordStore(folder / "state").append(own)
    assert run(monkeypatch, "records", "export", "out.json") == 0
    for device in ((), ("--device", own[0].device)):
        capsys.readouterr()
        assert run(monkeypatch, "records", "import", "out.json", *device) == 0
        assert "0 of them new" in capsys.readouterr().out
    assert run(monkeypatch, "records", "import", "out.json", "--device", "another") == 0
    assert "2 of them new" in capsys.readouterr().out


def test_show_takes_a_unique_beginning(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], refused: Refused
) -> None:
    ids = ["01ARZ3NDEKTSV4RRFFQ69G5FAV", "01ARZ3NDEKTSV4RRFFQ69G5FAW", "01BRZ3NDEKTSV4RRFFQ69G5FAV"]
    ParquetRecordStore(folder / "state").append([replace(timed("w0", 0.1), record_id=one) for one in ids])
    for text, found in (("01b", ids[2]), (ids[0], ids[0])):
        assert run(monkeypatch, "records", "show", text, "--json") == 0
        assert json.loads(capsys.readouterr().out)["record_id"] == found
    assert "2 records begin with 01A" in refused("records", "show", "01A")
    assert "no record 9" in refused("records", "show", "9")


def test_best_is_in_the_order_of_names_and_takes_threads(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    here = config.device_name()
    rows = [("w9", "a", 1), ("w1", "c", 2), ("w5", "b", 2)]
    ParquetRecordStore(folder / "state").append(
        [replace(timed(key, 0.1), task_name=name, device=here, threads=threads) for key, name, threads in rows]
    )
    for words, names in (([], ["a", "b", "c"]), (["--threads", "2"], ["b", "c"])):
        assert run(monkeypatch, "records", "best", "--json", *words) == 0
        assert [json.loads(text)["task_name"] for text in capsys.readouterr().out.splitlines()] == names


def test_names_from_files_command_no_terminal(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], refused: Refused
) -> None:
    name = "\x1b]0;title\x07../etc/x <script> \u202eevil\udcff \x9b2J é"
    ParquetRecordStore(folder / "state").append([replace(timed("w0", 1e-3), task_name=name.replace("\udcff", ""))])
    assert run(monkeypatch, "records", "list") == 0
    shown = capsys.readouterr().out
    assert "\\x1b]0;title\\x07../etc/x <script> \\u202eevil \\x9b2J é" in " ".join(shown.split())
    said = refused("run", name)
    assert "\\x1b]0;title\\x07../etc/x <script> \\u202eevil\\udcff \\x9b2J é" in said
    for text in (shown, said):
        assert not set(text) & set("\x1b\x07\u202e\udcff\x9b")
