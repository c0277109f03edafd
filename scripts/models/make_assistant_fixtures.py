#!/usr/bin/env python3
"""Writes tiny gemma4-assistant files, and what llama.cpp makes of them.

For every row of FILES: <name>-assistant.gguf, layers that draft for the model of
tests/fixtures/families that has the row's name, and of llama.cpp, which loads both files, raw
little-endian float32:

    <name>-logits.f32   [tokens - 1 + steps, vocabulary]: the assistant's logits
    <name>-flat.f32     the same of copies of both files whose feed-forwards add nothing

llama.cpp looks GELU up in a table of halves, so that the first are less exact than the second.

index.json lists them:

    {"versions": {...},
     "models": [{"name", "file", "model", "vocabulary", "spread", "tokens": [...], "steps": [...],
                 "flat_steps": [...]}]}

Row p of the logits is behind token p + 1 of the text, of which the assistant reads the embedding
beside the model's row of token p; it sees the model's keys and values of tokens 0 to p, with the
rotary position of p + 1. `steps` are tokens behind the text: the first is the model's likeliest,
each further one the assistant's, which reads its own row of the token before. All have the position
behind the text, and see the keys of the text alone.

The text is longer than the models' windows. It needs gguf, numpy and llama-cpp-python, as
make_family_fixtures.py does.
"""

import argparse
import ctypes
import json
import tempfile
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import gguf
import llama_cpp
import numpy as np
from llama_cpp import llama_cpp as llama

from llama_cpp_logits import quiet_llama
from make_eagle_fixtures import FIXTURES, copied_tokenizer, drawers, write_all
from make_predicting_fixtures import PREDICTING_CONTEXT, LlamaModel

SEED = 59
TOKENS = 40
STEPS = 3
ARCHITECTURE = "gemma4-assistant"
SHARED_KEYS = ("context_length", "attention.layer_norm_rms_epsilon", "rope.freq_base",
               "rope.freq_base_swa", "rope.dimension_count", "rope.dimension_count_swa",
               "attention.key_length", "attention.value_length", "attention.key_length_swa",
               "attention.value_length_swa", "attention.sliding_window",
               "embedding_length_per_layer_input")


@dataclass(frozen=True)
class Assistant:
    name: str  # of the model's file
    windowed: tuple[bool, ...]  # by layer
    heads: int
    kv_heads: tuple[int, int]  # of layers with a window, and of the others
    columns: int = 64


FILES = [
    Assistant("gemma4", (True, True, False), 4, (2, 1)),
    Assistant("gemma4-e", (True, False, False, True), 2, (1, 1)),
    Assistant("gemma4-moe", (False, True), 4, (1, 1)),
]


def assistant_tensors(row: Assistant, model: dict, keys: dict) -> dict[str, np.ndarray]:
    matrix, norm = drawers(np.random.default_rng(SEED))
    columns, wide = row.columns, row.columns + 8
    vocabulary, model_columns = model["token_embd.weight"].shape
    found = {"token_embd.weight": matrix(vocabulary, columns) * 4,
             "nextn.pre_projection.weight": matrix(columns, 2 * model_columns),
             "nextn.post_projection.weight": matrix(model_columns, columns),
             "rope_freqs.weight": model["rope_freqs.weight"], "output_norm.weight": norm(columns)}
    for layer, is_windowed in enumerate(row.windowed):
        head = keys["attention.key_length_swa" if is_windowed else "attention.key_length"]
        block = f"blk.{layer}."
        found |= {f"{block}attn_norm.weight": norm(columns),
                  f"{block}attn_q.weight": matrix(row.heads * head, columns),
                  f"{block}attn_q_norm.weight": norm(head),
                  f"{block}attn_output.weight": matrix(columns, row.heads * head),
                  f"{block}post_attention_norm.weight": norm(columns),
                  f"{block}ffn_norm.weight": norm(columns),
                  f"{block}ffn_gate.weight": matrix(wide, columns),
                  f"{block}ffn_up.weight": matrix(wide, columns),
                  f"{block}ffn_down.weight": matrix(columns, wide),
                  f"{block}post_ffw_norm.weight": norm(columns),
                  f"{block}layer_output_scale.weight":
                      np.array([0.6 + 0.2 * layer], dtype=np.float32)}
    return found


