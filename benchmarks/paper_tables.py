"""Tables 1 to 9 of the paper from records, each measured line beside the paper's of the same kind.

Measured linear probes stand there twice: chosen inside train (`honest`), and best on the reported split, as the paper's are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from benchmarks.paper_records import Record, Records, alike, shared, tasks_of, title_of, warm_start
from crossbert.swept import TITLES
from frozenprobe.reports.boards import BOARDS, GLUE_TASKS
from frozenprobe.reports.paper_tables import published_rows, read_table
from frozenprobe.reports.rows import Row, as_flops, run_rows

OURS = {"honest": "measured, honest", "paper": "measured, paper's choice"}
PAPER = "paper"


@dataclass
class Line:
    """A line of a table.

    Attributes:
        key: What it is a line of: the same for a measured line and the paper's.
        about: Cells before the scores.
        source: `paper`, or how it was measured.
        scores: Percent by column.
        spread: Standard deviation of the average over seeds, None for a single one.
    """

    key: Any
    about: tuple[str, ...]
    source: str
    scores: dict[str, float]
    spread: float | None = None


@dataclass
class Table:
    """A table to be printed.

    Attributes:
        title: Its title.
        about: Headings of the cells before the scores.
        columns: Columns of scores with their headings.
        lines: Its lines.
        notes: What to know when reading it.
    """

    title: str
    about: tuple[str, ...]
    columns: dict[str, str]
    lines: list[Line]
    notes: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        order = list(dict.fromkeys(line.key for line in self.lines if line.source == PAPER))
        order += [key for key in dict.fromkeys(line.key for line in self.lines) if key not in order]
        self.lines.sort(key=lambda line: (order.index(line.key), line.source == PAPER))

    @property
    def is_measured(self) -> bool:
        """Whether it holds anything besides the paper's lines."""
        return any(line.source != PAPER for line in self.lines)


def _glue_lines(
    records: Sequence[Record],
    key: Callable[[Record], Any],
    about: Callable[[Record], tuple[str, ...]],
    notes: list[str],
) -> Iterator[Line]:
    """Lines of the linear probe, over seeds their mean."""
    for group in alike(sorted(records, key=lambda record: record.flops or 0), notes):
        for protocol, source in OURS.items():
            scores = [record.scores("ridge", protocol) for record in group]
            tasks = shared(scores)
            if not tasks:
                continue
            means = {task: float(np.mean([one[task] for one in scores])) for task in tasks}
            averages = [float(np.mean([one[task] for task in tasks])) for one in scores]
            spread = float(np.std(averages, ddof=1)) if len(group) > 1 else None
            means["avg"] = float(np.mean(averages))
            yield Line(key(group[0]), about(group[0]), source, means, spread)


def _glue_table(
    title: str,
    file: str,
    records: Sequence[Record],
    about: tuple[str, ...],
    key: Callable[[Record], Any],
    cells: Callable[[Record], tuple[str, ...]],
    paper_key: Callable[[dict[str, str]], Any],
    paper_cells: Callable[[dict[str, str]], tuple[str, ...]],
    *,
    average_only: bool = False,
) -> Table:
    """A table of linear probes, with the paper's lines that stand in a file."""
    published = []
    for row in read_table(file):
        scores = {task: float(row[task]) for task in GLUE_TASKS if task in row}
        scores["avg"] = float(row["avg"] if "avg" in row else row["glue_avg"])
        published.append(Line(paper_key(row), paper_cells(row), PAPER, scores))
    notes: list[str] = []
    lines = list(_glue_lines(records, key, cells, notes))
    notes = _averages(lines, tasks_of(records)) + notes
    tasks = {} if average_only else {task: title_of(task) for task in GLUE_TASKS} | tasks_of(records)
    return Table(title, about, {**tasks, "avg": "Avg."}, [*lines, *published], notes)


