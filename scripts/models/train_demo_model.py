#!/usr/bin/env python3
"""Trains the model that is bundled with Lockstep, from nothing but this repository and a seed.

It makes its own training text (templated stories, questions and answers, small sums), a byte-level
BPE vocabulary and a small network of the llama architecture, and writes one GGUF file. It needs
torch, tokenizers, gguf and numpy, and less than 40 minutes on two idle cores.
"""

import argparse
import json
import math
import os
import random
import time
from pathlib import Path

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # spinning is slow beside other programs

import numpy as np
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from torch.nn import functional

from demo_chats import make_chat, make_plain_questions
from demo_model import (END_OF_TEXT, MESSAGE_END, MESSAGE_START, DemoModel, Shape, generate,
                        write_gguf)
from demo_stories import make_story

SEED = 20260
# (steps, rows, tokens per row): 2048 tokens a step, and only the last steps have a whole context,
# as attention over long rows costs more and most documents are short.
PHASES = ((1600, 8, 256), (300, 4, 512))
STEPS = sum(steps for steps, _, _ in PHASES)
WARMUP_STEPS = 60
PEAK_RATE, LAST_RATE = 2e-3, 5e-5
VOCABULARY_DOCUMENTS = 20000
SAMPLE_PROMPTS = ("Once upon a time", "Question: What is the opposite of hot?\nAnswer:")
SAMPLE_QUESTIONS = ("Who are you?", "What is 7 plus 5?", "What is the capital of France?")


def chat_text(messages: list[tuple[str, str]]) -> str:
    """The conversation as the file's chat template renders it."""
    return "".join(f"{MESSAGE_START}{role}\n{content}{MESSAGE_END}\n" for role, content in messages)


def make_document(rng: random.Random) -> str:
    draw = rng.random()
    if draw < 0.3:
        return make_story(rng).text
    if draw < 0.36:
        return make_plain_questions(rng)
    return chat_text(make_chat(rng))


def train_tokenizer(size: int) -> Tokenizer:
    """A byte-level BPE vocabulary with GPT-2's pre-tokenizer, learned from the same text."""
    rng = random.Random(SEED)
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size, special_tokens=[END_OF_TEXT, MESSAGE_START, MESSAGE_END],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()), show_progress=False)
    documents = (make_document(rng) for _ in range(VOCABULARY_DOCUMENTS))
    plain = (d.replace(MESSAGE_START, "").replace(MESSAGE_END, "") for d in documents)
    tokenizer.train_from_iterator(plain, trainer)
    return tokenizer


def make_rows(tokenizer: Tokenizer, rng: random.Random, count: int, length: int) -> np.ndarray:
    """Rows of length + 1 ids. Each starts with a new document; the last one in it may be cut.

    Every document follows an end-of-text token, which a tenth of the rows leave out at their start.
    """
    end = tokenizer.token_to_id(END_OF_TEXT)
    rows = np.empty((count, length + 1), dtype=np.int64)
    pending: list[list[int]] = []
    for index in range(count):
        row: list[int] = []
        while len(row) < length + 2:
            if not pending:
                batch = [make_document(rng) for _ in range(512)]
                pending = [e.ids for e in tokenizer.encode_batch(batch)]
            row += [end] + pending.pop()
        first = 1 if rng.random() < 0.1 else 0
        rows[index] = row[first:first + length + 1]
    return rows


def make_batches(tokenizer: Tokenizer) -> list[np.ndarray]:
    """One [rows, tokens + 1] array of ids per step."""
    rng, batches = random.Random(SEED + 1), []
    for steps, rows, length in PHASES:
        batches += np.split(make_rows(tokenizer, rng, steps * rows, length), steps)
    return batches


def learning_rate(step: int) -> float:
    """A linear start, then half a cosine down to the last rate."""
    if step < WARMUP_STEPS:
        return PEAK_RATE * (step + 1) / WARMUP_STEPS
    progress = (step - WARMUP_STEPS) / (STEPS - WARMUP_STEPS)
    return LAST_RATE + (PEAK_RATE - LAST_RATE) * 0.5 * (1 + math.cos(math.pi * progress))


def make_optimizers(model: DemoModel) -> list[torch.optim.Optimizer]:
    """Muon for the layers' matrices, which needs fewer steps, and AdamW for everything else."""
    layers = [p for n, p in model.named_parameters() if p.dim() == 2 and n.startswith("blk.")]
    others = [p for n, p in model.named_parameters() if not (p.dim() == 2 and n.startswith("blk."))]
    return [torch.optim.Muon(layers, lr=PEAK_RATE, weight_decay=0.1,
                             adjust_lr_fn="match_rms_adamw"),
            torch.optim.AdamW(others, lr=PEAK_RATE, betas=(0.9, 0.97), weight_decay=0.0,
                              fused=True)]


def print_samples(model: DemoModel, tokenizer: Tokenizer) -> None:
    model.eval()
    questions = [chat_text([("user", q)]) + f"{MESSAGE_START}assistant\n" for q in SAMPLE_QUESTIONS]
    for prompt in list(SAMPLE_PROMPTS) + questions:
        print(f"  {prompt!r}: {generate(model, tokenizer, prompt)!r}", flush=True)
    model.train()


def train(model: DemoModel, batches: list[np.ndarray], tokenizer: Tokenizer,
          folder: Path) -> None:
    """Walks all batches once. Every 400 steps a draft of the file goes to `folder`."""
    optimizers, started, recent = make_optimizers(model), time.monotonic(), []
    for step, rows in enumerate(batches):
        batch = torch.from_numpy(rows)
        for group in (group for optimizer in optimizers for group in optimizer.param_groups):
            group["lr"] = learning_rate(step)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            logits = model(batch[:, :-1])
        loss = functional.cross_entropy(logits.float().flatten(0, 1), batch[:, 1:].flatten())
        model.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optimizer in optimizers:
            optimizer.step()
        recent.append(loss.item())
        if (step + 1) % 20 == 0:
            seconds = time.monotonic() - started
            print(f"step {step + 1} of {STEPS}: loss {np.mean(recent[-20:]):.4f}, "
                  f"{seconds / (step + 1):.2f} s per step, {seconds / 60:.1f} min", flush=True)
        if (step + 1) % 400 == 0:
            write_gguf(folder / "draft.gguf", model, json.loads(tokenizer.to_str()))
            torch.save(model.state_dict(), folder / "draft.pt")
            print_samples(model, tokenizer)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, default=Path("config/demo.gguf"))
    parser.add_argument("--folder", type=Path, default=Path("build/demo-model"),
                        help="where drafts go while it trains")
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(options.threads)
    torch.manual_seed(SEED)
    torch.use_deterministic_algorithms(True)
    torch.utils.deterministic.fill_uninitialized_memory = False  # costs 5 % and no one reads it

    shape = Shape()
    started = time.monotonic()
    tokenizer = train_tokenizer(shape.vocabulary)
    tokenizer.save(str(options.folder / "tokenizer.json"))
    batches = make_batches(tokenizer)
    model = DemoModel(shape)
    print(f"{sum(p.numel() for p in model.parameters())} parameters, "
          f"{sum(b.size for b in batches)} tokens, "
          f"text made in {time.monotonic() - started:.0f} s", flush=True)
    train(model, batches, tokenizer, options.folder)
    write_gguf(options.output, model, json.loads(tokenizer.to_str()))
    print(f"wrote {options.output}: {options.output.stat().st_size} bytes in "
          f"{(time.monotonic() - started) / 60:.1f} min")


if __name__ == "__main__":
    main()
