#!/usr/bin/env python3
"""Writes a tiny random model of each family that embeds or ranks texts, and what it makes of texts.

For every row of MODELS: <name>.gguf, with names and keys as llama.cpp's converters write them, and
for two sequences of token ids <name>-<length>.f32, the last layer's states of all tokens by
transformers (of one that ranks the head's scores of the token that it looks at), raw little-endian
float32 [rows, columns]; <name>-llama.f32 has those of the second sequence by llama.cpp, which loads
the same file. index.json lists them:

    {"versions": {...},
     "models": [{"name", "file", "architecture", "ranks", "reference", "columns", "spread",
                 "llama_cpp": {"rows": "<file>", "difference"},
                 "q8_0": {"rows": "<file>", "row_count", "llama_cpp": {"difference"}},
                 "sequences": [{"tokens": [...], "second_text", "rows": "<file>"}]}]}

`second_text` is the first token of the second of two texts, whose token type is 1; llama.cpp knows
of one type alone, so that its sequences are one text. `difference` is the largest between the two
references, in units of the rows' spread: llama.cpp takes GELU from a table of float16, always as
its approximation by tanh, which is 1e-3 of it. transformers has no Jina Embeddings 2 and no mixture
of Nomic's: JinaModel and NomicMixture below are their published code's computation, and llama.cpp's
rows are the proof that this is so.

"q8_0" is of a copy in Q8_0, as make_family_fixtures.py says: the last rows of the second sequence.

It needs torch, transformers, gguf, numpy and llama-cpp-python, as make_family_fixtures.py does.
--only <name> leaves all files of the other rows as they are.
"""

import argparse
import json
import math
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path

import gguf
import llama_cpp
import numpy as np
import torch
import transformers
from llama_cpp import llama_cpp as llama

from llama_cpp_logits import quiet_llama
from make_logits_fixtures import add_tokenizer, is_quantized, rounded_to_q8_0

SEED = 47
VOCABULARY, HIDDEN, HEADS, LAYERS, WIDE, CONTEXT = 131, 32, 2, 2, 48, 128
LENGTHS = (40, 100)
EXPERTS, CHOSEN = 4, 2
EPSILON = 1e-5
DIFFERENCE_MAX = 2e-2  # of the spread, between transformers and llama.cpp
COPY_ROWS, COPY_DIFFERENCE_MAX = 4, 0.1  # of copies in Q8_0; the root of the mean square
COMMON = {"vocab_size": VOCABULARY, "hidden_size": HIDDEN, "num_attention_heads": HEADS,
          "num_hidden_layers": LAYERS, "intermediate_size": WIDE}
BERT_NAMES = {
    "embeddings.word_embeddings": "token_embd", "embeddings.token_type_embeddings": "token_types",
    "embeddings.position_embeddings": "position_embd", "embeddings.LayerNorm": "token_embd_norm",
    "attention.self.query": "attn_q", "attention.self.key": "attn_k",
    "attention.self.value": "attn_v", "attention.output.dense": "attn_output",
    "attention.output.LayerNorm": "attn_output_norm", "intermediate.dense": "ffn_up",
    "output.dense": "ffn_down", "output.LayerNorm": "layer_output_norm",
    "classifier.dense": "cls", "classifier.out_proj": "cls.output"}