def _averages(lines: Sequence[Line], titles: Mapping[str, str]) -> list[str]:
    """Takes the average from lines that lack a task which others have; gives what to know of those that stay."""
    tasks = [task for task in titles if any(task in line.scores for line in lines)]
    notes = []
    for line in lines:
        if lacking := [titles[task] for task in tasks if task not in line.scores]:
            line.scores.pop("avg", None)
            line.spread = None
            notes.append(_without_average(line, lacking))
    return [*_over(tasks, titles), *dict.fromkeys(notes)]


def _without_average(line: Line, lacking: Sequence[str]) -> str:
    return f"{', '.join(filter(None, line.about))} has no average: it lacks {', '.join(lacking)}"


def _over(tasks: Sequence[str], titles: Mapping[str, str]) -> list[str]:
    if not tasks or set(tasks) == set(GLUE_TASKS):
        return []
    over = ", ".join(titles[task] for task in tasks)
    return [f"measured averages are over {over}; the paper's over the eight tasks of GLUE"]


def _model(record: Record) -> tuple[str, ...]:
    """The model, and what its training cost."""
    return record.label, as_flops(record.flops)


def _of(records: Records, objective: str) -> list[Record]:
    return [record for record in records.glue if record.objective == objective and record.model is not None]


def table1(records: Records) -> list[Table]:
    """Linear probes on BERT's last layers and on the one as deep as the 20th of 28."""
    columns = ("last", "last-1", "last-2", "last-3", "layer20")
    lines, notes, probed = [], [], []
    for group in alike(_of(records, "bert"), notes):
        layers = group[0].model.layers if group[0].model else 0
        places = ("last", *(str(layers - back) for back in (1, 2, 3)), str(max(1, round(20 / 28 * layers))))
        for protocol, source in OURS.items():
            found = [record.by_layer(protocol) for record in group]
            scores = {
                column: float(np.mean([one[layer] for one in found]))
                for column, layer in zip(columns, places, strict=True)
                if all(layer in one for one in found)
            }
            if len(scores) > 1:
                inner = [value for column, value in scores.items() if column != "last"]
                scores["gain"] = float(np.mean(inner)) - scores["last"]
                lines.append(Line("BERT", _model(group[0]), source, scores))
                probed.append(group)
    titles = tasks_of([record for group in probed for record in group])
    for line, group in zip(lines, probed, strict=True):
        tasks = shared([tasks_of([record]) for record in group])
        if lacking := [title for task, title in titles.items() if task not in tasks]:
            line.scores.clear()  # each of them is an average
            notes.append(_without_average(line, lacking))
    for row in read_table("table1_layers.csv"):
        scores = {column: float(row[column]) for column in columns} | {"gain": float(row["avg_improvement"])}
        lines.append(Line("BERT", (row["model"], ""), PAPER, scores))
    headings = dict(zip(columns, ("last", "last-1", "last-2", "last-3", "20th of 28"), strict=True))
    return [
        Table(
            "Table 1: linear probes by layer of BERT, mean over tasks",
            ("model", "FLOPs"),
            headings | {"gain": "mean gain over last"},
            lines,
            [*_over(list(titles), titles), *dict.fromkeys(notes)],
        )
    ]


def _ratio(record: Record) -> str:
    return f"{100 * record.model.mask_ratio:g}%" if record.model else ""


def table2(records: Records) -> list[Table]:
    """Masking ratio of CrossBERT with one view."""
    chosen = [record for record in _of(records, "crossbert") if record.model and not record.model.complementary]
    return [
        _glue_table(
            "Table 2: masking ratio of CrossBERT, one view of each sequence",
            "table2_masking_crossbert.csv",
            chosen,
            ("masked", "model", "FLOPs"),
            _ratio,
            lambda record: (_ratio(record), *_model(record)),
            lambda row: f"{row['masking_ratio_percent']}%",
            lambda row: (f"{row['masking_ratio_percent']}%", "CrossBERT 279M", ""),
            average_only=True,
        )
    ]


