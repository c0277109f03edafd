"""Templated short stories, the part of the demo model's training text that teaches it to narrate.

Every story has a hero, a friend, a place, a cause and an effect, and most end with a moral. A story
also carries questions about itself, whose answers stand in its text.
"""

from random import Random

from demo_teller import COLOURS, FOODS, SPOTS, TOYS, Story, Teller


def lost_thing(t: Teller) -> Story:
    toy = t.rng.choice(TOYS)
    t.words.update(toy=toy, colour=t.rng.choice(COLOURS),
                   wrong=t.rng.choice([s for s in SPOTS if s != t.words["spot"]]))
    parts = [
        t.day("{n} could not find {p} {colour} {toy}.", "{n} lost {p} {colour} {toy}.",
              "{P} {colour} {toy} was gone."),
        t.say("{S} was very sad and began to cry.", "{S} felt sad, because it was a gift from "
              "{p} grandmother.", "{S} looked everywhere, but {s} could not see it."),
        t.say("{S} looked {wrong}, but it was not there.", "First {s} looked {wrong}. "
              "There was no {toy}."),
        t.say("Then {friend} came along.", "{friend_capital} heard this and came to help."),
        t.say('"Do not worry," said {f}. "I will help you."', '"Why are you sad?" asked {f}. '
              '"I lost my {toy}," said {n}.', '"Let us look together," said {f}.'),
        t.say("They looked and looked.", "Together they looked in every corner.", ""),
        t.say("At last, they found the {toy} {spot}.", "Soon {f} found the {colour} {toy} {spot}."),
        t.say('"Thank you!" said {n}, and {s} gave {f} a big hug.',
              '"Thank you, {f}," said {n}. "You are a true friend."',
              "{n} was so happy that {s} danced."),
    ]
    return t.story(toy, parts, (
        "From that day on, {n} took good care of {p} {toy}.",
        "A good friend helps you when you are sad.",
        "{n} learned that it is good to ask for help."),
        [("What did {n} lose?", "{n} lost {p} {colour} {toy}."),
         ("Where was the {toy}?", "The {toy} was {spot}."),
         ("Who helped {n}?", "{f} helped {n}."),
         ("What colour was the {toy}?", "The {toy} was {colour}.")])


def stuck_friend(t: Teller) -> Story:
    trap = t.rng.choice(["stuck in the mud", "caught in a net", "stuck in a tree",
                         "caught in a thorn bush", "stuck in a deep hole"])
    tool = t.rng.choice(["a long rope", "a strong stick", "an old ladder", "{p} own scarf"])
    t.words.update(trap=trap, tool=tool.format(**t.words))
    parts = [
        t.day("{n} was walking through the forest.", "{n} went for a walk by the river.",
              "{n} was playing outside."),
        t.say('Suddenly {s} heard a small voice. "Help! Help!"', "Then {s} heard someone crying."),
        t.say("It was {friend}. {FS} was {trap}.", "{S} saw {friend}, who was {trap}."),
        t.say('"Please help me," said {f}. "I am so afraid."', '"I cannot get out," said {f}.'),
        t.say('"Do not be afraid," said {n}. "I will help you."',
              "{n} was afraid too, but {s} wanted to help."),
        t.say("{S} ran home and came back with {tool}.", "{n} thought for a while. "
              "Then {s} had an idea and got {tool}."),
        t.say("{S} pulled and pulled, and at last {f} was free.",
              "{f} held on to it, {n} pulled hard, and soon {f} was free."),
        t.say('"Thank you, {n}," said {f}. "You saved me."',
              "{f} was so happy that {fs} jumped up and down."),
        t.say("From that day on, {n} and {f} were best friends.", "The two became good friends.",
              "They went home together and ate {food}."),
    ]
    return t.story("friend", parts, (
        "Being brave means helping even when you are afraid.",
        "If you help others, you will never be alone.", "It feels good to help someone."),
        [("What happened to {f}?", "{f} was {trap}."),
         ("How did {n} help {f}?", "{n} got {tool} and pulled {f} out."),
         ("Who was {trap}?", "{f} was {trap}.")])