NOMIC_NAMES = {
    "embeddings.word_embeddings": "token_embd", "embeddings.token_type_embeddings": "token_types",
    "embeddings.LayerNorm": "token_embd_norm", "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "attn_output_norm", "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down", "post_mlp_layernorm": "layer_output_norm"}
JINA3_NAMES = NOMIC_NAMES | {"mlp.fc1": "ffn_up", "mlp.fc2": "ffn_down"}
MODERN_NAMES = {
    "embeddings.tok_embeddings": "token_embd", "embeddings.norm": "token_embd_norm",
    "attn_norm": "attn_norm", "attn.Wqkv": "attn_qkv", "attn.Wo": "attn_output",
    "mlp_norm": "ffn_norm", "mlp.Wi": "ffn_up", "mlp.Wo": "ffn_down", "final_norm": "output_norm",
    "head.dense": "cls", "head.norm": "cls.norm", "classifier": "cls.output"}
DECODER_NAMES = {
    "embed_tokens": "token_embd", "norm": "output_norm", "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output", "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down", "post_attention_layernorm": "ffn_norm", "score": "cls.output"}
GEMMA_NAMES = DECODER_NAMES | {
    "post_attention_layernorm": "post_attention_norm", "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm"}


class JinaLayer(torch.nn.Module):
    """Attention with slopes on both sides, norms behind the residual, a GELU gate."""

    def __init__(self):
        super().__init__()
        self.attn_q, self.attn_k, self.attn_v, self.attn_output = (
            torch.nn.Linear(HIDDEN, HIDDEN) for _ in range(4))
        self.attn_output_norm = torch.nn.LayerNorm(HIDDEN, EPSILON)
        self.ffn_gate = torch.nn.Linear(HIDDEN, WIDE, bias=False)
        self.ffn_up = torch.nn.Linear(HIDDEN, WIDE, bias=False)
        self.ffn_down = torch.nn.Linear(WIDE, HIDDEN)
        self.layer_output_norm = torch.nn.LayerNorm(HIDDEN, EPSILON)

    def forward(self, x):
        count = x.shape[0]
        heads = lambda values: values.view(count, HEADS, -1).transpose(0, 1)
        places = torch.arange(count)
        slopes = torch.tensor([2 ** (-8 * (head + 1) / HEADS) for head in range(HEADS)])
        bias = -slopes[:, None, None] * (places[:, None] - places).abs()
        attended = torch.nn.functional.scaled_dot_product_attention(
            heads(self.attn_q(x)), heads(self.attn_k(x)), heads(self.attn_v(x)), attn_mask=bias)
        x = self.attn_output_norm(x + self.attn_output(attended.transpose(0, 1).reshape(count, -1)))
        gated = torch.nn.functional.gelu(self.ffn_gate(x)) * self.ffn_up(x)
        return self.layer_output_norm(x + self.ffn_down(gated))


class JinaModel(torch.nn.Module):
    def __init__(self, _):
        super().__init__()
        self.token_embd = torch.nn.Embedding(VOCABULARY, HIDDEN)
        self.token_types = torch.nn.Embedding(2, HIDDEN)
        self.token_embd_norm = torch.nn.LayerNorm(HIDDEN, EPSILON)
        self.layers = torch.nn.ModuleList(JinaLayer() for _ in range(LAYERS))

    def forward(self, tokens, token_type_ids):
        x = self.token_embd_norm(self.token_embd(tokens[0]) + self.token_types(token_type_ids[0]))
        for layer in self.layers:
            x = layer(x)
        return transformers.modeling_outputs.BaseModelOutput(last_hidden_state=x[None])


class Matrices(torch.nn.Module):
    """One for each expert."""

    def __init__(self, rows, columns):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.empty(EXPERTS, rows, columns))


