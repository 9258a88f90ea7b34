"""`frozenprobe mteb`: MTEB of one checkpoint with one pooling, through mteb itself, from names to records.

Protocol: mteb's tasks, metrics and aggregation, unmodified; no prompts unless the checkpoint or the caller has them. Thin on
purpose: it plans one unit per task, and the engine runs them.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from mteb.abstasks.aggregated_task import AbsTaskAggregate
from torch import nn

from frozenprobe.encoders.base import Encoder, Role
from frozenprobe.encoders.registry import load_encoder
from frozenprobe.engine.progress import Reporter, SilentReporter
from frozenprobe.engine.ranks import on_all_ranks
from frozenprobe.engine.run import run_units
from frozenprobe.errors import EncoderError
from frozenprobe.features.cache import FeatureCache, default_cache_dir
from frozenprobe.features.sharding import Team
from frozenprobe.records.provenance import provenance
from frozenprobe.records.reading import Run, read_run
from frozenprobe.records.schema import Unit
from frozenprobe.records.store import RunStore, read_units
from frozenprobe.reports.mteb import write_csv
from frozenprobe.settings import MtebSettings, parse
from frozenprobe.suites.given import given_encoder, run_facts
from frozenprobe.suites.mteb import data
from frozenprobe.suites.mteb.adapter import MtebEncoder
from frozenprobe.suites.mteb.export import export
from frozenprobe.suites.mteb.forecast import Forecast, forecast_tasks
from frozenprobe.suites.mteb.quiet import quiet
from frozenprobe.suites.mteb.results import OUTSIDE, model_meta, write_results
from frozenprobe.suites.mteb.selection import parts_of, select
from frozenprobe.suites.mteb.units import Plan, planned_units

if TYPE_CHECKING:
    import pandas as pd


def run_mteb(
    settings: MtebSettings,
    out: Path,
    *,
    encoder: Encoder | None = None,
    pooler: nn.Module | None = None,
    overwrite: bool = False,
    reporter: Reporter | None = None,
    import_seconds: float = 0.0,
) -> Run:
    """Evaluates a checkpoint into a results folder; the same call resumes what was interrupted.

    Args:
        settings: What is measured.
        out: The run's folder: records, `mteb/` with mteb's own results, `model/` with the exported encoder.
        encoder: A loaded encoder instead of the one that `settings.encoder` names.
        pooler: A module instead of the pooling that `settings.pooler` names.
        overwrite: Drop what another run left in the folder.
        reporter: Told about progress.
        import_seconds: What importing cost the caller; kept with the other timings.

    Raises:
        FrozenprobeError: Wrong input; found before any encoding wherever it can be.
    """
    models: list[MtebEncoder] = []

    def load() -> Encoder:
        models.append(_model(settings, encoder or load_encoder(settings.encoder), pooler))
        return models[-1].pooled

    work = partial(
        _evaluate,
        settings,
        out,
        models,
        overwrite=overwrite,
        reporter=reporter or SilentReporter(),
        import_seconds=import_seconds,
    )
    return on_all_ranks(load, work, timeout=settings.features.rank_timeout)


def _evaluate(
    settings: MtebSettings,
    out: Path,
    models: Sequence[MtebEncoder],
    load: Callable[[], Encoder],
    team: Team | None,
    *,
    overwrite: bool,
    reporter: Reporter,
    import_seconds: float,
) -> Run:
    """The work of `run_mteb` that one process does, with other ranks encoding for it if there is a team.

    `load` loads the encoder, on all of them, and puts the model around it into `models`.
    """
    with reporter, quiet(), _planned(settings, None if overwrite else out) as plan:
        started = time.perf_counter()
        load()
        model = models[-1]
        model.team = team
        name = settings.encoder.name or model.encoder.info.name
        model.pin()
        model.mteb_model_meta = meta = model_meta(settings, model, name)
        store = RunStore(out, _manifest(settings, model, name), overwrite=overwrite)
        if overwrite:
            for folder in ("mteb", "model"):
                shutil.rmtree(out / folder, ignore_errors=True)
        store.update(**_facts(plan, model, store))
        store.add_timings("setup", {"import": import_seconds, "load": time.perf_counter() - started})
        budget = settings.features.tokens_per_batch or store.manifest.get("tokens_per_batch")
        model.features = settings.features.model_copy(update={"tokens_per_batch": budget})
        for line in _notes(model, plan, name):
            reporter.note(line)
        if settings.export:
            try:
                export(model, out / "model")
            except EncoderError as error:  # the scores do not need it
                reporter.note(f"{name} is not exported: {error}")

        def written(unit: Unit) -> None:
            write_results(out / "mteb", [unit], meta)
            store.update(tokens_per_batch=model.features.tokens_per_batch)

        run_units(planned_units(plan, model, store), store, reporter, written)
        run = read_run(out)
        write_results(out / "mteb", run.units, meta)
        write_csv(run, out)
    return run


def forecast(
    settings: MtebSettings, *, encoder: Encoder | None = None, pooler: nn.Module | None = None
) -> list[Forecast]:
    """The tasks in the order in which they would run, with what they would cost; writes nothing.

    Raises:
        FrozenprobeError: Wrong input, missing data included.
    """
    with quiet(), _planned(settings) as plan:
        encoder = encoder or load_encoder(settings.encoder)
        return forecast_tasks(_model(settings, encoder, pooler), plan.selection.tasks)


def evaluate_mteb(
    ckpt: str | Path | Encoder,
    pooler: str | nn.Module | None = None,
    *,
    out: str | Path | None = None,
    overwrite: bool = False,
    reporter: Reporter | None = None,
    **settings: Any,
) -> pd.DataFrame:
    """Evaluates a checkpoint on MTEB and returns every score as a frame.

    Args:
        ckpt: Hub id, folder, `scheme:path`, or a loaded encoder.
        pooler: `mean`, `cls`, `last`, `own`, or a torch module from token features `[b, t, d]` and mask `[b, t]` to `[b, e]`;
            None: the checkpoint's own where it declares one, else `mean`.
        out: Folder for records, mteb's results and the exported encoder; None keeps them only for the length of the call.
        overwrite: Drop what another run left in `out`.
        reporter: Told about progress; None is silent.
        **settings: Fields of `MtebSettings`, sections as dictionaries: `tasks="STS12,SciFact"`, `benchmark="MTEB(eng, v1)"`,
            `encoder={"dtype": "bf16"}`.

    Returns:
        One row per score: task, split, metric, value as a fraction; the main scores have `is_headline`.

    Raises:
        FrozenprobeError: Wrong input, explained in one line.
    """
    encoder, section = given_encoder(ckpt, settings.get("encoder"))
    values: dict[str, Any] = {**settings, "encoder": section}
    if isinstance(pooler, str):
        values["pooler"] = pooler
    if out is None:
        values.setdefault("export", False)
    checked = parse(MtebSettings, values)
    module = None if pooler is None or isinstance(pooler, str) else pooler
    with tempfile.TemporaryDirectory(prefix="frozenprobe-") as temporary:
        folder = Path(out) if out is not None else Path(temporary) / "run"
        run = run_mteb(checked, folder, encoder=encoder, pooler=module, overwrite=overwrite, reporter=reporter)
        return run.scores()


@contextmanager
def _planned(settings: MtebSettings, out: Path | None = None) -> Generator[Plan]:
    """The tasks, for as long as the block runs, with the data found of those that a run in `out` has not finished."""
    selection = select(settings)
    plan = Plan(selection, {task.metadata.name: parts_of(task) for task in selection.tasks})
    finished = set() if out is None else {unit.key.task for unit in read_units(out)[0]}  # of whichever benchmark
    unfinished = [task for task in plan.encoded if task.metadata.name not in finished]
    with tempfile.TemporaryDirectory(prefix="frozenprobe-") as pages:
        if settings.data_dir is None:
            data.check_hub(unfinished)
        else:
            plan.folders.update(data.use_local_copies(unfinished, settings.data_dir, Path(pages)))
            for task in selection.tasks:
                if isinstance(task, AbsTaskAggregate):
                    data.inherit_revision(task, plan.parts[task.metadata.name])
        yield plan


def _model(settings: MtebSettings, encoder: Encoder, pooler: nn.Module | None) -> MtebEncoder:
    prompts: dict[Role, str] = {"query": settings.query_prompt or "", "document": settings.document_prompt or ""}
    cache = None
    if settings.features.cache:
        root = settings.features.cache_dir or default_cache_dir()
        cache = FeatureCache(root, int(settings.features.cache_limit_gb * 1e9))
    return MtebEncoder(
        encoder,
        settings.pooler if pooler is None else pooler,
        layer=settings.layer,
        normalise=settings.normalise,
        prompts=prompts,
        features=settings.features,
        cache=cache,
    )


def _manifest(settings: MtebSettings, model: MtebEncoder, name: str) -> dict[str, Any]:
    """What the folder says of the run; `identity` is what must be the same for a resume."""
    chosen = settings.model_dump(mode="json")
    meta = model.mteb_model_meta
    return {
        "suite": OUTSIDE,
        "identity": {
            "fingerprint": model.fingerprint(),
            "encoder": run_facts(model.encoder),
            "pooling": model.pooling,
            "layer": model.layer,
            "normalise": model.normalise,
            "prompts": model.prompts,
            "model": {"name": meta.name, "revision": meta.revision},
        },
        "encoder": {**vars(model.encoder.info), "name": name, "fingerprint": model.encoder.fingerprint()},
        "settings": chosen,
        **provenance(),
    }


def _facts(plan: Plan, model: MtebEncoder, store: RunStore) -> dict[str, Any]:
    """What a later run in the folder may change without another number: the tasks, and what is said of the training data."""
    before = cast("list[str]", store.manifest.get("asked", []))
    asked = [*before, *(task.metadata.name for task in plan.selection.tasks)]
    names = dict.fromkeys([*(name for name, *_ in plan.selection.complete), *asked])
    training = model.mteb_model_meta.training_datasets
    trained = model.mteb_model_meta.get_training_datasets()  # with those that mteb holds for similar
    return {
        "benchmark": {"name": plan.selection.benchmark, "tasks": [list(row) for row in plan.selection.complete]},
        "asked": list(dict.fromkeys(asked)),
        "training_data": None if training is None else sorted(training),
        "zero_shot": None if trained is None else {name: name not in trained for name in names},
    }


def _notes(model: MtebEncoder, plan: Plan, name: str) -> list[str]:
    """What a reader of the scores should know before the first of them."""
    info = model.encoder.info
    meta = model.mteb_model_meta
    lines = [
        f"{name}: recognised as {info.kind}, {info.architecture}, {info.parameters / 1e6:,.1f}M parameters, "
        f"{info.layers} layers x {info.hidden_size}, {info.max_length} tokens, {info.dtype} on {info.device}, {info.attention}; "
        f"pooling {model.pooling} of layer {model.layer}"
    ]
    lines += [f"{name}: {note}" for note in info.notes]
    declared = getattr(model.encoder, "prompts", {})
    others = [
        prompt for prompt, text in declared.items() if text and prompt not in ("query", "document", "passage", "corpus")
    ]
    if others:
        lines.append(f"{name}: its prompts {', '.join(others)} are not applied; queries and documents have theirs")
    lines += plan.selection.notes
    unknown = [
        task.metadata.name for task in plan.encoded if task.metadata.dataset["revision"] == data.UNKNOWN_REVISION
    ]
    if unknown:
        lines.append(f"local copies of unknown revision, not for submission: {', '.join(unknown)}")
    if meta.training_datasets is None:
        lines.append(
            f"{name}: its training data is unknown, so no task counts as zero-shot; name it with --training-data"
        )
    return lines
