"""Prompts made from nothing: our own templates and word lists, filled by a seeded generator."""

import re

import numpy as np

# Part of a corpus's identity: raise it whenever a template or a word list changes, because
# prompt number i of a seed is then another prompt.
VERSION = 1

NAMES = """Anna Ben Carla Daniel Elena Felix Grace Hassan Ivan Julia Kenji Lena Marco Nora Omar
Paula Quinn Rosa Samuel Tara Uma Victor Wanda Yusuf Zoe Amir Bianca Chen Dora Emil Fatima Gabriel
Hana Igor Jasmine Karim Lucy Mateo Nadia Oscar Priya Rafael Sofia Theo Vera Walter Yara""".split()
ANIMALS = """badger bear bee cat crow deer dog donkey duck elephant fox frog goat goose hedgehog
heron horse lion lizard mole monkey mouse otter owl parrot penguin rabbit raccoon seal sheep snail
sparrow spider squirrel tiger toad turtle whale wolf""".split()
PLACES = [
    *"attic bakery barn castle cave desert forest garden harbor hospital island jungle".split(),
    *"kitchen library lighthouse market meadow mine monastery mountain museum orchard park".split(),
    *"prairie river school swamp temple theater tower train valley village windmill".split(),
    *["old house", "empty station", "small town", "night bus", "snowy field", "quiet lake"],
]
THINGS = [
    *["golden coin", "lost key", "old map", "red ball", "silver bell", "warm blanket"],
    *["broken clock", "wooden box", "blue lantern", "paper boat", "tiny violin", "strange letter"],
    *["glass bottle", "torn photograph", "magic seed", "rusty bicycle", "white feather"],
    *["music box", "heavy stone", "green umbrella", "secret recipe", "leather notebook"],
]
FEELINGS = """afraid angry brave calm curious grateful happy jealous kind lonely nervous patient
proud sad shy sleepy surprised tired worried""".split()
EVENTS = [
    *["a storm begins", "the lights go out", "a stranger arrives", "snow starts to fall"],
    *["someone knocks on the door", "the bridge breaks", "a friend moves away"],
    *["the music stops", "a letter arrives", "the river floods", "nobody wakes up"],
    *["the bread burns", "a secret is told", "the last bus leaves", "the moon disappears"],
]
TOPICS = [
    *"algebra anger atoms bacteria banks batteries bees bicycles birds blood books bread".split(),
    *"bridges butter cameras caves cheese chess cities clocks clouds coal coffee colors".split(),
    *"comets compasses computers cooking coral cotton democracy deserts diamonds dinosaurs".split(),
    *"dreams earthquakes echoes eclipses electricity elections engines evolution eyes".split(),
    *"farming fire fish flags flowers fog forests friendship fungi gears glaciers glass".split(),
    *"gold grammar gravity habits hearts heat history honey ice insects insurance iron".split(),
    *"islands jazz justice keyboards lakes languages laughter laws leaves lenses light".split(),
    *"lightning locks lungs machines magnets maps markets medicine memory metals milk".split(),
    *"mirrors money moons mountains music numbers oceans oil owls oxygen paint paper".split(),
    *"patience pepper photography planets plants plastic poetry pollen prisons probability".split(),
    *"pyramids radio rain rainbows recycling refrigerators rice rivers robots rockets".split(),
    *"roots rubber salt sand satellites seasons seeds shadows ships silence silk sleep".split(),
    *"smoke snow soap soil sound spices sports stars steam steel stones storms sugar".split(),
    *"tea teeth telescopes temperature theater tides time tools towns trade traffic trains".split(),
    *"trees trust tunnels umbrellas vaccines vegetables vitamins volcanoes voting waves".split(),
    *["the brain", "the heart", "the internet", "the moon", "the printing press", "the sun"],
    *["public libraries", "the water cycle", "honey bees", "solar panels", "wind power"],
    *["board games", "folk songs", "street food", "ancient Rome", "medieval towns"],
]
AUDIENCES = [
    *["a child", "a beginner", "a curious friend", "a student", "a grandparent", "a new teacher"],
    *["someone in a hurry", "a class of ten-year-olds", "a tourist", "a farmer"],
]
FUNCTION_TASKS = [
    *["adds two numbers", "reverses a string", "counts the vowels in a word"],
    *["finds the largest item in a list", "checks if a number is prime", "sorts a list of names"],
    *["computes the factorial of n", "removes duplicates from a list", "merges two dictionaries"],
    *["checks if a word is a palindrome", "computes the average of a list", "counts down from n"],
    *["returns the n-th Fibonacci number", "converts Celsius to Fahrenheit", "splits a sentence"],
    *["finds the longest word in a text", "multiplies two matrices", "reads a file line by line"],
    *["counts how often each letter occurs", "finds the common items of two lists"],
    *["flattens a nested list", "computes the greatest common divisor of two numbers"],
    *["checks if two words are anagrams", "rotates a list by k places", "squares every number"],
    *["converts a number to binary", "removes spaces from a string", "sums the digits of a number"],
    *["filters the even numbers of a list", "capitalizes every word", "finds the second smallest"],
    *[
        "checks if brackets are balanced",
        "computes compound interest",
        "zips two lists into a dict",
    ],
    *["generates a random password", "counts the lines of a file", "shuffles a deck of cards"],
    *["rounds a price to two decimals", "checks if a list is sorted", "finds all divisors of n"],
    *["computes the distance between two points", "inverts a dictionary", "prints a triangle"],
]
CLASS_TASKS = [
    *["bank account", "shopping cart", "stack", "queue", "linked list", "library of books"],
    *["rectangle", "circle", "student with grades", "timer", "to-do list", "playing card", "dog"],
    *["matrix", "temperature sensor", "phone book", "vending machine", "binary tree", "counter"],
]
GOODS = """apples balloons books buttons cards chairs coins cookies cups eggs flowers marbles
oranges pencils plates shells stamps stickers tickets toys""".split()
RELATIONS = """aunt boss brother coach cousin daughter doctor friend grandfather grandmother
landlord mother neighbor sister teacher uncle""".split()
LETTER_REASONS = [
    *["say thank you for a gift", "apologize for being late", "ask for advice about a job"],
    *["invite them to a birthday dinner", "describe a trip to the sea", "say goodbye"],
    *["complain politely about noise", "ask for a day off", "share good news about a new pet"],
    *["explain why the garden fence broke", "ask to borrow a ladder", "congratulate them"],
    *["recommend a good book", "plan a weekend visit", "report a lost suitcase"],
]
LIST_SUBJECTS = [
    *["things to pack for a camping trip", "ways to save water", "healthy breakfasts"],
    *["reasons to learn a language", "rules for a library", "gifts for a gardener"],
    *["questions to ask a new neighbor", "tips for sleeping well", "games for a rainy day"],
    *["ways to stay calm before an exam", "things found in a kitchen", "names for a small dog"],
    *["steps to plant a tree", "ideas for a school project", "mistakes new cooks make"],
    *["animals that live near rivers", "jobs that need patience", "uses for an old newspaper"],
    *["signs that spring is coming", "ways to be a good friend", "tools every home needs"],
]
DISHES = [
    *["tomato soup", "apple pie", "fried rice", "pancakes", "lentil stew", "potato salad"],
    *["banana bread", "an omelet", "vegetable curry", "lemon cake", "a cheese sandwich"],
    *["mushroom risotto", "roasted carrots", "oatmeal cookies", "garlic noodles"],
]
SCENES = [
    *["a rainy street at night", "a busy kitchen", "an old fisherman", "a winter morning"],
    *["a crowded train", "an abandoned factory", "a summer festival", "a mountain path"],
    *["a teacher on the first day of school", "a sleeping cat", "a market at dawn"],
    *["a grandmother's hands", "a desert at noon", "a city seen from a roof", "a quiet beach"],
    *["a workshop full of tools", "a garden after rain", "a musician before a concert"],
]
CHOICES = [
    *[("cats", "dogs"), ("tea", "coffee"), ("summer", "winter"), ("cities", "villages")],
    *[("books", "films"), ("trains", "planes"), ("the sea", "the mountains")],
    *[("paper maps", "phone maps"), ("cooking at home", "eating out"), ("mornings", "evenings")],
    *[("running", "swimming"), ("solar power", "wind power"), ("wood", "stone")],
]

