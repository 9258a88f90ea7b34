"""The sentences of the built-in suite. Each generator draws one labelled example from its half of the words.

Train and validation use the same constructions with different content words, so that a probe has to rely on what the
words mean to the encoder, not on having seen them; this is also why no row can be in both.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from frozenprobe.tasks import lexicon
from frozenprobe.tasks.lexicon import Entry, Verb, plural, with_article

Word = TypeVar("Word", Entry, Verb)
Example = tuple[tuple[str, ...], float]
"""The one or two texts, and the label."""

NUMBERS = ("two", "three", "four", "five", "six", "seven", "eight")


@dataclass(frozen=True)
class Vocabulary:
    """The content words of one split."""

    people: list[Entry]
    things: list[Entry]
    verbs: list[Verb]
    good: list[str]
    bad: list[str]


def split_vocabulary(rng: random.Random, held_out: float = 0.4) -> tuple[Vocabulary, Vocabulary]:
    """Divides every word list into one part for train and one, of the share `held_out`, for validation."""
    tables: tuple[Sequence, ...] = (lexicon.PEOPLE, lexicon.THINGS, lexicon.VERBS, lexicon.GOOD, lexicon.BAD)
    train, validation = [], []
    for table in tables:
        words = list(table)
        rng.shuffle(words)
        border = round(len(words) * held_out)
        validation.append(words[:border])
        train.append(words[border:])
    return Vocabulary(*train), Vocabulary(*validation)


@dataclass(frozen=True)
class Event:
    """Who did what to which thing, where and when."""

    agent: Entry
    verb: Verb
    thing: Entry
    quality: str
    place: Entry
    time: str


def _event(rng: random.Random, words: Vocabulary) -> Event:
    return Event(
        agent=rng.choice(words.people),
        verb=rng.choice(words.verbs),
        thing=rng.choice(words.things),
        quality=rng.choice(rng.choice(lexicon.ANTONYMS)),
        place=rng.choice(lexicon.PLACES),
        time=rng.choice(lexicon.TIMES),
    )


def _opposite(quality: str) -> str:
    return next(b if quality == a else a for a, b in lexicon.ANTONYMS if quality in (a, b))


def _other(rng: random.Random, entries: Sequence[Any], not_this: Any) -> Any:
    return rng.choice([entry for entry in entries if entry != not_this])


def _tell(rng: random.Random, event: Event, form: int) -> str:
    """The event as one sentence, in one of four constructions, each word drawn from its synonyms."""
    agent, place = rng.choice(event.agent.words), rng.choice(event.place.words)
    _, past, participle = rng.choice(event.verb.words)
    thing = f"{event.quality} {rng.choice(event.thing.words)}"
    if form == 0:
        return f"The {agent} {past} the {thing} {place} {event.time}."
    if form == 1:
        return f"The {thing} was {participle} by the {agent} {place} {event.time}."
    if form == 2:
        return f"It was the {agent} who {past} the {thing} {place} {event.time}."
    return f"{event.time[0].upper()}{event.time[1:]}, the {agent} {past} {with_article(thing)} {place}."


def sentiment(rng: random.Random, words: Vocabulary) -> Example:
    """A remark in a review: 1 favourable, 0 unfavourable; a third of the remarks are negated or weigh two sides."""
    label = rng.randrange(2)
    mine, theirs = (words.good, words.bad) if label else (words.bad, words.good)
    item, aspects = rng.choice(lexicon.REVIEWED)
    aspect, second = rng.sample(aspects, 2)
    adverb = rng.choice(("", "really ", "truly ", "quite ", "rather ", "simply "))
    same, opposite = rng.choice(mine), rng.choice(theirs)
    kind = rng.random()
    if kind < 0.65:
        text = rng.choice(
            (
                f"The {aspect} of the {item} was {adverb}{same}.",
                f"We found the {item} {adverb}{same}.",
                f"In the end, the {aspect} turned out to be {adverb}{same} and {rng.choice(mine)}.",
                f"My friends told me that the {item} was {adverb}{same}, and they were right.",
                f"What {with_article(same)} {item}, and what {with_article(rng.choice(mine))} {aspect}!",
                f"Anybody who likes {with_article(same)} {item} will remember the {aspect}.",
                f"I still think of the {aspect}, which was {adverb}{same} from beginning to end.",
            )
        )
    elif kind < 0.8:
        text = rng.choice(
            (
                f"There was nothing {opposite} about the {aspect} of the {item}.",
                f"The {aspect} was anything but {opposite}.",
                f"The {item} was not {opposite} at all.",
                f"Nobody could call the {aspect} of this {item} {opposite}.",
            )
        )
    else:
        text = rng.choice(
            (
                f"Although the {aspect} was {opposite}, the {item} as a whole was {adverb}{same}.",
                f"The {aspect} seemed {opposite} at first, but the {second} was {adverb}{same}, and that decided it.",
                f"They promised {with_article(opposite)} {item}; what we got was {same}.",
            )
        )
    return (text,), float(label)


def acceptability(rng: random.Random, words: Vocabulary) -> Example:
    """A sentence of English: 1 well-formed, 0 with an error of grammar, of order or of who can do what.

    Every word stands as often in right as in wrong sentences; only how words go together tells them apart.
    """
    acceptable = bool(rng.randrange(2))
    scrambled = not acceptable and rng.random() < 0.5
    good = acceptable or scrambled
    agent, person = (rng.choice(entry.words) for entry in rng.sample(words.people, 2))
    thing = rng.choice(rng.choice(words.things).words)
    base, past, participle = rng.choice(rng.choice(words.verbs).words)
    place = rng.choice(rng.choice(lexicon.PLACES).words)
    quality = rng.choice(rng.choice(lexicon.ANTONYMS))
    time = rng.choice(lexicon.TIMES)
    variant = rng.randrange(2)

    def agree(first: tuple[str, str], second: tuple[str, str]) -> tuple[str, str]:
        """The variant of `first`, with its own partner in `second` or, in a wrong sentence, with the other one's."""
        return first[variant], second[variant if good else 1 - variant]

    def order(right: str, wrong: str) -> str:
        return right if good else wrong

    agents = (agent, plural(agent))
    things = (thing, plural(thing))
    number = rng.choice(NUMBERS)
    subject, be = agree(agents, ("is", "are"))
    late_subject, was = agree(agents, ("was", "were"))
    auxiliary, verb = agree(("has", "did"), (participle, base))
    modal, infinitive = agree(("wants", "must"), (f"to {base}", base))
    count, counted = agree(("one", number), things)
    this, shown = agree(("this", "these"), things)
    there, counted_things = agree(("There was", "There were"), (with_article(thing), f"{number} {things[1]}"))
    degree, than = agree(("older", "as old"), ("than", "as"))
    pair, nor = agree(("Either", "Neither"), ("or", "nor"))
    text = rng.choice(
        (
            f"The {subject} {place} {be} waiting for the {person}.",
            f"The {late_subject} who met the {person} {was} very tired {time}.",
            f"The {agent} {auxiliary} {verb} the {quality} {thing} {place}, as we all know.",
            f"The {person} {modal} {infinitive} the {thing} before the {agent} arrives.",
            f"{time[0].upper()}{time[1:]}, the {agent} {past} {count} {quality} {counted} {place}.",
            f"Nobody but the {person} would {base} {this} {quality} {shown}.",
            f"{there} {counted_things} {place}, and the {person} laughed.",
            f"The {agent} is {degree} {than} the {person} who {past} the {thing}.",
            f"{pair} the {agent} {nor} the {person} {past} the {thing} {time}.",
            f"The {agent} {past} {order(f'the {quality} {thing}', f'{quality} the {thing}')} {place} {time}.",
            f"{order(f'Why did the {agent}', f'Why the {agent} did')} {base} the {thing} {place}?",
            f"I wonder why {order(f'the {agent} has', f'has the {agent}')} {participle} the {thing} {time}.",
            f"The {thing} {order(f'was {participle} by', f'was by {participle}')} the {agent} {place}.",
            f"It was {order(f'the {agent} who {past}', f'who the {agent} {past}')} the {thing} for the {person}.",
            f"The {order(agent, thing)} {past} the {order(thing, agent)} {place} {time}.",
            f"The {order(f'{quality} {thing}', agent)} was {participle} by the {order(agent, f'{quality} {thing}')}.",
        )
    )
    # What is said around it is always right, and varies more than the few constructions above do.
    other = f"the {rng.choice(rng.choice(words.people).words)}"
    _, did, _ = rng.choice(rng.choice(words.verbs).words)
    object_ = f"the {rng.choice(rng.choice(words.things).words)}"
    elsewhere = rng.choice(rng.choice(lexicon.PLACES).words)
    text = rng.choice(
        (
            text,
            f"{text} {other.capitalize()} {did} {object_} {elsewhere}.",
            f"{other.capitalize()} {did} {object_} {elsewhere}. {text}",
            f"{elsewhere.capitalize()}, {other} {did} {object_}. {text}",
        )
    )
    return (_scramble(rng, text) if scrambled else text,), float(acceptable)