class NomicLayer(torch.nn.Module):
    """Attention with rotary positions, norms behind the residual, and GELU, of experts or not."""

    def __init__(self, has_experts):
        super().__init__()
        self.attn_q, self.attn_k, self.attn_v, self.attn_output = (
            torch.nn.Linear(HIDDEN, HIDDEN) for _ in range(4))
        self.attn_output_norm = torch.nn.LayerNorm(HIDDEN, EPSILON)
        self.has_experts = has_experts
        if has_experts:
            self.ffn_gate_inp = torch.nn.Linear(HIDDEN, EXPERTS, bias=False)
            self.ffn_up_exps, self.ffn_down_exps = Matrices(WIDE, HIDDEN), Matrices(HIDDEN, WIDE)
        else:
            self.ffn_up, self.ffn_down = (
                torch.nn.Linear(HIDDEN, WIDE), torch.nn.Linear(WIDE, HIDDEN))
        self.layer_output_norm = torch.nn.LayerNorm(HIDDEN, EPSILON)

    def turned(self, values):
        size = values.shape[-1]
        angles = torch.arange(values.shape[1])[:, None] * 1000.0 ** (-torch.arange(0, size, 2) / size)
        first, second = values[..., :size // 2], values[..., size // 2:]
        return torch.cat((first * angles.cos() - second * angles.sin(),
                          second * angles.cos() + first * angles.sin()), -1)

    def feed(self, x):
        if not self.has_experts:
            return self.ffn_down(torch.nn.functional.gelu(self.ffn_up(x)))
        weights, chosen = torch.softmax(self.ffn_gate_inp(x), -1).topk(CHOSEN, -1)
        inner = torch.nn.functional.gelu(
            torch.einsum("teij,tj->tei", self.ffn_up_exps.weight[chosen], x))
        outer = torch.einsum("teij,tej->tei", self.ffn_down_exps.weight[chosen], inner)
        return (weights[..., None] * outer).sum(1)

    def forward(self, x):
        count = x.shape[0]
        heads = lambda values: values.view(count, HEADS, -1).transpose(0, 1)
        attended = torch.nn.functional.scaled_dot_product_attention(
            self.turned(heads(self.attn_q(x))), self.turned(heads(self.attn_k(x))),
            heads(self.attn_v(x)))
        x = self.attn_output_norm(x + self.attn_output(attended.transpose(0, 1).reshape(count, -1)))
        return self.layer_output_norm(x + self.feed(x))


class NomicMixture(JinaModel):
    def __init__(self, _):
        super().__init__(_)
        self.layers = torch.nn.ModuleList(NomicLayer(index % 2 == 1) for index in range(3))


@dataclass(frozen=True)
class Model:
    """One fixture."""

    name: str
    architecture: str
    config: type | None
    network: type
    names: dict[str, str]
    options: dict = field(default_factory=dict)
    keys: dict = field(default_factory=dict)  # of the file, by what follows the architecture's name
    types: int = 0  # token types that the network takes
    position_offset: int = 0  # of its table of positions; the file's begins with the first
    ranks: bool = False
    is_causal: bool = False
    layers: int = LAYERS
    adds_one: bool = False  # norms multiply by 1 + weight, which the file has


LAYER_NORM = {"attention.layer_norm_epsilon": EPSILON}
RMS_NORM = {"attention.layer_norm_rms_epsilon": EPSILON, "attention.head_count_kv": 1,
            "attention.key_length": 16, "attention.value_length": 16, "rope.freq_base": 10000.0}
HEAD = {"num_key_value_heads": 1, "head_dim": 16, "rms_norm_eps": EPSILON}
MODERN = {"max_position_embeddings": CONTEXT, "norm_eps": EPSILON, "local_attention": 12,
          "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 1, "cls_token_id": 1,
          "sep_token_id": 1}
MODERN_KEYS = LAYER_NORM | {
    "rope.freq_base": 160000.0, "rope.freq_base_swa": 10000.0, "attention.sliding_window": 12,
    "attention.sliding_window_pattern": 3, "hidden_activation": "gelu"}
MODELS = (
    Model("bert", "bert", transformers.BertConfig, transformers.BertModel, BERT_NAMES,
          {"max_position_embeddings": CONTEXT, "layer_norm_eps": EPSILON}, LAYER_NORM, types=2),
    Model("bert-rank", "bert", transformers.XLMRobertaConfig,
          transformers.XLMRobertaForSequenceClassification, BERT_NAMES,
          {"max_position_embeddings": CONTEXT + 2, "layer_norm_eps": EPSILON, "pad_token_id": 1,
           "type_vocab_size": 1, "num_labels": 1}, LAYER_NORM, types=1, position_offset=2,
          ranks=True),
    Model("nomic-bert", "nomic-bert", transformers.NomicBertConfig, transformers.NomicBertModel,
          NOMIC_NAMES, {"max_position_embeddings": CONTEXT, "layer_norm_eps": EPSILON,
                        "rope_parameters": {"rope_type": "default", "rope_theta": 1000.0}},
          LAYER_NORM | {"rope.freq_base": 1000.0}, types=2),
    Model("nomic-bert-moe", "nomic-bert-moe", None, NomicMixture, {}, {},
          LAYER_NORM | {"rope.freq_base": 1000.0, "moe_every_n_layers": 2,
                        "expert_count": EXPERTS, "expert_used_count": CHOSEN}, types=2, layers=3),
    Model("jina-bert-v3", "jina-bert-v3", transformers.JinaEmbeddingsV3Config,
          transformers.JinaEmbeddingsV3Model, JINA3_NAMES,
          {"max_position_embeddings": CONTEXT, "layer_norm_eps": EPSILON, "type_vocab_size": 1},
          LAYER_NORM | {"rope.freq_base": 20000.0}, types=1),
    Model("modern-bert", "modern-bert", transformers.ModernBertConfig,
          transformers.ModernBertModel, MODERN_NAMES, MODERN, MODERN_KEYS, layers=5),
    # As IBM's Granite embedding models have it.
    Model("modern-bert-silu", "modern-bert", transformers.ModernBertConfig,
          transformers.ModernBertModel, MODERN_NAMES, MODERN | {"hidden_activation": "silu"},
          MODERN_KEYS | {"hidden_activation": "silu"}, layers=3),
    Model("modern-bert-rank", "modern-bert", transformers.ModernBertConfig,
          transformers.ModernBertForSequenceClassification, MODERN_NAMES,
          MODERN | {"num_labels": 1, "classifier_pooling": "cls"},
          MODERN_KEYS | {"pooling_type": gguf.PoolingType.RANK,
                         "classifier.pooling_type": gguf.PoolingType.CLS}, layers=3, ranks=True),
    # As GTE's reranker has it, whose file does not say that its head reads the mean.
    Model("modern-bert-rank-mean", "modern-bert", transformers.ModernBertConfig,
          transformers.ModernBertForSequenceClassification, MODERN_NAMES,
          MODERN | {"num_labels": 1, "classifier_pooling": "mean"},
          MODERN_KEYS | {"pooling_type": gguf.PoolingType.RANK}, layers=3, ranks=True),
    Model("jina-bert-v2", "jina-bert-v2", None, JinaModel, {}, {}, LAYER_NORM, types=2),
    Model("gemma-embedding", "gemma-embedding", transformers.Gemma3TextConfig,
          transformers.Gemma3TextModel, GEMMA_NAMES,
          HEAD | {"use_bidirectional_attention": True, "sliding_window": 12,
                  "layer_types": ["sliding_attention", "full_attention"],
                  "query_pre_attn_scalar": 16, "max_position_embeddings": CONTEXT,
                  "rope_parameters": {
                      "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
                      "full_attention": {"rope_type": "default", "rope_theta": 1e6}}},
          RMS_NORM | {"attention.sliding_window": 12, "attention.sliding_window_pattern": 2,
                      "rope.freq_base": 1e6, "pooling_type": gguf.PoolingType.MEAN},
          adds_one=True),
    Model("qwen3-rank", "qwen3", transformers.Qwen3Config,
          transformers.Qwen3ForSequenceClassification, DECODER_NAMES,
          HEAD | {"num_labels": 2, "pad_token_id": 0, "max_position_embeddings": CONTEXT},
          RMS_NORM | {"pooling_type": gguf.PoolingType.RANK}, ranks=True, is_causal=True),
)


def make_network(model: Model) -> torch.nn.Module:
    torch.manual_seed(SEED)
    options = COMMON | {"num_hidden_layers": model.layers} | model.options
    config = None if model.config is None else model.config(**options)
    if config is not None:
        config._attn_implementation = "eager"
    network = model.network(config).eval().float()
    with torch.no_grad():
        for name, values in network.named_parameters():
            if values.dim() == 1:
                is_norm = "norm" in name.lower() and name.endswith("weight")
                around = 1.0 if is_norm and not model.adds_one else 0.0
                values.copy_(around + 0.2 * torch.randn_like(values))
            elif "embed" in name or "token_" in name:
                values.copy_(torch.randn_like(values))
            else:
                gain = 2.0 if any(part in name for part in ("query", "key", "q_", "k_", "Wqkv")) else 1.0
                values.copy_(gain * torch.randn_like(values) / math.sqrt(values.shape[-1]))
    return network


def tensor_name(model: Model, name: str) -> str | None:
    if not model.names:  # JinaModel has the file's own
        return name.replace("layers.", "blk.")
    base, kind = name.rsplit(".", 1)
    for prefix in ("roberta.", "model.", "bert."):
        base = base.removeprefix(prefix)
    for prefix in ("encoder.layer.", "layers."):
        if base.startswith(prefix):
            index, rest = base.removeprefix(prefix).split(".", 1)
            return f"blk.{index}.{model.names[rest]}.{kind}"
    return f"{model.names[base]}.{kind}" if base in model.names else None


def round_to_copy(model: Model, network: torch.nn.Module) -> None:
    """Rounds the weights to what a copy in Q8_0 holds."""
    for name, values in network.named_parameters():
        array = values.detach().numpy()
        if is_quantized(tensor_name(model, name) or "", array):
            values.data.copy_(torch.from_numpy(rounded_to_q8_0(array)))


def write_file(path: Path, model: Model, network: torch.nn.Module, is_copy: bool = False) -> None:
    writer = gguf.GGUFWriter(str(path), model.architecture)
    prefix = model.architecture + "."
    writer.add_name("tiny")
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(HIDDEN)
    writer.add_block_count(model.layers)
    writer.add_feed_forward_length(WIDE)
    writer.add_head_count(HEADS)
    writer.add_vocab_size(VOCABULARY)
    if not model.is_causal:
        writer.add_causal_attention(False)
    if model.types:
        writer.add_uint32("tokenizer.ggml.token_type_count", model.types)
    for key, value in model.keys.items():
        add = {float: writer.add_float32, str: writer.add_string}.get(type(value), writer.add_uint32)
        add(prefix + key, value)
    if model.ranks:
        writer.add_classifier_output_labels(["no", "yes"][:network.config.num_labels])
    for name, values in network.named_parameters():
        written = tensor_name(model, name)
        if written is None:
            print(f"{model.name}: {name} is not in the file")
            continue
        array = values.detach().numpy()
        if written == "position_embd.weight":
            array = array[model.position_offset:]
        if model.adds_one and "norm" in written:
            array = array + 1
        if is_copy and is_quantized(written, array):
            kind = gguf.GGMLQuantizationType.Q8_0
            writer.add_tensor(written, gguf.quants.quantize(array, kind), raw_dtype=kind)
        else:
            writer.add_tensor(written, np.ascontiguousarray(array))
    add_tokenizer(writer, VOCABULARY)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def reference_rows(model: Model, network: torch.nn.Module, tokens: np.ndarray,
                   second_text: int) -> np.ndarray:
    ids = torch.from_numpy(tokens)[None]
    extra = {}
    if model.types:
        types = (torch.arange(len(tokens)) >= second_text).long()[None]
        extra["token_type_ids"] = types if model.types > 1 else torch.zeros_like(types)
    with torch.no_grad():
        output = network(ids, **extra)
    if model.ranks:
        return output.logits.float().numpy()
    return output.last_hidden_state[0].float().numpy()


def llama_rows(path: Path, model: Model, tokens: np.ndarray, columns: int) -> np.ndarray:
    options = llama.llama_model_default_params()
    options.n_gpu_layers = 0
    loaded = llama.llama_model_load_from_file(str(path).encode(), options)
    if not loaded:
        raise ValueError(f"{model.name}: llama.cpp does not load it")
    options = llama.llama_context_default_params()
    options.n_ctx = options.n_batch = options.n_ubatch = CONTEXT
    options.n_threads = options.n_threads_batch = 1
    options.embeddings = True
    options.type_k = options.type_v = llama_cpp.GGML_TYPE_F32
    options.flash_attn_type = 0
    options.pooling_type = 4 if model.ranks else 0
    context = llama.llama_init_from_model(loaded, options)
    batch = llama.llama_batch_init(len(tokens), 0, 1)
    batch.n_tokens = len(tokens)
    for index, token in enumerate(tokens):
        batch.token[index], batch.pos[index] = int(token), index
        batch.n_seq_id[index], batch.seq_id[index][0], batch.logits[index] = 1, 0, 1
    run = llama.llama_decode if model.is_causal else llama.llama_encode
    if run(context, batch) != 0:
        raise ValueError(f"{model.name}: llama.cpp does not compute it")
    if model.ranks:
        row = llama.llama_get_embeddings_seq(context, 0)
        rows = [np.ctypeslib.as_array(row, (columns,)).copy()]
    else:
        rows = [np.ctypeslib.as_array(llama.llama_get_embeddings_ith(context, index),
                                      (columns,)).copy() for index in range(len(tokens))]
    llama.llama_batch_free(batch)
    llama.llama_free(context)
    llama.llama_model_free(loaded)
    return np.array(rows)


def as_llama_gives(model: Model, rows: np.ndarray) -> np.ndarray:
    if model.ranks and rows.shape[1] > 1:
        return torch.softmax(torch.from_numpy(rows), 1).numpy()
    return rows


def copy_entry(folder: Path, model: Model, tokens: np.ndarray, spread: float) -> dict:
    network = make_network(model)
    round_to_copy(model, network)
    path = folder / f"{model.name}-q8_0.gguf"
    write_file(path, model, network, is_copy=True)
    rows = reference_rows(model, network, tokens, len(tokens))[-COPY_ROWS:]
    others = llama_rows(path, model, tokens, rows.shape[1])[-COPY_ROWS:]
    path.unlink()
    between = as_llama_gives(model, rows) - others
    difference = float(np.sqrt(np.square(between).mean())) / spread
    print(f"  in Q8_0 llama.cpp differs by {difference:.1e}")
    if difference > COPY_DIFFERENCE_MAX:
        raise ValueError(f"{model.name}: in Q8_0 llama.cpp differs by {difference} of the spread")
    name = f"{model.name}-q8_0.f32"
    np.concatenate([rows, others]).astype("<f4").tofile(folder / name)
    return {"rows": name, "row_count": len(rows), "llama_cpp": {"difference": difference}}


def write_model(folder: Path, model: Model) -> dict:
    network = make_network(model)
    path = folder / f"{model.name}.gguf"
    write_file(path, model, network)
    chance = np.random.default_rng(SEED)
    sequences, rows = [], []
    for length in LENGTHS:
        tokens = chance.integers(2, VOCABULARY - 1, length)
        second_text = length // 3 if length == LENGTHS[0] and model.types > 1 else length
        rows = reference_rows(model, network, tokens, second_text)
        name = f"{model.name}-{length}.f32"
        rows.astype("<f4").tofile(folder / name)
        sequences.append({"tokens": tokens.tolist(), "second_text": second_text, "rows": name})
    spread = float(np.std(rows)) if not model.ranks else float(np.abs(rows).max())
    others = llama_rows(path, model, tokens, rows.shape[1])
    difference = float(np.abs(as_llama_gives(model, rows) - others).max()) / spread
    print(f"{model.name}: {path.stat().st_size} bytes, spread {spread:.3f}, llama.cpp differs by "
          f"{difference:.2g}")
    if difference > DIFFERENCE_MAX:
        raise ValueError(f"{model.name}: llama.cpp differs by {difference} of the spread")
    others.astype("<f4").tofile(folder / f"{model.name}-llama.f32")
    return {"name": model.name, "file": path.name, "architecture": model.architecture,
            "ranks": model.ranks, "reference": model.network.__name__, "columns": rows.shape[1],
            "spread": spread, "sequences": sequences,
            "llama_cpp": {"rows": f"{model.name}-llama.f32", "difference": difference},
            "q8_0": copy_entry(folder, model, tokens, spread)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--only", help="the name of one row")
    parser.add_argument("--output", type=Path,
                        default=Path(__file__).resolve().parents[2] / "tests/fixtures/encoders")
    arguments = parser.parse_args()
    only, folder = arguments.only, arguments.output
    folder.mkdir(exist_ok=True)
    quiet = quiet_llama()  # as long as llama.cpp may call it
    index = folder / "index.json"
    known = json.loads(index.read_text())["models"] if index.exists() else []
    found = {entry["name"]: entry for entry in known}
    for model in MODELS:
        if only in (None, model.name):
            found[model.name] = write_model(folder, model)
    versions = {name: version(name) for name in ("torch", "transformers", "gguf", "numpy")}
    versions["llama-cpp-python"] = llama_cpp.__version__
    ordered = [found[model.name] for model in MODELS if model.name in found]
    index.write_text(json.dumps({"versions": versions, "models": ordered}, indent=1) + "\n")


if __name__ == "__main__":
    main()