STORY = [
    "Write a short story about {name} and a {animal} in the {place}.",
    "Tell a bedtime story about a {animal} who finds a {thing}.",
    "Write a story in which {name} is {feeling} and {event}.",
    "Write a short story that begins with: One evening in the {place}, {name} found a {thing}.",
    "Write a simple story for children in which {name} and {name2} look for a {thing}.",
    "Tell a story about a {feeling} {animal} who lives near the {place}.",
    "Write a fable about a {animal} and a {animal2} that ends with a lesson.",
    "Write a mystery story set in the {place} with {name}, {name2} and a {thing}.",
    "Write a funny story about a {animal} who wants to become a teacher.",
    "{name} opens the door of the {place} and {event}. Continue the story.",
    "Write a story about two friends, {name} and {name2}, on the day {event}.",
    "Tell me about the night when {event} in the {place}.",
]
EXPLANATION = [
    "Explain {topic} to {audience}.",
    "What is interesting about {topic}?",
    "Write a short paragraph about {topic}.",
    "Why do people care about {topic}?",
    "Give three facts about {topic}.",
    "How has our understanding of {topic} changed over time?",
    "What are the advantages and disadvantages of {topic}?",
    "What is the connection between {topic} and {topic2}?",
    "Describe the effect of {topic} on everyday life.",
    "What do most people get wrong about {topic}?",
    "Write a short introduction to {topic} for {audience}.",
    "Compare {topic} with {topic2}.",
]
PYTHON = [
    "Write a Python function that {task}.",
    "Write a Python function that {task}, with a docstring.",
    "Write Python code that {task} and explain it.",
    "Show a short Python example that {task}.",
    "How would you write a Python program that {task}?",
    "Write a Python class for a {cls}.",
    "Write a Python function that {task} and a test for it.",
]
ARITHMETIC = [
    "{name} has {a} {goods} and buys {b} more. How many {goods} does {name} have now?",
    "{name} had {c} {goods} and gave {b} to {name2}. How many {goods} are left?",
    "What is {a} plus {b}? Explain step by step.",
    "What is {c} minus {b}?",
    "What is {d} times {e}? Show your work.",
    "A box holds {d} {goods}. How many {goods} are in {e} boxes?",
    "{name} shares {f} {goods} equally among {e} friends. How many does each friend get?",
    "A train travels {a} kilometers in {e} hours. What is its average speed?",
    "{name} saves {d} dollars a week. How much does {name} save in {e} weeks?",
    "The {goods} cost {d} dollars each. What do {e} of them cost?",
]
DIALOGUE = [
    "Write a dialogue between {name} and {name2} about {topic}.",
    "Write a conversation between a {animal} and a {animal2} in the {place}.",
    "Write a short dialogue in which {name} asks a shopkeeper for a {thing}.",
    "Write a phone call between {name} and a {relation} on the day {event}.",
    "Write a short scene for a play: {name} and {name2} wait in the {place}.",
]
LETTER = [
    "Write a letter to your {relation} to {reason}.",
    "Write a short email to a {relation} to {reason}.",
    "Write a postcard from the {place}, signed by {name}.",
    "Write a diary entry of {name}, who feels {feeling} because {event}.",
    "Write a short speech by {name} about {topic}.",
]
LISTS = [
    "Make a list of five {subject}.",
    "List seven {subject}.",
    "Give me three {subject} and say why.",
    "Give a recipe for {dish}.",
    "What do I need to make {dish}?",
    "Write step-by-step instructions for making {dish}.",
]
DESCRIPTION = [
    "Describe {scene}.",
    "Describe {scene} in a few sentences.",
    "Write a poem about {scene}.",
    "Write a short poem about {topic}.",
    "Describe a {thing} to someone who has never seen one.",
    "Which do you prefer, {left} or {right}? Give your reasons.",
    "Describe what it feels like to be {feeling}.",
]

