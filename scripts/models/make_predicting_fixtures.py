#!/usr/bin/env python3
"""Writes tiny models with a block that predicts further tokens (nextn.*), and what llama.cpp makes
of it.

For every row of MODELS: <name>.gguf, which is a model of tests/fixtures/families with one more
block, and of llama.cpp, which loads the file, raw little-endian float32:

    <name>-given.f32    [tokens, columns]: the model's rows that the block is given
    <name>-own.f32      [tokens + steps, columns]: the block's own rows
    <name>-logits.f32   [tokens + steps, vocabulary]: the block's logits

index.json lists them:

    {"versions": {...},
     "models": [{"name", "file", "architecture", "vocabulary", "columns", "spread", "tokens": [...],
                 "steps": [...]}]}

At position p the block reads token p and the model's row of token p - 1, at 0 zeros. `steps` are
tokens behind the text: the first is the model's likeliest, each further one the block's, which
reads its own row of the token before.

The block's matrices are random, as large as those of a layer that the row names; so are its
norms. Its experts are apart as that layer's are. Some files have tensors of their own for what
blocks share with the model, or lack its last norm, so that all of them are tried.

It needs gguf, numpy and llama-cpp-python, as make_family_fixtures.py does.
"""

import argparse
import ctypes
import json
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import gguf
import llama_cpp
import numpy as np
from llama_cpp import llama_cpp as llama

from llama_cpp_logits import quiet_llama

FAMILIES = Path(__file__).resolve().parents[2] / "tests/fixtures/families"
SEED = 47
TOKENS = 24
STEPS = 3
PREDICTING_CONTEXT = 1  # llama.cpp's LLAMA_CONTEXT_TYPE_MTP
DECODE = 1  # and its LLAMA_PROCESS_TYPE_DECODE


@dataclass(frozen=True)
class Predicting:
    name: str  # of the family's file
    like: int  # the layer that the block is like
    own: tuple[str, ...] = ()  # tensors of its own: embed_tokens, shared_head_head
    last_norm: str | None = "nextn.shared_head_norm"
    fed_like: int | None = None  # another layer that its feed-forward is like
    is_fused: bool = False  # queries, keys and values are one tensor
    own_norms: tuple[str, ...] = ()  # that the layers do not have


MODELS = [
    Predicting("qwen3next", 1),
    Predicting("qwen35", 1),
    Predicting("qwen35moe", 1, ("shared_head_head",)),
    Predicting("glm4moe-norms", 1, ("embed_tokens", "shared_head_head")),
    Predicting("deepseek2-v3", 1, ("embed_tokens",)),
    Predicting("deepseek32", 1, last_norm=None),
    Predicting("glm-dsa", 1),
    Predicting("mimo2", 1, last_norm="layer_output_norm", fed_like=0, is_fused=True),
    Predicting("nemotron_h_moe", 2, fed_like=1, own_norms=("post_attention_norm",)),
]


def random_like(generator: np.random.Generator, name: str, values: np.ndarray) -> np.ndarray:
    if "ffn_gate_inp.weight" in name or "exp_probs_b" in name:
        return values  # they keep a token's experts apart
    drawn = generator.standard_normal(values.shape)
    if name.endswith("norm.weight"):
        return (1 + 0.2 * drawn).astype(np.float32)
    return (values.mean() + values.std() * drawn).astype(np.float32)