def sharing(t: Teller) -> Story:
    t.words.update(snack=t.rng.choice(FOODS))
    parts = [
        t.day("{n} had a basket full of {snack}.", "{p} mother gave {n} some {snack}.",
              "{n} found a lot of {snack} in the kitchen."),
        t.say('"This is all mine," thought {n}.', "{S} wanted to eat everything alone."),
        t.say("Then {s} saw {friend}, who had nothing to eat.",
              "On the way {s} met {friend}. {FS} looked tired and hungry."),
        t.say('"I am so hungry," said {f}.', '"Could I have a little?" asked {f}.'),
        t.say("{n} looked at the {snack}. Then {s} looked at {f}.",
              "At first, {n} did not want to share."),
        t.say('"Here, half of this is for you," said {n}.', "But then {s} gave half of it to {f}."),
        t.say("They sat down {spot} and ate together.", "They ate and laughed and told stories."),
        t.say("It tasted much better than eating alone.", "{f} was happy, and {n} was happy too.",
              "The next day, {f} came back and shared some {fsnack} with {n}."),
    ]
    return t.story(t.words["snack"], parts, (
        "{n} learned that sharing makes everything better.", "Sharing is a way to make friends.",
        "What you share with others comes back to you."),
        [("What did {n} share?", "{n} shared {snack} with {f}."),
         ("Why did {n} share?", "{n} shared because {f} was hungry."),
         ("Who was hungry?", "{f} was hungry.")])


def afraid(t: Teller) -> Story:
    fear, brave = t.rng.choice([
        ("the dark", "{s} lit a small lamp and saw that there was nothing bad in the room"),
        ("deep water", "{s} put one foot into the water, and then the other, and it felt good"),
        ("thunder", "{s} counted slowly after each flash, and soon the storm was far away"),
        ("the big dog next door", "{s} held out {p} hand, and the dog only wanted to play"),
        ("climbing", "{s} climbed one step at a time and did not look down"),
        ("the first day of school", "{s} said hello to one child, and soon {s} had a new friend")])
    t.words.update(fear=fear, brave=brave.format(**t.words))
    parts = [
        t.say("But {n} was afraid of {fear}.", "There was one thing that {n} did not like. "
              "{S} was afraid of {fear}."),
        t.say("{P} friend {f} was not afraid at all.",
              "Nobody knew about it, only {p} friend {f}."),
        t.day("{f} said, \"Come with me. I will stay with you.\"",
              "{f} asked, \"Why are you afraid of {fear}?\""),
        t.say('"What if something bad happens?" asked {n}.', '"I do not know," said {n} quietly.'),
        t.say('"We can try it together," said {f}.', '"Being afraid is all right," said {f}. '
              '"Just try a little bit."'),
        t.say("So {n} took a deep breath.", "{n} closed {p} eyes and counted to three."),
        t.say("Then {brave}.", "This time, {brave}."),
        t.say('"I did it!" said {n}.', '"You see?" said {f}. "You are brave."'),
    ]
    return t.story("being afraid", parts, (
        "After that, {n} was never afraid of {fear} again.",
        "{n} learned that being brave means trying even when you are afraid.",
        "With a friend at your side, you can be brave."),
        [("What was {n} afraid of?", "{n} was afraid of {fear}."),
         ("Who helped {n}?", "{f} helped {n}.")], knows_friend=True)


def storm(t: Teller) -> Story:
    shelter = t.rng.choice(["a dry cave", "an old barn", "a hollow tree", "a small hut"])
    t.words.update(shelter=shelter)
    parts = [
        t.day("{n} and {p} friend {f} went to pick flowers.", "{n} and {f} were far from home.",
              "{n} took {f} on a long walk."),
        t.say("Suddenly dark clouds came up, and it began to rain.",
              "The sky turned grey, and a strong wind began to blow."),
        t.say("Soon they were wet and cold.", "There was thunder, and {f} began to cry."),
        t.say('"We must find a dry place," said {n}.', '"What shall we do?" asked {f}.'),
        t.say("They ran until they saw {shelter}.", "{n} looked around and found {shelter}."),
        t.say("Inside it was warm and dry.", "They sat close together to stay warm."),
        t.say("{n} sang a song, so that {f} was not afraid.", "{n} told {f} a funny story, "
              "and they both laughed.", "They shared some {food} and waited."),
        t.say("When the rain stopped, there was a rainbow in the sky.",
              "After an hour the sun came out again, and they saw a big rainbow."),
        t.say('"How beautiful!" said {f}.', "Then they walked home hand in hand.",
              "They were glad that they had stayed together."),
    ]
    return t.story("rain", parts, (
        "After every storm, the sun comes back.", "Friends keep each other warm.", ""),
        [("Where did they hide from the rain?", "They hid in {shelter}."),
         ("What did they see after the rain?", "They saw a rainbow in the sky."),
         ("Who was with {n}?", "{f} was with {n}.")], knows_friend=True)