def table4(records: Records) -> list[Table]:
    """Shape of the predictor; a line of the paper is matched by its share of the encoder's width and depth."""

    def shape(width: float, blocks: int, encoder: tuple[int, int]) -> tuple[int, bool]:
        return round(4 * width / encoder[0]), blocks / encoder[1] > 9 / 28

    def ours(record: Record) -> Any:
        model = record.model
        assert model is not None
        return shape(model.predictor_width, model.predictor_layers, (model.width, model.layers))

    def cells(record: Record) -> tuple[str, ...]:
        model = record.model
        assert model is not None
        return f"{model.predictor_width} x {model.predictor_layers}", *_model(record)

    chosen = [record for record in _of(records, "crossbert") if record.model and record.model.complementary]
    return [
        _glue_table(
            "Table 4: shape of CrossBERT's predictor",
            "table4_predictor_shape.csv",
            chosen,
            ("predictor", "model", "FLOPs"),
            ours,
            cells,
            lambda row: shape(int(row["dim"]), int(row["layers"]), (768, 28)),
            lambda row: (
                f"{row['dim']} x {row['layers']}",
                f"predictor {row['predictor_params']}, encoder 28 x 768",
                "",
            ),
        )
    ]


def table5(records: Records) -> list[Table]:
    """Complementary masking on and off, at half of the tokens masked."""

    def cms(record: Record) -> str:
        return "yes" if record.model and record.model.complementary else "no"

    chosen = [record for record in _of(records, "crossbert") if record.model and record.model.mask_ratio == 0.5]
    return [
        _glue_table(
            "Table 5: complementary masking (CMS)",
            "table5_cms_ablation.csv",
            chosen,
            ("CMS", "model", "FLOPs"),
            cms,
            lambda record: (cms(record), *_model(record)),
            lambda row: row["cms"],
            lambda row: (row["cms"], row["model"], ""),
        )
    ]


def table6(records: Records) -> list[Table]:
    """Masking ratio of BERT."""
    return [
        _glue_table(
            "Table 6: masking ratio of BERT",
            "table6_masking_bert.csv",
            _of(records, "bert"),
            ("masked", "model", "FLOPs"),
            _ratio,
            lambda record: (_ratio(record), *_model(record)),
            lambda row: f"{row['bert_mask_percent']}%",
            lambda row: (f"{row['bert_mask_percent']}%", "BERT 239M", "6.8e19"),
        )
    ]


def table9(records: Records) -> list[Table]:
    """Other hyper-parameters, by the axis `other_hyperparameters` of the sweep."""

    def other(record: Record) -> str:
        return record.swept.axes.get("other_hyperparameters", "no") if record.swept else "no"

    chosen = [record for record in records.glue if record.model is not None]
    return [
        _glue_table(
            "Table 9: do other hyper-parameters help at scale",
            "table9_scale_1b.csv",
            chosen,
            ("model", "FLOPs", "other hyper-parameters"),
            lambda record: (TITLES[str(record.objective)], other(record)),
            lambda record: (*_model(record), other(record)),
            lambda row: (row["model"].split()[0], row["other_hyperparameters"]),
            lambda row: (row["model"], "", row["other_hyperparameters"]),
        )
    ]


def _board_table(title: str, board_name: str, records: Sequence[Record], wanted: Callable[[Row], bool]) -> Table:
    """Rows of a leaderboard, measured ones beside the paper's of the same objective."""
    board = BOARDS[board_name]
    found: list[Line] = []
    extra: dict[str, str] = {}
    notes: list[str] = []
    for record in records:
        for row in filter(wanted, run_rows(record.run, record.label, board)):
            averages = board.average(row.scores)
            if board_name == "glue" and np.isnan(averages["avg"]):
                averages = board.average(row.scores, tuple(row.scores))
            scores = {name: value for name, value in (row.scores | averages).items() if not np.isnan(value)}
            source = OURS.get(row.protocol, "measured")
            about = (record.label, _millions(record.parameters), row.flops, row.backbone)
            found.append(Line(TITLES.get(str(record.objective), record.label), about, source, scores))
            if row.lacks:
                notes.append(f"{record.label}: unfinished are {row.lacks}")
            extra |= {score["task"]: score["title"] for score in row.single} if board_name == "glue" else {}
    for row in published_rows(board):
        if wanted(row):
            scores = row.scores | row.printed
            about = (row.model, _millions(row.params), row.flops, row.backbone)
            found.append(Line(row.model, about, PAPER, scores))
    columns = {column: title_of(column) for column in board.columns} | extra
    columns |= {"avg": "Avg."} | ({"overall": "Overall"} if board.tasks_per_column else {})
    if board_name == "glue":
        titles = tasks_of(records)
        notes = _averages([line for line in found if line.source != PAPER], titles)
    return Table(title, ("model", "parameters", "FLOPs", "backbone"), columns, found, list(dict.fromkeys(notes)))