def block_tensors(row: Predicting, tensors: dict[str, np.ndarray], block: int) -> dict:
    generator = np.random.default_rng(SEED)
    prefix = f"blk.{block}."
    fed_like = row.like if row.fed_like is None else row.fed_like
    found = {}
    for layer, is_fed in ((row.like, False), (fed_like, True)):
        like = f"blk.{layer}."
        found |= {prefix + name.removeprefix(like): random_like(generator, name, values)
                  for name, values in tensors.items()
                  if name.startswith(like) and (".ffn_" in name or "exp_probs" in name) == is_fed}
    if row.is_fused:
        parts = [found.pop(f"{prefix}attn_{part}.weight") for part in "qkv"]
        found[f"{prefix}attn_qkv.weight"] = np.concatenate(parts)
    vocabulary, columns = tensors["token_embd.weight"].shape
    norms = ["nextn.enorm", "nextn.hnorm", *row.own_norms]
    norms += [row.last_norm] if row.last_norm else []
    for name in norms:
        drawn = 1 + 0.2 * generator.standard_normal(columns)
        found[f"{prefix}{name}.weight"] = drawn.astype(np.float32)
    joined = generator.standard_normal((columns, 2 * columns)) / np.sqrt(2 * columns)
    found[f"{prefix}nextn.eh_proj.weight"] = joined.astype(np.float32)
    for name in row.own:
        drawn = generator.standard_normal((vocabulary, columns))
        if name == "shared_head_head":
            drawn /= np.sqrt(columns)
        found[f"{prefix}nextn.{name}.weight"] = drawn.astype(np.float32)
    return found


def write_model(path: Path, row: Predicting) -> str:
    reader = gguf.GGUFReader(FAMILIES / f"{row.name}.gguf")
    architecture = reader.fields["general.architecture"].contents()
    writer = gguf.GGUFWriter(str(path), architecture)
    predicts = f"{architecture}.nextn_predict_layers"
    had = reader.fields[predicts].contents() if predicts in reader.fields else 0
    block = reader.fields[f"{architecture}.block_count"].contents() - had
    for name, field in reader.fields.items():
        if name.startswith("GGUF.") or name in ("general.architecture", predicts):
            continue
        value, kind = field.contents(), field.types[0]
        if name == f"{architecture}.block_count":
            value = block + 1
        if kind == gguf.GGUFValueType.ARRAY:
            if len(value) == block and name.startswith(architecture):
                value = value + [value[row.like]]
            writer.add_array(name, value)
        else:
            writer.add_key_value(name, value, kind)
    writer.add_uint32(predicts, 1)
    tensors = {tensor.name: np.array(tensor.data) for tensor in reader.tensors
               if not tensor.name.startswith(f"blk.{block}.")}
    for name, values in (tensors | block_tensors(row, tensors, block)).items():
        writer.add_tensor(name, np.ascontiguousarray(values))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return architecture


class Embedding(ctypes.Structure):
    """llama.cpp's llama_embd."""

    _fields_ = [("data", ctypes.POINTER(ctypes.c_float)), ("rows", ctypes.c_size_t),
                ("columns", ctypes.c_size_t)]


