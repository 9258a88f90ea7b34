"""`frozenprobe mteb`: MTEB of one checkpoint with one pooling, through mteb itself, from names to records.

Protocol: mteb's tasks, metrics and aggregation, unmodified; no prompts unless the checkpoint or the caller has them. Thin on
purpose: it plans one unit per task, and the engine runs them.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from mteb.abstasks.aggregated_task import AbsTaskAggregate
from torch import nn

from frozenprobe.encoders.base import Encoder
from frozenprobe.encoders.contract import check_padding
from frozenprobe.encoders.given import given_encoder
from frozenprobe.encoders.registry import load_encoder
from frozenprobe.engine.progress import Reporter, SilentReporter
from frozenprobe.engine.ranks import on_all_ranks
from frozenprobe.engine.run import run_units
from frozenprobe.errors import EncoderError, RecordError, SettingsError
from frozenprobe.features.cache import FeatureCache, default_cache_dir
from frozenprobe.features.sharding import Team
from frozenprobe.records.reading import Run, read_run
from frozenprobe.records.schema import Unit
from frozenprobe.records.store import RunStore, read_units, require_free
from frozenprobe.reports.mteb import write_csv
from frozenprobe.settings import parse
from frozenprobe.suites.mteb import data
from frozenprobe.suites.mteb.adapter import MtebEncoder
from frozenprobe.suites.mteb.export import export
from frozenprobe.suites.mteb.forecast import Forecast, forecast_tasks
from frozenprobe.suites.mteb.manifest import facts_of, identity_before_training, identity_of, manifest_of, name_of
from frozenprobe.suites.mteb.meta import TrainingData, model_meta, training_data
from frozenprobe.suites.mteb.poolers import FOLDER, Probed, choose, fresh, require_one_process, train
from frozenprobe.suites.mteb.quiet import quiet
from frozenprobe.suites.mteb.results import write_results
from frozenprobe.suites.mteb.selection import parts_of, select
from frozenprobe.suites.mteb.settings import MtebSettings
from frozenprobe.suites.mteb.units import Plan, finished_tasks, planned_units

if TYPE_CHECKING:
    import pandas as pd

RESULTS, MODEL = "mteb", "model"  # in the run's folder: mteb's own results, the exported encoder
LEAVES = (RESULTS, MODEL, FOLDER)


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
    if settings.trains:
        if pooler is not None:
            raise SettingsError("a pooler is given, and frozen and unfrozen train one: choose one of the two")
        require_one_process()
    elif overwrite and (folder := settings.pooler_folder) and folder.resolve().is_relative_to(out.resolve()):
        raise SettingsError(f"--pooler {folder} lies in --out, where --overwrite would drop it")
    loaded: list[tuple[Probed, MtebEncoder]] = []

    def load() -> Encoder:
        probed = choose(settings, encoder or load_encoder(settings.encoder), pooler)
        model = _model(settings, probed)
        loaded.append((probed, model))
        return model.pooled

    work = partial(
        _evaluate,
        settings,
        out,
        encoder,
        loaded,
        overwrite=overwrite,
        reporter=reporter or SilentReporter(),
        import_seconds=import_seconds,
    )
    return on_all_ranks(load, work, timeout=settings.features.rank_timeout)


def _evaluate(
    settings: MtebSettings,
    out: Path,
    encoder: Encoder | None,
    loaded: Sequence[tuple[Probed, MtebEncoder]],
    load: Callable[[], Encoder],
    team: Team | None,
    *,
    overwrite: bool,
    reporter: Reporter,
    import_seconds: float,
) -> Run:
    """The work of `run_mteb` that one process does, with other ranks encoding for it if there is a team.

    `load` loads encoder and pooler, on all of them, and puts both into `loaded`; a training needs but one process, and loads the
    encoder itself.
    """
    with reporter, quiet(), _planned(settings, None if overwrite else out) as plan:
        started = time.perf_counter()
        seconds = {"import": import_seconds}
        if settings.trains:
            encoder = encoder or load_encoder(settings.encoder)
            seconds["load"] = time.perf_counter() - started
            probed, store = _trained(settings, plan, encoder, out, overwrite, reporter, seconds)
            model = _model(settings, probed)
            check_padding(model.pooled)
        else:
            load()
            probed, model = loaded[-1]
            seconds["load"] = time.perf_counter() - started
            store = _open(
                out, manifest_of(settings, plan, model.encoder, identity_of(settings, model)), overwrite, trains=False
            )
        model.team = team
        name = name_of(settings, model.encoder)
        model.pin()
        model.mteb_model_meta = meta = model_meta(settings, model, name, probed.rows)
        known = training_data(settings, model.encoder.info, probed.rows)
        store.update(**facts_of(plan, model, store, known), **({"pooler": probed.about} if probed.about else {}))
        store.add_timings("setup", seconds)
        budget = settings.features.tokens_per_batch or store.manifest.get("tokens_per_batch")
        model.features = settings.features.model_copy(update={"tokens_per_batch": budget})
        for line in _notes(model, plan, name, known, probed):
            reporter.note(line)
        if settings.export:
            try:
                export(model, out / MODEL)
            except EncoderError as error:  # the scores do not need it
                reporter.note(f"{name} is not exported: {error}")

        def written(unit: Unit) -> None:
            write_results(out / RESULTS, [unit], meta)
            store.update(tokens_per_batch=model.features.tokens_per_batch)

        run_units(planned_units(plan, model, store), store, reporter, written)
        run = read_run(out)
        store.require_kept()  # or that was another run's
        write_results(out / RESULTS, run.units, meta)
        write_csv(run, out)
    return run


def _trained(
    settings: MtebSettings,
    plan: Plan,
    encoder: Encoder,
    out: Path,
    overwrite: bool,
    reporter: Reporter,
    seconds: dict[str, float],
) -> tuple[Probed, RunStore]:
    """Trains the pooler in the run's folder, which is claimed before; adds what that took to the seconds."""
    identity = identity_before_training(settings, encoder)
    manifest = manifest_of(settings, plan, encoder, identity)
    require_free(out, identity, overwrite=overwrite, leaves=LEAVES, beside=(FOLDER,))
    stores: list[RunStore] = []
    started = time.perf_counter()
    probed = train(
        settings,
        encoder,
        out / FOLDER,
        overwrite=overwrite,
        reporter=reporter,
        on_sound=lambda: stores.append(_open(out, manifest, overwrite, trains=True)),
    )
    seconds["train"] = time.perf_counter() - started
    (store,) = stores
    before = cast("dict[str, Any]", store.manifest.get("pooler", probed.about))
    if before["weights"] != probed.about["weights"] and store.finished():
        raise RecordError(
            f"{out / FOLDER} holds another pooler than the finished tasks were run with; choose another --out or --overwrite"
        )
    return probed, store


