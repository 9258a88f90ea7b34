"""Hard negatives for a user's own pairs: the passages nearest to each query that do not answer it.

Encodes queries and passages once, searches exactly, and passes over every known positive, over the query's own text,
and over passages nearly as similar as the positive, which may be answers that nobody marked. Writes the rows that
`data.py` reads.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from frozenprobe.contrastive.data import is_text, local_files, read_file, read_objects
from frozenprobe.contrastive.settings import MineSettings
from frozenprobe.encoders.base import Encoder
from frozenprobe.encoders.contract import check_padding
from frozenprobe.encoders.given import given_encoder
from frozenprobe.encoders.registry import load_encoder
from frozenprobe.errors import DataError, RecordError
from frozenprobe.features.base import Inputs, View
from frozenprobe.features.extract import ExtractionProgress, extract
from frozenprobe.features.pooling import ViewPooler, resolve_pooling
from frozenprobe.files import write_atomically
from frozenprobe.probes.knn import nearest
from frozenprobe.settings import FeatureSettings, parse


@dataclass
class MiningReport:
    """What was mined.

    Attributes:
        pairs: Pairs with a query and a positive.
        bad_pairs: Pairs left out, because one of the two is missing, blank or no text.
        passages: Distinct passages searched.
        bad_passages: Rows of the corpus left out, because their text is missing, blank or no text.
        negatives: Hard negatives found.
        short: Pairs with fewer than asked for.
        near: Candidates passed over because they came within the margin of the positive.
        truncated: Texts that were longer than the encoder's limit and were cut.
    """

    pairs: int = 0
    bad_pairs: int = 0
    passages: int = 0
    bad_passages: int = 0
    negatives: int = 0
    short: int = 0
    near: int = 0
    truncated: int = 0

    def as_dict(self) -> dict[str, Any]:
        """The report as plain values."""
        return asdict(self)


def mine_negatives(
    ckpt: str | Path | Encoder,
    pairs: str | Path,
    out: str | Path,
    *,
    on_progress: Callable[[ExtractionProgress], None] | None = None,
    **settings: Any,
) -> MiningReport:
    """Mines hard negatives for pairs and writes them as JSON lines with `query`, `positive` and `negatives`.

    Args:
        ckpt: The mining encoder: hub id, folder, `scheme:path`, or a loaded encoder.
        pairs: Rows with `query` and `positive`.
        out: The file to write.
        on_progress: Called while encoding.
        **settings: Fields of `MineSettings`.

    Raises:
        FrozenprobeError: Wrong input, explained in one line.
    """
    encoder, section = given_encoder(ckpt, settings.get("encoder"))
    values = {**settings, "pairs": pairs, "encoder": section}
    return run_mining(parse(MineSettings, values), Path(out), encoder=encoder, on_progress=on_progress)


def run_mining(
    settings: MineSettings,
    out: Path,
    *,
    encoder: Encoder | None = None,
    overwrite: bool = True,
    on_progress: Callable[[ExtractionProgress], None] | None = None,
) -> MiningReport:
    """Mines what `settings` ask for into a file, which appears whole or not at all.

    Args:
        settings: Everything.
        out: The file to write, `.jsonl`.
        encoder: A loaded encoder instead of the one that `settings.encoder` names.
        overwrite: Whether an older file of that name is replaced.
        on_progress: Called while encoding.

    Raises:
        FrozenprobeError: Wrong input; found before any encoding wherever it can be.
    """
    if out.suffix != ".jsonl":
        raise RecordError(f"--out {out}: the result is a .jsonl file")
    if out.is_dir() or (out.exists() and not overwrite):
        raise RecordError(f"{out} is there already; choose another --out, or --overwrite")
    report = MiningReport()
    pairs = _read_pairs(settings, report)
    passages = _read_corpus(settings, pairs, report)
    encoder = encoder or load_encoder(settings.encoder)
    view = View("last", resolve_pooling(settings.pooling, encoder))
    ViewPooler(encoder, [view])
    check_padding(encoder)
    queries = list(dict.fromkeys(query for query, _ in pairs))
    positives = list(dict.fromkeys(positive for _, positive in pairs))
    inputs = [Inputs(queries, role="query"), Inputs(passages, role="document"), Inputs(positives, role="document")]
    features = FeatureSettings(tokens_per_batch=settings.tokens_per_batch, cache=False)
    parts = extract(encoder, inputs, [view], features, on_progress=on_progress)
    report.truncated = parts[0].report.truncated
    query_vectors, passage_vectors, positive_vectors = (_unit(part.by_view[view]) for part in parts)
    found = nearest(
        passage_vectors,
        query_vectors,
        min(settings.depth, len(passages)),
        "cosine",
        backend=settings.backend,
        device=encoder.info.device,
    )
    places = {text: row for row, text in enumerate(queries)}, {text: row for row, text in enumerate(positives)}
    answers: dict[str, set[str]] = defaultdict(set)
    for query, positive in pairs:
        answers[query].add(positive)

    def lines() -> Iterator[bytes]:
        for query, positive in pairs:
            row = places[0][query]
            at_positive = float(query_vectors[row] @ positive_vectors[places[1][positive]])
            similar = passage_vectors[found[row]] @ query_vectors[row]
            negatives = _choose(
                found[row],
                similar,
                passages,
                answers[query] | {query},
                at_positive - settings.margin,
                settings.negatives,
                report,
            )
            yield (json.dumps({"query": query, "positive": positive, "negatives": negatives}) + "\n").encode()

    write_atomically(out, *lines())
    return report


def _choose(
    nearest_rows: Int[np.ndarray, " k"],
    similar: Float[np.ndarray, " k"],
    passages: list[str],
    answers: set[str],
    below: float,
    wanted: int,
    report: MiningReport,
) -> list[str]:
    """The nearest passages that are no answers and less similar than `below`."""
    chosen: list[str] = []
    for row, similarity in zip(nearest_rows.tolist(), similar.tolist(), strict=True):
        if len(chosen) == wanted:
            break
        if passages[row] in answers:
            continue
        if similarity >= below:
            report.near += 1
            continue
        chosen.append(passages[row])
    report.negatives += len(chosen)
    report.short += len(chosen) < wanted
    return chosen


def _read_pairs(settings: MineSettings, report: MiningReport) -> list[tuple[str, str]]:
    files = local_files(settings.pairs)
    if not files:
        raise DataError(f"--pairs {settings.pairs}: there is no such file or folder")
    pairs: dict[tuple[str, str], None] = {}
    for file in files:
        for query, positive, _ in read_file(file):
            if is_text(query) and is_text(positive):
                pairs.setdefault((query, positive))
            else:
                report.bad_pairs += 1
    if not pairs:
        raise DataError(f"{settings.pairs}: no row has both a query and a positive")
    report.pairs = len(pairs)
    return list(pairs)


def _read_corpus(settings: MineSettings, pairs: list[tuple[str, str]], report: MiningReport) -> list[str]:
    if settings.corpus is None:
        texts = dict.fromkeys(positive for _, positive in pairs)
    else:
        files = local_files(settings.corpus)
        if not files:
            raise DataError(f"--corpus {settings.corpus}: there is no such file or folder")
        texts = {}
        for file in files:
            for where, values in read_objects(file):
                if "text" not in values:
                    raise DataError(f"{where}: no column text; it has {', '.join(map(str, values)) or 'none'}")
                if is_text(values["text"]):
                    texts.setdefault(values["text"])
                else:
                    report.bad_passages += 1
        if not texts:
            raise DataError(f"{settings.corpus}: it holds no text")
    report.passages = len(texts)
    return list(texts)


def _unit(vectors: Float[np.ndarray, "n d"]) -> Float[np.ndarray, "n d"]:
    return vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