def making(t: Teller) -> Story:
    thing, problem, fix = t.rng.choice([
        ("kite", "the wind broke it", "{s} used stronger sticks"),
        ("little boat", "it sank in the water", "{s} closed the hole with wax"),
        ("cake", "it burned in the oven", "{s} watched the clock this time"),
        ("tower of stones", "it fell down", "{s} put the biggest stones at the bottom"),
        ("birdhouse", "the roof fell off", "{s} used longer nails"),
        ("snowman", "it melted in the sun", "{s} built it in the shadow of a tree"),
        ("paper plane", "it fell to the ground at once", "{s} folded the wings again")])
    t.words.update(thing=thing, problem=problem, fix=fix.format(**t.words))
    parts = [
        t.day("{n} wanted to make a {thing}.", "{n} had an idea. {S} wanted to make a {thing}."),
        t.say("{S} worked all morning.", "{S} got everything ready and began to work.",
              "It was hard work, but {n} liked it."),
        t.say("But then {problem}.", "When it was done, {problem}."),
        t.say("{n} was sad and angry. \"I will never try again,\" {s} said.",
              "{n} sat down and felt very sad."),
        t.say('"Do not give up," said {p} friend {f}. "Let us try again."',
              '"Everyone makes mistakes," said {f}. "Think about why it happened."'),
        t.say("{n} thought about it, and then {s} tried again.", "So {n} tried a second time."),
        t.say("This time, {fix}.", "Now {s} knew what to do: {fix}."),
        t.say("The new {thing} was wonderful.",
              "And it worked! The {thing} was better than before."),
        t.say("{f} clapped {fp} hands.", '"Look what we can do!" said {n}.', ""),
    ]
    return t.story(thing, parts, (
        "{n} learned that a mistake is a good teacher.", "If you try again, you can do it.",
        "Never give up after the first try."),
        [("What did {n} make?", "{n} made a {thing}."),
         ("What went wrong?", "At first, {problem}."),
         ("How did {n} fix it?", "The second time, {fix}.")], knows_friend=True)


def honesty(t: Teller) -> Story:
    thing, who = t.rng.choice(["vase", "cup", "window", "plate", "clock", "mirror"]), t.rng.choice(
        ["mother", "father", "grandmother", "teacher", "uncle"])
    t.words.update(thing=thing, who=who)
    parts = [
        t.day("{n} was playing in the house.", "{n} and {p} friend {f} played with a ball.",
              "{n} was running very fast."),
        t.say("Crash! {S} broke the {thing}.", "Then {s} bumped into the table, "
              "and the {thing} fell down and broke."),
        t.say('"Oh no," thought {n}. "What shall I do?"', "{n} was afraid that {p} {who} would be "
              "angry."),
        t.say("First {s} wanted to hide the pieces.", '"Just say that the wind did it," said {f}.'),
        t.say("But {s} did not feel good about it.", "But {n} did not want to tell a lie."),
        t.say("So {s} went to {p} {who} and told the truth.",
              'In the evening {s} said to {p} {who}, "I broke the {thing}. I am sorry."'),
        t.say('"Thank you for telling me," said {p} {who}. "I am not angry."',
              "{P} {who} was quiet for a moment. Then {p} {who} gave {o} a hug."),
        t.say("Together they cleaned up the pieces.", "{n} felt as light as a feather.", ""),
    ]
    return t.story("telling the truth", parts, (
        "It is always better to tell the truth.",
        "{n} learned that the truth makes the heart light.",
        "Telling the truth takes courage."),
        [("What did {n} break?", "{n} broke the {thing}."),
         ("Whom did {n} tell the truth?", "{n} told the truth to {p} {who}.")], knows_friend=True)


