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
    """A sentence of English: 1 well-formed, 0 with one error of grammar."""
    good = bool(rng.randrange(2))
    agent = rng.choice(rng.choice(words.people).words)
    person = rng.choice(rng.choice(words.people).words)
    thing = rng.choice(rng.choice(words.things).words)
    base, past, participle = rng.choice(rng.choice(words.verbs).words)
    place = rng.choice(rng.choice(lexicon.PLACES).words)
    quality = rng.choice(rng.choice(lexicon.ANTONYMS))
    time = rng.choice(lexicon.TIMES)
    number = rng.choice(NUMBERS)
    agents, things = plural(agent), plural(thing)

    def either(right: str, *wrong: str) -> str:
        return right if good else rng.choice(wrong)

    text = rng.choice(
        (
            f"The {agents} {place} {either('are', 'is', 'am')} waiting for the {person}.",
            f"The {agent} has {either(participle, base)} the {quality} {thing} {place}.",
            f"The {agents} who met the {person} {either('were', 'was')} very tired {time}.",
            f"The {person} {either(f'did not {base}', f'not {past}', f'did not {participle}ing')} the {thing} {time}.",
            f"There {either('were', 'was')} {number} {quality} {things} {place}.",
            f"{number.capitalize()} {either(things, thing)} were {participle} by the {agent} {time}.",
            f"The {agent} {past} {either(f'the {quality} {thing}', f'{quality} the {thing}', f'the {thing} {quality}')}"
            f" {place}.",
            f"Which {thing} did the {agent} {either(f'{base} {time}', f'{base} it {time}', f'{past} {time}')}?",
            f"The {person} wants {either(f'to {base}', base, f'{base}ing')} the {thing} before the {agent} arrives.",
            f"It was the {agent} {either('who', 'which who', 'whom')} {past} {with_article(thing)} {place}.",
            f"The {agent} gave {either(f'the {thing} to the {person}', f'to the {thing} the {person} to')} {time}.",
            f"I wonder {either(f'why the {agent} {past}', f'why did the {agent} {past}', f'the {agent} why {past}')}"
            f" the {thing} {place}.",
            f"The {thing} that the {agent} {past} {either(f'was {quality}', f'it was {quality}', quality)}.",
            f"The {agent} is {either('older than', 'more old as', 'oldest than')} the {person} {place}.",
            f"Neither the {agent} nor the {person} {either(f'has {participle}', f'have been {past} of')} the {thing}.",
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

    Entailment rests on kinds of things, on numbers and on leaving details out; contradiction on the same, turned round.
    """
    event = _event(rng, words)
    agent, place = rng.choice(event.agent.words), rng.choice(event.place.words)
    base, past, participle = rng.choice(event.verb.words)
    thing, kind = rng.choice(event.thing.words), event.thing.kind
    many = rng.randrange(1, len(NUMBERS))
    number, things, kinds = NUMBERS[many], plural(thing), plural(kind)
    other_kind = _other(rng, sorted({entry.kind for entry in lexicon.THINGS}), kind)
    premise = rng.choice(
        (
            f"The {agent} {past} {number} {event.quality} {things} {place} {event.time}.",
            f"{event.time[0].upper()}{event.time[1:]}, {number} {event.quality} {things} were {participle} by the"
            f" {agent} {place}.",
            f"{place[0].upper()}{place[1:]}, the {agent} {past} {number} {things} that were {event.quality}.",
        )
    )
    label = rng.randrange(3)
    person = event.agent.kind
    hypotheses = (
        (
            f"{with_article(person).capitalize()} {past} some {kinds}.",
            f"Several {kinds} were {participle} by {with_article(person)}.",
            f"The {agent} was {place} and {past} more than one {thing}.",
            f"The {things} that the {agent} {past} were not {_opposite(event.quality)}.",
            f"Nobody can say that the {agent} did not {base} any {things}.",
            f"{with_article(event.quality).capitalize()} {kind} was {participle} {place}.",
        ),
        (
            f"{with_article(person).capitalize()} {past} some {kinds} for a friend.",
            f"Several {kinds} were {participle} because it was raining.",
            f"The {agent} was {place} with a colleague and knew every {thing}.",
            f"The {things} that the {agent} {past} were not made in this country.",
            f"Nobody asked whether the {agent} had ever seen such {kinds}.",
            f"{with_article(event.quality).capitalize()} {kind} was {participle} {place} a year ago.",
        ),
        (
            f"{with_article(person).capitalize()} {past} some {plural(other_kind)} instead of {kinds}.",
            f"Only {NUMBERS[many - 1]} {kinds} were {participle} by {with_article(person)}.",
            f"The {agent} was {place} and {past} a single {thing}.",
            f"The {things} that the {agent} {past} were {_opposite(event.quality)}.",
            f"Nobody {past} any {kinds}, and the {agent} did not {base} anything.",
            f"Not one {event.quality} {kind} was {participle} {place}.",
        ),
    )
    return (premise, rng.choice(hypotheses[label])), float(label)
