#!/usr/bin/env python3
"""Writes tiny EAGLE-3 files, and what llama.cpp makes of them.

For every row of FILES: <name>.gguf, a layer that drafts for the model that the row names, and of
llama.cpp, which loads both files, raw little-endian float32:

    <name>-given.f32    [tokens, all columns]: the model's rows that the layer is given
    <name>-own.f32      [tokens + steps, columns]: the layer's own rows
    <name>-logits.f32   [tokens + steps, vocabulary]: its logits, where it has any

index.json lists them:

    {"versions": {...},
     "models": [{"name", "file", "model", "vocabulary", "columns", "given_columns", "spread",
                 "tokens": [...], "steps": [...]}]}

At position p the layer reads token p and the model's rows of token p - 1, at 0 zeros. `steps` are
tokens behind the text: the first is the model's likeliest, each further one the layer's, which
reads its own row of the token before. What stands for a vocabulary of its own has logits of these
tokens alone, in their order.

`model` is a path in tests/fixtures. llama.gguf is a fixture of logits with more layers.

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
from make_predicting_fixtures import DECODE, Embedding, LlamaModel, random_like

FIXTURES = Path(__file__).resolve().parents[2] / "tests/fixtures"
SEED = 53
TOKENS = 24
STEPS = 3
ENCODE = 0  # llama.cpp's LLAMA_PROCESS_TYPE_ENCODE
MODEL_LAYERS = 4  # of llama.gguf


@dataclass(frozen=True)
class Eagle:
    name: str
    model: str
    layers: tuple[int, ...]  # of the model, whose rows are read
    columns: int
    heads: int
    kv_heads: int
    words: int = 0  # of a vocabulary of its own
    own: tuple[str, ...] = ()  # tensors that the model does not lend: token_embd, output
    norms_residual: bool = False
    norms_rows: bool = False
    has_factors: bool = False  # of rotary frequencies


FILES = [
    Eagle("llama", "eagle/llama.gguf", (1, 2, 3), 64, 4, 4, norms_residual=True),
    Eagle("llama-words", "eagle/llama.gguf", (0, 2, 3), 32, 4, 2, 48, ("token_embd", "output"),
          norms_rows=True, has_factors=True),
    Eagle("llama-output", "eagle/llama.gguf", (1, 1, 2), 64, 4, 1, 70, ("output",)),
    Eagle("qwen35", "families/qwen35.gguf", (0, 1, 2), 32, 2, 2, norms_residual=True),
    Eagle("qwen35-table", "families/qwen35.gguf", (0, 2, 2), 32, 2, 1, 0, ("token_embd",),
          norms_rows=True),
]


def copied_field(writer: gguf.GGUFWriter, name: str, value, field: gguf.ReaderField) -> None:
    kind = field.types[0]
    if kind == gguf.GGUFValueType.ARRAY:
        writer.add_array(name, value)
    else:
        writer.add_key_value(name, value, kind)


def copied_fields(reader: gguf.GGUFReader, writer: gguf.GGUFWriter, changed: dict) -> None:
    for name, field in reader.fields.items():
        if name.startswith("GGUF.") or name == "general.architecture":
            continue
        copied_field(writer, name, changed.get(name, field.contents()), field)


def copied_tokenizer(reader: gguf.GGUFReader, writer: gguf.GGUFWriter) -> None:
    for name, field in reader.fields.items():
        if name.startswith("tokenizer."):
            copied_field(writer, name, field.contents(), field)


def drawers(generator: np.random.Generator):
    """Functions that draw a matrix of so many rows and columns, and a norm of so many columns."""

    def matrix(rows: int, columns: int) -> np.ndarray:
        drawn = generator.standard_normal((rows, columns)) / np.sqrt(columns)
        return drawn.astype(np.float32)

    def norm(columns: int) -> np.ndarray:
        return (1 + 0.2 * generator.standard_normal(columns)).astype(np.float32)

    return matrix, norm


def write_all(writer: gguf.GGUFWriter, tensors: dict[str, np.ndarray]) -> None:
    for name, values in tensors.items():
        writer.add_tensor(name, np.ascontiguousarray(values))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def write_model(path: Path) -> None:
    """A fixture of logits, with layers like its second one behind its own."""
    reader = gguf.GGUFReader(FIXTURES / "logits/llama-mha-f32.gguf")
    writer = gguf.GGUFWriter(str(path), "llama")
    copied_fields(reader, writer, {"llama.block_count": MODEL_LAYERS})
    generator = np.random.default_rng(SEED)
    tensors = {tensor.name: np.array(tensor.data) for tensor in reader.tensors}
    for layer in range(2, MODEL_LAYERS):
        tensors |= {name.replace("blk.1.", f"blk.{layer}."): random_like(generator, name, values)
                    for name, values in tensors.items() if name.startswith("blk.1.")}
    write_all(writer, tensors)


def eagle_tensors(row: Eagle, model_columns: int, vocabulary: int) -> dict[str, np.ndarray]:
    generator = np.random.default_rng(SEED)
    matrix, norm = drawers(generator)
    columns, wide = row.columns, row.columns + 8
    head = columns // row.heads
    given = len(row.layers) * model_columns
    found = {"fc.weight": matrix(columns, given), "output_norm.weight": norm(columns),
             "blk.0.attn_norm.weight": norm(columns), "blk.0.attn_norm_2.weight": norm(columns),
             "blk.0.attn_q.weight": matrix(columns, 2 * columns),
             "blk.0.attn_k.weight": matrix(row.kv_heads * head, 2 * columns),
             "blk.0.attn_v.weight": matrix(row.kv_heads * head, 2 * columns),
             "blk.0.attn_output.weight": matrix(columns, columns),
             "blk.0.ffn_norm.weight": norm(columns),
             "blk.0.ffn_gate.weight": matrix(wide, columns),
             "blk.0.ffn_up.weight": matrix(wide, columns),
             "blk.0.ffn_down.weight": matrix(columns, wide)}
    if row.norms_rows:
        found["enc.output_norm.weight"] = norm(given)
    if "token_embd" in row.own:
        found["token_embd.weight"] = generator.standard_normal(
            (vocabulary, columns)).astype(np.float32)
    if "output" in row.own:
        found["output.weight"] = matrix(row.words or vocabulary, columns)
    if row.has_factors:
        found["rope_freqs.weight"] = np.linspace(1, 4, head // 2, dtype=np.float32)
    if row.words:
        found["d2t"] = np.sort(generator.permutation(vocabulary)[:row.words]).astype(np.int64)
    return found


def write_eagle(path: Path, row: Eagle) -> None:
    reader = gguf.GGUFReader(FIXTURES / row.model)
    architecture = reader.fields["general.architecture"].contents()
    writer = gguf.GGUFWriter(str(path), "eagle3")
    copied_tokenizer(reader, writer)
    model_columns = reader.fields[f"{architecture}.embedding_length"].contents()
    vocabulary = len(reader.fields["tokenizer.ggml.tokens"].contents())
    writer.add_block_count(1)
    writer.add_context_length(reader.fields[f"{architecture}.context_length"].contents())
    writer.add_embedding_length(row.columns)
    writer.add_feed_forward_length(row.columns + 8)
    writer.add_head_count(row.heads)
    writer.add_head_count_kv(row.kv_heads)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_array("eagle3.target_layers", list(row.layers))
    writer.add_uint32("eagle3.target_hidden_size", model_columns)
    writer.add_bool("eagle3.norm_before_residual", row.norms_residual)
    writer.add_bool("eagle3.norm_before_fc", row.norms_rows)
    write_all(writer, eagle_tensors(row, model_columns, vocabulary))


class TappedModel(LlamaModel):
    """The model, with the rows that some of its layers read."""

    def __init__(self, path: Path, layers: tuple[int, ...]):
        super().__init__(path)
        self.layers = layers
        self.computing = self.context(0)
        take = llama._lib._Z30llama_set_embeddings_layer_inpP13llama_contextjb
        for layer in layers:
            take(ctypes.c_void_p(self.computing), ctypes.c_uint32(layer), ctypes.c_bool(True))

    def rows(self, tokens) -> tuple[np.ndarray, np.ndarray]:
        logits, _ = self.compute(self.computing, tokens, 0)
        given = llama._lib._Z30llama_get_embeddings_layer_inpP13llama_contextj
        given.restype = ctypes.POINTER(ctypes.c_float)
        parts = []
        for layer in self.layers:
            rows = given(ctypes.c_void_p(self.computing), ctypes.c_uint32(layer))
            parts.append(np.ctypeslib.as_array(rows, (len(tokens), self.columns)).copy())
        return logits, np.concatenate(parts, axis=1)


class EagleModel(LlamaModel):
    """The layer, in a context beside the model's."""

    def __init__(self, path: Path, beside: TappedModel):
        super().__init__(path)
        options = llama.llama_context_default_params()
        options.n_ctx = options.n_batch = options.n_ubatch = 256
        options.n_threads = options.n_threads_batch = 1
        options.type_k = options.type_v = llama_cpp.GGML_TYPE_F32
        options.flash_attn_type = 0
        options.ctx_other = beside.computing
        self.drafting = llama.llama_init_from_model(self.model, options)
        self.hand_out(ctypes.c_void_p(self.drafting), ctypes.c_bool(True), ctypes.c_bool(True))

    def joined(self, given: np.ndarray) -> np.ndarray:
        """The model's rows as the layer reads them."""
        add = llama._lib.llama_batch_ext_add_embd
        add.argtypes = [ctypes.c_void_p, ctypes.c_int32, Embedding]
        batch = ctypes.c_void_p(self.begin_batch(ctypes.c_void_p(self.drafting)))
        rows = [np.ascontiguousarray(row) for row in given]
        for index, row in enumerate(rows):
            data = row.ctypes.data_as(ctypes.POINTER(ctypes.c_float))
            place = add(batch, 0, Embedding(data, 1, len(row)))
            self.set_position(batch, place, (ctypes.c_int32 * 4)(*[index] * 4))
            self.set_output(batch, place, ctypes.c_bool(True))
        if self.process(ctypes.c_void_p(self.drafting), ENCODE, batch) != 0:
            raise ValueError("llama.cpp does not join the rows")
        found = [np.ctypeslib.as_array(self.own_row(ctypes.c_void_p(self.drafting), index),
                                       (self.columns,)).copy() for index in range(len(rows))]
        self.end_batch(batch)
        return np.array(found)


