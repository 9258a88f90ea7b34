"""Real MTEB data with a real encoder, held against mteb with SentenceTransformer and against published scores."""

import pytest

import frozenprobe

# The model's published scores on the two sets whose local copies are the hub's own rows (mteb/results).
PUBLISHED = {"STSBenchmark": 0.8203, "SICK-R": 0.7758}
TASKS = "BIOSSES,STSBenchmark,SICK-R"


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_minilm_gives_mtebs_own_and_the_published_scores(real_data, minilm, tmp_path):
    import mteb
    from sentence_transformers import SentenceTransformer

    from frozenprobe.settings import parse
    from frozenprobe.suites.mteb.data import use_local_copies
    from frozenprobe.suites.mteb.selection import select
    from frozenprobe.suites.mteb.settings import MtebSettings

    frame = frozenprobe.evaluate_mteb(minilm, "mean", tasks=TASKS, data_dir=real_data, features={"cache_dir": tmp_path})
    ours = {row.task: row.value for row in frame[frame["is_headline"]].itertuples()}
    for task, expected in PUBLISHED.items():
        assert ours[task] == pytest.approx(expected, abs=5e-4), task
    tasks = select(parse(MtebSettings, {"encoder": {"ckpt": str(minilm)}, "tasks": TASKS})).tasks
    use_local_copies(tasks, real_data, tmp_path / "pages")
    peer = SentenceTransformer(str(minilm), device="cpu")
    theirs = mteb.evaluate(peer, tasks, cache=None, co2_tracker=False, show_progress_bar=False)
    for result in theirs.task_results:
        assert ours[result.task_name] == pytest.approx(result.get_score(), abs=1e-3), result.task_name