class LlamaModel:
    """A file in llama.cpp, with the functions that its bindings lack."""

    def __init__(self, path: Path):
        library = llama._lib
        self.add = library.llama_batch_ext_add_token
        self.set_rows = library.llama_batch_ext_set_embd_token
        self.set_rows.argtypes = [ctypes.c_void_p, ctypes.c_int32, Embedding]
        self.set_position = library.llama_batch_ext_set_pos
        self.set_output = library.llama_batch_ext_set_output_logits
        self.process = library.llama_process
        self.begin_batch = library.llama_batch_ext_init
        self.end_batch = library.llama_batch_ext_free
        # Names of C++ functions: the library declares these in its header for extensions.
        self.hand_out = library._Z26llama_set_embeddings_nextnP13llama_contextbb
        self.own_row = library._Z30llama_get_embeddings_nextn_ithP13llama_contexti
        self.begin_batch.restype = ctypes.c_void_p
        self.own_row.restype = ctypes.POINTER(ctypes.c_float)
        options = llama.llama_model_default_params()
        options.n_gpu_layers = 0
        options.load_mtp = True
        self.model = llama.llama_model_load_from_file(str(path).encode(), options)
        if not self.model:
            raise ValueError(f"{path}: llama.cpp does not load it")
        self.columns = llama.llama_model_n_embd(self.model)
        self.vocabulary = llama.llama_vocab_n_tokens(llama.llama_model_get_vocab(self.model))

    def context(self, kind: int):
        options = llama.llama_context_default_params()
        options.ctx_type = kind
        options.n_ctx = 256
        options.n_batch = options.n_ubatch = 256
        options.n_threads = options.n_threads_batch = 1
        options.type_k = options.type_v = llama_cpp.GGML_TYPE_F32
        options.flash_attn_type = 0
        context = llama.llama_init_from_model(self.model, options)
        # Rows of the model are handed out for all tokens, as llama.cpp's own drafts ask for them:
        # those of tokens with logits alone are others in mimo2, behind the last norm.
        only_with_logits = ctypes.c_bool(kind == PREDICTING_CONTEXT)
        self.hand_out(ctypes.c_void_p(context), ctypes.c_bool(True), only_with_logits)
        return context

    def compute(self, context, tokens, first: int, given=None) -> tuple[np.ndarray, np.ndarray]:
        """Logits and own rows behind all tokens, which follow one another from `first` on."""
        batch = ctypes.c_void_p(self.begin_batch(ctypes.c_void_p(context)))
        for index, token in enumerate(tokens):
            place = self.add(batch, 0, int(token))
            position = (ctypes.c_int32 * 4)(*[first + index] * 4)
            self.set_position(batch, place, position)
            if given is not None:
                data = given[index].ctypes.data_as(ctypes.POINTER(ctypes.c_float))
                if not self.set_rows(batch, place, Embedding(data, 1, self.columns)):
                    raise ValueError("llama.cpp takes no row")
            self.set_output(batch, place, ctypes.c_bool(True))
        if self.process(ctypes.c_void_p(context), DECODE, batch) != 0:
            raise ValueError("llama.cpp does not compute it")
        logits, own = [], []
        for index in range(len(tokens)):
            row = llama.llama_get_logits_ith(context, index)
            logits.append(np.ctypeslib.as_array(row, (self.vocabulary,)).copy())
            row = self.own_row(ctypes.c_void_p(context), index)
            own.append(np.ctypeslib.as_array(row, (self.columns,)).copy())
        self.end_batch(batch)
        return np.array(logits), np.array(own)


def make_entry(folder: Path, row: Predicting) -> dict:
    file = f"{row.name}.gguf"
    architecture = write_model(folder / file, row)
    model = LlamaModel(folder / file)
    tokens = [(2 + index * 37) % 128 for index in range(TOKENS)]
    logits, rows = model.compute(model.context(0), tokens, 0)
    given = np.concatenate([np.zeros((1, model.columns), np.float32), rows[:-1]])
    block = model.context(PREDICTING_CONTEXT)
    predicted, own = model.compute(block, tokens, 0, given)
    spread = float(predicted.std())
    steps, last = [int(logits[-1].argmax())], rows[-1:]
    for step in range(STEPS):
        more, row_behind = model.compute(block, steps[-1:], TOKENS + step, last)
        predicted, own = np.concatenate([predicted, more]), np.concatenate([own, row_behind])
        steps.append(int(more[0].argmax()))
        last = row_behind
    for kind, values in (("given", rows), ("own", own), ("logits", predicted)):
        if not np.isfinite(values).all():
            raise ValueError(f"{row.name}: {kind} are no numbers")
        values.astype("<f4").tofile(folder / f"{row.name}-{kind}.f32")
    print(f"{row.name}: spread {spread:.3f}, steps {steps[:-1]}", flush=True)
    return {"name": row.name, "file": file, "architecture": architecture,
            "vocabulary": model.vocabulary, "columns": model.columns,
            "spread": float(f"{spread:.4g}"), "tokens": tokens, "steps": steps[:-1]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--folder", type=Path, default=FAMILIES.parent / "predicting")
    folder = parser.parse_args().folder
    folder.mkdir(parents=True, exist_ok=True)
    printer = quiet_llama()
    index = {"versions": {"gguf": version("gguf"), "llama.cpp": llama_cpp.__version__},
             "models": [make_entry(folder, row) for row in MODELS]}
    (folder / "index.json").write_text(json.dumps(index, indent=1) + "\n")
    del printer


if __name__ == "__main__":
    main()
