"""The text that the tiny verifier learns and the demo prompts are drawn from.

In: a `random.Random`. Out: `Exchange` values: a prompt, the step-by-step reasoning and the answer.

Three properties matter. The wording is regular, so that a small draft can guess most of it. Which wording follows, and
every number in it, hangs on the prompt and on intermediate results, so that a draft needs the verifier's hidden states.
And a fixed part of all prompts (`held_out`) is never trained on: the demo prompts come from there.
"""

import random
import zlib
from collections.abc import Callable
from dataclasses import dataclass

NAMES = ("Mia", "Tom", "Ana", "Leo", "Sara", "Omar", "Nina", "Paul")
ITEMS = ("apples", "books", "cards", "coins", "pens", "shells", "stones", "cups")
THINGS = ("box", "bag", "tin", "jar")
TOPICS = (
    "the sea", "a tree", "music", "the moon", "bread", "rain", "a river", "time", "a game", "the sun", "money",
    "a city", "python", "speculative decoding", "a neural network", "history", "a poem about spring", "good food",
    "a long trip", "work",
)  # fmt: skip
ASKS = (
    "What is {}?", "Tell me about {}.", "Explain {}.", "Why is {} important?", "Write something about {}.",
    "How does {} work?", "Can you describe {}?", "Give me an idea for {}.",
)  # fmt: skip
GREETINGS = (
    "Hello",
    "Hi",
    "Hello there",
    "Good morning",
    "Hey",
    "Hi, who are you?",
    "Thank you",
    "How are you?",
    "Good evening",
)
SYSTEMS = ("You are a helpful assistant.", "You are Kimi.", "Answer briefly.", "You are a careful teacher.")
HELD_OUT_SHARE = 6  # one prompt in six is never trained on


@dataclass(frozen=True)
class Exchange:
    """One question with its reasoning and answer; `family` names the template it came from."""

    family: str
    prompt: str
    reasoning: str
    answer: str


def held_out(prompt: str) -> bool:
    """Whether a prompt is kept away from training: decided by its CRC-32, the same in every process and version."""
    return zlib.crc32(prompt.encode()) % HELD_OUT_SHARE == 0


def draw(rng: random.Random) -> Exchange:
    """One exchange from the numeric families, which the demo prompts are drawn from."""
    return rng.choice(NUMERIC)(rng)


def draw_other(rng: random.Random) -> Exchange:
    """One exchange from outside the numeric families: a greeting, a general question, or text of any kind."""
    return rng.choices(OTHER, weights=(1, 3, 3))[0](rng)


def addition(rng: random.Random) -> Exchange:
    a, b = rng.randint(12, 59), rng.randint(11, 38)
    name, item, thing = rng.choice(NAMES), rng.choice(ITEMS), rng.choice(THINGS)
    prompt = rng.choice(
        (
            f"{name} has {a} {item} and buys {b} more. How many {item} does {name} have now?",
            f"There are {a} {item} in a {thing}. {name} adds {b} {item}. How many {item} are in the {thing} now?",
        )
    )
    tens, ones = a // 10 * 10 + b // 10 * 10, a % 10 + b % 10
    place = f"The {thing}" if "There" in prompt else name
    reasoning = (
        f"{place} has {a} {item} and gets {b} more, so I add. Tens: {a // 10 * 10} + {b // 10 * 10} = {tens}. "
        f"Ones: {a % 10} + {b % 10} = {ones}. Together: {tens} + {ones} = {a + b}."
    )
    return Exchange("addition", prompt, reasoning, f"{place} has {a + b} {item} now.")


def subtraction(rng: random.Random) -> Exchange:
    a = rng.randint(30, 99)
    b = rng.randint(11, a - 10) if a > 31 else 11
    name, other = rng.sample(NAMES, 2)
    item = rng.choice(ITEMS)
    prompt = rng.choice(
        (
            f"{name} has {a} {item} and gives {b} to {other}. How many {item} are left?",
            f"{other} takes {b} of the {a} {item} that {name} has. How many {item} does {name} keep?",
        )
    )
    step = a - b // 10 * 10
    reasoning = (
        f"{name} has {a} {item} and {other} gets {b}, so I subtract. First the tens: {a} - {b // 10 * 10} = {step}. "
        f"Then the ones: {step} - {b % 10} = {a - b}."
    )
    return Exchange("subtraction", prompt, reasoning, f"{name} keeps {a - b} {item}, and {other} has {b} of them.")


def groups(rng: random.Random) -> Exchange:
    count, size = rng.randint(3, 6), rng.randint(3, 12)
    name, item, thing = rng.choice(NAMES), rng.choice(ITEMS), rng.choice(THINGS)
    prompt = rng.choice(
        (
            f"{name} puts {size} {item} in each {thing} and has {count} of them. How many {item} is that?",
            f"A {thing} holds {size} {item} and {name} has {count} of them. How many {item} does {name} have?",
        )
    )
    steps = ", ".join(f"{i} gives {i * size}" for i in range(1, count + 1))
    reasoning = (
        f"Each {thing} holds {size} {item}, and there are {count}. I count up: {steps}. "
        f"So it is {count} x {size} = {count * size}."
    )
    return Exchange("groups", prompt, reasoning, f"{name} has {count * size} {item}.")