def _open(out: Path, manifest: dict[str, Any], overwrite: bool, *, trains: bool) -> RunStore:
    """The run's store; with `overwrite`, what another run left beside it goes with it, a training only if none replaces it."""
    return RunStore(out, manifest, overwrite=overwrite, leaves=LEAVES, beside=(FOLDER,) if trains else ())


def forecast(
    settings: MtebSettings,
    out: Path | None = None,
    *,
    encoder: Encoder | None = None,
    pooler: nn.Module | None = None,
    overwrite: bool = False,
) -> list[Forecast]:
    """The tasks in the order in which they would run, with what they would cost; writes nothing.

    Args:
        settings: What would be measured.
        out: The run's folder, whose finished tasks cost nothing.
        encoder: A loaded encoder instead of the one that `settings.encoder` names.
        pooler: A module instead of the pooling that `settings.pooler` names.
        overwrite: What is finished would be dropped.

    Raises:
        FrozenprobeError: Wrong input, missing data and a folder that belongs to another run included.
    """
    if settings.trains:
        require_one_process()
    with quiet(), _planned(settings, None if overwrite else out) as plan:
        encoder = encoder or load_encoder(settings.encoder)
        probed = fresh(settings, encoder) if settings.trains else choose(settings, encoder, pooler)
        model = _model(settings, probed)
        finished: set[str] = set()
        if out is not None:
            trains = settings.trains
            identity = identity_before_training(settings, encoder) if trains else identity_of(settings, model)
            beside = (FOLDER,) if trains else ()
            if require_free(out, identity, overwrite=overwrite, leaves=LEAVES, beside=beside) is not None:
                finished = finished_tasks(plan, out)
        return forecast_tasks(model, plan.selection.tasks, finished)


