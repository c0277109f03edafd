"""Who and what the demo model's stories are about, and the teller that fills in their sentences."""

from dataclasses import dataclass, field
from random import Random

GIRLS = "Mia Anna Lily Emma Sara Nora Ella Ruby Rosa Lucy Ida Maya Zoe Clara Alice Jane".split()
BOYS = "Tom Ben Leo Max Sam Jack Tim Noah Paul Oscar Finn Adam Hugo Luke Peter Omar".split()
ANIMAL_NAMES = "Rusty Pip Coco Bella Milo Daisy Teddy Luna Bruno Poppy Rex Honey Felix Mimi".split()

# kind: (colours, home, food)
ANIMALS = {
    "fox": (("red", "brown"), "a den", "berries"),
    "rabbit": (("white", "brown", "grey"), "a burrow", "carrots"),
    "bear": (("brown", "black"), "a cave", "honey"),
    "mouse": (("grey", "white", "brown"), "a hole", "cheese"),
    "cat": (("black", "white", "grey"), "a house", "fish"),
    "dog": (("black", "brown", "white"), "a kennel", "bones"),
    "duck": (("white", "yellow", "brown"), "a nest by the pond", "bread"),
    "frog": (("green",), "a pond", "flies"),
    "owl": (("brown", "white", "grey"), "a hollow tree", "mice"),
    "squirrel": (("red", "grey"), "a tree", "nuts"),
    "hedgehog": (("brown",), "a pile of leaves", "apples"),
    "turtle": (("green",), "a pond", "leaves"),
    "pig": (("pink",), "a barn", "corn"),
    "horse": (("brown", "white", "black"), "a stable", "hay"),
    "lion": (("yellow",), "the grassland", "meat"),
    "elephant": (("grey",), "the grassland", "leaves"),
    "bird": (("blue", "red", "yellow"), "a nest", "seeds"),
    "dragon": (("green", "red", "blue"), "a cave", "soup"),
}
PLACES = ("in a small village", "near a big forest", "in a little house by the sea", "on a farm",
          "at the edge of a forest", "in a quiet town", "by a blue lake", "on a green hill",
          "near a river", "in a big city", "in a sunny valley", "at the foot of a mountain")
TOYS = ("ball", "kite", "doll", "toy boat", "drum", "book", "hat", "scarf", "bell", "key",
        "lamp", "ring", "map", "basket", "blanket", "teddy bear")
COLOURS = "red blue green yellow white black orange purple pink brown".split()
SPOTS = ("under the bed", "behind the door", "in the garden", "under a tree", "by the river",
         "in the tall grass", "behind a big stone", "on the roof", "under the bridge",
         "in the barn", "next to the well", "in an old box")
FOODS = ("apples", "cookies", "bread", "berries", "cake", "pears", "nuts", "soup", "pancakes",
         "cherries", "cheese", "plums")
WEATHER = ("The sun was shining.", "It was a warm day.", "It was a windy day.",
           "The sky was blue.", "A soft wind was blowing.", "It was a bright spring day.",
           "The birds were singing.", "The air was fresh.")
SIZES = ("little", "small", "young", "tiny")
TRAITS = ("kind", "brave", "curious", "clever", "shy", "cheerful", "gentle", "quiet", "busy")


@dataclass
class Hero:
    """Someone in a story: a child or an animal with a name."""

    name: str
    kind: str
    phrase: str  # "a little girl named Mia"
    is_female: bool
    food: str


@dataclass
class Story:
    """A story's text and what can be asked about it: (question, answer) pairs."""

    text: str
    hero: Hero
    topic: str
    questions: list[tuple[str, str]] = field(default_factory=list)


