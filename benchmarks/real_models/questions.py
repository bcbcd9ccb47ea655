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
    "Bulgaria:Sofia Romania:Bucharest Serbia:Belgrade Croatia:Zagreb Slovenia:Ljubljana"
)
OPPOSITES = _pairs(
    "hot:cold big:small up:down left:right day:night black:white open:closed wet:dry old:young fast:slow "
    "high:low rich:poor happy:sad hard:soft light:dark early:late strong:weak thick:thin win:lose begin:end "
    "buy:sell love:hate true:false deep:shallow wide:narrow full:empty clean:dirty loud:quiet ancient:modern "
    "expand:contract"
)
GROUPS = {
    "animal": ("dog", "cat", "horse", "lion", "whale", "eagle", "salmon", "frog", "tiger", "rabbit"),
    "fruit": ("apple", "banana", "cherry", "grape", "lemon", "mango", "peach", "pear", "plum", "orange"),
    "metal": ("iron", "copper", "gold", "silver", "tin", "zinc", "lead", "nickel", "titanium", "aluminium"),
    "color": ("red", "green", "blue", "yellow", "purple", "pink", "brown", "gray", "violet", "turquoise"),
}
NAMES = ("Anna", "Ben", "Clara", "David", "Emma", "Felix", "Grace", "Henry")
THINGS = ("book", "ball", "cup", "hat", "key", "lamp", "shoe", "spoon", "coat", "drum")
ITEMS = ("red", "blue", "green", "small", "large", "old", "new", "wooden")
MISSES = 50  # draws in vain until a kind is taken to be used up


def capital(rng: random.Random) -> tuple[str, str]:
    """What a model knows or does not."""
    country = rng.choice([*CAPITALS])
    return f"What is the capital of {country}?", CAPITALS[country]


def opposite(rng: random.Random) -> tuple[str, str]:
    """What most texts tell."""
    word = rng.choice([*OPPOSITES])
    return f"What is the opposite of {word}?", OPPOSITES[word]


def group(rng: random.Random) -> tuple[str, str]:
    """One of four choices, which stand in the question."""
    kind = rng.choice([*GROUPS])
    names = list(GROUPS)
    rng.shuffle(names)
    return f"Is {rng.choice(GROUPS[kind])} a kind of {', '.join(names[:-1])} or {names[-1]}?", kind


def holder(rng: random.Random) -> tuple[str, str]:
    """What must be read off the question, from two to four sentences."""
    people = rng.sample(NAMES, rng.randint(2, 4))
    things = rng.sample(THINGS, len(people))
    told = " ".join(f"{who} has a {rng.choice(ITEMS)} {what}." for who, what in zip(people, things, strict=True))
    place = rng.randrange(len(people))
    return f"{told} Who has the {things[place]}?", people[place]


def following(rng: random.Random) -> tuple[str, str]:
    """The next number of a row that rises by 1 to 5."""
    start, step = rng.randint(1, 20), rng.randint(1, 5)
    row = [start + step * place for place in range(5)]
    return f"Which number comes next: {', '.join(map(str, row[:4]))}?", str(row[4])


def total(rng: random.Random) -> tuple[str, str]:
    """A sum of one or two digits."""
    most = rng.choice((9, 30))
    a, b = rng.randint(1, most), rng.randint(1, most)
    return f"What is {a} plus {b}?", str(a + b)


KINDS: dict[str, Callable[[random.Random], tuple[str, str]]] = {
    "capital": capital,
    "opposite": opposite,
    "group": group,
    "holder": holder,
    "following": following,
    "total": total,
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
    return [{"query": f"q{place}"} | row for place, row in enumerate(rows)]


def examples() -> list[tuple[str, str]]:
    """One question and answer of each kind."""
    rng = random.Random(-1)
    return [kind(rng) for kind in KINDS.values()]
