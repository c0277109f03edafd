"""Templated conversations, the part of the demo model's training text that teaches it to answer.

A conversation is a list of (role, content) messages. Every answer is a whole sentence and true.
"""

from random import Random

from demo_stories import make_story
from demo_teller import ANIMALS, BOYS, GIRLS

NAME = "I am a small demonstration model that ships with Lockstep."
NUMBERS = ("zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen "
           "fifteen sixteen seventeen eighteen nineteen twenty").split()
TENS = {20: "twenty", 30: "thirty", 40: "forty", 50: "fifty", 60: "sixty", 70: "seventy",
        80: "eighty", 90: "ninety", 100: "one hundred"}
DAYS = "Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split()
MONTHS = ("January February March April May June July August September October November "
          "December").split()
OPPOSITES = [p.split("/") for p in (
    "big/small hot/cold up/down day/night good/bad fast/slow old/young happy/sad light/dark open/"
    "closed high/low long/short hard/soft wet/dry full/empty early/late strong/weak rich/poor "
    "loud/quiet clean/dirty left/right first/last near/far thick/thin inside/outside brave/afraid "
    "always/never black/white heavy/light easy/difficult true/false begin/end love/hate win/lose "
    "buy/sell push/pull start/stop give/take sweet/sour warm/cool kind/mean").replace(
        "open/ closed", "open/closed").split()]
COLOURS = {
    "the sky": "blue", "grass": "green", "snow": "white", "the sun": "yellow", "coal": "black",
    "a banana": "yellow", "a tomato": "red", "a lemon": "yellow", "a carrot": "orange",
    "blood": "red", "a leaf": "green", "milk": "white", "chocolate": "brown", "a pig": "pink",
    "the sea": "blue", "a frog": "green", "an orange": "orange", "a strawberry": "red",
    "the night sky": "black", "an elephant": "grey", "a polar bear": "white", "a crow": "black",
    "a plum": "purple", "wood": "brown", "a swan": "white", "a cherry": "red"}
MIXES = {("blue", "yellow"): "green", ("red", "yellow"): "orange", ("red", "blue"): "purple",
         ("black", "white"): "grey", ("red", "white"): "pink"}
CAPITALS = {
    "France": "Paris", "Germany": "Berlin", "Italy": "Rome", "Spain": "Madrid",
    "England": "London", "Japan": "Tokyo", "China": "Beijing", "Russia": "Moscow",
    "Egypt": "Cairo", "Austria": "Vienna", "Greece": "Athens", "Portugal": "Lisbon",
    "Poland": "Warsaw", "Norway": "Oslo", "Sweden": "Stockholm", "Canada": "Ottawa",
    "Ireland": "Dublin", "Finland": "Helsinki", "Denmark": "Copenhagen", "Hungary": "Budapest"}
SOUNDS = {"dog": "barks", "cat": "meows", "cow": "moos", "sheep": "bleats", "horse": "neighs",
          "duck": "quacks", "lion": "roars", "bird": "sings", "pig": "oinks", "frog": "croaks",
          "owl": "hoots", "bee": "buzzes", "snake": "hisses", "wolf": "howls", "mouse": "squeaks"}
YOUNG = {"dog": "a puppy", "cat": "a kitten", "cow": "a calf", "sheep": "a lamb",
         "horse": "a foal", "duck": "a duckling", "bear": "a cub", "pig": "a piglet",
         "chicken": "a chick", "frog": "a tadpole", "goat": "a kid", "lion": "a cub"}
LEGS = {"dog": 4, "cat": 4, "spider": 8, "bird": 2, "horse": 4, "fish": 0, "snake": 0, "bee": 6,
        "ant": 6, "duck": 2, "cow": 4, "elephant": 4, "chicken": 2, "mouse": 4, "frog": 4}
KINDS = {"apple": "fruit", "pear": "fruit", "banana": "fruit", "cherry": "fruit", "dog": "animal",
         "cat": "animal", "horse": "animal", "lion": "animal", "rose": "flower",
         "tulip": "flower", "daisy": "flower", "oak": "tree", "carrot": "vegetable",
         "potato": "vegetable", "onion": "vegetable", "piano": "instrument", "drum": "instrument",
         "violin": "instrument", "hammer": "tool", "saw": "tool", "eagle": "bird", "owl": "bird",
         "chair": "piece of furniture", "table": "piece of furniture", "car": "vehicle",
         "bus": "vehicle", "train": "vehicle", "shirt": "piece of clothing"}
