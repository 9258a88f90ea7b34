import hashlib
import random
import re

import numpy as np
import pytest

from frozenprobe.errors import DataError
from frozenprobe.tasks import BUILTIN, grammar, lexicon, load_builtin

TASKS = tuple(BUILTIN)


def rows(split):
    return list(zip(split.texts, split.pairs or [""] * len(split), split.labels.tolist(), strict=True))


def digest(data):
    content = repr([rows(data.train), rows(data.evaluations[0])])
    return hashlib.sha256(content.encode()).hexdigest()[:16]


@pytest.mark.parametrize("name", TASKS)
def test_same_seed_same_rows_other_seed_other_rows(name):
    assert digest(load_builtin(name, 0)) == digest(load_builtin(name, 0))
    assert digest(load_builtin(name, 0)) != digest(load_builtin(name, 1))


def test_rows_are_the_same_on_every_machine():
    """Pinned: whoever changes a word or a sentence raises GRAMMAR_VERSION and this digest together."""
    joined = "".join(digest(load_builtin(name, 0)) for name in TASKS)
    assert hashlib.sha256(joined.encode()).hexdigest()[:16] == "5ca2bb63ea13c132"
    assert load_builtin(TASKS[0], 0).revision == "grammar 1, seed 0"


@pytest.mark.parametrize("name", TASKS)
def test_never_called_glue(name):
    data = load_builtin(name)
    assert data.source == data.spec.suite == "built-in"
    assert "glue" not in f"{data.spec}{data.source}{data.revision}".lower()


@pytest.mark.parametrize("name", TASKS)
@pytest.mark.parametrize("seed", [0, 7])
def test_rows_are_distinct_balanced_and_well_shaped(name, seed):
    data = load_builtin(name, seed)
    train, validation = data.train, data.evaluations[0]
    assert (len(train), len(validation), data.subset) == (1200, 450, None)
    inputs = [row[:2] for row in rows(train) + rows(validation)]
    assert len(set(inputs)) == len(inputs)
    for split in (train, validation):
        assert (split.pairs is not None) == data.spec.is_pair
        if data.spec.classes:
            share = np.bincount(split.labels, minlength=len(data.spec.classes)) / len(split)
            assert (abs(share - 1 / len(data.spec.classes)) < 0.08).all()
        else:
            assert split.labels.min() >= 0
            assert split.labels.max() <= 5
            assert len(np.unique(split.labels)) > 20


@pytest.mark.parametrize("name", TASKS)
def test_sentences_read_as_sentences(name):
    data = load_builtin(name)
    texts = [*data.train.texts, *(data.train.pairs or []), *data.evaluations[0].texts]
    for text in texts:
        assert re.fullmatch(r"[A-Z][A-Za-z' ,;.?-]*[.!?]", text), text
        assert "  " not in text
        if name != "builtin-acceptability":  # where a wrong article may be the error
            assert not re.search(r"\ba [aeiou]|\ban [^aeiou]", text), text
    lengths = [len(text.split()) for text in texts]
    assert max(lengths) >= 2 * min(lengths)


def test_words_that_decide_are_held_out():
    """A probe that only knows the train words cannot answer in validation."""
    train, validation = grammar.split_vocabulary(random.Random("x"))
    for field in ("people", "things", "verbs", "good", "bad"):
        ours, theirs = getattr(train, field), getattr(validation, field)
        assert not set(ours) & set(theirs)
        assert len(theirs) >= 10
    data = load_builtin("builtin-sentiment")
    polar = {*lexicon.GOOD, *lexicon.BAD}

    def used(split):
        return {word for text in split.texts for word in re.findall(r"[a-z-]+", text) if word in polar}

    # A handful of aspects share a word with the polar lists; none may decide both splits.
    assert not used(data.train) & used(data.evaluations[0])


def test_lexicon_has_no_word_twice():
    for table in (lexicon.PEOPLE, lexicon.THINGS, lexicon.PLACES):
        words = [word for entry in table for word in entry.words]
        assert len(set(words)) == len(words)
    bases = [form[0] for verb in lexicon.VERBS for form in verb.words]
    assert len(set(bases)) == len(bases)
    assert not set(lexicon.GOOD) & set(lexicon.BAD)
    assert len(set(lexicon.GOOD)) == len(lexicon.GOOD)
    assert len(set(lexicon.BAD)) == len(lexicon.BAD)


def accuracy_of_words(data, texts_of):
    """Naive Bayes over the words of one text, written out: what a probe scores that only knows the train words."""

    def words(text):
        return set(re.findall(r"[a-z-]+", text.lower()))

    classes = len(data.spec.classes)
    counts = {}
    for text, label in zip(texts_of(data.train), data.train.labels, strict=True):
        for word in words(text):
            counts.setdefault(word, np.ones(classes))[label] += 1
    prior = np.bincount(data.train.labels)
    validation = data.evaluations[0]
    guesses = [
        sum((np.log(counts[word] / prior) for word in words(text) if word in counts), np.log(prior)).argmax()
        for text in texts_of(validation)
    ]
    return np.mean(guesses == validation.labels)


@pytest.mark.parametrize("name", ["builtin-acceptability", "builtin-sentiment"])
def test_single_words_of_train_do_not_give_validation_away(name):
    assert accuracy_of_words(load_builtin(name), lambda split: split.texts) < 0.62


@pytest.mark.parametrize("texts_of", [lambda split: split.texts, lambda split: split.pairs])
def test_neither_half_of_a_pair_gives_the_label_away(texts_of):
    assert accuracy_of_words(load_builtin("builtin-inference"), texts_of) < 0.42
    assert accuracy_of_words(load_builtin("builtin-paraphrase"), texts_of) < 0.58


def test_similarity_scores_follow_the_shared_words():
    data = load_builtin("builtin-similarity")
    overlap = [len(set(first.lower().split()) & set(second.lower().split())) for first, second, _ in rows(data.train)]
    correlation = np.corrcoef(overlap, data.train.labels)[0, 1]
    assert 0.3 < correlation < 0.9  # words alone tell something, meaning tells more


def test_unknown_task():
    with pytest.raises(DataError, match="unknown built-in task 'cola'; allowed are builtin-inference"):
        load_builtin("cola")


def test_a_task_scored_on_fewer_rows_is_a_subset_of_the_same_rows_every_time():
    data = load_builtin("builtin-paraphrase")
    (some,) = data.scored_on(100, seed=1).evaluations
    whole = data.evaluations[0]
    rows = list(zip(whole.texts, whole.pairs, whole.labels, strict=True))
    kept = list(zip(some.texts, some.pairs, some.labels, strict=True))
    assert len(kept) == 100
    assert kept == [row for row in rows if row in set(kept)]  # in the order of the file
    again = data.scored_on(100, seed=1)
    assert again.evaluations[0].texts == some.texts
    assert again.subset == "validation 100 of 450 rows scored"
    assert data.scored_on(450, seed=1).subset is None
    assert data.scored_on(100, seed=2).evaluations[0].texts != some.texts
