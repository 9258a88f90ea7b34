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

NUMBERS = ("two", "three", "four", "five", "six")


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
    """A sentence of English: 1 well-formed, 0 with one error of grammar.

    Every word stands as often in right as in wrong sentences; only how words go together tells them apart.
    """
    good = bool(rng.randrange(2))
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
            f"{there.removesuffix(' ')} {counted_things} {place}, and the {person} laughed.",
            f"The {agent} is {degree} {than} the {person} who {past} the {thing}.",
            f"{pair} the {agent} {nor} the {person} {past} the {thing} {time}.",
            f"The {agent} {past} {order(f'the {quality} {thing}', f'{quality} the {thing}')} {place} {time}.",
            f"{order(f'Why did the {agent}', f'Why the {agent} did')} {base} the {thing} {place}?",
            f"I wonder why {order(f'the {agent} has', f'has the {agent}')} {participle} the {thing} {time}.",
            f"The {thing} {order(f'was {participle} by', f'was by {participle}')} the {agent} {place}.",
            f"It was {order(f'the {agent} who {past}', f'who the {agent} {past}')} the {thing} for the {person}.",
        )
    )
    return (text,), float(good)


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


def inference(rng: random.Random, words: Vocabulary) -> Example:
    """A premise and a hypothesis: 0 entailment, 1 neutral, 2 contradiction.

    The hypothesis asks about one detail (quality, number, place, kind of thing or company), which the premise states,
    contradicts or leaves out. The same hypotheses occur under all three labels, so they give nothing away by themselves.
    """
    label = rng.randrange(3)
    event = _event(rng, words)
    agent = rng.choice(event.agent.words)
    _, past, participle = rng.choice(event.verb.words)
    detail = rng.choice(("quality", "number", "place", "kind", "company"))

    def stated(name: str) -> bool:
        """Neutral: the detail in question is left out. Other details come and go."""
        return label != 1 if detail == name else rng.random() < 0.6

    quality = f"{event.quality} " if stated("quality") else ""
    many = rng.randrange(1, len(NUMBERS) - 1)
    number = NUMBERS[many] if stated("number") else rng.choice(("some", "the", "these", "those"))
    place = f" {rng.choice(event.place.words)}" if stated("place") else ""
    thing = rng.choice(event.thing.words)
    things = plural(thing) if stated("kind") else rng.choice(("things", "items", "objects"))
    alone = bool(rng.randrange(2))
    company = ""
    if stated("company"):
        company = rng.choice((" all alone", " without any help") if alone else (" with a friend", " with some helpers"))
    premise = rng.choice(
        (
            f"{event.time[0].upper()}{event.time[1:]}, the {agent} {past} {number} {quality}{things}{place}{company}.",
            f"The {agent} {past} {number} {quality}{things}{place} {event.time}{company}.",
        )
    )
    true = label == 0 or (label == 1 and bool(rng.randrange(2)))
    asked = things if rng.randrange(2) or things != plural(thing) else plural(event.thing.kind)
    if detail == "quality":
        value = event.quality if true else _opposite(event.quality)
        hypothesis = rng.choice((f"The {asked} were {value}.", f"What the {agent} {past} was {value}."))
    elif detail == "number":
        fewer, more = NUMBERS[many - 1], NUMBERS[many + 1]
        right = (f"more than {fewer}", f"fewer than {more}", f"exactly {NUMBERS[many]}")
        wrong = (f"more than {more}", f"fewer than {fewer}", f"exactly {rng.choice((fewer, more))}")
        hypothesis = f"The {agent} {past} {rng.choice(right if true else wrong)} {asked}."
    elif detail == "place":
        where = (
            event.place if true else _other(rng, [e for e in lexicon.PLACES if e.kind != event.place.kind], event.place)
        )
        hypothesis = rng.choice(
            (
                f"The {asked} were {participle} {rng.choice(where.words)}.",
                f"The {agent} was {rng.choice(where.words)}.",
            )
        )
    elif detail == "kind":
        other = _other(rng, sorted({entry.kind for entry in lexicon.THINGS}), event.thing.kind)
        kind = event.thing.kind if true else other
        hypothesis = rng.choice(
            (f"All of them were {plural(kind)}.", f"The {agent} {past} at least one {kind} and nothing else.")
        )
    else:
        hypothesis = f"The {agent} was {'alone' if alone == true else 'not alone'}."
    return (premise, hypothesis), float(label)