def learning(t: Teller) -> Story:
    skill, result = t.rng.choice([
        ("swim", "{s} swam across the whole lake"),
        ("ride a bike", "{s} rode down the whole street"),
        ("sing", "{s} sang a song for the whole village"), ("read", "{s} read a whole book alone"),
        ("whistle", "{s} whistled like a bird"), ("skate", "{s} skated over the ice like the wind"),
        ("paint", "{s} painted a picture of the sea"),
        ("dance", "{s} danced until the stars came")])
    t.words.update(skill=skill, result=result.format(**t.words))
    parts = [
        t.say("{n} wanted to learn to {skill}.", "More than anything, {n} wanted to {skill}."),
        t.day("{n} tried it for the first time, but it was too hard.",
              "{n} tried to {skill}, but {s} could not do it."),
        t.say("Some of the others laughed.", '"I cannot do it," said {n} sadly.'),
        t.say('"Nobody can do it on the first day," said {f}. "You must practise."',
              '{P} friend {f} said, "I will show you how."'),
        t.say("So {n} practised every day.", "From then on, {n} practised every morning."),
        t.say("After one week {s} was a little better.", "On some days it went well, "
              "and on some days it did not."),
        t.say("And then, one day, {result}.", "At the end of the summer, {result}."),
        t.say("Everyone was amazed.", '"I am proud of you," said {f}.', ""),
    ]
    return t.story("learning to " + skill, parts, (
        "Practice makes hard things easy.", "{n} learned that you must be patient with yourself.",
        "If you practise every day, you will get better."),
        [("What did {n} want to learn?", "{n} wanted to learn to {skill}."),
         ("What did {n} do every day?", "{n} practised every day.")], knows_friend=True)


def race(t: Teller) -> Story:
    goal = t.rng.choice(["the old oak tree", "the bridge", "the top of the hill", "the lake"])
    t.words.update(goal=goal)
    parts = [
        t.day("there was a big race to {goal}.",
              "{n} and {friend} wanted to have a race to {goal}."),
        t.say("{f} was very fast, and {fs} said so to everyone.",
              '"I am faster than you," said {f}. "I will win."'),
        t.say("{n} was not so fast, but {s} did not give up easily.", '"We will see," said {n}.'),
        t.say("One, two, three, and off they went!", "The race began."),
        t.say("{f} ran ahead, and soon {fs} was far away.", "Soon {f} was far ahead of {n}."),
        t.say('"I have a lot of time," thought {f}, and {fs} lay down to sleep.',
              "Then {f} stopped to eat some {ffood}, because {fs} was so sure to win."),
        t.say("But {n} went on, step by step.", "{n} did not stop once."),
        t.say("When {f} looked up again, {n} was already at {goal}.",
              "{f} ran as fast as {fs} could, but it was too late. {n} had won."),
        t.say('"Well done," said {f}. "I was too proud."', "Everyone cheered for {n}."),
    ]
    return t.story("race", parts, (
        "Slow and steady wins the race.", "Do not be too proud of yourself.",
        "If you keep going, you will get there."),
        [("Who won the race?", "{n} won the race."),
         ("Where did they run to?", "They ran to {goal}."),
         ("Why did {f} lose?", "{f} lost because {fs} was too proud and stopped on the way.")])


def seed(t: Teller) -> Story:
    plant, time = t.rng.choice([("sunflower", "weeks"), ("apple tree", "years"),
                                ("pumpkin", "months"), ("rose", "weeks"), ("bean plant", "days")])
    t.words.update(plant=plant, time=time)
    parts = [
        t.day("{n} got a small seed from {p} grandfather.", "{n} found a small seed {spot}."),
        t.say("{S} put it into the ground and gave it some water.", '"What will it be?" asked {n}, '
              "and {s} planted it in the garden."),
        t.say("The next day, nothing had happened.", "{S} looked every hour, but nothing came up."),
        t.say('"It does not work," {s} said to {p} friend {f}.', "{n} wanted to dig it up again."),
        t.say('"Wait," said {f}. "Good things need time."', '"You must be patient," said {f}.'),
        t.say("So {n} watered the seed every day and waited.", "{n} waited and waited, "
              "and every morning {s} brought some water."),
        t.say("After some {time}, a green leaf came up.", "Then, one morning, "
              "there was a tiny green leaf."),
        t.say("It grew and grew, and in the end it was a beautiful {plant}.",
              "In the end it became the biggest {plant} in the village."),
    ]
    return t.story("seed", parts, (
        "{n} learned that good things need time.", "If you are patient, small things grow big.",
        ""),
        [("What did {n} plant?", "{n} planted a small seed."),
         ("What did the seed become?", "The seed became a beautiful {plant}.")], knows_friend=True)