def make_hero(rng: Random, kind: str | None = None, taken: str = "") -> Hero:
    """A hero of the given kind ("girl", "boy", an animal), or of any; never named `taken`."""
    kind = kind or rng.choice(["girl", "boy", "girl", "boy", rng.choice(list(ANIMALS))])
    is_female = kind == "girl" or (kind != "boy" and rng.random() < 0.5)
    names = {"girl": GIRLS, "boy": BOYS}.get(kind, ANIMAL_NAMES)
    name = rng.choice([n for n in names if n != taken])
    called = rng.choice(["named", "called"])
    if kind in ANIMALS:
        colours, _, food = ANIMALS[kind]
        adjective = rng.choice([rng.choice(SIZES), rng.choice(TRAITS), rng.choice(colours)])
    else:
        food, adjective = rng.choice(FOODS), rng.choice([rng.choice(SIZES), rng.choice(TRAITS)])
    article = "an" if adjective[0] in "aeiou" else "a"
    return Hero(name, kind, f"{article} {adjective} {kind} {called} {name}", is_female, food)


class Teller:
    """Fills one story's templates: {n} is the hero, {f} the friend, {s} she/he, {o} her/him, ..."""

    def __init__(self, rng: Random, kind: str | None = None):
        self.rng = rng
        self.hero = make_hero(rng, kind)
        self.friend = make_hero(rng, taken=self.hero.name)
        place, friend = rng.choice(PLACES), self.friend.phrase
        self.words = {"n": self.hero.name, "f": self.friend.name,
                      "hero": self.hero.phrase, "friend": friend,
                      "friend_capital": friend[0].upper() + friend[1:],
                      "kind": self.hero.kind, "fkind": self.friend.kind,
                      "place": place, "place_capital": place[0].upper() + place[1:],
                      "weather": rng.choice(WEATHER), "spot": rng.choice(SPOTS),
                      "colour": rng.choice(COLOURS), "food": self.hero.food,
                      "ffood": self.friend.food, "fsnack": rng.choice(FOODS)}
        for prefix, person in (("", self.hero), ("f", self.friend)):
            s, o, p = ("she", "her", "her") if person.is_female else ("he", "him", "his")
            self.words |= {prefix + "s": s, prefix + "o": o, prefix + "p": p,
                           (prefix + "s").upper(): s.capitalize(),
                           (prefix + "p").upper(): p.capitalize()}

    def say(self, *choices: str) -> str:
        """One of the given sentences, filled in."""
        return self.rng.choice(choices).format(**self.words)

    def opening(self, knows_friend: bool) -> str:
        first = self.say(
            "Once upon a time there was {hero}.", "Once upon a time, {hero} lived {place}.",
            "Once upon a time, there was {hero} who lived {place}.",
            "There once was {hero}. {S} lived {place}.", "Long ago, {hero} lived {place}.",
            "{place_capital} lived {hero}.", "There was {hero} who loved {food}.",
            "Once there was {hero}.")
        about_hero = ("", "{n} loved to eat {food}.", "{n} liked to look at the stars.",
                      "Everyone liked {n}, because {s} was always friendly.",
                      "Every morning, {n} went out to play.")
        about_friend = ("{n} had a good friend, {friend}.", "{P} best friend was {friend}.",
                        "{n} often played with {friend}.")
        return join(first, self.say(*(about_friend if knows_friend else about_hero)))

    def day(self, *starts: str) -> str:
        start = self.say("One day,", "One morning,", "One afternoon,", "One sunny day,")
        weather = self.say("", "", "{weather}")
        return join(weather, start + " " + self.say(*starts))

    def story(self, topic: str, parts: list[str], moral: tuple[str, ...],
              questions: list[tuple[str, str]], knows_friend: bool = False) -> Story:
        """Joins the parts behind an opening, which introduces the friend if the parts do not."""
        parts = [p for p in parts if p]
        closing = self.say("", "{n} smiled all the way home.", "That night, {n} slept very well.",
                           "It was a good day.", "{n} was very happy.", "")
        lesson = self.say(*moral) if self.rng.random() < 0.75 else ""
        blocks = [self.opening(knows_friend), join(*parts), join(closing, lesson)]
        separator = "\n\n" if self.rng.random() < 0.35 else " "
        text = separator.join(b for b in blocks if b)
        asked = [(q.format(**self.words), a.format(**self.words)) for q, a in questions]
        asked.append(("Who is the story about?", f"The story is about {self.hero.phrase}."))
        return Story(text, self.hero, topic, asked)


def join(*sentences: str) -> str:
    """The sentences that are not empty, with one space between them."""
    return " ".join(s for s in sentences if s)
