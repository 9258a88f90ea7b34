"""`frozenprobe glue`: the paper's frozen evaluation (section 4.1) of one checkpoint, from names to records.

Protocol: features are the mean over all tokens of the last layer, at most 10,000 train rows, ridge and kNN fitted in closed
form, scored on the validation splits. Thin on purpose: it plans units of work, and the engine runs them.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from frozenprobe import ranks
from frozenprobe.encoders.base import Encoder
from frozenprobe.encoders.given import given_encoder, run_facts
from frozenprobe.encoders.registry import load_encoder
from frozenprobe.engine.evaluate import HEADLINE_VIEW, TaskRows, evaluate_task, train_rows, unit_title
from frozenprobe.engine.progress import Reporter, SilentReporter
from frozenprobe.engine.ranks import on_all_ranks
from frozenprobe.engine.run import OnProgress, PlannedUnit, run_units
from frozenprobe.errors import DataError, RecordError, SettingsError
from frozenprobe.features.base import Inputs, View
from frozenprobe.features.cache import FeatureCache, default_cache_dir
from frozenprobe.features.extract import extract, resolve_views
from frozenprobe.features.pooling import ViewPooler
from frozenprobe.features.sharding import Team
from frozenprobe.features.tokens import KeptTokens
from frozenprobe.records.provenance import provenance
from frozenprobe.records.reading import Run, read_run
from frozenprobe.records.schema import Unit
from frozenprobe.records.store import RunStore, read_units, require_free
from frozenprobe.reports.csv import write_csv
from frozenprobe.settings import FeatureSettings, GlueSettings, parse
from frozenprobe.tasks.base import TaskData
from frozenprobe.tasks.custom import load_custom
from frozenprobe.tasks.registry import load, resolve

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class Forecast:
    """What a task would cost.

    Attributes:
        task: Its name as printed, with the pair form.
        rows: Inputs to be encoded.
        tokens: Their tokens, each distinct input counted once.
        seconds: Estimated time of the forward pass, from a measured sample.
        finished: It is done already and costs nothing; tokens and seconds are 0.
    """

    task: str
    rows: int
    tokens: int
    seconds: float
    finished: bool = False


def run_glue(
    settings: GlueSettings,
    out: Path,
    *,
    encoder: Encoder | None = None,
    tasks: Sequence[TaskRows] | None = None,
    overwrite: bool = False,
    reporter: Reporter | None = None,
    import_seconds: float = 0.0,
) -> Run:
    """Evaluates a checkpoint into a results folder; the same call resumes what was interrupted.

    In a process group of several ranks every rank calls it: all of them encode, rank 0 writes, and each is given the run.

    Args:
        settings: What is measured.
        out: The run's folder.
        encoder: A loaded encoder instead of the one that `settings.encoder` names.
        tasks: The rows of the same settings, read before (`read_tasks`); only rank 0 needs them.
        overwrite: Drop what another run left in the folder.
        reporter: Told about progress.
        import_seconds: What importing cost the caller; kept with the other timings.

    Raises:
        FrozenprobeError: Wrong input; found before any encoding wherever it can be.
        RankError: Another rank is lost.
    """
    if settings.unfrozen and ranks.count() > 1:
        raise SettingsError("--unfrozen trains in one process: start it without torchrun")
    work = partial(
        _evaluate,
        settings,
        out,
        tasks,
        overwrite=overwrite,
        reporter=reporter or SilentReporter(),
        import_seconds=import_seconds,
    )
    return on_all_ranks(lambda: encoder or load_encoder(settings.encoder), work, timeout=settings.features.rank_timeout)


def _evaluate(
    settings: GlueSettings,
    out: Path,
    tasks: Sequence[TaskRows] | None,
    load: Callable[[], Encoder],
    team: Team | None,
    *,
    overwrite: bool,
    reporter: Reporter,
    import_seconds: float,
) -> Run:
    """The work of `run_glue` that one process does, with other ranks encoding for it if there is a team."""
    with reporter:
        started = time.perf_counter()
        tasks = read_tasks(settings) if tasks is None else tasks
        data_seconds = time.perf_counter() - started
        started = time.perf_counter()
        encoder = load()
        views = _views(settings, encoder)
        manifest = _manifest(settings, encoder)
        store = RunStore(out, manifest, overwrite=overwrite)
        _require_same_rows(out, read_units(out, store.manifest).units, tasks)
        store.update(encoder=manifest["encoder"])  # it may have been given another name
        store.add_timings(
            "setup", {"import": import_seconds, "data": data_seconds, "load": time.perf_counter() - started}
        )
        for line in _notes(settings.encoder.name or encoder.info.name, encoder):
            reporter.note(line)
        budget = settings.features.tokens_per_batch or store.manifest.get("tokens_per_batch")
        features = settings.features.model_copy(update={"tokens_per_batch": budget})
        cache = None
        if features.cache:
            root = features.cache_dir or default_cache_dir()
            cache = FeatureCache(root, int(features.cache_limit_gb * 1e9))

        if settings.unfrozen:
            units = _finetunings(tasks, encoder, settings, store)
        else:
            units = _probings(tasks, encoder, views, settings, features, cache, store, team)
        run_units(units, store, reporter)
        run = read_run(out)
        store.require_kept()  # or that was another run's
        write_csv(run, out)
    return run


def _probings(
    tasks: Sequence[TaskRows],
    encoder: Encoder,
    views: Sequence[View],
    settings: GlueSettings,
    features: FeatureSettings,
    cache: FeatureCache | None,
    store: RunStore,
    team: Team | None,
) -> list[PlannedUnit]:
    """One unit for each task and pair form, on frozen features."""

    def compute(rows: TaskRows, on_progress: OnProgress) -> tuple[Unit, dict[str, float]]:
        budget = store.manifest.get("tokens_per_batch") or features.tokens_per_batch
        chosen = features.model_copy(update={"tokens_per_batch": budget})
        unit, seconds = evaluate_task(encoder, rows, views, chosen, settings.probes, cache, on_progress, team)
        if unit.about["extraction"]["encoded"]:
            store.update(tokens_per_batch=unit.about["extraction"]["tokens_per_batch"])
        return unit, seconds

    return [PlannedUnit(rows.key, str(rows.key), partial(compute, rows)) for rows in tasks]


def _finetunings(
    tasks: Sequence[TaskRows], encoder: Encoder, settings: GlueSettings, store: RunStore
) -> list[PlannedUnit]:
    """One unit for each task, every weight trained."""
    from frozenprobe.suites.finetune import check_finished, finetune_task, starting_point

    check_finished(store, settings.finetune)
    start = starting_point(encoder, settings.encoder)
    return [PlannedUnit(rows.key, str(rows.key), partial(finetune_task, start, rows, settings)) for rows in tasks]


def forecast(
    settings: GlueSettings,
    out: Path | None = None,
    *,
    encoder: Encoder | None = None,
    overwrite: bool = False,
    sample_rows: int = 512,
) -> list[Forecast]:
    """What an evaluation would encode and how long its forward passes would take; writes nothing.

    The rate comes from encoding a spread-out sample of the rows.

    Args:
        settings: What would be measured.
        out: The run's folder, whose finished tasks are not encoded again.
        encoder: A loaded encoder instead of the one that `settings.encoder` names.
        overwrite: What is finished would be dropped.
        sample_rows: How many rows the sample has, about.

    Raises:
        FrozenprobeError: Wrong input, a folder that belongs to another run included.
    """
    tasks = read_tasks(settings)
    encoder = encoder or load_encoder(settings.encoder)
    views = _views(settings, encoder)
    held: list[Unit] = []
    if out is not None:
        old = require_free(out, _manifest(settings, encoder)["identity"], overwrite=overwrite)
        held = read_units(out, old).units if old is not None else []
        _require_same_rows(out, held, tasks)
    finished = {unit.key for unit in held}
    lines: list[Forecast] = []
    encoded: list[Inputs] = []
    for rows in tasks:
        inputs = rows.inputs
        assert not isinstance(inputs, KeptTokens)  # they were just read
        lines.append(Forecast(str(rows.key), sum(map(len, inputs)), 0, 0.0, finished=rows.key in finished))
        if rows.key in finished:
            continue
        distinct = sorted({row for part in inputs for row in zip(part.texts, part.pairs or part.texts, strict=True)})
        joint = inputs[0].pairs is not None
        merged = Inputs([row[0] for row in distinct], [row[1] for row in distinct] if joint else None)
        encoded.append(merged)
        lines[-1] = replace(lines[-1], tokens=int(encoder.tokenize(merged.texts, merged.pairs).lengths.sum()))
    if not encoded:
        return lines
    sample = [_thin(merged, max(1, sample_rows // len(encoded))) for merged in encoded]
    report = extract(encoder, sample, views, settings.features, cache=None)[0].report
    rate = report.tokens / report.seconds["forward"]
    return [replace(line, seconds=line.tokens / rate) for line in lines]


def evaluate_glue(
    ckpt: str | Path | Encoder,
    *,
    out: str | Path | None = None,
    overwrite: bool = False,
    reporter: Reporter | None = None,
    **settings: Any,
) -> pd.DataFrame:
    """Evaluates a checkpoint on GLUE and returns every score as a frame.

    Args:
        ckpt: Hub id, folder, `scheme:path`, or a loaded encoder.
        out: Folder for the records; None keeps them only for the length of the call.
        overwrite: Drop what another run left in `out`.
        reporter: Told about progress; None is silent.
        **settings: Fields of `GlueSettings`, sections as dictionaries: `tasks="cola,rte"`,
            `probes={"max_train": 1000}`, `encoder={"dtype": "bf16"}` (of a loaded encoder only its `name`).

    Returns:
        One row per score: task, view, probe, protocol, hyper-parameters, metric, value and its 95% interval. Its
        `attrs["warnings"]` says what to know when reading them: truncation, collapse, subsets.

    Raises:
        FrozenprobeError: Wrong input, explained in one line.
    """
    encoder, settings["encoder"] = given_encoder(ckpt, settings.get("encoder"))
    checked = parse(GlueSettings, settings)
    with tempfile.TemporaryDirectory(prefix="frozenprobe-") as temporary:
        folder = Path(out) if out is not None else Path(temporary) / "run"
        run = run_glue(checked, folder, encoder=encoder, overwrite=overwrite, reporter=reporter)
        frame = run.scores()
    frame.attrs["warnings"] = run.warnings()
    return frame


def load_tasks(settings: GlueSettings) -> list[TaskData]:
    """Reads every task's rows, so that data at fault is found before any encoding.

    Raises:
        DataError: A task is unknown, missing, damaged, unlabelled or has one class only.
        SettingsError: Tasks of several suites are asked for at once.
    """
    if settings.task_files:
        if settings.tasks is not None:
            raise SettingsError("--task-files and --tasks are of two suites, and a mean has one: run them apart")
        tasks = [load_custom(file) for file in settings.task_files]
    else:
        specs = resolve(settings.tasks, settings.suite)
        tasks = [load(spec, data_dir=settings.data_dir, revision=settings.data_revision) for spec in specs]
    for names in ([data.spec.name for data in tasks], [data.spec.title for data in tasks]):
        if doubled := next((name for name in names if names.count(name) > 1), None):
            raise DataError(f"two tasks are called {doubled!r}; give each its own name and title")
    for data in tasks:
        labels = train_rows(data.train, settings.probes).labels
        if (labels == labels[0]).all():
            raise DataError(
                f"{unit_title(data)}: the {len(labels):,} train rows used have one label; raise --max-train"
            )
    most, seed = settings.probes.max_evaluated, settings.probes.seed
    return tasks if most == "all" else [task.scored_on(most, seed) for task in tasks]


def read_tasks(settings: GlueSettings) -> list[TaskRows]:
    """The rows that an evaluation encodes and scores, one entry per task and pair form; see `load_tasks`."""
    probes, training = settings.probes, "frozen"
    if settings.unfrozen:
        probes, training = probes.model_copy(update={"max_train": settings.finetune.max_train}), "finetuned"
    return [
        TaskRows.of(data, form, probes, training)
        for data in load_tasks(settings)
        for form in (settings.pair_forms if data.spec.is_pair else settings.pair_forms[:1])
    ]


def _require_same_rows(folder: Path, held: Sequence[Unit], tasks: Sequence[TaskRows]) -> None:
    """Refuses to go on where a finished task was scored on other rows than those that are there now.

    Raises:
        RecordError: The data has changed.
    """
    known = {unit.key: unit for unit in held}
    for rows in tasks:
        unit = known.get(rows.key)
        if unit is not None and unit.about["digests"] != rows.about["digests"]:
            raise RecordError(
                f"{folder} holds {unit.title} scored on other rows than its data has now; choose another --out "
                "or --overwrite"
            )


def _views(settings: GlueSettings, encoder: Encoder) -> list[View]:
    """The views asked for, refused now if the encoder lacks one; the headline view is always there, it costs nothing."""
    views = list(dict.fromkeys([HEADLINE_VIEW, *resolve_views(settings.features, encoder.info)]))
    ViewPooler(encoder, views)
    return views


def _manifest(settings: GlueSettings, encoder: Encoder) -> dict[str, Any]:
    """What the folder says of the run; `identity` is what must be the same for a resume."""
    chosen = settings.model_dump(mode="json")
    fingerprint = encoder.fingerprint()
    return {
        "identity": {
            "fingerprint": fingerprint,
            "encoder": run_facts(encoder),
            "features": {name: chosen["features"][name] for name in ("layers", "poolings")},
            "probes": chosen["probes"],
            "suite": chosen["suite"],
            "data_revision": chosen["data_revision"],
        },
        "encoder": {
            **vars(encoder.info),
            "name": settings.encoder.name or encoder.info.name,
            "fingerprint": fingerprint,
        },
        "settings": chosen,
        **provenance(),
    }


def _notes(name: str, encoder: Encoder) -> list[str]:
    """What a reader of the scores should know before the first of them."""
    info = encoder.info
    lines = [
        f"{name}: recognised as {info.kind}, {info.architecture}, {info.parameters / 1e6:,.1f}M parameters, "
        f"{info.layers} layers x {info.hidden_size}, {info.max_length} tokens, {info.dtype} on {info.device}, {info.attention}"
    ]
    return lines + [f"{name}: {note}" for note in info.notes]


def _thin(inputs: Inputs, rows: int) -> Inputs:
    """About so many rows, evenly spread."""
    step = max(1, len(inputs) // rows)
    return Inputs(inputs.texts[::step], None if inputs.pairs is None else inputs.pairs[::step])