# Kind of prompt -> (its share of the corpus, templates).
KINDS: dict[str, tuple[float, list[str]]] = {
    "story": (0.32, STORY),
    "explanation": (0.24, EXPLANATION),
    "python": (0.10, PYTHON),
    "arithmetic": (0.10, ARITHMETIC),
    "dialogue": (0.06, DIALOGUE),
    "letter": (0.06, LETTER),
    "list": (0.06, LISTS),
    "description": (0.06, DESCRIPTION),
}


def prompt(seed: int, index: int) -> str:
    """Prompt number `index` (from 0) of `seed`: a pure function of the two, one line of text."""
    rng = np.random.default_rng([seed, index])
    shares = [share for share, _ in KINDS.values()]
    kind = list(KINDS)[rng.choice(len(KINDS), p=shares)]
    return _fill(_choose(rng, KINDS[kind][1]), rng)


def _choose(rng: np.random.Generator, items: list[str]) -> str:
    return items[int(rng.integers(len(items)))]


def _pair(rng: np.random.Generator, items: list[str]) -> tuple[str, str]:
    first, second = rng.choice(len(items), size=2, replace=False)
    return items[first], items[second]


def _fill(template: str, rng: np.random.Generator) -> str:
    """The template with every `{field}` replaced; fields that it lacks draw no noise."""
    fields = set(re.findall(r"{(\w+)}", template))
    values: dict[str, str] = {}
    for field, words in _PAIRED.items():
        if field in fields:
            values[field], values[f"{field}2"] = _pair(rng, words)
    for field, words in _SINGLE.items():
        if field in fields:
            values[field] = _choose(rng, words)
    if "left" in fields:
        values["left"], values["right"] = CHOICES[int(rng.integers(len(CHOICES)))]
    if fields & set("abcdef"):
        values |= _numbers(rng)
    text = template.format(**values)
    text = re.sub(r"\b([Aa]) (?=[aeiou])", r"\1n ", text)
    return text[0].upper() + text[1:]


def _numbers(rng: np.random.Generator) -> dict[str, str]:
    """Operands: b <= c so that no difference is negative, e divides f so that sharing is even."""
    a, b = (int(x) for x in rng.integers(2, 100, size=2))
    d = int(rng.integers(2, 25))
    e = int(rng.integers(2, 13))
    numbers = {"a": a, "b": b, "c": b + int(rng.integers(1, 100)), "d": d, "e": e, "f": d * e}
    return {field: str(number) for field, number in numbers.items()}


_PAIRED = {"name": NAMES, "animal": ANIMALS, "topic": TOPICS}
_SINGLE: dict[str, list[str]] = {
    "place": PLACES,
    "thing": THINGS,
    "feeling": FEELINGS,
    "event": EVENTS,
    "audience": AUDIENCES,
    "task": FUNCTION_TASKS,
    "cls": CLASS_TASKS,
    "goods": GOODS,
    "relation": RELATIONS,
    "reason": LETTER_REASONS,
    "subject": LIST_SUBJECTS,
    "dish": DISHES,
    "scene": SCENES,
}