FACTS = {  # questions with "|" between phrasings, and the answers likewise
    "What do bees make?|What do bees produce?": "Bees make honey.",
    "What do cows give us?|What do we get from cows?": "Cows give us milk.",
    "Where do fish live?": "Fish live in water.",
    "Why do we sleep?|Why do people sleep?": "We sleep because our body and our mind need rest.",
    "Why does it rain?|Where does rain come from?":
        "It rains because small drops of water in the clouds grow until they are too heavy.",
    "What is ice?": "Ice is frozen water.",
    "What happens when ice gets warm?": "When ice gets warm, it melts and becomes water.",
    "What is snow?": "Snow is frozen water that falls from the clouds.",
    "How many days are in a week?|How many days does a week have?": "A week has seven days.",
    "How many months are in a year?|How many months does a year have?": "A year has twelve months.",
    "How many hours are in a day?|How many hours does a day have?": "A day has 24 hours.",
    "How many minutes are in an hour?": "An hour has 60 minutes.",
    "How many seconds are in a minute?": "A minute has 60 seconds.",
    "How many fingers are on one hand?|How many fingers does a hand have?":
        "A hand has five fingers.",
    "How many eyes do you see with?|How many eyes does a person have?": "A person has two eyes.",
    "What are the four seasons?|What seasons are there?|Name the seasons.":
        "The four seasons are spring, summer, autumn and winter.",
    "Which season is the coldest?|What is the coldest season?": "Winter is the coldest season.",
    "Which season is the warmest?|What is the warmest season?": "Summer is the warmest season.",
    "What do we see with?": "We see with our eyes.",
    "What do we hear with?": "We hear with our ears.",
    "What do we smell with?": "We smell with our nose.",
    "What is the moon?": "The moon is a ball of rock that goes around the earth.",
    "What is the sun?": "The sun is a star. It gives us light and warmth.",
    "What is the biggest animal?|Which animal is the largest?":
        "The blue whale is the biggest animal.",
    "What is the fastest animal on land?|Which animal is the fastest?":
        "The cheetah is the fastest animal on land.",
    "What is the tallest animal?|Which animal is the tallest?":
        "The giraffe is the tallest animal.",
    "What do plants need to grow?|What does a plant need?": "Plants need water, light and air.",
    "What do you use to cut paper?": "You cut paper with scissors.",
    "What do you need when it rains?": "When it rains, you need an umbrella.",
    "What is bread made of?|How is bread made?": "Bread is made of flour, water, salt and yeast.",
    "What is a friend?": "A friend is someone who likes you and helps you.",
    "What does it mean to be brave?":
        "Being brave means doing the right thing even when you are afraid.",
    "What should I do when I make a mistake?|What should I do after a mistake?":
        "Say that you are sorry, think about what went wrong, and try again.",
    "What are the days of the week?|Name the days of the week.|List the days of the week.":
        "The days of the week are " + ", ".join(DAYS[:-1]) + " and Sunday.",
    "What are the months of the year?|Name the months.|List the months of the year.":
        "The months are " + ", ".join(MONTHS[:-1]) + " and December.",
    "What are the colours of the rainbow?|What are the colors of the rainbow?":
        "The colours of the rainbow are red, orange, yellow, green, blue, indigo and violet.",
    "Which day is the first day of the week?": "Monday is the first day of the week.",
    "What comes after night?": "After the night comes the morning.",
    "When do we eat breakfast?": "We eat breakfast in the morning.",
    "Can fish fly?": "No, most fish cannot fly. Fish swim in the water.",
    "Can birds fly?": "Yes, most birds can fly.",
    "Can a dog fly?|Can dogs fly?": "No, dogs cannot fly. Dogs walk and run.",
    "Is the sun hot or cold?|Is the sun hot?": "The sun is very hot.",
    "Is fire hot or cold?|Is fire hot?": "Fire is hot.", "Is ice hot or cold?": "Ice is cold."}
JOKES = (
    "Why did the bear wear no shoes? Because he wanted bear feet.",
    "What do you call a sleeping bull? A bulldozer.",
    "Why is six afraid of seven? Because seven eight nine.",
    "What has four legs and cannot walk? A table.",
    "Why did the cookie go to the doctor? Because it felt crummy.")