def write_assistant(path: Path, row: Assistant) -> None:
    reader = gguf.GGUFReader(FIXTURES / f"families/{row.name}.gguf")
    writer = gguf.GGUFWriter(str(path), ARCHITECTURE)
    copied_tokenizer(reader, writer)
    keys = {key: reader.fields[f"gemma4.{key}"] for key in SHARED_KEYS}
    for key, field in keys.items():
        writer.add_key_value(f"{ARCHITECTURE}.{key}", field.contents(), field.types[0])
    layers = len(row.windowed)
    writer.add_block_count(layers)
    writer.add_nextn_predict_layers(layers)
    writer.add_shared_kv_layers(layers)
    writer.add_embedding_length(row.columns)
    writer.add_embedding_length_out(reader.fields["gemma4.embedding_length"].contents())
    writer.add_feed_forward_length(row.columns + 8)
    writer.add_head_count(row.heads)
    writer.add_head_count_kv([row.kv_heads[0 if is_windowed else 1]
                              for is_windowed in row.windowed])
    writer.add_sliding_window_pattern(list(row.windowed))
    tensors = {tensor.name: np.array(tensor.data) for tensor in reader.tensors}
    write_all(writer, assistant_tensors(row, tensors, {key: field.contents()
                                                       for key, field in keys.items()}))


class AssistantModel(LlamaModel):
    """The assistant, in a context beside the model's, whose cache it reads."""

    def __init__(self, path: Path, computing, row_columns: int):
        super().__init__(path)
        self.columns = row_columns
        options = llama.llama_context_default_params()
        options.ctx_type = PREDICTING_CONTEXT
        options.n_ctx = options.n_batch = options.n_ubatch = 256
        options.n_threads = options.n_threads_batch = 1
        options.type_k = options.type_v = llama_cpp.GGML_TYPE_F32
        options.flash_attn_type = 0
        options.ctx_other = computing
        self.drafting = llama.llama_init_from_model(self.model, options)
        if not self.drafting:
            raise ValueError(f"{path}: llama.cpp makes no context of it")
        self.hand_out(ctypes.c_void_p(self.drafting), ctypes.c_bool(True), ctypes.c_bool(True))


def flat_copy(path: Path, folder: Path) -> Path:
    copy = folder / path.name
    copy.write_bytes(path.read_bytes())
    reader = gguf.GGUFReader(copy, "r+")
    for tensor in reader.tensors:
        if "ffn_down" in tensor.name or tensor.name.endswith(".proj.weight"):
            tensor.data[:] = 0
    reader.data.flush()
    return copy


def compute(model_path: Path, path: Path, tokens) -> tuple[np.ndarray, list[int]]:
    """The assistant's logits, and the steps."""
    model = LlamaModel(model_path)
    computing = model.context(0)
    assistant = AssistantModel(path, computing, model.columns)
    drafted = []
    for place, token in enumerate(tokens):
        if place > 0:
            drafted.append(assistant.compute(assistant.drafting, [token], place, rows)[0])
        logits, rows = model.compute(computing, [token], place)
    steps = [int(logits[-1].argmax())]
    for _ in range(STEPS):
        more, rows = assistant.compute(assistant.drafting, steps[-1:], TOKENS, rows)
        drafted.append(more)
        steps.append(int(more[0].argmax()))
    found = np.concatenate(drafted)
    if not np.isfinite(found).all():
        raise ValueError(f"{path}: logits are no numbers")
    return found, steps[:-1]


def make_entry(folder: Path, row: Assistant) -> dict:
    path = folder / f"{row.name}-assistant.gguf"
    model = FIXTURES / f"families/{row.name}.gguf"
    write_assistant(path, row)
    tokens = [(2 + index * 37) % 128 for index in range(TOKENS)]
    drafted, steps = compute(model, path, tokens)
    with tempfile.TemporaryDirectory() as flat:
        flat_drafted, flat_steps = compute(flat_copy(model, Path(flat)),
                                           flat_copy(path, Path(flat)), tokens)
    drafted.astype("<f4").tofile(folder / f"{row.name}-logits.f32")
    flat_drafted.astype("<f4").tofile(folder / f"{row.name}-flat.f32")
    spread = float(drafted.std())
    print(f"{row.name}: spread {spread:.3f}, steps {steps}, {flat_steps}", flush=True)
    return {"name": row.name, "file": path.name, "model": f"families/{row.name}.gguf",
            "vocabulary": drafted.shape[1], "spread": float(f"{spread:.4g}"), "tokens": tokens,
            "steps": steps, "flat_steps": flat_steps}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--folder", type=Path, default=FIXTURES / "assistants")
    folder = parser.parse_args().folder
    folder.mkdir(parents=True, exist_ok=True)
    printer = quiet_llama()
    index = {"versions": {"gguf": version("gguf"), "llama.cpp": llama_cpp.__version__},
             "models": [make_entry(folder, row) for row in FILES]}
    (folder / "index.json").write_text(json.dumps(index, indent=1) + "\n")
    del printer


if __name__ == "__main__":
    main()