def _scramble(rng: random.Random, text: str) -> str:
    """The same words, six in a row of them out of order; the first word and the last stay where they are."""
    words = text.split()
    start = rng.randrange(1, len(words) - 6)
    window = words[start : start + 6]
    while window == words[start : start + 6]:
        rng.shuffle(window)
    return " ".join(words[:start] + window + words[start + 6 :])


def paraphrase(rng: random.Random, words: Vocabulary) -> Example:
    """Two sentences about an event: 1 the same event in other words, 0 a different one."""
    event = _event(rng, words)
    first, second = rng.sample(range(4), 2)
    same = bool(rng.randrange(2))
    told = event
    if not same:
        changes = rng.sample(("agent", "verb", "thing", "quality", "place"), rng.choice((1, 2, 3)))
        told = Event(
            agent=_other(rng, words.people, event.agent) if "agent" in changes else event.agent,
            verb=_other(rng, words.verbs, event.verb) if "verb" in changes else event.verb,
            thing=_other(rng, words.things, event.thing) if "thing" in changes else event.thing,
            quality=_opposite(event.quality) if "quality" in changes else event.quality,
            place=_other(rng, lexicon.PLACES, event.place) if "place" in changes else event.place,
            time=event.time,
        )
    return (_tell(rng, event, first), _tell(rng, told, second)), float(same)