def newcomer(t: Teller) -> Story:
    parts = [
        t.day("{friend} came to live near {n}.", "someone new came. It was {friend}."),
        t.say("{f} did not know anybody.", "{f} was shy and sat alone {spot}."),
        t.say("The others played and did not ask {fo} to join.", "Nobody talked to {fo}."),
        t.say("{n} saw this and felt sorry for {fo}.", '"{f} looks lonely," thought {n}.'),
        t.say('{n} went over and said, "Hello! I am {n}. Do you want to play with me?"',
              '"Hello," said {n}. "What is your name?" "I am {f}," said {f} quietly.'),
        t.say("{f} smiled for the first time.", "{f} looked up, and {fp} eyes were bright."),
        t.say("They played hide and seek until the evening.", "{n} showed {f} the whole place, "
              "and they ate {food}.", "They played with a {colour} ball all afternoon."),
        t.say("Soon the others came too, and {f} was not alone any more.",
              "The next day, everybody wanted to play with {f}."),
    ]
    return t.story("a new friend", parts, (
        "One friendly word can change a whole day.", "{n} learned that it is easy to be kind.",
        "A stranger is a friend you do not know yet."),
        [("Who was new?", "{f} was new."), ("How did {f} feel at first?", "{f} felt lonely."),
         ("What did {n} do?", "{n} asked {f} to play.")])


def night_noise(t: Teller) -> Story:
    noise, cause = t.rng.choice([
        ("a strange noise", "an old door in the wind"), ("a soft sound", "a kitten at the window"),
        ("a knock", "a branch that hit the window"), ("a loud bang", "a pot that had fallen down"),
        ("something in the kitchen", "a hungry mouse"), ("a deep voice", "an owl in the tree")])
    t.words.update(noise=noise, cause=cause)
    parts = [
        t.say("One night, {n} could not sleep, because {s} heard {noise}.",
              "In the middle of the night, {n} woke up. {S} had heard {noise}."),
        t.say('"Is it a monster?" thought {n}.', '"What was that?" {s} asked.'),
        t.say("{P} heart beat very fast.", "{S} pulled the blanket over {p} head."),
        t.say("But {n} was also curious.", "But the noise did not stop."),
        t.say("So {s} woke up {p} friend {f}, and they went to look together.",
              "{S} took a lamp and went to look."),
        t.say("Step by step they came closer.", "It was very dark and quiet.", ""),
        t.say("And what did {n} see? It was only {cause}.", "Then {n} saw it: {cause}."),
        t.say("{n} laughed so loudly that everyone woke up.", '"And I was so afraid!" {s} said, '
              "and went back to bed."),
    ]
    return t.story("night", parts, (
        "Many things are less scary when you look at them.",
        "It is good to look before you worry."),
        [("What did {n} hear?", "{n} heard {noise}."), ("What was it?",
                                                        "It was only {cause}.")], knows_friend=True)


def selfish(t: Teller) -> Story:
    toy = t.rng.choice(TOYS)
    t.words.update(toy=toy, colour=t.rng.choice(COLOURS))
    parts = [
        t.say("{n} had a beautiful {colour} {toy}, and nobody else was allowed to touch it.",
              "{n} had a new {colour} {toy} and was very proud of it."),
        t.day("{f} asked, \"May I have a look at it?\"", "{f} came and asked for the {toy}."),
        t.say('"No," said {n}. "It is mine."', '"Go away," said {n}. "You will only break it."'),
        t.say("{f} went away sadly.", "So {f} went to play with the others."),
        t.say("Now {n} sat alone with the {toy}.",
              "{n} heard the others laugh, but {s} was alone."),
        t.say("After a while it was not fun any more.", "{n} felt lonely and sad."),
        t.say("So {s} took the {toy} and went to {f}.", "Then {s} stood up and ran after {f}."),
        t.say('"I am sorry," {s} said. "Let us use it together."',
              '"I was not nice to you," said {n}. "Do you want to play with me?"'),
        t.say("{f} smiled and said yes.", '"Yes, I do," said {f}, and they played all day.'),
    ]
    return t.story(toy, parts, (
        "A toy is only fun with a friend.", "{n} learned that a friend is worth more than a {toy}.",
        "It is never too late to say sorry."),
        [("What did {n} have?", "{n} had a {colour} {toy}."),
         ("Why was {n} alone?", "{n} was alone because {s} did not want to share the {toy}."),
         ("What did {n} say to {f}?", "{n} said that {s} was sorry.")], knows_friend=True)