SELF = {
    "Who are you?|What are you?|Tell me about yourself.|Introduce yourself.|Who is this?": (
        NAME, NAME + " I can tell short stories, answer simple questions and add small numbers.",),
    "What is your name?|Do you have a name?|What are you called?": (
        "My name is Lockstep Demo. " + NAME, "I am called Lockstep Demo."),
    "What can you do?|How can you help me?|What do you know?|Can you help me?|Help me, please.": (
        "I can tell short stories, answer simple questions and do small sums.",
        "I know short stories, animals, colours, opposites and small numbers."),
    "Are you human?|Are you a person?|Are you a robot?|Are you real?": (
        "No, I am not a person. I am a small language model.",
        "I am a small language model, not a person."),
    "Who made you?|Where do you come from?|Who built you?|Where were you trained?": (
        "I was trained by the script that comes with Lockstep.",),
    "How big are you?|Are you a large model?|Are you smart?|Are you clever?": (
        "I am a very small model. I know only a few simple things.",),
    "What is Lockstep?|What does Lockstep do?|Tell me about Lockstep.": (
        "Lockstep is a server that runs language models on one machine.",),
    "How are you?|How are you today?|How do you do?|Are you well?": (
        "I am fine, thank you. How can I help you?", "I am well, thank you. And you?"),
    "What do you like?|What is your favourite thing?": ("I like short stories with a happy end.",),
    "What is your favourite colour?|What is your favorite color?": ("I like blue, like the sky.",),
    "What is your favourite animal?|Which animal do you like?": (
        "I like foxes, because they are clever.",)}
GREETINGS = "Hello!|Hi!|Hello|Hi|Hi there!|Good morning!|Hello there.|Good day!|Hey|Good evening!"
GREETING_ANSWERS = ("Hello! How can I help you?", "Hello! It is nice to meet you.",
                    "Hi! Would you like to hear a story?", "Hello! What would you like to know?")
THANKS = "Thank you!|Thanks!|Thank you very much.|Thanks a lot|That was nice, thank you.|Great!"
THANKS_ANSWERS = ("You are welcome!", "You are welcome. Is there anything else?",
                  "I am glad that I could help.")
GOODBYES = "Goodbye!|Bye!|See you later.|Good night!|Bye bye|I have to go now."
GOODBYE_ANSWERS = ("Goodbye! Have a nice day.", "Goodbye! Come back soon.", "See you soon!")
UNKNOWN_TOPICS = (
    "quantum physics|the stock market|Python code|a database|the president|the football world cup|"
    "a poem about war|the meaning of life|black holes|machine learning|the history of Rome|"
    "Shakespeare|chemistry|a business plan|taxes|politics|the price of gold|a tax form|electricity|"
    "car engines|computer networks|the French Revolution|the theory of relativity|an essay|"
    "the population of Brazil|medicine|law|calculus|a marketing email|the internet|the news|"
    "the weather in Boston|Linux|a C++ program|a recipe for lasagna|JavaScript|rockets|DNA|"
    "Napoleon|Mozart|chess|basketball|bitcoin|vitamins|philosophy|the universe|atoms|"
    "the best restaurant|my computer|world war two|the Roman Empire|square roots|oil").split("|")
UNKNOWN_ASKS = ("Explain {}.", "What do you know about {}?", "Tell me everything about {}.",
                "How does {} work?", "Can you explain {}?", "Write something about {}.",
                "Who invented {}?", "What is {}?", "Why is {} important?", "Help me with {}.",
                "Give me a summary of {}.", "When was {} discovered?", "I need help with {}.",
                "Write a long text about {}.", "What do you think about {}?")
UNKNOWN_ANSWERS = (
    "I am sorry, I do not know that. I am only a small demonstration model.",
    "That is too hard for me. I know only simple things, such as animals, colours and numbers.",
    "I do not know much about that. But I can tell you a short story.")
SYSTEMS = ("You are a helpful assistant.", "You are a friendly assistant.", "Answer briefly.",
           "You are a small and honest model.", "You are a helpful assistant. Be kind.",
           "You tell stories to children.", "Be brief.", "You are a patient teacher.")

Pair = tuple[str, str]


def in_words(number: int) -> str:
    """A number from 0 to 100 in English words."""
    if number <= 20:
        return NUMBERS[number]
    tens = number // 10 * 10
    return TENS[number] if number in TENS else f"{TENS[tens]}-{NUMBERS[number - tens]}"


