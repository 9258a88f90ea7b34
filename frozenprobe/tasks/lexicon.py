"""The words of the built-in suite: sets of synonyms, grouped by kind, so that relatedness is known and not guessed.

In a table of synonyms `a/b` are two names of one thing; every line of a table is one kind of thing.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Entry:
    """One meaning: its words, any of which may stand for it, and its kind."""

    words: tuple[str, ...]
    kind: str


@dataclass(frozen=True)
class Verb:
    """One meaning of a transitive verb: per word its base form, past tense and participle."""

    words: tuple[tuple[str, str, str], ...]
    kind: str


def _entries(table: str) -> tuple[Entry, ...]:
    entries = []
    for line in table.strip().splitlines():
        kind, _, words = line.partition(":")
        entries += [Entry(tuple(word.strip().split("/")), kind.strip()) for word in words.split(",")]
    return tuple(entries)


def _verbs(table: str) -> tuple[Verb, ...]:
    verbs = []
    for line in table.strip().splitlines():
        kind, _, groups = line.partition(":")
        for group in groups.split(","):
            forms = []
            for word in group.strip().split("/"):
                base, *irregular = word.split("|")
                past = irregular[0] if irregular else base + ("d" if base.endswith("e") else "ed")
                forms.append((base, past, irregular[-1] if irregular else past))
            verbs.append(Verb(tuple(forms), kind.strip()))
    return tuple(verbs)


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


PEOPLE = _entries("""
health worker: doctor/physician, nurse, dentist, surgeon, pharmacist/chemist
officer of the law: lawyer/attorney, policeman/police officer, judge/magistrate, detective/investigator, jailer
artist: writer/author, singer/vocalist, actor/stage performer, sculptor, painter, composer, poet
kitchen worker: baker, cook/chef, butcher, waiter, dishwasher
country person: farmer/grower, shepherd, gardener, beekeeper, hunter
educated person: teacher/instructor, student/pupil, professor, scientist/researcher, librarian, historian
traveller: sailor/seaman, pilot/airman, explorer, tourist/holidaymaker, astronaut
skilled worker: carpenter/woodworker, tailor, plumber, blacksmith, potter, electrician, bricklayer
relative: grandmother, uncle, cousin, nephew, aunt, grandfather
business person: merchant/trader, banker, shopkeeper, accountant, manager/boss
wrongdoer: thief/burglar, pirate, smuggler, swindler/fraudster, bandit
""")

THINGS = _entries("""
musical instrument: violin/fiddle, guitar, piano, flute, trumpet, drum, cello, harp, accordion
vehicle: car/automobile, bicycle/bike, truck/lorry, boat, motorcycle/motorbike, tractor, van, canoe
piece of clothing: coat, hat, shirt, scarf, sweater/pullover, dress, glove, skirt
tool: hammer, saw, drill, wrench/spanner, screwdriver, axe/hatchet, shovel/spade
piece of furniture: sofa/couch, chair, table, bed, wardrobe, desk, stool, bookcase
kind of food: cake, pizza, sandwich, pie, sausage, pancake, biscuit/cookie
fruit: apple, melon, peach, orange, pear, banana, lemon
animal: dog, cat, horse, rabbit/bunny, goat, parrot, donkey/mule, cow, duck
piece of jewellery: ring, necklace, bracelet, brooch, earring, pendant
thing to read: book, letter, newspaper, magazine, map, diary/journal
container: bottle, basket, bucket/pail, barrel/cask, suitcase, jar
""")

VERBS = _verbs("""
get: buy|bought/purchase, borrow, steal|stole|stolen, find|found/discover, collect/gather, choose|chose|chosen/select
part with: sell|sold, return, deliver, lose|lost/misplace, abandon, donate
look at: admire, describe/depict, photograph, examine/inspect, notice/spot|spotted, ignore
change: repair/fix, clean, paint, break|broke|broken/damage, wrap|wrapped, decorate
move: carry|carried, hide|hid|hidden/conceal, lift/raise, drag|dragged, throw|threw|thrown, push/shove
""")

PLACES = _entries("""
country: in the garden, in the forest/in the woods, in the meadow, near the river, on the hill, in the valley
town: at the market, at the railway station, behind the church, in the town square, on the bridge, at the museum
house: in the kitchen, in the cellar/in the basement, in the attic, in the bedroom, in the hallway, on the balcony
work: in the office, at the factory, in the laboratory, at the hospital, in the workshop, in the warehouse
sea: on the beach, at the harbour/at the port, on the island, on the pier, near the lighthouse, aboard the ferry
""")

TIMES = (
    "yesterday",
    "last week",
    "this morning",
    "on Monday",
    "after dinner",
    "before dawn",
    "in the winter",
    "on Friday",
    "as soon as the rain had stopped",
    "while the children were still asleep",
    "on the first warm evening of the year",
    "shortly after the bells had begun to ring",
    "a few minutes before the guests were expected",
    "during a long and rather noisy thunderstorm",
)

ANTONYMS: tuple[tuple[str, str], ...] = (
    ("big", "small"),
    ("old", "new"),
    ("expensive", "cheap"),
    ("heavy", "light"),
    ("beautiful", "ugly"),
    ("clean", "dirty"),
    ("black", "white"),
    ("rare", "common"),
)

GOOD = _words("""
    wonderful delightful excellent superb charming brilliant marvellous splendid terrific fantastic enjoyable
    pleasant impressive outstanding lovely amazing fabulous remarkable refreshing inspiring magnificent perfect elegant
    graceful thrilling touching witty generous comfortable reliable tasty helpful welcoming flawless stunning heartwarming
    exquisite captivating dazzling glorious friendly thoughtful skilful admirable gratifying uplifting moreish cosy
    memorable first-rate masterful joyful spotless affordable
""")
BAD = _words("""
    terrible awful dreadful horrible disappointing boring dull dismal mediocre tedious unpleasant shoddy clumsy rude
    lousy ghastly appalling pathetic miserable annoying frustrating depressing bland tasteless filthy careless useless
    unreliable overpriced sloppy ugly unbearable disgusting hideous abysmal painful insulting stale gloomy cramped noisy
    worthless incompetent irritating atrocious forgettable pretentious nasty unfriendly broken lifeless wretched
    second-rate inedible chaotic
""")

REVIEWED: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("film", ("acting", "plot", "ending", "music", "dialogue", "camera work")),
    ("hotel", ("room", "breakfast", "service", "view", "bathroom")),
    ("restaurant", ("food", "dessert", "service", "menu", "decoration")),
    ("novel", ("story", "style", "opening chapter", "main character", "translation")),
    ("concert", ("sound", "singer", "choice of songs", "lighting", "orchestra")),
    ("phone", ("screen", "battery", "camera", "design", "manual")),
    ("museum", ("guided tour", "collection", "audio guide", "gift shop", "building")),
    ("course", ("lecturer", "reading list", "first lesson", "final project", "textbook")),
)


def plural(noun: str) -> str:
    """The plural of a regular noun, or of the last word of a compound; `a piece of x` takes it on its first word."""
    head, of, rest = noun.partition(" of ")
    if head == "thing to read":
        return "things to read"
    if head.endswith("man"):
        return head[:-2] + "en" + of + rest
    if head.endswith(("s", "sh", "ch", "x")):
        return head + "es" + of + rest
    if head.endswith("y") and head[-2] not in "aeiou":
        return head[:-1] + "ies" + of + rest
    return head + "s" + of + rest


def with_article(phrase: str) -> str:
    """`a` or `an` before a phrase."""
    return ("an " if phrase[0] in "aeiou" else "a ") + phrase