def birthday(t: Teller) -> Story:
    t.words.update(gift=t.rng.choice(TOYS), colour=t.rng.choice(COLOURS),
                   snack=t.rng.choice(["a big cake", "pancakes", "apple pie", "sweet berries"]))
    parts = [
        t.say("Today was {p} birthday, but nobody said a word about it.",
              "It was the birthday of {n}, but everyone seemed to be busy."),
        t.say("{S} went to {f}, but {f} had no time.", '"I have to go," said {f}, and ran away.'),
        t.say('"Everybody forgot me," thought {n}.', "{n} was sad and walked through the streets."),
        t.say("In the evening, {s} went home. The house was dark.", "When {s} came home, "
              "it was very quiet."),
        t.say('{S} opened the door. "Surprise!" shouted all {p} friends.',
              "Suddenly the lights went on, and all {p} friends were there."),
        t.say("There was {snack}, and there was music.", "They ate {snack} and sang a song."),
        t.say("{f} gave {o} a {colour} {gift}.", "From {f}, {s} got a {colour} {gift}."),
        t.say('"We did not forget you," said {f}.', '"This is the best birthday ever," said {n}.'),
    ]
    return t.story("birthday", parts, (
        "Good friends do not forget you.", "Sometimes a secret is a nice one.", ""),
        [("What did {n} get for {p} birthday?", "{n} got a {colour} {gift}."),
         ("What did they eat?", "They ate {snack}.")], knows_friend=True)


def lost_way(t: Teller) -> Story:
    clue, home = t.rng.choice([
        ("the river", "{s} followed the river until {s} saw the village"),
        ("the stars", "{s} looked for the brightest star and walked towards it"),
        ("{p} own footprints", "{s} followed {p} own footprints back"),
        ("the church bell", "{s} heard the bell and walked towards the sound"),
        ("smoke over the trees", "{s} saw the smoke and knew that a house was there")])
    t.words.update(clue=clue.format(**t.words), home=home.format(**t.words))
    parts = [
        t.day("{n} ran after a butterfly, deep into the forest.",
              "{n} went too far into the forest "
              "to look for berries."),
        t.say("When {s} stopped, {s} did not know where {s} was.",
              "Then all trees looked the same, "
              "and {n} was lost."),
        t.say("It was getting dark.", "{S} called, but nobody answered."),
        t.say("{n} wanted to cry, but then {s} sat down and thought.",
              '"I must stay calm," {s} said to {o}self.'),
        t.say("On the way {s} met {friend}.", "{friend_capital} sat on a branch and looked at {o}.")
        if t.friend.kind in ("owl", "bird", "squirrel") else "",
        t.say("Then {s} thought of {clue}.",
              "{S} remembered what {p} mother had said about {clue}."),
        t.say("So {home}.", "Step by step, {home}."),
        t.say("At home, {p} mother was waiting with hot soup.",
              "{P} family was so glad to see {o}."),
    ]
    return t.story("forest", parts, (
        "If you stay calm, you will find a way.", "{n} learned to think first and run later."),
        [("Where did {n} get lost?", "{n} got lost in the forest."),
         ("How did {n} find the way home?", "{n} used {clue}. {S} found the way home again.")])


PLOTS = (lost_thing, stuck_friend, sharing, afraid, storm, making, honesty, learning, race, seed,
         newcomer, night_noise, selfish, birthday, lost_way)


def make_story(rng: Random, kind: str | None = None) -> Story:
    """One story, about a hero of the given kind or of any."""
    return rng.choice(PLOTS)(Teller(rng, kind))
