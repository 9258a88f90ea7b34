"""Synthetic rows in the hub's layout for one task of every kind that the two English benchmarks are made of.

`write(root)` makes `<root>/<owner>/<name>/<config>/<split>.parquet`, which is a local copy without revisions; with `card=True` also
the README that a hub repository has.
"""

from __future__ import annotations

import json
import random
from pathlib import Path

import pandas as pd

TOPICS = (
    "ships and harbours in winter storms",
    "bread baked slowly in stone ovens",
    "proofs about prime numbers",
    "songs that whales sing at night",
)
FORUMS = (
    "english",
    "gaming",
    "gis",
    "mathematica",
    "physics",
    "programmers",
    "stats",
    "tex",
    "unix",
    "webmasters",
    "wordpress",
)

TASKS = {
    "MTEB(eng, v1)": (
        "Banking77Classification,AmazonCounterfactualClassification,TwentyNewsgroupsClustering,TwitterSemEval2015,"
        "AskUbuntuDupQuestions,MindSmallReranking,SciFact,CQADupstackRetrieval,BIOSSES,STS17,SummEval"
    ),
    "MTEB(eng, v2)": (
        "Banking77Classification,AmazonCounterfactualClassification,TwentyNewsgroupsClustering.v2,TwitterSemEval2015,"
        "AskUbuntuDupQuestions,CQADupstackGamingRetrieval,BIOSSES,STS17,SummEvalSummarization.v2"
    ),
}
"""One task or more of every category, of every way to lay out rows, and the aggregate."""


class Writer:
    """Writes data sets below a root, all from one seed."""

    def __init__(self, root: Path, *, card: bool = False) -> None:
        self.root = root
        self.card = card
        self.dice = random.Random(0)

    def text(self, topic: int) -> str:
        words = TOPICS[topic].split()
        return (
            " ".join(self.dice.choice(words) for _ in range(self.dice.randint(3, 9))) + f" {self.dice.randint(0, 999)}"
        )

    def put(self, name: str, configs: dict[str, dict[str, list[dict]]]) -> Path:
        """Configs of splits of rows."""
        folder = self.root / name
        for config, splits in configs.items():
            (folder / config).mkdir(parents=True, exist_ok=True)
            for split, rows in splits.items():
                pd.DataFrame(rows).to_parquet(folder / config / f"{split}.parquet")
        if self.card:
            entries = [
                {
                    "config_name": config,
                    "data_files": [{"split": split, "path": f"{config}/{split}.parquet"} for split in splits],
                }
                for config, splits in configs.items()
            ]
            (folder / "README.md").write_text(f"---\n{json.dumps({'configs': entries})}\n---\n")
        return folder

    def labelled(self, n: int) -> list[dict]:
        return [{"text": self.text(i % 4), "label": i % 4, "label_text": f"topic {i % 4}"} for i in range(n)]

    def pairs(self, n: int) -> list[dict]:
        return [
            {"sentence1": self.text(i % 4), "sentence2": self.text((i + i // 4) % 4), "score": float(5 - i // 4 % 4)}
            for i in range(n)
        ]

    def retrieval(self, name: str, *, candidates: bool = False, queries: int = 8) -> Path:
        corpus = [
            {"_id": f"d{i}", "title": f"title {i % 3}" if i % 2 else "", "text": self.text(i % 4)} for i in range(40)
        ]
        asked = [{"_id": f"q{i}", "text": self.text(i % 4)} for i in range(queries)]
        judged = [
            {"query-id": f"q{i}", "corpus-id": f"d{i % 4 + 4 * j}", "score": 1}
            for i in range(queries)
            for j in range(3)
        ]
        configs = {"default": {"test": judged}, "corpus": {"corpus": corpus}, "queries": {"queries": asked}}
        if candidates:
            ranked = [{"query-id": f"q{i}", "corpus-ids": [f"d{j}" for j in range(i, i + 20)]} for i in range(queries)]
            configs["top_ranked"] = {"test": ranked}
        return self.put(name, configs)


def write(root: Path, *, card: bool = False) -> Path:
    """All data sets of `TASKS`."""
    writer = Writer(root, card=card)
    writer.put("mteb/banking77", {"default": {"train": writer.labelled(80), "test": writer.labelled(40)}})
    writer.put("mteb/amazon_counterfactual", {"en": {"train": writer.labelled(80), "test": writer.labelled(40)}})
    clusters = [
        {"sentences": [writer.text(i % 4) for i in range(60)], "labels": [str(i % 4) for i in range(60)]}
        for _ in range(3)
    ]
    writer.put("mteb/twentynewsgroups-clustering", {"default": {"test": clusters}})
    same = [
        {
            "sent1": [writer.text(i % 4) for i in range(40)],
            "sent2": [writer.text(i % 4 if i % 3 else (i + 1) % 4) for i in range(40)],
            "labels": [int(bool(i % 3)) for i in range(40)],
        }
    ]
    writer.put("mteb/twittersemeval2015-pairclassification", {"default": {"test": same}})
    writer.retrieval("mteb/AskUbuntuDupQuestions", candidates=True)
    writer.retrieval("mteb/MindSmallReranking", candidates=True)
    writer.retrieval("mteb/scifact")
    for name in ("CQADupstackAndroidRetrieval", *(f"cqadupstack-{forum}" for forum in FORUMS)):
        writer.retrieval(f"mteb/{name}", queries=4)
    writer.put("mteb/biosses-sts", {"default": {"test": writer.pairs(32)}})
    languages = [{**pair, "lang": lang} for lang in ("en-en", "ko-ko") for pair in writer.pairs(32)]
    writer.put("mteb/sts17-crosslingual-sts", {"default": {"test": languages}})
    summaries = [
        {
            "text": writer.text(i % 4),
            "human_summaries": [writer.text(i % 4) for _ in range(3)],
            "machine_summaries": [writer.text((i + j) % 4) for j in range(4)],
            "relevance": [5.0 - j for j in range(4)],
        }
        for i in range(8)
    ]
    writer.put("mteb/summeval", {"default": {"test": summaries}})
    return root