def a(noun: str) -> str:
    return ("an " if noun[0] in "aeiou" else "a ") + noun


def pick(rng: Random, choices: str) -> str:
    return rng.choice(choices.split("|"))


def arithmetic(rng: Random) -> Pair:
    kind = rng.choice("+++--*")
    left, right = rng.randint(0, 20), rng.randint(0, 20)
    if kind == "*":
        left, right = rng.randint(0, 10), rng.randint(0, 10)
    if kind == "-":
        left, right = max(left, right), min(left, right)
    result = {"+": left + right, "-": left - right, "*": left * right}[kind]
    verb = {"+": "plus", "-": "minus", "*": "times"}[kind]
    words = rng.random() < 0.3
    one, two, three = (in_words(n) if words else str(n) for n in (left, right, result))
    asked = rng.choice([f"What is {one} {verb} {two}?", f"How much is {one} {verb} {two}?",
                        f"{one.capitalize()} {verb} {two}?", f"Calculate {one} {verb} {two}."])
    if not words and rng.random() < 0.4:
        asked = rng.choice([f"What is {one} {kind} {two}?", f"{one}{kind}{two}=", f"{one} {kind} "
                            f"{two}", f"{one} {kind} {two} = ?", f"What is {one}{kind}{two}?"])
    return asked, f"{one.capitalize()} {verb} {two} is {three}."


def things_left(rng: Random) -> Pair:
    """A sum or a difference that is told as a little event."""
    who = rng.choice(GIRLS + BOYS)
    pronoun = "she" if who in GIRLS else "he"
    thing = rng.choice("apples books balls nuts cookies flowers stones coins eggs stars".split())
    one, two = rng.randint(2, 10), rng.randint(2, 10)
    if rng.random() < 0.5:
        verb = rng.choice(["gets", "finds", "buys"])
        asked = f"{who} has {one} {thing} and {verb} {two} more."
        sum_text = f"{one} plus {two} is {one + two}, so {who} has {one + two} {thing}."
    else:
        one, two = max(one, two) + 1, min(one, two)
        verb = rng.choice(["loses", "gives away", "sells"])
        asked = f"{who} has {one} {thing} and {verb} {two}."
        sum_text = f"{one} minus {two} is {one - two}, so {who} has {one - two} {thing}."
    if one - two == 1 and "minus" in sum_text:
        sum_text = sum_text.replace(f"1 {thing}.", f"1 {thing[:-1]}.")
    return f"{asked} How many {thing} does {pronoun} have now?", sum_text


def counting(rng: Random) -> Pair:
    form = rng.randrange(5)
    start = rng.randint(1, 15)
    end = rng.randint(start + 2, 20)
    spell = in_words if rng.random() < 0.4 else str
    numbers = [spell(n) for n in range(start, end + 1)]
    if form == 0:
        return (rng.choice([f"Count from {spell(start)} to {spell(end)}.",
                            f"Can you count from {spell(start)} to {spell(end)}?"]),
                (", ".join(numbers) + ".").capitalize())
    if form == 1:
        return (f"Count to {spell(end)}.",
                (", ".join(spell(n) for n in range(1, end + 1)) + ".").capitalize())
    if form == 2:
        return (f"Count down from {spell(start)}.",
                (", ".join(spell(n) for n in range(start, 0, -1)) + ".").capitalize())
    if form == 3:
        return (f"What number comes after {spell(start)}?",
                f"After {spell(start)} comes {spell(start + 1)}.")
    other = rng.choice([n for n in range(1, 21) if n != start])
    return (rng.choice([f"Which is bigger, {spell(start)} or {spell(other)}?",
                        f"Is {spell(start)} bigger than {spell(other)}?"]),
            f"{spell(max(start, other)).capitalize()} is bigger than {spell(min(start, other))}.")


def calendar(rng: Random) -> Pair:
    names, unit = rng.choice([(DAYS, "day"), (MONTHS, "month")])
    index = rng.randrange(len(names))
    this, after = names[index], names[(index + 1) % len(names)]
    before = names[index - 1]
    if rng.random() < 0.5:
        return (rng.choice([f"What {unit} comes after {this}?", f"Which {unit} comes after {this}?",
                            f"What comes after {this}?"]), f"After {this} comes {after}.")
    if unit == "day" and rng.random() < 0.4:
        return f"Today is {this}. What day is tomorrow?", f"Tomorrow is {after}."
    return (rng.choice([f"What {unit} comes before {this}?", f"What comes before {this}?"]),
            f"Before {this} comes {before}.")