def evaluate_mteb(
    ckpt: str | Path | Encoder,
    pooler: str | Path | nn.Module | None = None,
    *,
    out: str | Path | None = None,
    overwrite: bool = False,
    reporter: Reporter | None = None,
    **settings: Any,
) -> pd.DataFrame:
    """Evaluates a checkpoint on MTEB and returns every score as a frame.

    Args:
        ckpt: Hub id, folder, `scheme:path`, or a loaded encoder.
        pooler: `mean`, `cls`, `last`, `own`, the folder of a trained pooler, or a torch module from token features `[b, t, d]`
            and mask `[b, t]` to `[b, e]`; None: the checkpoint's own where it declares one, else `mean`.
        out: Folder for records, mteb's results and the exported encoder; None keeps them only for the length of the call.
        overwrite: Drop what another run left in `out`.
        reporter: Told about progress; None is silent.
        **settings: Fields of `MtebSettings`, sections as dictionaries: `tasks="STS12,SciFact"`, `benchmark="MTEB(eng, v1)"`,
            `encoder={"dtype": "bf16"}`; `frozen=True` trains a pooler first, with what `contrastive` says:
            `contrastive={"data": {"train_data": "triples.jsonl"}, "training": {"lr": 1e-4}}`.

    Returns:
        One row per score: task, split, metric, value as a fraction; the main scores have `is_headline`.

    Raises:
        FrozenprobeError: Wrong input, explained in one line.
    """
    encoder, section = given_encoder(ckpt, settings.get("encoder"))
    values: dict[str, Any] = {**settings, "encoder": section}
    if isinstance(pooler, str | Path):
        values["pooler"] = str(pooler)
    if out is None:
        values.setdefault("export", False)
    checked = parse(MtebSettings, values)
    module = None if pooler is None or isinstance(pooler, str | Path) else pooler
    with tempfile.TemporaryDirectory(prefix="frozenprobe-") as temporary:
        folder = Path(out) if out is not None else Path(temporary) / "run"
        run = run_mteb(checked, folder, encoder=encoder, pooler=module, overwrite=overwrite, reporter=reporter)
        return run.scores()


@contextmanager
def _planned(settings: MtebSettings, out: Path | None = None) -> Generator[Plan]:
    """The tasks, for as long as the block runs, with the data found of those that a run in `out` has not finished."""
    selection = select(settings)
    plan = Plan(selection, {task.metadata.name: parts_of(task) for task in selection.tasks})
    finished = set() if out is None else {unit.key.task for unit in read_units(out).units}  # of whichever benchmark
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


def _model(settings: MtebSettings, probed: Probed) -> MtebEncoder:
    cache = None
    if settings.features.cache:
        root = settings.features.cache_dir or default_cache_dir()
        cache = FeatureCache(root, int(settings.features.cache_limit_gb * 1e9))
    return MtebEncoder(
        probed.encoder,
        probed.pooler,
        layer=probed.layer,
        normalise=settings.normalise,
        backbone=probed.backbone,
        prompts=probed.prompts,
        features=settings.features,
        cache=cache,
    )


def _notes(model: MtebEncoder, plan: Plan, name: str, known: TrainingData, probed: Probed) -> list[str]:
    """What a reader of the scores should know before the first of them."""
    info = model.encoder.info
    lines = [
        f"{name}: recognised as {info.kind}, {info.architecture}, {info.parameters / 1e6:,.1f}M parameters, "
        f"{info.layers} layers x {info.hidden_size}, {info.max_length} tokens, {info.dtype} on {info.device}, {info.attention}; "
        f"pooling {model.pooling} of layer {model.layer}"
    ]
    lines += [f"{name}: {note}" for note in info.notes]
    if probed.about.get("of", 1) > 1:
        lines.append(f"{probed.about['name']} is best of {probed.about['of']} poolers on the held-out queries")
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
    if known.names is None:
        whose = "its training data" if probed.rows is None else "its training data, or what the pooler's rows are,"
        lines.append(f"{name}: {whose} is unknown, so no task counts as zero-shot; name it with --training-data")
    elif not known.complete:
        lines.append(
            f"{name}: mteb is told of {', '.join(sorted(known.names))}; what else the encoder was trained on is unknown, so no "
            "task counts as zero-shot here; name it with --training-data (none: nothing)"
        )
    return lines