def words_of(path: Path) -> np.ndarray | None:
    for tensor in gguf.GGUFReader(path).tensors:
        if tensor.name == "d2t":
            return np.array(tensor.data)
    return None


def make_entry(folder: Path, row: Eagle) -> dict:
    path = folder / f"{row.name}-eagle.gguf"
    write_eagle(path, row)
    model = TappedModel(FIXTURES / row.model, row.layers)
    eagle = EagleModel(path, model)
    tokens = [(2 + index * 37) % 128 for index in range(TOKENS)]
    logits, given = model.rows(tokens)
    joined = eagle.joined(given)
    before = np.concatenate([np.zeros((1, eagle.columns), np.float32), joined[:-1]])
    drafted, own = eagle.compute(eagle.drafting, tokens, 0, before)
    steps, last = [int(logits[-1].argmax())], joined[-1:]
    for step in range(STEPS):
        more, last = eagle.compute(eagle.drafting, steps[-1:], TOKENS + step, last)
        drafted, own = np.concatenate([drafted, more]), np.concatenate([own, last])
        steps.append(int(more[0].argmax()))
    words = words_of(path)
    if words is not None:
        drafted = drafted[:, words]
    for kind, values in (("given", given), ("own", own), ("logits", drafted)):
        if not np.isfinite(values).all():
            raise ValueError(f"{row.name}: {kind} are no numbers")
        values.astype("<f4").tofile(folder / f"{row.name}-{kind}.f32")
    spread = float(drafted.std())
    print(f"{row.name}: spread {spread:.3f}, steps {steps[:-1]}", flush=True)
    return {"name": row.name, "file": path.name, "model": row.model,
            "vocabulary": drafted.shape[1], "columns": row.columns,
            "given_columns": given.shape[1], "spread": float(f"{spread:.4g}"), "tokens": tokens,
            "steps": steps[:-1]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--folder", type=Path, default=FIXTURES / "eagle")
    folder = parser.parse_args().folder
    folder.mkdir(parents=True, exist_ok=True)
    printer = quiet_llama()
    write_model(FIXTURES / "eagle/llama.gguf")
    index = {"versions": {"gguf": version("gguf"), "llama.cpp": llama_cpp.__version__},
             "models": [make_entry(folder, row) for row in FILES]}
    (folder / "index.json").write_text(json.dumps(index, indent=1) + "\n")
    del printer


if __name__ == "__main__":
    main()
