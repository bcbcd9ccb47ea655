"""Questions that a program makes and knows the answers of: short ones, from easy to hard for models of 100 to 300 M."""

import random
from collections.abc import Callable
from typing import Any


def _pairs(text: str) -> dict[str, str]:
    return dict(pair.split(":") for pair in text.split())


CAPITALS = _pairs(
    "France:Paris Germany:Berlin Italy:Rome Spain:Madrid Japan:Tokyo China:Beijing Russia:Moscow Egypt:Cairo "
    "Greece:Athens Portugal:Lisbon Austria:Vienna Poland:Warsaw Hungary:Budapest Ireland:Dublin Norway:Oslo "
    "Sweden:Stockholm Finland:Helsinki Denmark:Copenhagen Turkey:Ankara Iran:Tehran Iraq:Baghdad Cuba:Havana "
    "Canada:Ottawa Australia:Canberra Peru:Lima Chile:Santiago Kenya:Nairobi Ghana:Accra Senegal:Dakar "
    "Thailand:Bangkok Vietnam:Hanoi Nepal:Kathmandu Mongolia:Ulaanbaatar Latvia:Riga Estonia:Tallinn "
    "Bulgaria:Sofia Romania:Bucharest Serbia:Belgrade Croatia:Zagreb Slovenia:Ljubljana Belgium:Brussels "
    "Iceland:Reykjavik Ukraine:Kyiv Armenia:Yerevan Georgia:Tbilisi Lebanon:Beirut Syria:Damascus Jordan:Amman "
    "Afghanistan:Kabul Indonesia:Jakarta Philippines:Manila Morocco:Rabat Tunisia:Tunis "
    "Libya:Tripoli Sudan:Khartoum Uganda:Kampala Zimbabwe:Harare Angola:Luanda"
)
OPPOSITES = _pairs(
    "hot:cold big:small up:down left:right day:night black:white open:closed wet:dry old:young fast:slow "
    "high:low rich:poor happy:sad hard:soft early:late strong:weak thick:thin win:lose begin:end "
    "buy:sell love:hate true:false deep:shallow wide:narrow full:empty clean:dirty loud:quiet ancient:modern "
    "expand:contract hero:villain friend:enemy war:peace question:answer push:pull teach:learn arrive:leave "
    "remember:forget laugh:cry inside:outside sharp:dull smooth:rough heavy:light cheap:expensive brave:cowardly "
    "polite:rude guilty:innocent odd:even north:south victory:defeat increase:decrease accept:refuse"
)
LANGUAGES = _pairs(
    "France:French Germany:German Italy:Italian Spain:Spanish Japan:Japanese China:Chinese Russia:Russian Greece:Greek "
    "Portugal:Portuguese Poland:Polish Sweden:Swedish Brazil:Portuguese Mexico:Spanish Turkey:Turkish Austria:German "
    "Thailand:Thai Denmark:Danish Finland:Finnish Hungary:Hungarian Egypt:Arabic Norway:Norwegian Bulgaria:Bulgarian "
    "Romania:Romanian Iraq:Arabic Cuba:Spanish Vietnam:Vietnamese Australia:English Peru:Spanish "
    "Chile:Spanish Argentina:Spanish Colombia:Spanish "
    "Iceland:Icelandic Ukraine:Ukrainian Serbia:Serbian Croatia:Croatian Slovenia:Slovenian Latvia:Latvian "
    "Estonia:Estonian Lithuania:Lithuanian Israel:Hebrew Iran:Persian Mongolia:Mongolian Angola:Portuguese "
    "Senegal:French Jamaica:English Jordan:Arabic Morocco:Arabic Cambodia:Khmer Nepal:Nepali Laos:Lao Korea:Korean"
)
YOUNG = _pairs(
    "dog:puppy cat:kitten cow:calf horse:foal sheep:lamb pig:piglet hen:chick duck:duckling lion:cub goat:kid "
    "deer:fawn bear:cub goose:gosling frog:tadpole swan:cygnet kangaroo:joey"
)
PLURALS = _pairs(
    "child:children mouse:mice foot:feet tooth:teeth man:men woman:women goose:geese leaf:leaves box:boxes city:cities "
    "baby:babies knife:knives wolf:wolves ox:oxen potato:potatoes life:lives "
    "wife:wives half:halves shelf:shelves thief:thieves loaf:loaves party:parties lady:ladies story:stories fly:flies "
    "bus:buses glass:glasses dish:dishes watch:watches fox:foxes tomato:tomatoes hero:heroes crisis:crises "
    "cactus:cacti fungus:fungi person:people penny:pennies wish:wishes church:churches class:classes"
)
PASTS = _pairs(
    "go:went see:saw eat:ate run:ran take:took write:wrote speak:spoke buy:bought think:thought bring:brought fly:flew "
    "give:gave know:knew drink:drank sing:sang swim:swam find:found lose:lost build:built sleep:slept "
    "catch:caught choose:chose draw:drew drive:drove fall:fell feel:felt fight:fought forget:forgot freeze:froze "
    "grow:grew hear:heard hide:hid hold:held keep:kept leave:left lend:lent make:made meet:met ride:rode rise:rose "
    "sell:sold send:sent shake:shook steal:stole teach:taught tear:tore tell:told wear:wore win:won"
)
DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
MONTHS = (
    *("January", "February", "March", "April", "May", "June"),
    *("July", "August", "September", "October", "November", "December"),
)
NAMES = ("Anna", "Ben", "Clara", "David", "Emma", "Felix", "Grace", "Henry")
THINGS = ("book", "ball", "cup", "hat", "key", "lamp", "shoe", "spoon", "coat", "drum")
ITEMS = ("red", "blue", "green", "small", "large", "old", "new", "wooden")
MISSES = 50  # draws in vain until a kind is taken to be used up