def similarity(rng: random.Random, words: Vocabulary) -> Example:
    """Two sentences with a score from 0 to 5: how much of who, what, which thing and where they share.

    A part counts in full where it means the same, half where it is of the same kind, and not at all otherwise.
    """
    event = _event(rng, words)
    closeness = rng.random()

    def change(entries: Sequence[Word], entry: Word) -> tuple[Word, float]:
        if rng.random() < closeness:
            return entry, 1.0
        kind = entry.kind
        related = [other for other in entries if other.kind == kind and other != entry]
        if related and rng.random() < 0.4:
            return rng.choice(related), 0.5
        return rng.choice([other for other in entries if other.kind != kind]), 0.0

    agent, of_agent = change(words.people, event.agent)
    verb, of_verb = change(words.verbs, event.verb)
    thing, of_thing = change(words.things, event.thing)
    place, of_place = change(lexicon.PLACES, event.place)
    told = Event(agent, verb, thing, event.quality if of_thing == 1.0 else _opposite(event.quality), place, event.time)
    score = 5 * (0.25 * of_agent + 0.2 * of_verb + 0.35 * of_thing + 0.2 * of_place)
    first, second = rng.sample(range(4), 2)
    return (_tell(rng, event, first), _tell(rng, told, second)), round(score, 3)


_DETAILS = ("kind", "kind", "kind", "place", "place", "place", "quality", "quality", "number")


def inference(rng: random.Random, words: Vocabulary) -> Example:
    """A premise and a hypothesis: 0 entailment, 1 neutral, 2 contradiction.

    The premise states some of four details: kind of thing, place, quality and number. The hypothesis asserts details
    that it states (entailment), denies them (contradiction), or asserts some that it leaves out (neutral). Neither the
    premise nor the form of the hypothesis gives the label away by itself.
    """
    event = _event(rng, words)
    agent, place = rng.choice(event.agent.words), rng.choice(event.place.words)
    verb = rng.choice(event.verb.words)
    many = rng.randrange(2, len(NUMBERS) - 1)  # "fewer than two" would contradict any plural
    shuffled = list(dict.fromkeys(rng.sample(_DETAILS, len(_DETAILS))))
    stated = set(rng.sample(sorted(shuffled), rng.choice((1, 2, 2, 3))))
    premise = _assert(
        rng,
        agent,
        verb,
        number=NUMBERS[many] if "number" in stated else rng.choice(("some", "the", "those")),
        quality=event.quality if "quality" in stated else "",
        things=plural(rng.choice(event.thing.words))
        if "kind" in stated
        else rng.choice(("things", "items", "objects")),
        place=place if "place" in stated else "",
        time=event.time,
    )

    label = rng.randrange(3)
    pool = [detail for detail in shuffled if (detail in stated) == (label != 1)]
    claimed = pool[: rng.choice((1, 2, 2))]
    if label == 1:
        false = {detail for detail in claimed if rng.random() < 0.5}
    else:
        false = set(claimed if rng.random() < 0.7 else claimed[:1]) if label == 2 else set()

    kind = event.thing.kind
    if "kind" in false:
        kind = _other(rng, sorted({entry.kind for entry in lexicon.THINGS}), kind)
    where = event.place
    if "place" in false:
        where = rng.choice([entry for entry in lexicon.PLACES if entry.kind != where.kind])
    fewer, more = NUMBERS[many - 1], NUMBERS[many + 1]
    right, wrong = (f"more than {fewer}", f"fewer than {more}"), (f"more than {more}", f"fewer than {fewer}")
    hypothesis = _assert(
        rng,
        agent,
        verb,
        number=rng.choice(wrong if "number" in false else right) if "number" in claimed else "",
        quality=(_opposite(event.quality) if "quality" in false else event.quality) if "quality" in claimed else "",
        things=plural(kind) if "kind" in claimed else "things",
        place=rng.choice(where.words) if "place" in claimed else "",
        time="",
    )
    return (premise, hypothesis), float(label)


def _assert(
    rng: random.Random,
    agent: str,
    verb: tuple[str, str, str],
    *,
    number: str,
    quality: str,
    things: str,
    place: str,
    time: str,
) -> str:
    _, past, participle = verb
    many_things = " ".join(filter(None, (number, quality, things)))
    form = rng.randrange(3)
    if form == 0:
        sentence = f"{many_things} were {participle} by the {agent}"
    elif form == 1:
        sentence = f"it was the {agent} who {past} {many_things}"
    else:
        sentence = f"the {agent} {past} {many_things}"
    sentence = " ".join(filter(None, (sentence, place, time)))
    return f"{sentence[0].upper()}{sentence[1:]}."