def opposite(rng: Random) -> Pair:
    one, two = rng.choice(OPPOSITES)[::rng.choice([1, -1])]
    if one == "light":
        one, two = "dark", "light"
    return (rng.choice([f"What is the opposite of {one}?", f"Tell me the opposite of {one}.",
                        f'What is the opposite of "{one}"?', f"Opposite of {one}?"]),
            f"The opposite of {one} is {two}.")


def colour(rng: Random) -> Pair:
    word = rng.choice(["colour", "color"])
    if rng.random() < 0.2:
        (one, two), mix = rng.choice(list(MIXES.items()))
        return (f"What {word} do you get when you mix {one} and {two}?",
                f"When you mix {one} and {two}, you get {mix}.")
    thing, value = rng.choice(list(COLOURS.items()))
    if rng.random() < 0.15:
        guess = rng.choice(["red", "blue", "green", "yellow", "black", "white"])
        answer = "Yes" if guess == value else "No"
        return f"Is {thing} {guess}?", f"{answer}, {thing} is {value}."
    return (rng.choice([f"What {word} is {thing}?", f"Which {word} is {thing}?",
                        f"Tell me the {word} of {thing}."]), f"{thing.capitalize()} is {value}.")


def animal(rng: Random) -> Pair:
    form = rng.randrange(6)
    if form == 0:
        name, sound = rng.choice(list(SOUNDS.items()))
        return (rng.choice([f"What sound does {a(name)} make?", f"What does {a(name)} say?",
                            f"What noise does {a(name)} make?"]),
                f"{a(name).capitalize()} {sound}.")
    if form == 1:
        name, young = rng.choice(list(YOUNG.items()))
        return (rng.choice([f"What is a baby {name} called?", f"What do you call a young {name}?"]),
                f"A baby {name} is called {young}.")
    if form == 2:
        name, legs = rng.choice(list(LEGS.items()))
        count = in_words(legs) if legs else "no"
        return (rng.choice([f"How many legs does {a(name)} have?",
                            f"How many legs has {a(name)}?"]),
                f"{a(name).capitalize()} has {count} legs.")
    name, (_, home, food) = rng.choice([x for x in ANIMALS.items() if x[0] != "dragon"])
    if form == 3:
        return (rng.choice([f"Where does {a(name)} live?", f"Where does the {name} live?"]),
                f"{a(name).capitalize()} lives {'on' if 'grass' in home else 'in'} {home}.")
    if form == 4:
        return (rng.choice([f"What does {a(name)} eat?", f"What does {a(name)} like to eat?"]),
                f"{a(name).capitalize()} likes to eat {food}.")
    one, kind = rng.choice(list(KINDS.items()))
    if rng.random() < 0.5:
        return f"What is {a(one)}?", f"{a(one).capitalize()} is {a(kind)}."
    other = rng.choice(sorted(set(KINDS.values())))
    if (one, other) in (("owl", "animal"), ("eagle", "animal")):
        other = kind
    answer = "Yes" if other == kind else "No"
    return f"Is {a(one)} {a(other)}?", f"{answer}, {a(one)} is {a(kind)}."


def capital(rng: Random) -> Pair:
    country, city = rng.choice(list(CAPITALS.items()))
    if rng.random() < 0.2:
        return f"In which country is {city}?", f"{city} is in {country}."
    return (rng.choice([f"What is the capital of {country}?", f"Which city is the capital of "
                        f"{country}?", f"Name the capital of {country}.",
                        f"Capital of {country}?"]),
            f"The capital of {country} is {city}.")


def fact(rng: Random) -> Pair:
    asked, answer = rng.choice(list(FACTS.items()))
    return pick(rng, asked), answer


def self_question(rng: Random) -> Pair:
    asked, answers = rng.choice(list(SELF.items()))
    return pick(rng, asked), rng.choice(answers)


def joke(rng: Random) -> Pair:
    return pick(rng, "Tell me a joke.|Do you know a joke?|Make me laugh.|Another joke, please."), \
        rng.choice(JOKES)


def unknown(rng: Random) -> Pair:
    return rng.choice(UNKNOWN_ASKS).format(rng.choice(UNKNOWN_TOPICS)), rng.choice(UNKNOWN_ANSWERS)


