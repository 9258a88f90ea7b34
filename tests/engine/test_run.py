import pytest

from frozenprobe.engine.progress import PlainReporter
from frozenprobe.engine.run import PlannedUnit, run_units
from frozenprobe.errors import RecordError
from frozenprobe.records import store as store_module
from frozenprobe.records.reading import read_run
from frozenprobe.records.schema import Unit, UnitKey
from frozenprobe.records.store import RunStore

MANIFEST = {"identity": {}, "encoder": {"name": "tiny", "revision": None}}
TASKS = ("a", "b", "c", "d")


def plan(log, stop_at=None):
    def compute(task):
        def inner(on_progress):
            if task == stop_at:
                raise KeyboardInterrupt
            on_progress("forward", 1, 2)
            log.append(task)
            return Unit(UnitKey("s", task, "single"), task, {"warnings": [f"beware of {task}"]}), {"forward": 1.0}

        return inner

    return [PlannedUnit(UnitKey("s", task, "single"), task, compute(task)) for task in TASKS]


def test_an_interruption_loses_the_unit_in_progress_and_nothing_else(tmp_path):
    """C09: killed after task 2 of 4, resume runs 3 and 4 only."""
    first: list[str] = []
    with pytest.raises(KeyboardInterrupt):
        run_units(plan(first, stop_at="c"), RunStore(tmp_path, MANIFEST), PlainReporter(lambda _: None))
    second: list[str] = []
    lines: list[str] = []
    run_units(plan(second), RunStore(tmp_path, MANIFEST), PlainReporter(lines.append))
    assert (first, second) == (["a", "b"], ["c", "d"])
    assert lines[0] == "2 of 4 tasks were finished before; going on with the rest"
    assert [line.split(":")[0] for line in lines if line.startswith("[")] == ["[3/4] c", "[4/4] d"]


def test_a_damaged_unit_is_reported_and_computed_again(tmp_path):
    run_units(plan([]), RunStore(tmp_path, MANIFEST), PlainReporter(lambda _: None))
    file = sorted(tmp_path.glob("units/*.parquet"))[0]
    file.write_bytes(file.read_bytes()[:-1])
    again: list[str] = []
    lines: list[str] = []
    run_units(plan(again), RunStore(tmp_path, MANIFEST), PlainReporter(lines.append))
    assert len(again) == 1
    assert f"note: {file.name} is damaged; its task is computed again" in lines
    assert f"{again[0]}: beware of {again[0]}" in read_run(tmp_path).warnings()


def test_each_units_file_is_read_once_however_many_there_are(tmp_path, monkeypatch):
    reads: list[str] = []
    read = store_module._read_unit

    def counted(file, **options):
        reads.append(file.name)
        return read(file, **options)

    monkeypatch.setattr(store_module, "_read_unit", counted)
    store = RunStore(tmp_path, MANIFEST)
    run_units(plan([]), store, PlainReporter(lambda _: None))
    assert len(store.finished()) == len(TASKS)
    assert len(reads) == len(set(reads)) == len(TASKS)
    reads.clear()
    run_units(plan([]), RunStore(tmp_path, MANIFEST), PlainReporter(lambda _: None))
    assert len(reads) == len(TASKS)


def test_a_unit_that_a_second_run_finished_meanwhile_is_not_written_twice(tmp_path):
    store = RunStore(tmp_path, MANIFEST)
    other = RunStore(tmp_path, MANIFEST)
    units = plan([])
    first = units[0].compute

    def slow(on_progress):
        result = first(on_progress)
        other.write(Unit(result[0].key, "a", {"warnings": [], "by": "the other"}), {})
        return result

    units[0] = PlannedUnit(units[0].key, "a", slow)
    run_units(units, store, PlainReporter(lambda _: None))
    assert len(list(tmp_path.glob("units/*.parquet"))) == len(TASKS)


def test_a_run_that_was_overwritten_does_not_take_the_others_units_for_its_own(tmp_path):
    store = RunStore(tmp_path, MANIFEST)
    units = plan([])
    first = units[0].compute

    def slow(on_progress):
        other = RunStore(tmp_path, MANIFEST, overwrite=True)
        run_units(plan([]), other, PlainReporter(lambda _: None))
        return first(on_progress)

    units[0] = PlannedUnit(units[0].key, "a", slow)
    with pytest.raises(RecordError, match="overwritten by another run meanwhile; a is not kept"):
        run_units(units, store, PlainReporter(lambda _: None))
    assert len(list(tmp_path.glob("units/*.parquet"))) == len(TASKS)


def test_a_long_unit_gives_a_line_each_half_minute(monkeypatch):
    clock = [0.0]
    monkeypatch.setattr("time.monotonic", lambda: clock[0])
    lines = []
    reporter = PlainReporter(lines.append)
    reporter.plan(1, 0)
    reporter.start("pooler")
    for step in range(1, 11):
        clock[0] += 10
        reporter.advance("5 rows/s, loss 1.000", step, 10)
    assert lines == [
        "pooler: 30%, 5 rows/s, loss 1.000, about 70 s left",
        "pooler: 60%, 5 rows/s, loss 1.000, about 40 s left",
        "pooler: 90%, 5 rows/s, loss 1.000, about 10 s left",
    ]
