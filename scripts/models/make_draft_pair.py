#!/usr/bin/env python3
"""Writes two GGUF model files of one vocabulary, of which the small one drafts for the large one
and is right as often as asked.

For measuring speculation without a download. Each token of the large model is followed, greedily
and nearly always when sampled, by one other: a row of the output matrix is the embedding of the
token before it, and layers add nothing to it, though they are computed. All words together are one
cycle, so no text repeats itself. The small model knows the same cycle, but for a part of the words,
for which it has another successor. The same arguments give the same bytes.

Of a shape whose files may have a block that predicts further tokens (nextn.*), one file is written,
without --draft-output: its block knows what the small model would.

Needs numpy and the gguf package, as make_model.py does:
    scripts/models/make_draft_pair.py --shape tinyllama-1.1b --format Q8_0 --acceptance 0.8 \\
        --output model.gguf --draft-output draft.gguf
    scripts/models/make_draft_pair.py --shape qwen3.5-0.8b --format Q8_0 --acceptance 0.8 \\
        --vocabulary 32000 --output model.gguf
"""

import argparse
import dataclasses
import sys

try:
    import gguf
    import numpy as np
except ImportError as error:
    sys.exit(f"{error}; install what is needed as for make_model.py")

from make_model import write_model
from model_shapes import SHAPES, Shape, tiny
from model_tensors import FORMATS

FIRST_WORD = 259  # behind control tokens and bytes
SUCCESSOR_LOGIT = 30.0
HEAD_SIZE = 64
PREDICTING = ("qwen35",)  # architectures whose files may have blocks that predict


def cycle(words: int, random: np.random.Generator) -> np.ndarray:
    """By word: the one that follows it."""
    order = random.permutation(words)
    successors = np.empty(words, dtype=np.int64)
    successors[order] = np.roll(order, -1)
    return successors


def with_errors(successors: np.ndarray, acceptance: float,
                random: np.random.Generator) -> np.ndarray:
    """The same, but for a part of the words, whose successors change places among them."""
    count = round((1 - acceptance) * len(successors))
    if count == 0:
        return successors
    wrong = random.choice(len(successors), max(count, 2), replace=False)
    changed = successors.copy()
    changed[wrong] = successors[np.roll(wrong, 1)]
    return changed


def output_matrix(embedding: np.ndarray, successors: np.ndarray) -> np.ndarray:
    """Its rows are the embeddings of the tokens before."""
    scale = SUCCESSOR_LOGIT / embedding.shape[1]
    output = np.zeros_like(embedding)
    output[FIRST_WORD + successors] = embedding[FIRST_WORD:] * scale
    # Any other token is followed by some word.
    output[FIRST_WORD:2 * FIRST_WORD] += embedding[:FIRST_WORD] * scale
    return output


def plan_successors(shape: Shape, successors: np.ndarray, seed: int,
                    drafted: np.ndarray | None = None):
    """Changes a model's tensors so that each word is followed by its successor; where a block
    predicts further tokens, by what is `drafted`."""
    def prepare(tensors) -> None:
        random = np.random.default_rng([seed, shape.embedding])
        embedding = random.standard_normal((shape.vocabulary, shape.embedding), dtype=np.float32)
        rows = {"token_embd.weight": embedding,
                "output.weight": output_matrix(embedding, successors)}
        for block in range(shape.layers, shape.layers + shape.predicting):
            of_block = f"blk.{block}.nextn."
            rows[of_block + "shared_head_head.weight"] = output_matrix(embedding, drafted)
            rows[of_block + "eh_proj.weight"] = np.eye(shape.embedding, 2 * shape.embedding,
                                                       dtype=np.float32)
        for tensor in tensors:
            if tensor.name in rows:
                tensor.values = gguf.quants.quantize(rows[tensor.name], tensor.format)
            elif tensor.name.endswith(("attn_output.weight", "ssm_out.weight", "ffn_down.weight")):
                tensor.deviation = 0.0
    return prepare


def small_shape(shape: Shape, layers: int, width: int) -> Shape:
    heads = max(1, width // HEAD_SIZE)
    return dataclasses.replace(shape, layers=layers, embedding=width, heads=heads, kv_heads=heads,
                               head_size=width // heads, rotary_size=width // heads,
                               feed_forward=4 * width)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    shapes = [name for name, shape in SHAPES.items() if shape.architecture in PREDICTING
              or shape.architecture == "llama" and not shape.tied and not shape.mixture]
    parser.add_argument("--shape", required=True, choices=shapes, help="of the large model")
    parser.add_argument("--format", required=True, choices=FORMATS)
    parser.add_argument("--acceptance", required=True, type=float,
                        help="of how many of the words the successor is drafted rightly, 0 to 1")
    parser.add_argument("--output", required=True, metavar="FILE")
    parser.add_argument("--draft-output", metavar="FILE")
    parser.add_argument("--vocabulary", type=int, metavar="TOKENS", help="other than the shape's")
    parser.add_argument("--layers", type=int, help="of the large model, other than the shape's")
    parser.add_argument("--draft-layers", type=int, default=2, help="of the small model")
    parser.add_argument("--draft-width", type=int, default=256,
                        help="columns of the small model's embedding")
    parser.add_argument("--tiny", action="store_true", help="as for make_model.py: for tests")
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    if not 0 <= arguments.acceptance <= 1:
        parser.error("--acceptance must be from 0 to 1")
    if arguments.vocabulary is not None and arguments.vocabulary < 2 * FIRST_WORD:
        parser.error(f"--vocabulary must be at least {2 * FIRST_WORD}")
    predicts = SHAPES[arguments.shape].architecture in PREDICTING
    if predicts == (arguments.draft_output is not None):
        parser.error(f"--shape {arguments.shape} is written with a block that predicts: "
                     "leave out --draft-output" if predicts else
                     f"--shape {arguments.shape} has no block that predicts: give --draft-output")
    return arguments


def main() -> None:
    arguments = parse_arguments()
    shape = SHAPES[arguments.shape]
    if arguments.tiny:
        shape = dataclasses.replace(tiny(shape), vocabulary=4096)
    if arguments.layers is not None:
        shape = dataclasses.replace(shape, layers=arguments.layers)
    if arguments.vocabulary is not None:
        shape = dataclasses.replace(shape, vocabulary=arguments.vocabulary)
    random = np.random.default_rng(arguments.seed)
    successors = cycle(shape.vocabulary - FIRST_WORD, random)
    drafted = with_errors(successors, arguments.acceptance, random)
    if arguments.draft_output is None:
        shape = dataclasses.replace(shape, tied=False, predicting=1)
        files = [(arguments.output, shape, successors)]
    else:
        draft = small_shape(shape, arguments.draft_layers, arguments.draft_width)
        files = [(arguments.output, shape, successors), (arguments.draft_output, draft, drafted)]
    for path, one, following in files:
        _, size = write_model(path, one, arguments.format, arguments.shape, is_pure=True,
                              seed=arguments.seed,
                              prepare=plan_successors(one, following, arguments.seed, drafted))
        print(f"{path}: {one.layers} layers of {one.embedding} columns, {size / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