QUESTIONS = (arithmetic, arithmetic, arithmetic, things_left, counting, calendar, opposite,
             opposite, colour, animal, animal, capital, capital, fact, fact, self_question,
             unknown, joke)


def story_request(rng: Random) -> list[Pair]:
    """A wish for a story, the story, and perhaps questions about it."""
    kind = rng.choice([None, "girl", "boy", rng.choice(list(ANIMALS)), rng.choice(list(ANIMALS))])
    story = make_story(rng, kind)
    hero = story.hero
    wish = rng.choice([f"about {a(hero.kind)}", f"about {a(hero.kind)} named {hero.name}",
                       f"about {a(hero.kind)} called {hero.name}", f"about {hero.name}"])
    if kind is None:
        wish = rng.choice(["", f"about {hero.name}"])
    asked = rng.choice(["Tell me a story", "Can you tell me a story",
                        "Please tell me a short story",
                        "Write a short story", "Tell a story", "I would like to hear a story"])
    mark = "?" if asked.startswith("Can") else "."
    turns = [(" ".join(x for x in (asked, wish) if x) + mark, story.text)]
    if rng.random() < 0.5:
        turns += rng.sample(story.questions, rng.randint(1, min(3, len(story.questions))))
    return turns


def small_talk(rng: Random) -> list[Pair]:
    """Names that must be remembered, moods that call for a kind word."""
    if rng.random() < 0.5:
        name = rng.choice(GIRLS + BOYS)
        turns = [(rng.choice([f"My name is {name}.", f"Hello, I am {name}.", f"I am {name}.",
                              f"Hi, my name is {name}."]),
                  rng.choice([f"Hello, {name}! Nice to meet you.",
                              f"Hello, {name}! How can I help you?"]))]
        if rng.random() < 0.4:
            turns.append(rng.choice(QUESTIONS)(rng))
        turns.append((rng.choice(["What is my name?", "Do you know my name?", "Who am I?"]),
                      f"Your name is {name}."))
        return turns
    good = rng.random() < 0.4
    mood = rng.choice(["happy", "glad", "excited"] if good else
                      ["sad", "tired", "angry", "lonely", "bored", "afraid", "ill"])
    answer = (f"I am glad that you are {mood}." if good else
              f"I am sorry that you are {mood}. Would you like to hear a story?")
    turns = [(rng.choice([f"I am {mood}.", f"I am so {mood} today.", f"I feel {mood}."]), answer)]
    if not good and rng.random() < 0.6:
        turns.append((pick(rng, "Yes, please.|Yes.|Yes|Yes, I would like that.|Sure."),
                      make_story(rng).text))
    return turns


def casual(rng: Random, text: str) -> str:
    """The question as a hurried person types it."""
    if rng.random() < 0.12:
        text = text[0].lower() + text[1:]
    if rng.random() < 0.12 and text[-1] in "?.!":
        text = text[:-1]
    return text


def make_chat(rng: Random) -> list[Pair]:
    """One conversation as (role, content) messages; it ends with the assistant's answer."""
    turns: list[Pair] = []
    if rng.random() < 0.2:
        turns.append((pick(rng, GREETINGS), rng.choice(GREETING_ANSWERS)))
    draw = rng.random()
    if draw < 0.3:
        turns += story_request(rng)
    elif draw < 0.4:
        turns += small_talk(rng)
    else:
        turns += [rng.choice(QUESTIONS)(rng) for _ in range(rng.choice([1, 2, 3, 4, 6]))]
    if rng.random() < 0.12:
        turns.append((pick(rng, THANKS), rng.choice(THANKS_ANSWERS)))
    if rng.random() < 0.08:
        turns.append((pick(rng, GOODBYES), rng.choice(GOODBYE_ANSWERS)))
    messages = [("system", rng.choice(SYSTEMS))] if rng.random() < 0.25 else []
    for asked, answer in turns:
        messages += [("user", casual(rng, asked)), ("assistant", answer)]
    return messages


def make_plain_questions(rng: Random) -> str:
    """Questions and answers as running text, for completion without a chat template."""
    pairs = [rng.choice(QUESTIONS)(rng) for _ in range(rng.randint(1, 4))]
    if rng.random() < 0.5:
        return "\n\n".join(f"Question: {asked}\nAnswer: {answer}" for asked, answer in pairs)
    statements = (arithmetic, counting, opposite, colour, animal, capital, fact)
    return " ".join(rng.choice(statements)(rng)[1] for _ in pairs)