def _millions(parameters: int | None) -> str:
    return "" if parameters is None else f"{parameters / 1e6:.4g}M"


def table3(records: Records) -> list[Table]:
    """GLUE and MTEB(eng, v1), frozen and unfrozen."""
    linear = _glue_table(
        "Table 3: GLUE, linear probe on a frozen backbone",
        "table3_glue_linear_probe.csv",
        records.glue,
        ("model", "parameters", "FLOPs"),
        lambda record: TITLES.get(str(record.objective), record.label),
        lambda record: (record.label, _millions(record.parameters), as_flops(record.flops)),
        lambda row: row["model"],
        lambda row: (row["model"], row["params"], row["flops"]),
    )
    return [
        linear,
        _board_table(
            "Table 3: GLUE, full finetuning",
            "glue",
            records.glue,
            lambda row: row.method == "finetuned",
        ),
        *_contrastive_tables("Table 3: MTEB(eng, v1)", "mteb-v1", records),
    ]


def table8(records: Records) -> list[Table]:
    """MTEB(eng, v2), frozen and unfrozen."""
    return _contrastive_tables("Table 8: MTEB(eng, v2)", "mteb-v2", records)


def _contrastive_tables(title: str, board: str, records: Records) -> list[Table]:
    return [
        _board_table(
            f"{title}, contrastive finetuning, {backbone} backbone",
            board,
            records.mteb(board),
            lambda row, backbone=backbone: (row.method, row.backbone) == ("contrastive", backbone),
        )
        for backbone in ("frozen", "unfrozen")
    ]


def table7(records: Records) -> list[Table]:
    """A pooler that begins as the predictor, or anew, on CrossBERT's frozen features."""
    board = BOARDS["mteb-v2"]
    lines, notes = [], []
    for record in records.mteb("mteb-v2"):
        warm = warm_start(record.run)
        for row in run_rows(record.run, record.label, board):
            if record.objective == "crossbert" and (row.method, row.backbone) == ("contrastive", "frozen"):
                if warm is None:
                    notes.append(
                        f"{record.run.folder} does not say whether its pooler began as the predictor; left out"
                    )
                    continue
                scores = row.scores | board.average(row.scores)
                key = "yes" if warm else "no"
                about = (key, *_model(record))
                whole = {name: value for name, value in scores.items() if not np.isnan(value)}
                lines.append(Line(key, about, "measured", whole))
                if row.lacks:
                    notes.append(f"{record.label}: unfinished are {row.lacks}")
    for row in read_table("table7_warm_start_mteb_eng_v2_frozen.csv"):
        scores = {name: float(row[name]) for name in (*board.columns, *board.averages)}
        lines.append(Line(row["warm_start"], (row["warm_start"], row["model"], "4.1e19"), PAPER, scores))
    columns = {column: title_of(column) for column in board.columns} | {"avg": "Avg.", "overall": "Overall"}
    title = "Table 7: warm start of the pooler, MTEB(eng, v2), frozen backbone"
    return [Table(title, ("warm start", "model", "FLOPs"), columns, lines, notes)]


TABLES: Mapping[str, Callable[[Records], list[Table]]] = {
    f"table{number}": make
    for number, make in enumerate((table1, table2, table3, table4, table5, table6, table7, table8, table9), start=1)
}