Kind = Callable[[random.Random], tuple[str, str]]


def asking(question: str, answers: dict[str, str], about_answers: bool = False) -> Kind:
    """Questions with the words of a table, whose answers stand beside them; or about these, the other way round."""
    pairs = [(answer, word) if about_answers else (word, answer) for word, answer in answers.items()]

    def kind(rng: random.Random) -> tuple[str, str]:
        word, answer = rng.choice(pairs)
        return question.format(word), answer

    return kind


def calendar(rng: random.Random) -> tuple[str, str]:
    """The day or month before or after another."""
    kind, names = rng.choice((("day", DAYS), ("month", MONTHS)))
    index, (word, step) = rng.randrange(len(names)), rng.choice((("after", 1), ("before", -1)))
    return f"Which {kind} comes {word} {names[index]}?", names[(index + step) % len(names)]


def larger(rng: random.Random) -> tuple[str, str]:
    """The larger one of two numbers below 100."""
    a, b = rng.sample(range(1, 100), 2)
    return f"Which number is larger, {a} or {b}?", str(max(a, b))


def holder(rng: random.Random) -> tuple[str, str]:
    """What must be read off the question, from two to four sentences."""
    people = rng.sample(NAMES, rng.randint(2, 4))
    things = rng.sample(THINGS, len(people))
    sentences = " ".join(f"{who} has a {rng.choice(ITEMS)} {what}." for who, what in zip(people, things, strict=True))
    index = rng.randrange(len(people))
    return f"{sentences} Who has the {things[index]}?", people[index]


def total(rng: random.Random) -> tuple[str, str]:
    """A sum of two digits."""
    a, b = rng.randint(1, 9), rng.randint(1, 9)
    return f"What is {a} plus {b}?", str(a + b)


KINDS: dict[str, Kind] = {
    "capital": asking("What is the capital of {}?", CAPITALS),
    "country": asking("{} is the capital of which country?", CAPITALS, about_answers=True),
    "language": asking("Which language is readable_prompt in {}?", LANGUAGES),
    "opposite": asking("What is the opposite of {}?", OPPOSITES),
    "young": asking("What is a young {} called?", YOUNG),
    "plural": asking('What is the plural of "{}"?', PLURALS),
    "past": asking('What is the past tense of "{}"?', PASTS),
    "calendar": calendar,
    "larger": larger,
    "total": total,
    "holder": holder,
}


def make(count: int, seed: int) -> list[dict[str, Any]]:
    """So many questions of all kinds in random order, as `rcjax collect` takes them: none twice, none of the examples.

    Args:
        count: how many. A kind that has no further question leaves its part to the others.
        seed: of the drawing.
    """
    rng, rows, prompts = random.Random(seed), [], {prompt for prompt, _ in examples()}
    kinds, misses = [*KINDS], 0
    while len(rows) < count:
        kind = kinds[len(rows) % len(kinds)] if misses < MISSES else rng.choice(kinds)
        prompt, answer = KINDS[kind](rng)
        misses += 1
        if prompt not in prompts:
            prompts.add(prompt)
            rows.append({"prompt": prompt, "answer": answer, "kind": kind})
            misses = 0
    rng.shuffle(rows)
    return [{"query": f"q{index}"} | row for index, row in enumerate(rows)]


def examples() -> list[tuple[str, str]]:
    """One question and answer of each kind."""
    rng = random.Random(-1)
    return [kind(rng) for kind in KINDS.values()]