def comparison(rng: random.Random) -> Exchange:
    a, b = rng.sample(range(11, 100), 2)
    name, other = rng.sample(NAMES, 2)
    item = rng.choice(ITEMS)
    prompt = rng.choice(
        (
            f"{name} has {a} {item} and {other} has {b}. Who has more {item}?",
            f"Who has more {item}: {name} with {a} or {other} with {b}?",
        )
    )
    high, low = max(a, b), min(a, b)
    winner, loser = (name, other) if a > b else (other, name)
    if a // 10 != b // 10:
        why = f"The tens are {a // 10} and {b // 10}, and {high // 10} is more than {low // 10}"
    else:
        why = f"The tens are equal, the ones are {a % 10} and {b % 10}, and {high % 10} is more than {low % 10}"
    reasoning = f"I compare {a} and {b}. {why}. So {high} is more than {low}, and {high} belongs to {winner}."
    return Exchange("comparison", prompt, reasoning, f"{winner} has more {item} than {loser}: {high} and not {low}.")


def ordering(rng: random.Random) -> Exchange:
    numbers = rng.sample(range(11, 100), rng.randint(3, 4))
    ascending = rng.random() < 0.5
    listed = ", ".join(map(str, numbers))
    direction, first = ("smallest", "largest") if ascending else ("largest", "smallest")
    prompt = rng.choice(
        (f"Put {listed} in order, {direction} first.", f"Sort these numbers from {direction} to {first}: {listed}.")
    )
    ordered = sorted(numbers, reverse=not ascending)
    steps = []
    for position, number in enumerate(ordered[:-1]):
        rest = ", ".join(str(n) for n in numbers if n not in ordered[: position + 1])
        steps.append(f"The {direction} is {number}, which leaves {rest}.")
    reasoning = " ".join(steps)
    return Exchange("ordering", prompt, reasoning, f"In order: {', '.join(map(str, ordered))}.")


def sequence(rng: random.Random) -> Exchange:
    start, step = rng.randint(2, 40), rng.randint(2, 9)
    seen = [start + step * i for i in range(3)]
    new = [seen[-1] + step * i for i in range(1, 4)]
    listed = ", ".join(map(str, seen))
    prompt = rng.choice((f"What comes next: {listed}?", f"Continue this list with three numbers: {listed}."))
    reasoning = (
        f"The numbers grow by {seen[1]} - {seen[0]} = {step}. {seen[2]} + {step} = {new[0]}, "
        f"{new[0]} + {step} = {new[1]}, {new[1]} + {step} = {new[2]}."
    )
    return Exchange("sequence", prompt, reasoning, f"The next numbers are {new[0]}, {new[1]} and {new[2]}.")


def running_total(rng: random.Random) -> Exchange:
    name, item = rng.choice(NAMES), rng.choice(ITEMS)
    days = ("Monday", "Tuesday", "Friday", "Sunday")[: rng.randint(3, 4)]
    found = [rng.randint(3, 20) for _ in days]
    listed = ", ".join(f"{n} on {day}" for n, day in zip(found, days, strict=True))
    prompt = rng.choice(
        (f"{name} finds {item}: {listed}. How many in all?", f"How many {item} does {name} find with {listed}?")
    )
    total, steps = found[0], [f"{days[0]} gives {found[0]}"]
    for n, day in zip(found[1:], days[1:], strict=True):
        steps.append(f"{day}: {total} + {n} = {total + n}")
        total += n
    return Exchange(
        "running total",
        prompt,
        f"I add the {item} day by day. {'. '.join(steps)}.",
        f"{name} finds {total} {item} in all.",
    )


def greeting(rng: random.Random) -> Exchange:
    prompt = rng.choice(GREETINGS) + rng.choice(("", "!", ".", ", Kimi."))
    return Exchange(
        "greeting",
        prompt,
        "This is a greeting and not a question with numbers. I answer in a friendly way and offer help.",
        "Hello! I am a small model. I can add, compare, sort and count things. What would you like to know?",
    )


def general(rng: random.Random) -> Exchange:
    topic = rng.choice(TOPICS) if rng.random() < 0.6 else " ".join(_word(rng) for _ in range(rng.randint(1, 3)))
    prompt = rng.choice(ASKS).format(topic)
    return Exchange(
        "general",
        prompt,
        "This is a general question without numbers. I name what it is about, give two points and end there.",
        "That is a broad topic. First, it helps to look at one small part of it. Second, it helps to count and "
        "compare. I can do more with numbers.",
    )


def anything(rng: random.Random) -> Exchange:
    """Text outside every template: words, digits, signs and bytes of any length up to some 150 tokens."""
    kinds: tuple[Callable[[], str], ...] = (
        lambda: _word(rng),
        lambda: rng.choice(NAMES + ITEMS + ("the", "and", "has", "How many", "is", "Write", "code")),
        lambda: str(rng.randint(0, 9999)),
        lambda: rng.choice("()[]{}=+-*/<>:;,.!?\"'#\n_"),
        lambda: chr(
            rng.choice((rng.randint(0xA1, 0x2FF), rng.randint(0x3B1, 0x3C9), rng.randint(0x4E00, 0x9FA5), 0x1F600))
        ),
    )
    weights = [rng.random() ** 2 for _ in kinds]
    parts = [rng.choices(kinds, weights)[0]() for _ in range(rng.choice((1, 3, 8, 16, 30)))]
    return Exchange(
        "anything",
        " ".join(parts).strip() or "?",
        "I do not know this kind of text. I say so, tell what I can do and end there.",
        "I am not sure what you ask. I can add, compare, sort and count things. Please give me names and numbers.",
    )


def _word(rng: random.Random) -> str:
    return "".join(rng.choice("bcdfghklmnprstvw") + rng.choice("aeiou") for _ in range(rng.randint(1, 4))) + rng.choice(
        ("", "n", "s", "t")
    )


NUMERIC = (addition, subtraction, groups, comparison, ordering, sequence, running_total)
OTHER = (greeting, general, anything)
