"""The paper's tables as rows of the leaderboards, every average recomputed from its own row.

Scores are printed to one decimal, so a recomputed average can differ by 0.05 from its row's rounding and by 0.05 from its own; what
differs by more than 0.1 does not follow from the row and is flagged.
"""

from __future__ import annotations

import csv
from importlib.resources import files

from frozenprobe.reports.boards import Board
from frozenprobe.reports.conditions import TRAIN_ROWS, Conditions
from frozenprobe.reports.rows import Row

TOLERANCE = 0.1 + 1e-9
PROBED = Conditions({TRAIN_ROWS: "10000"})  # of the linear probes; of its finetuning the paper does not say it
# Table -> board, method, backbone ("" where a column says it), protocol.
TABLES = {
    "table3_glue_linear_probe.csv": ("glue", "linear", "frozen", "paper"),
    "table3_glue_finetuned.csv": ("glue", "finetuned", "unfrozen", ""),
    "table3_mteb_eng_v1_frozen.csv": ("mteb-v1", "contrastive", "frozen", ""),
    "table3_mteb_eng_v1_unfrozen.csv": ("mteb-v1", "contrastive", "unfrozen", ""),
    "table8_mteb_eng_v2.csv": ("mteb-v2", "contrastive", "", ""),
}


def published_rows(board: Board) -> list[Row]:
    """The published rows of a leaderboard; none where the paper has no such table."""
    rows = []
    for name, (where, method, backbone, protocol) in TABLES.items():
        if where == board.name:
            for line in read_table(name):
                rows.append(
                    Row(
                        model=line["model"],
                        source="published",
                        method=method,
                        backbone=backbone or line["backbone"],
                        protocol=protocol,
                        pair_form="joint" if board.name == "glue" else "",
                        run=name.removesuffix(".csv"),
                        params=_count(line["params"]),
                        flops=line["flops"],
                        tokens_per_s=int(line["tokens_per_s"]) if line["tokens_per_s"] else None,
                        scores={column: float(line[column]) for column in board.columns},
                        conditions=PROBED if method == "linear" else Conditions(),
                        printed={name: float(line[name]) for name in board.averages if line.get(name)},
                    )
                )
    return rows


def read_table(name: str) -> list[dict[str, str]]:
    """A table of the paper, cell by cell as printed."""
    text = (files("frozenprobe.reports") / "published" / name).read_text()
    return list(csv.DictReader(text.splitlines()))


def flag(row: Row, recomputed: dict[str, float]) -> str:
    """Says which printed averages do not follow from their row; empty where all do."""
    return "; ".join(
        f"{name} printed {printed:.1f}, row gives {recomputed[name]:.1f}"
        for name, printed in row.printed.items()
        if abs(recomputed[name] - printed) > TOLERANCE
    )


def _count(text: str) -> int:
    """`239M` -> 239,000,000."""
    return round(float(text.removesuffix("M")) * 1e6)
