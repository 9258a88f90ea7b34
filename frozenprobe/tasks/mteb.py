"""MTEB(eng, v1) and MTEB(eng, v2) as data: the seven categories, their tasks, and the metric each is reported by.

mteb runs the tasks; this table says what a complete benchmark is, so that an mteb which has changed one is noticed. Counts in the
order of the categories: 12/11/3/4/15/10/1 (v1) and 8/8/3/2/10/9/1 (v2). CQADupstackRetrieval counts once, although it is the mean
of twelve forums.
"""

from __future__ import annotations

from typing import get_args

from frozenprobe.settings import TaskCategory

CATEGORIES: tuple[TaskCategory, ...] = get_args(TaskCategory)

BENCHMARKS: dict[str, dict[TaskCategory, tuple[str, ...]]] = {
    "MTEB(eng, v1)": {
        "Classification": (
            "AmazonCounterfactualClassification",
            "AmazonPolarityClassification",
            "AmazonReviewsClassification",
            "Banking77Classification",
            "EmotionClassification",
            "ImdbClassification",
            "MassiveIntentClassification",
            "MassiveScenarioClassification",
            "MTOPDomainClassification",
            "MTOPIntentClassification",
            "ToxicConversationsClassification",
            "TweetSentimentExtractionClassification",
        ),
        "Clustering": (
            "ArxivClusteringP2P",
            "ArxivClusteringS2S",
            "BiorxivClusteringP2P",
            "BiorxivClusteringS2S",
            "MedrxivClusteringP2P",
            "MedrxivClusteringS2S",
            "RedditClustering",
            "RedditClusteringP2P",
            "StackExchangeClustering",
            "StackExchangeClusteringP2P",
            "TwentyNewsgroupsClustering",
        ),
        "PairClassification": (
            "SprintDuplicateQuestions",
            "TwitterSemEval2015",
            "TwitterURLCorpus",
        ),
        "Reranking": (
            "AskUbuntuDupQuestions",
            "MindSmallReranking",
            "SciDocsRR",
            "StackOverflowDupQuestions",
        ),
        "Retrieval": (
            "ArguAna",
            "ClimateFEVER",
            "CQADupstackRetrieval",
            "DBPedia",
            "FEVER",
            "FiQA2018",
            "HotpotQA",
            "MSMARCO",
            "NFCorpus",
            "NQ",
            "QuoraRetrieval",
            "SCIDOCS",
            "SciFact",
            "Touche2020",
            "TRECCOVID",
        ),
        "STS": (
            "BIOSSES",
            "SICK-R",
            "STS12",
            "STS13",
            "STS14",
            "STS15",
            "STS16",
            "STS17",
            "STS22",
            "STSBenchmark",
        ),
        "Summarization": ("SummEval",),
    },
    "MTEB(eng, v2)": {
        "Classification": (
            "AmazonCounterfactualClassification",
            "Banking77Classification",
            "ImdbClassification",
            "MassiveIntentClassification",
            "MassiveScenarioClassification",
            "MTOPDomainClassification",
            "ToxicConversationsClassification",
            "TweetSentimentExtractionClassification",
        ),
        "Clustering": (
            "ArXivHierarchicalClusteringP2P",
            "ArXivHierarchicalClusteringS2S",
            "BiorxivClusteringP2P.v2",
            "MedrxivClusteringP2P.v2",
            "MedrxivClusteringS2S.v2",
            "StackExchangeClustering.v2",
            "StackExchangeClusteringP2P.v2",
            "TwentyNewsgroupsClustering.v2",
        ),
        "PairClassification": (
            "SprintDuplicateQuestions",
            "TwitterSemEval2015",
            "TwitterURLCorpus",
        ),
        "Reranking": (
            "AskUbuntuDupQuestions",
            "MindSmallReranking",
        ),
        "Retrieval": (
            "ArguAna",
            "ClimateFEVERHardNegatives",
            "CQADupstackGamingRetrieval",
            "CQADupstackUnixRetrieval",
            "FEVERHardNegatives",
            "FiQA2018",
            "HotpotQAHardNegatives",
            "SCIDOCS",
            "Touche2020Retrieval.v3",
            "TRECCOVID",
        ),
        "STS": (
            "BIOSSES",
            "SICK-R",
            "STS12",
            "STS13",
            "STS14",
            "STS15",
            "STS17",
            "STS22.v2",
            "STSBenchmark",
        ),
        "Summarization": ("SummEvalSummarization.v2",),
    },
}

_MAIN_SCORES: dict[TaskCategory, str] = {
    "Classification": "accuracy",
    "Clustering": "v_measure",
    "PairClassification": "max_ap",
    "Reranking": "map_at_1000",
    "Retrieval": "ndcg_at_10",
    "STS": "cosine_spearman",
    "Summarization": "cosine_spearman",
}
_OTHER_MAIN_SCORES = {"MindSmallReranking": "max_over_subqueries_map_at_1000"}


def main_score(task: str, category: TaskCategory) -> str:
    """The metric that a task of these benchmarks is reported by."""
    return _OTHER_MAIN_SCORES.get(task, _MAIN_SCORES[category])


def tasks_of(benchmark: str) -> list[tuple[str, TaskCategory, str]]:
    """Name, category and main score of every task of a benchmark, category by category; empty if it is not known here."""
    table = BENCHMARKS.get(benchmark, {})
    return [(name, category, main_score(name, category)) for category, names in table.items() for name in names]
