#!/usr/bin/env python3
"""Writes text of the kind the bundled model was trained on, which it has not seen.

Stories and plain questions with answers from the generators that made the training text, by
another seed, with a blank line between them: a text to give to `lockstepd evaluate --text`.
Conversations are left out, since their marks are no plain text. The same arguments give the same
bytes. Needs Python alone.
"""

import argparse
import random
from pathlib import Path

from demo_chats import make_plain_questions
from demo_stories import make_story

STORY_SHARE = 5 / 6  # as in the training text


def make_document(rng: random.Random) -> str:
    return make_story(rng).text if rng.random() < STORY_SHARE else make_plain_questions(rng)


def make_text(size: int, seed: int) -> str:
    """Whole documents, until there are `size` characters."""
    rng, documents, length = random.Random(seed), [], 0
    while length < size:
        documents.append(make_document(rng).strip())
        length += len(documents[-1]) + 2
    return "\n\n".join(documents) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, required=True, metavar="FILE")
    parser.add_argument("--characters", type=int, default=150_000,
                        help="at least so many (default: %(default)s, some 40,000 tokens)")
    parser.add_argument("--seed", type=int, default=1, help="(default: %(default)s)")
    options = parser.parse_args()
    if options.characters < 1:
        parser.error("--characters must be at least 1")
    options.output.write_text(make_text(options.characters, options.seed), encoding="utf-8")


if __name__ == "__main__":
    main()
