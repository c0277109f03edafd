#!/usr/bin/env python3
"""Writes a tiny random model of each family that is a row of traits, and its logits.

For every row of FAMILIES: <name>.gguf, with names, permutations and keys as llama.cpp's converters
write them, and for two sequences of token ids <name>-<length>.f32, the logits of the last rows by
transformers, raw little-endian float32 [rows, vocabulary]; <name>-llama.f32 has those of the second
sequence by llama.cpp, which loads the same file. index.json lists them:

    {"versions": {...},
     "models": [{"name", "file", "architecture", "format", "reference", "vocabulary", "spread",
                 "same_as", "context", "llama_cpp": {"logits": "<file>", "difference"},
                 "llama_cpp_gelu": {"difference"},
                 "llama_cpp_graph": {"difference", "published"},
                 "q8_0": {"logits": "<file>", "llama_cpp": {"difference"}},
                 "sequences": [{"tokens": [...], "first_row", "row_count", "logits": "<file>"}]}]}

`reference` names the class that computed the logits. transformers has none for internlm2, xverse,
exaone 3, baichuan, pangu-embedded: their published code computes what its Llama does, with the
biases and the rotary pairs that the row says; nor for the first deepseek and bailingmoe, which
compute what its Llama does with experts of its DeepSeek V2, their weights normalized or not; nor
for minicpm, which computes what its Granite does; nor for Mistral Large 3 (deepseek2-temperature),
which computes what its Mistral 4 does; for maincoder and orion it is Llama with what is below. For
these llama.cpp's logits are the proof that this is so; so they are for those of PlainDecoder and
Plamo2Decoder below.
`difference` is the largest between the two, in units of the logits' spread.

"q8_0" is of a copy of the file whose matrices are Q8_0, where their rows are whole blocks: the
tests make it. Its logits, of the second sequence, are those of transformers with the weights that
are in the copy, and behind them those of llama.cpp, which reads the copy; `difference` is the root
of the mean square, since llama.cpp rounds activations.

`same_as` names the file with the same weights in other tensors; what has it and no "llama_cpp" is a
form that llama.cpp does not read in this architecture. The weights are rounded to the file's format
first; transformers computes in float32 on the rounded ones. Where a mixture chooses some of its
experts, the weights say which clearly enough that rounding cannot change the choice.

grovemoe has "llama_cpp_graph" instead: llama.cpp computes something else than the published code,
whose logits are the file's. "published" is the difference between the two; "difference" that of
llama.cpp from this script's network with its graph, which shows that names and keys are understood.

llama.cpp takes GELU from a table whose both sides are float16, always as its approximation by tanh;
where a family has it, logits differ by about 1e-3 of their spread, and <name>-llama.f32 would prove
little. "llama_cpp_gelu" says by how much they differ from transformers' with that table's GELU.

Other machines' logits differ in their last bits, so one adds a row with --only <name>: all files of
the other rows stay as they are.

It needs torch, transformers, gguf, numpy and llama-cpp-python (whose vendored llama.cpp is
llama.cpp's own; built with clang 19). LLAMA_CPP_LIB_PATH may name a folder with its libraries.
"""

import argparse
import json
import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from importlib.metadata import version
from pathlib import Path

import gguf
import llama_cpp
import numpy as np
import torch
import transformers
from transformers.models.deepseek_v2.modeling_deepseek_v2 import DeepseekV2Moe
from transformers.models.llama import modeling_llama
from transformers.models.paddleocr_vl.modeling_paddleocr_vl import (PaddleOCRTextConfig,
                                                                    PaddleOCRTextModel)
from transformers.models.qwen2_moe.modeling_qwen2_moe import Qwen2MoeTopKRouter
from transformers.models.qwen2_vl.modeling_qwen2_vl import Qwen2VLTextConfig, Qwen2VLTextModel
from transformers.models.qwen3_vl.modeling_qwen3_vl import Qwen3VLTextConfig, Qwen3VLTextModel
from transformers.models.qwen3_vl_moe.modeling_qwen3_vl_moe import (Qwen3VLMoeTextConfig,
                                                                    Qwen3VLMoeTextModel)

from llama_cpp_logits import llama_logits, quiet_llama
from make_logits_fixtures import (TENSOR_NAMES, add_tokenizer, interleaved, is_quantized,
                                  rounded_to_q8_0, set_experts_apart)

SEED = 43
ROWS = 4  # whose logits are kept
CONTEXT = 512
# The largest difference between transformers and llama.cpp that is taken for rounding.
DIFFERENCE_MAX = {"F32": 1e-4, "Q8_0": 0.1}
# The largest root of the mean square of those differences for copies in Q8_0; of models that have
# nothing in common it is 1.4. Where attention is sharp, single logits differ by half the spread.
COPY_DIFFERENCE_MAX = 0.2
# With a table's GELU some row is as near; in others a value may have rounded to a neighbour in f16.
TABLE_DIFFERENCE_MAX = 1e-3
# The least by which the scores of a token's experts are above the others', biases included.
SCORE_GAP_MIN = 0.02
FILE_NAMES = TENSOR_NAMES | {  # within one layer: transformers' name to the file's
    "self_attn.q_a_proj": "attn_q_a", "self_attn.q_a_layernorm": "attn_q_a_norm",
    "self_attn.q_b_proj": "attn_q_b", "self_attn.kv_a_proj_with_mqa": "attn_kv_a_mqa",
    "self_attn.kv_a_layernorm": "attn_kv_a_norm", "self_attn.kv_b_proj": "attn_kv_b",
    "mlp.shared_expert_gate": "ffn_gate_inp_shexp",
    "self_attn.query_layernorm": "attn_q_norm", "self_attn.key_layernorm": "attn_k_norm"}
COMMON_NAMES = {  # parts of some mixtures' names: what most others have instead
    "expert_bias": "e_score_correction_bias", "feed_forward.w1.": "mlp.gate_proj.",
    "feed_forward.w2.": "mlp.down_proj.", "feed_forward.w3.": "mlp.up_proj.",
    "linear_attn.out_proj.": "linear_attn.o_proj.", "conv.out_proj.": "conv.o_proj.", "self_attn.out_proj.": "self_attn.o_proj.",
    ".ffn_norm.": ".post_attention_layernorm.",
    "mixer.gate.": "mlp.gate.", "mixer.experts.": "mlp.experts.",
    "mixer.shared_experts.": "mlp.shared_experts.",
    "mlp.gate.wg.": "mlp.gate.", "router.proj.": "mlp.gate.",
    "feed_forward.router.": "mlp.gate.", "feed_forward.": "mlp.", "block_sparse_moe.router.": "mlp.gate.",
    "block_sparse_moe.": "mlp.", "shared_mlp.output_linear.": "mlp.shared_mlp.down_proj.",
    "shared_mlp.input_linear.": "mlp.shared_mlp.gate_up_proj."}
APART_NAMES = {  # likewise, where weights keep tokens' experts apart
    "model.embeddings.": "model.embed_tokens.", ".out_proj.": ".o_proj.",
    ".fc2_latent_proj.": ".o_proj.", "pre_ff_layernorm": "post_attention_layernorm"}
ROUTERS = ("mlp.gate", "feed_forward.gate", "block_sparse_moe.gate", "mixer.gate", ".router")  # how they end
STRONG = ("q_proj", "k_proj", "qkv_proj", "q_b_proj")  # what attention's scores come from
SHARED_EXPERTS = ("shared_experts", "shared_expert", "shared_mlp")  # transformers' names of them
SELECTION_BIAS = "e_score_correction_bias"  # how such tensors' names end
BUFFERS = (SELECTION_BIAS, "expert_bias", "layer_scalar")  # likewise, of tensors that are no parameters


class TextModel(torch.nn.Module):
    """A text model out of one that sees images, and the output matrix."""

    def __init__(self, model_class, config):
        super().__init__()
        self.model = model_class(config)
        self.lm_head = torch.nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        if config.tie_word_embeddings:
            self.lm_head.weight = self.model.embed_tokens.weight

    def forward(self, tokens):
        return transformers.modeling_outputs.CausalLMOutput(
            logits=self.lm_head(self.model(tokens).last_hidden_state))


class MaincoderAttention(torch.nn.Module):
    """Neighbouring rotary pairs, and each head normalized behind them."""

    def __init__(self, config, layer_idx):
        super().__init__()
        self.config = config
        size, head = config.hidden_size, config.head_dim
        columns = (config.num_attention_heads * head, config.num_key_value_heads * head)
        self.q_proj = torch.nn.Linear(size, columns[0], bias=False)
        self.k_proj = torch.nn.Linear(size, columns[1], bias=False)
        self.v_proj = torch.nn.Linear(size, columns[1], bias=False)
        self.o_proj = torch.nn.Linear(columns[0], size, bias=False)
        self.q_norm = modeling_llama.LlamaRMSNorm(head, config.rms_norm_eps)
        self.k_norm = modeling_llama.LlamaRMSNorm(head, config.rms_norm_eps)

    def forward(self, hidden_states, **_):
        count, head = hidden_states.shape[1], self.config.head_dim
        base = self.config.rope_parameters["rope_theta"]
        angles = torch.arange(count)[:, None] * base ** (-torch.arange(0, head, 2) / head)
        turns = torch.polar(torch.ones_like(angles), angles)

        def heads(values, norm):
            pairs = torch.view_as_complex(values.view(count, -1, head // 2, 2).contiguous())
            turned = torch.view_as_real(pairs * turns[:, None]).flatten(2)
            return norm(turned).transpose(0, 1)

        q = heads(self.q_proj(hidden_states), self.q_norm)
        k = heads(self.k_proj(hidden_states), self.k_norm)
        v = self.v_proj(hidden_states).view(count, -1, head).transpose(0, 1)
        group = q.shape[0] // k.shape[0]
        attended = torch.nn.functional.scaled_dot_product_attention(
            q, k.repeat_interleave(group, 0), v.repeat_interleave(group, 0), is_causal=True)
        return self.o_proj(attended.transpose(0, 1).reshape(1, count, -1)), None


class PlainAttention(torch.nn.Module):
    """Of a number of heads, with rotary pairs as `parts` say, norms of heads, or ALiBi."""

    def __init__(self, config, index):
        super().__init__()
        parts, size, head = config.parts, config.hidden_size, config.head_dim
        self.parts, self.head, self.index = parts, head, index
        self.base = config.rope_parameters["rope_theta"]
        self.heads = parts.get("heads", [config.num_attention_heads] * (index + 1))[index]
        self.kv_heads = parts.get("kv_heads", [config.num_key_value_heads] * (index + 1))[index]
        if self.kv_heads == 0:  # a product in the place of attention
            self.o_proj = torch.nn.Linear(size, size, bias=False)
            return
        self.q_proj = torch.nn.Linear(size, self.heads * head, bias=False)
        self.k_proj = torch.nn.Linear(size, self.kv_heads * head, bias=False)
        self.v_proj = torch.nn.Linear(size, self.kv_heads * head, bias=False)
        self.o_proj = torch.nn.Linear(self.heads * head, size, bias=False)
        if parts.get("head_norms"):
            self.q_norm = modeling_llama.LlamaRMSNorm(head, config.rms_norm_eps)
            self.k_norm = modeling_llama.LlamaRMSNorm(head, config.rms_norm_eps)

    def turned(self, heads):  # [head, token, column]
        pairs, every = self.parts["pairs"], self.parts.get("unturned_every", 0)
        if not pairs or (every and self.index % every == 0):
            return heads
        half = self.head // 2
        angles = (torch.arange(heads.shape[1])[:, None]
                  * self.base ** (-torch.arange(half) / half))
        turns = torch.polar(torch.ones_like(angles), angles)
        if pairs == "neighbours":
            complex_heads = torch.view_as_complex(heads.unflatten(-1, (half, 2)).contiguous())
            return torch.view_as_real(complex_heads * turns).flatten(-2)
        both = torch.complex(heads[..., :half], heads[..., half:]) * turns
        return torch.cat([both.real, both.imag], dim=-1)

    def bias(self, count):
        places = torch.arange(count)
        distances = (places[:, None] - places[None]).float()
        bias = torch.where(distances < 0, -math.inf, 0.0).repeat(self.heads, 1, 1)
        if self.parts.get("alibi"):  # of a power of two heads
            slopes = 2 ** (-self.parts["alibi"] / self.heads * (torch.arange(self.heads) + 1))
            bias = bias - slopes[:, None, None] * distances
        return bias

    def forward(self, x):  # [token, column]
        if self.kv_heads == 0:
            return self.o_proj(x)
        count = x.shape[0]
        q, k, v = (product(x).view(count, -1, self.head).transpose(0, 1)
                   for product in (self.q_proj, self.k_proj, self.v_proj))
        if self.parts.get("head_norms"):
            q, k = self.q_norm(q), self.k_norm(k)
        q, k = self.turned(q), self.turned(k)
        k, v = (each.repeat_interleave(self.heads // self.kv_heads, 0) for each in (k, v))
        scores = (q @ k.transpose(1, 2) / math.sqrt(self.head) + self.bias(count)).softmax(dim=-1)
        return self.o_proj((scores @ v).transpose(0, 1).reshape(count, -1))


class PlainExperts(torch.nn.Module):
    """A mixture whose weights are normalized."""

    def __init__(self, config):
        super().__init__()
        count, wide, size = config.num_experts, config.moe_intermediate_size, config.hidden_size
        self.parts, self.chosen = config.parts, config.num_experts_per_tok
        self.gate = torch.nn.Linear(size, count, bias=False)
        self.experts = torch.nn.Module()
        self.experts.gate_up_proj = torch.nn.Parameter(torch.empty(count, 2 * wide, size))
        self.experts.down_proj = torch.nn.Parameter(torch.empty(count, size, wide))
        if adjugate := self.parts.get("adjugate"):
            count, wide = count // adjugate["group"], adjugate["feed_forward"]
            self.chunk_experts = torch.nn.Module()
            self.chunk_experts.gate_up_proj = torch.nn.Parameter(torch.empty(count, 2 * wide, size))
            self.chunk_experts.down_proj = torch.nn.Parameter(torch.empty(count, size, wide))

    def forward(self, x, router_input):
        scores = self.gate(router_input)
        values = scores.sigmoid() if self.parts.get("sigmoid") else scores.softmax(dim=-1)
        weights, experts = values.topk(self.chosen, dim=-1)
        weights = weights / weights.sum(dim=-1, keepdim=True)
        made = (weights[..., None] * self.made(self.experts, experts, x)).sum(dim=1)
        if adjugate := self.parts.get("adjugate"):
            groups = experts // adjugate["group"]
            if self.parts.get("as_llama"):
                weights = values.gather(-1, groups)
                weights, x = weights / weights.sum(dim=-1, keepdim=True), made
            own = (weights[..., None] * self.made(self.chunk_experts, groups, x)).sum(dim=1)
            made = made + adjugate["scale"] * own
        return made

    def made(self, which, experts, x):
        function = getattr(torch.nn.functional, self.parts.get("activation", "silu"))
        gate, up = torch.einsum("teij,tj->tei", which.gate_up_proj[experts], x).chunk(2, -1)
        return torch.einsum("teij,tej->tei", which.down_proj[experts], function(gate) * up)


class PlainLayer(torch.nn.Module):
    """Attention, a gated feed-forward and experts, whichever `parts` say."""

    def __init__(self, config, index):
        super().__init__()
        parts = config.parts
        self.parts = parts

        def norm():
            return modeling_llama.LlamaRMSNorm(config.hidden_size, config.rms_norm_eps)

        def widths(name, usual):
            return parts.get(name, [usual] * config.num_hidden_layers)[index]

        wide = widths("feed_forward", config.intermediate_size)
        self.has_attention = widths("heads", config.num_attention_heads) > 0
        if self.has_attention:
            self.input_layernorm = norm()
            self.self_attn = PlainAttention(config, index)
        if wide > 0 and not parts.get("is_parallel"):
            self.post_attention_layernorm = norm()
        self.has_dense = wide > 0 and parts.get("experts") != "alone"
        if self.has_dense:
            self.mlp = modeling_llama.LlamaMLP(
                transformers.LlamaConfig(hidden_size=config.hidden_size, intermediate_size=wide,
                                         num_attention_heads=1))
        if "experts" in parts:
            self.block_sparse_moe = PlainExperts(config)
        if parts.get("experts") == "beside":
            self.experts_layernorm = norm()

    def forward(self, x):
        before = x
        if self.parts.get("is_parallel"):
            h = self.input_layernorm(x)
            return x + self.self_attn(h) + self.mlp(h)
        if self.has_attention:
            x = x + self.self_attn(self.input_layernorm(x))
        made = 0
        if self.has_dense:
            made = self.mlp(self.post_attention_layernorm(x))
        if self.parts.get("experts") == "alone":
            h = self.post_attention_layernorm(x)
            made = self.block_sparse_moe(h, before if self.parts.get("routes_before") else h)
        if self.parts.get("experts") == "beside":
            h = self.experts_layernorm(before)
            made = made + self.block_sparse_moe(h, h)
        return x + made


class PlainDecoder(torch.nn.Module):
    """What the published code of families that transformers lacks computes: the dictionary `parts`
    of the configuration says which parts a layer has.
    """

    def __init__(self, config):
        super().__init__()
        self.model = torch.nn.Module()
        self.model.embed_tokens = torch.nn.Embedding(config.vocab_size, config.hidden_size)
        self.model.layers = torch.nn.ModuleList(
            PlainLayer(config, index) for index in range(config.num_hidden_layers))
        self.model.norm = modeling_llama.LlamaRMSNorm(config.hidden_size, config.rms_norm_eps)
        if not config.tie_word_embeddings:
            self.lm_head = torch.nn.Linear(config.hidden_size, config.vocab_size, bias=False)

    def forward(self, tokens):
        x = self.model.embed_tokens(tokens[0])
        for layer in self.model.layers:
            x = layer(x)
        x = self.model.norm(x)
        table = self.lm_head.weight if hasattr(self, "lm_head") else self.model.embed_tokens.weight
        return transformers.modeling_outputs.CausalLMOutput(logits=(x @ table.T)[None])


class Plamo2Scan(torch.nn.Module):
    """Heads as Mamba-2's, whose steps, b and c are made as Mamba-1's."""

    def __init__(self, config):
        super().__init__()
        shape, size, epsilon = config.parts["scan"], config.hidden_size, config.rms_norm_eps
        self.shape = shape
        wide = shape["heads"] * shape["head"]
        self.in_proj = torch.nn.Linear(size, 2 * wide, bias=False)
        self.conv1d = torch.nn.Conv1d(wide, wide, 4, groups=wide, padding=3, bias=False)
        self.x_proj = torch.nn.Linear(wide, shape["few"] + 2 * shape["state"], bias=False)
        self.dt_proj = torch.nn.Linear(shape["few"], shape["heads"])
        self.dt_norm = modeling_llama.LlamaRMSNorm(shape["few"], epsilon)
        self.b_norm = modeling_llama.LlamaRMSNorm(shape["state"], epsilon)
        self.c_norm = modeling_llama.LlamaRMSNorm(shape["state"], epsilon)
        self.A_log = torch.nn.Parameter(torch.empty(shape["heads"]))
        self.D = torch.nn.Parameter(torch.empty(shape["heads"]))
        self.out_proj = torch.nn.Linear(wide, size, bias=False)

    def forward(self, x):  # [token, column]
        shape, silu, count = self.shape, torch.nn.functional.silu, len(x)
        open_, x = self.in_proj(x).view(count, shape["heads"], -1).chunk(2, -1)
        x = silu(self.conv1d(x.reshape(count, -1).T[None])[0, :, :count].T)
        b, c, few = self.x_proj(x).split([shape["state"], shape["state"], shape["few"]], -1)
        b, c = self.b_norm(b), self.c_norm(c)
        steps = torch.nn.functional.softplus(self.dt_proj(self.dt_norm(few)))
        x = x.view(count, shape["heads"], -1)
        decays = torch.exp(-torch.exp(self.A_log) * steps)[..., None, None]
        memory, rows = torch.zeros(*x.shape[1:], shape["state"]), []
        for token in range(count):
            memory = (decays[token] * memory
                      + (steps[token][:, None] * x[token])[..., None] * b[token])
            rows.append(memory @ c[token] + self.D[:, None] * x[token])
        return self.out_proj((silu(open_) * torch.stack(rows)).reshape(count, -1))


class Plamo2Layer(torch.nn.Module):
    """A scan or attention, and a feed-forward, each between two norms."""

    def __init__(self, config, index):
        super().__init__()
        self.has_scan = config.parts["heads"][index] == 0
        self.input_layernorm, self.post_mixer_norm, self.post_attention_layernorm, \
            self.post_mlp_norm = (modeling_llama.LlamaRMSNorm(config.hidden_size,
                                                              config.rms_norm_eps)
                                  for _ in range(4))
        if self.has_scan:
            self.mixer = Plamo2Scan(config)
        else:
            self.self_attn = PlainAttention(config, index)
            for norm, heads in ((self.self_attn.q_norm, self.self_attn.heads),
                                (self.self_attn.k_norm, self.self_attn.kv_heads)):
                norm.weight = torch.nn.Parameter(torch.empty(heads, 1, config.head_dim))
        self.mlp = modeling_llama.LlamaMLP(config)

    def forward(self, x):
        mixer = self.mixer if self.has_scan else self.self_attn
        x = x + self.post_mixer_norm(mixer(self.input_layernorm(x)))
        return x + self.post_mlp_norm(self.mlp(self.post_attention_layernorm(x)))


class Plamo2Decoder(PlainDecoder):
    """What the published code of PLaMo 2 computes, with norms' offsets in their weights."""

    def __init__(self, config):
        super().__init__(config)
        self.model.layers = torch.nn.ModuleList(
            Plamo2Layer(config, index) for index in range(config.num_hidden_layers))


def make_orion(config):
    network = transformers.LlamaForCausalLM(config)

    def norm():
        return torch.nn.LayerNorm(config.hidden_size, config.rms_norm_eps)

    network.model.norm = norm()
    for layer in network.model.layers:
        layer.input_layernorm = norm()
        layer.post_attention_layernorm = norm()
    return network


def make_maincoder(config):
    network = transformers.LlamaForCausalLM(config)
    for index, layer in enumerate(network.model.layers):
        layer.self_attn = MaincoderAttention(config, index)
    return network


def make_llama_mixture(config):
    network = transformers.LlamaForCausalLM(config)
    for layer in network.model.layers[config.first_k_dense_replace:]:
        layer.mlp = DeepseekV2Moe(config)
        if config.norm_topk_prob:
            layer.mlp.gate = Qwen2MoeTopKRouter(config)
    return network


# By name: the class of the configuration, and what makes the network.
REFERENCES = {
    "LlamaForCausalLM": (transformers.LlamaConfig, transformers.LlamaForCausalLM),
    "Qwen2ForCausalLM": (transformers.Qwen2Config, transformers.Qwen2ForCausalLM),
    "Qwen3ForCausalLM": (transformers.Qwen3Config, transformers.Qwen3ForCausalLM),
    "Qwen3MoeForCausalLM": (transformers.Qwen3MoeConfig, transformers.Qwen3MoeForCausalLM),
    "Qwen2MoeForCausalLM": (transformers.Qwen2MoeConfig, transformers.Qwen2MoeForCausalLM),
    "DeepseekV2ForCausalLM": (transformers.DeepseekV2Config, transformers.DeepseekV2ForCausalLM),
    "DeepseekV3ForCausalLM": (transformers.DeepseekV3Config, transformers.DeepseekV3ForCausalLM),
    "Dots1ForCausalLM": (transformers.Dots1Config, transformers.Dots1ForCausalLM),
    "Ernie4_5_MoeForCausalLM": (transformers.Ernie4_5_MoeConfig,
                                transformers.Ernie4_5_MoeForCausalLM),
    "HunYuanMoEV1ForCausalLM": (transformers.HunYuanMoEV1Config,
                                transformers.HunYuanMoEV1ForCausalLM),
    "Glm4MoeForCausalLM": (transformers.Glm4MoeConfig, transformers.Glm4MoeForCausalLM),
    "OlmoeForCausalLM": (transformers.OlmoeConfig, transformers.OlmoeForCausalLM),
    "Phi3ForCausalLM": (transformers.Phi3Config, transformers.Phi3ForCausalLM),
    "SmolLM3ForCausalLM": (transformers.SmolLM3Config, transformers.SmolLM3ForCausalLM),
    "SeedOssForCausalLM": (transformers.SeedOssConfig, transformers.SeedOssForCausalLM),
    "Ernie4_5ForCausalLM": (transformers.Ernie4_5Config, transformers.Ernie4_5ForCausalLM),
    "Qwen2VLTextModel": (Qwen2VLTextConfig, lambda config: TextModel(Qwen2VLTextModel, config)),
    "Qwen3VLTextModel": (Qwen3VLTextConfig, lambda config: TextModel(Qwen3VLTextModel, config)),
    "Qwen3VLMoeTextModel": (Qwen3VLMoeTextConfig,
                            lambda config: TextModel(Qwen3VLMoeTextModel, config)),
    "PaddleOCRTextModel": (PaddleOCRTextConfig,
                           lambda config: TextModel(PaddleOCRTextModel, config)),
    "Llama with norms behind its rotary positions": (transformers.LlamaConfig, make_maincoder),
    "Llama with DeepseekV2Moe": (transformers.LlamaConfig, make_llama_mixture),
    "Llama with layer norms": (transformers.LlamaConfig, make_orion),
    "PlainDecoder": (transformers.LlamaConfig, PlainDecoder),
    "Plamo2Decoder": (transformers.LlamaConfig, Plamo2Decoder),
    "Llama4ForCausalLM": (transformers.Llama4TextConfig, transformers.Llama4ForCausalLM),
}


@dataclass(frozen=True)
class Latent:
    """Attention that keeps one narrow row for the keys and values of all heads."""

    query_rank: int = 0  # 0: queries do not come from a narrow row
    rank: int = 64
    own: int = 32  # a head's dimensions without a position; those with one are the family's head
    value: int = 32
    is_old: bool = False  # attn_kv_b, and the keys of a model whose every head has keys of its own


@dataclass(frozen=True)
class Family:
    """One fixture."""

    name: str
    architecture: str
    reference: str
    options: dict = field(default_factory=dict)  # of the configuration, beside the others'
    # More of the file's keys, by what follows the architecture's name.
    keys: dict = field(default_factory=dict)
    is_permuted: bool = False  # the file has rotary pairs as neighbours, transformers in halves
    epsilon: float = 1e-5
    layers: int = 2
    hidden: int = 32
    heads: int = 2
    head: int = 16
    kv_heads: int = 1
    feed_forward: int = 24
    vocabulary: int = 131
    is_tied: bool = True
    rope_base: float = 10000.0
    rope: dict = field(default_factory=dict)
    has_rope_dimension: bool = True  # the key; without it all of a head turns
    has_draft_layer: bool = False  # one more, which guesses a token further; nothing else needs it
    context: int = CONTEXT
    served_context: int = 0  # --context; 0: as trained
    lengths: tuple[int, int] = (40, 100)
    norm_before_feed_forward: str = "ffn_norm"
    sections: tuple[int, ...] = ()
    latent: Latent | None = None
    experts: int = 0
    chosen: int = 0
    expert_feed_forward: int = 0  # 0: feed_forward
    has_expert_length: bool = True  # the key; without it feed_forward_length is an expert's
    groups: int = 1  # of experts
    selection_biases: tuple[float, float] = (0.35, -0.35)  # of the first expert and of the last
    layer_gain: float = 1.0  # of what a layer adds
    # On set_experts_apart()'s routers, whose scores leave the second expert no weight.
    router_gain: float = 0.25
    router_output: int = 0  # which of a router's outputs grows with its scores
    format: str = "F32"
    same_as: str = ""  # the same weights, but
    fused: tuple[str, ...] = ()  # of attn_qkv, ffn_up, ffn_gate_up_exps: those that hold others
    has_llama_logits: bool = True
    has_gate: bool = True  # routers are among ROUTERS, whose weights keep tokens' experts apart
    names: dict[str, str] = field(default_factory=dict)  # of the file, where TENSOR_NAMES differs
    # Keys behind all others, instead of one of that name; None: none.
    last_keys: dict = field(default_factory=dict)
    adds_one: bool = False  # norms multiply by 1 + weight, which the file has
    has_table_gelu: bool = False  # in llama.cpp: GELU comes from a table in f16
    # llama.cpp does not compute what the published code does: "as_llama" of `parts` says what.
    differs_in_llama: bool = False
    # Gives the file's tensors for one of a layer's, by their names; None: those of other families.
    layout: Callable[["Family", str, np.ndarray], dict[str, np.ndarray] | None] | None = None
    gains: dict[str, float] = field(default_factory=dict)  # by ends of names: larger weights


BIASES = {"attention_bias": True}
SECTIONS = (2, 3, 3, 0)
MROPE = {"mrope_section": [2, 3, 3]}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
V3_YARN = {"beta_fast": 32, "beta_slow": 1, "mscale": 1.0, "mscale_all_dim": 1.0}
LITE_YARN = {"beta_fast": 32, "beta_slow": 1, "mscale": 0.707, "mscale_all_dim": 0.707}
V3_OPTIONS = {"n_shared_experts": 1, "first_k_dense_replace": 1, "routed_scaling_factor": 2.5,
              "n_group": 1, "topk_group": 1, "num_nextn_predict_layers": 0}
V3_KEYS = {"leading_dense_block_count": 1, "expert_shared_count": 1, "expert_weights_scale": 2.5,
           "expert_weights_norm": True, "expert_gating_func": gguf.ExpertGatingFuncType.SIGMOID,
           "expert_group_count": 1, "expert_group_used_count": 1}
LITE_OPTIONS = {"n_shared_experts": 2, "first_k_dense_replace": 1, "norm_topk_prob": False,
                "topk_method": "greedy", "n_group": 1, "topk_group": 1}
OLD_LITE_KEYS = {"leading_dense_block_count": 1, "expert_shared_count": 2,
                 "expert_weights_scale": 1.0}
LITE_KEYS = {"expert_gating_func": gguf.ExpertGatingFuncType.SOFTMAX, "expert_group_count": 1,
             "expert_group_used_count": 1}
# transformers takes the rotary dimensions for a part of this head.
MISTRAL4_OPTIONS = {"n_shared_experts": 1, "routed_scaling_factor": 1.0, "n_group": 1,
                    "topk_group": 1, "head_dim": 48}
GROVE_PARTS = {"pairs": "halves", "head_norms": True, "experts": "alone",
               "adjugate": {"group": 2, "feed_forward": 32, "scale": 0.5}}
MISTRAL4_KEYS = {"expert_shared_count": 1, "expert_weights_scale": 1.0, "expert_weights_norm": True,
                 "expert_group_count": 1, "expert_group_used_count": 1}
GLM_OPTIONS = {"attention_bias": True, "first_k_dense_replace": 1, "n_shared_experts": 1,
               "n_group": 1, "topk_group": 1, "num_nextn_predict_layers": 0}
GLM_KEYS = {"leading_dense_block_count": 1, "expert_shared_count": 1, "expert_weights_scale": 1.0,
            "expert_weights_norm": True, "expert_gating_func": gguf.ExpertGatingFuncType.SIGMOID,
            "expert_group_count": 1, "expert_group_used_count": 1}
DOTS_OPTIONS = {"n_shared_experts": 2, "first_k_dense_replace": 1, "routed_scaling_factor": 2.5,
                "n_group": 1, "topk_group": 1}
LLAMA_MIXTURE = {"n_shared_experts": 2, "routed_scaling_factor": 1.0, "topk_method": "greedy",
                 "n_group": 1, "topk_group": 1}
GRANITE_OPTIONS = {"embedding_multiplier": 3.0, "residual_multiplier": 0.6,
                   "attention_multiplier": 0.4, "logits_scaling": 0.5}
GRANITE_KEYS = {"embedding_scale": 3.0, "residual_scale": 0.6, "attention.scale": 0.4,
                "logit_scale": 0.5}
LONG = {"rope_type": "longrope", "short_factor": [1 + 0.1 * i for i in range(8)],
        "long_factor": [1.5 + 0.9 * i for i in range(8)]}

BOUNDS = {"beta_fast": 32.0, "beta_slow": 1.0}
BOUNDS_KEYS = {f"rope.scaling.yarn_{name}": value for name, value in BOUNDS.items()}

# Keys that some converters leave out, and others that they write.
UNSAID = {"rope.dimension_count": None, "vocab_size": None}
NO_ROTARY_KEYS = UNSAID | {"rope.freq_base": None}
HEAD_LENGTHS = {"attention.key_length": 16, "attention.value_length": 16}
LAYER_NORM = {"attention.layer_norm_rms_epsilon": None, "attention.layer_norm_epsilon": 1e-5}
NO_SCALING = {"rope.scaling.type": "none"}
NORMS_AROUND = {"post_attention_layernorm": "post_attention_norm",
                "pre_feedforward_layernorm": "ffn_norm",
                "post_feedforward_layernorm": "post_ffw_norm"}
NORMS_BEHIND = {"post_attention_layernorm": "post_attention_norm",
                "post_feedforward_layernorm": "post_ffw_norm"}
OLMO3_FACTOR = 0.1 * math.log(8) + 1
GEMMA4_NAMES = NORMS_AROUND | {
    "model.embed_tokens_per_layer": "per_layer_token_embd",
    "model.per_layer_model_projection": "per_layer_model_proj",
    "model.per_layer_projection_norm": "per_layer_proj_norm", "per_layer_input_gate": "inp_gate",
    "per_layer_projection": "proj", "post_per_layer_input_norm": "post_norm",
    "pre_feedforward_layernorm_2": "pre_ffw_norm_2",
    "post_feedforward_layernorm_1": "post_ffw_norm_1",
    "post_feedforward_layernorm_2": "post_ffw_norm_2"}
# A quarter of the pairs of layers without a window turn.
GEMMA4_ROPE = {"freqs": [1.0] * 4 + [1e30] * 12}
GEMMA4_OPTIONS = {
    "sliding_window": 20, "global_head_dim": 32, "hidden_size_per_layer_input": 0,
    "final_logit_softcapping": 4.0, "rope_parameters": {
        "full_attention": {"rope_type": "proportional", "partial_rotary_factor": 0.25,
                           "rope_theta": 1e6},
        "sliding_attention": {"rope_type": "default", "rope_theta": 20000.0}}}
GEMMA4_KEYS = {
    "attention.key_length": 32, "attention.value_length": 32, "attention.key_length_swa": 16,
    "attention.value_length_swa": 16, "rope.dimension_count": 32, "rope.dimension_count_swa": 16,
    "rope.freq_base_swa": 20000.0, "attention.sliding_window": 20, "vocab_size": None,
    "final_logit_softcapping": 4.0, "embedding_length_per_layer_input": 0,
    "attention.shared_kv_layers": 0}
LLAMA4_OPTIONS = {"interleave_moe_layer_step": 2, "intermediate_size": 20,
                  "intermediate_size_mlp": 24, "num_local_experts": 4, "use_qk_norm": True}
LLAMA4_KEYS = {"interleave_moe_layer_step": 2}
MIMO2_OPTIONS = {
    "sliding_window": 20, "v_head_dim": 16, "head_dim": 24, "num_key_value_heads": 1,
    "layer_types": ["full_attention", "sliding_attention", "full_attention"],
    "mlp_layer_types": ["dense", "sparse", "sparse"], "attention_value_scale": 0.7,
    "rope_parameters": {
        kind: {"rope_type": "default", "rope_theta": base, "partial_rotary_factor": 0.334}
        for kind, base in (("full_attention", 5e6), ("sliding_attention", 20000.0))}}
MIMO2_KEYS = {"attention.sliding_window": 20, "attention.value_scale": 0.7,
              "expert_gating_func": gguf.ExpertGatingFuncType.SIGMOID,
              "attention.sliding_window_pattern": [False, True, False],
              "rope.freq_base_swa": 20000.0}
MIMO2_LAST_KEYS = {"attention.head_count_kv": [1, 2, 1], "attention.key_length": 24,
                   "attention.value_length": 16, "rope.dimension_count": 8}
INDEXER_OPTIONS = {"index_topk": 128, "index_head_dim": 64, "index_n_heads": 2}
INDEXER_KEYS = {"attention.indexer.head_count": 2, "attention.indexer.key_length": 64,
                "attention.indexer.top_k": 128}
DELTA_OPTIONS = {"layer_types": ["linear_attention", "full_attention", "linear_attention"],
                 "linear_num_key_heads": 2, "linear_num_value_heads": 4,
                 "linear_key_head_dim": 32, "linear_value_head_dim": 32,
                 "linear_conv_kernel_dim": 4}
DELTA_KEYS = {"ssm.conv_kernel": 4, "ssm.state_size": 32, "ssm.group_count": 2,
              "ssm.time_step_rank": 4, "ssm.inner_size": 128}
DELTA_GAINS = {"linear_attn.norm.weight": 5.0}
NEXT = {"options": DELTA_OPTIONS | {"shared_expert_intermediate_size": 40},
        "keys": DELTA_KEYS | {"full_attention_interval": 2,
                              "expert_shared_feed_forward_length": 40},
        "layers": 3, "epsilon": 1e-6, "rope_base": 1e7, "rope": {"partial_rotary_factor": 0.5},
        "adds_one": True, "norm_before_feed_forward": "post_attention_norm",
        "gains": DELTA_GAINS, "experts": 4, "chosen": 2, "expert_feed_forward": 20,
        "layer_gain": 0.25}
QWEN35_ROPE = {"partial_rotary_factor": 0.5, "mrope_section": [2, 1, 1], "mrope_interleaved": True}
LFM2_OPTIONS = {"block_auto_adjust_ff_dim": False}
LFM2_NAMES = {"model.embedding_norm": "token_embd_norm", "operator_norm": "attn_norm",
              "self_attn.q_layernorm": "attn_q_norm", "self_attn.k_layernorm": "attn_k_norm",
              "conv.in_proj": "shortconv.in_proj", "conv.o_proj": "shortconv.out_proj"}
SCAN_KEYS = {"ssm.conv_kernel": 4, "ssm.state_size": 16, "ssm.group_count": 1,
             "ssm.time_step_rank": 4, "ssm.inner_size": 64}
SCAN_GAINS = {"A_log": 0.3}
MAMBA_KEYS = {"ssm.conv_kernel": 4, "ssm.state_size": 16, "ssm.time_step_rank": 32,
              "ssm.inner_size": 64}
MAMBA_GAINS = {"A_log": 2.0, "dt_proj.bias": 4.0}
MAMBA_NAMES = {"backbone.embeddings": "token_embd", "backbone.norm_f": "output_norm",
               "norm": "attn_norm"}
NO_ATTENTION = {"attention.head_count": 0, "attention.head_count_kv": None,
                "attention.key_length": None, "attention.value_length": None,
                "rope.dimension_count": None, "rope.freq_base": None, "feed_forward_length": 0}
GRANITE_HYBRID = {
    "options": GRANITE_OPTIONS | {
        "mamba_n_heads": 4, "mamba_d_head": 16, "mamba_d_state": 16, "mamba_n_groups": 1,
        "shared_intermediate_size": 24, "layer_types": ["mamba", "attention", "mamba"]},
    "keys": GRANITE_KEYS | SCAN_KEYS | {"rope.scaling.finetuned": False}, "layers": 3,
    "gains": SCAN_GAINS, "last_keys": {"attention.head_count_kv": [0, 1, 0]}}
NEMOTRON_NAMES = {
    "model.embeddings": "token_embd", "model.norm_f": "output_norm", "norm": "attn_norm",
    "mixer.up_proj": "ffn_up", "mixer.down_proj": "ffn_down", "mixer.q_proj": "attn_q",
    "mixer.k_proj": "attn_k", "mixer.v_proj": "attn_v", "mixer.o_proj": "attn_output",
    "mixer.fc1_latent_proj": "ffn_latent_down", "mixer.fc2_latent_proj": "ffn_latent_up"}
NEMOTRON_OPTIONS = {"mamba_num_heads": 4, "mamba_head_dim": 16, "ssm_state_size": 16,
                    "n_groups": 2, "layer_norm_epsilon": 1e-5}
NEMOTRON_KEYS = SCAN_KEYS | {"ssm.group_count": 2, "attention.layer_norm_epsilon": 1e-5}
NEMOTRON_MIXTURE = {
    "options": NEMOTRON_OPTIONS | {
        "layers_block_type": ["mamba", "moe", "attention", "moe", "mamba"],
        "moe_shared_expert_intermediate_size": 40, "routed_scaling_factor": 2.5,
        "n_group": 1, "topk_group": 1},
    "keys": NEMOTRON_KEYS | {
        "expert_gating_func": gguf.ExpertGatingFuncType.SIGMOID, "expert_shared_count": 1,
        "expert_shared_feed_forward_length": 40, "expert_weights_norm": True,
        "expert_weights_scale": 2.5, "expert_group_count": 1},
    "layers": 5, "experts": 6, "chosen": 2, "expert_feed_forward": 20, "gains": SCAN_GAINS,
    "names": NEMOTRON_NAMES, "layer_gain": 0.5, "router_gain": 0.35,
    "selection_biases": (0.6, -0.4),
    # The converter does not write what the scores are.
    "last_keys": {"expert_gating_func": None, "attention.head_count_kv": [0, 0, 1, 0, 0],
                  "feed_forward_length": [0, 20, 0, 20, 0]}}
FALCON_NAMES = {"transformer.word_embeddings": "token_embd", "transformer.ln_f": "output_norm",
                "ln_mlp": "attn_norm", "ln_attn": "attn_norm_2",
                "self_attention.dense": "attn_output", "mlp.dense_h_to_4h": "ffn_up",
                "mlp.dense_4h_to_h": "ffn_down"}
FALCON_KEYS = NO_ROTARY_KEYS | LAYER_NORM | {"context_length": 2048,
                                             "tensor_data_layout": "jploski"}


def gpt_oss_layout(_: Family, rest: str, values: np.ndarray) -> dict[str, np.ndarray] | None:
    """Experts are transposed there, with gates and others in turns."""
    if rest == "self_attn.sinks":
        return {"attn_sinks.weight": values}
    if not rest.startswith("mlp.experts."):
        return None
    kind = "bias" if rest.endswith("_bias") else "weight"
    if kind == "weight":
        values = values.swapaxes(1, 2)
    if "gate_up_proj" in rest:
        return {f"ffn_gate_exps.{kind}": values[:, ::2], f"ffn_up_exps.{kind}": values[:, 1::2]}
    return {f"ffn_down_exps.{kind}": values}


def gemma4_layout(_: Family, rest: str, values: np.ndarray) -> dict[str, np.ndarray] | None:
    """Factors of each layer's end, of a router's input and of each expert; experts."""
    name = {"layer_scalar": "layer_output_scale.weight", "router.scale": "ffn_gate_inp.scale",
            "router.per_expert_scale": "ffn_down_exps.scale",
            "experts.gate_up_proj": "ffn_gate_up_exps.weight",
            "experts.down_proj": "ffn_down_exps.weight"}.get(rest)
    return {name: values} if name else None


def stablelm_layout(_: Family, rest: str, values: np.ndarray) -> dict[str, np.ndarray] | None:
    """Each head's norm is a tensor there."""
    for part in "qk":
        start = f"self_attn.{part}_layernorm.norms."
        if rest.startswith(start):
            head = rest.removeprefix(start).removesuffix(".weight")
            return {f"attn_{part}_norm.weight.{head}": values}
    return None


def indexer_layout(_: Family, rest: str, values: np.ndarray) -> dict[str, np.ndarray] | None:
    if not rest.startswith("self_attn.indexer."):
        return None
    part, kind = rest.removeprefix("self_attn.indexer.").rsplit(".", 1)
    name = {"wq_b": "attn_q_b", "wk": "attn_k", "k_norm": "k_norm", "weights_proj": "proj"}[part]
    return {f"indexer.{name}.{kind}": values}


def mimo2_layout(_: Family, rest: str, values: np.ndarray) -> dict[str, np.ndarray] | None:
    return {"attn_sinks.weight": values} if rest.endswith("sinks") else None


def lfm2_layout(_: Family, rest: str, values: np.ndarray) -> dict[str, np.ndarray] | None:
    """A convolution's factors have one channel each there."""
    return {"shortconv.conv.weight": values[:, 0]} if rest == "conv.conv.weight" else None


DELTA_NAMES = {"in_proj_qkv": "attn_qkv", "in_proj_z": "attn_gate", "in_proj_b": "ssm_beta",
               "in_proj_a": "ssm_alpha", "in_proj_ba": "ssm_ba", "o_proj": "ssm_out",
               "norm": "ssm_norm"}


def next_layout(family: Family, rest: str, values: np.ndarray) -> dict[str, np.ndarray] | None:
    """Key head by key head there: its queries, keys, values and gates."""
    if not rest.startswith("linear_attn."):
        return None
    part = rest.removeprefix("linear_attn.").removesuffix(".weight")
    if part == "A_log":
        return {"ssm_a": -np.exp(values)}
    if part == "dt_bias":
        return {"ssm_dt.bias": values}
    if part == "conv1d":
        return {"ssm_conv1d.weight": values[:, 0]}
    if part == "in_proj_qkvz":
        heads, size = family.options["linear_num_key_heads"], family.options["linear_key_head_dim"]
        each = (len(values) // heads - 2 * size) // 2
        groups = np.split(values.reshape(heads, -1, family.hidden),
                          [size, 2 * size, 2 * size + each], axis=1)
        q, k, v, z = (group.reshape(-1, family.hidden) for group in groups)
        return {"attn_qkv.weight": np.concatenate([q, k, v]), "attn_gate.weight": z}
    return {f"{DELTA_NAMES[part]}.weight": values}


def old_next_layout(family: Family, rest: str, values: np.ndarray) -> dict | None:
    """Older files have the rows of in_proj_qkvz as they are."""
    if rest == "linear_attn.in_proj_qkvz.weight":
        return {"ssm_in.weight": values}
    return next_layout(family, rest, values)


def in_turns(family: Family, values: np.ndarray) -> np.ndarray:
    """Values of value heads, which follow one another by key heads: one of each key head first."""
    heads, keys = family.options["linear_num_value_heads"], family.options["linear_num_key_heads"]
    groups = values.reshape(keys, heads // keys, len(values) // heads, *values.shape[1:])
    return np.ascontiguousarray(groups.swapaxes(0, 1)).reshape(values.shape)


def qwen35_layout(family: Family, rest: str, values: np.ndarray) -> dict[str, np.ndarray] | None:
    tensors = next_layout(family, rest, values)
    if tensors is None:
        return None
    [(name, values)] = tensors.items()
    keys = 2 * family.options["linear_num_key_heads"] * family.options["linear_key_head_dim"]
    if name in ("attn_qkv.weight", "ssm_conv1d.weight"):
        values = np.concatenate([values[:keys], in_turns(family, values[keys:])])
    elif name == "ssm_out.weight":
        values = np.ascontiguousarray(in_turns(family, np.ascontiguousarray(values.T)).T)
    elif name != "ssm_norm.weight":
        values = in_turns(family, values)
    return {name: values}


def scan_layout(family: Family, rest: str, values: np.ndarray) -> dict[str, np.ndarray] | None:
    """State spaces of Mamba-2, feed-forwards of Granite and Nemotron, a norm of Falcon-H1."""
    if rest.startswith("mlp.experts.") and "gate" not in rest and family.options.get("n_groups"):
        return {f"ffn_{rest.removeprefix('mlp.experts.').removesuffix('_proj')}_exps.weight": values}
    if rest == "pre_ff_layernorm.weight":
        return {"ffn_norm": values}
    if rest.startswith("mlp.shared_mlp.") and not family.experts:
        if "down_proj" in rest:
            return {"ffn_down.weight": values}
        gate, up = np.split(values, 2)
        return {"ffn_gate.weight": gate, "ffn_up.weight": up}
    if not rest.startswith(("mixer.", "mamba.")):
        return None
    part = rest.split(".", 1)[1]
    if part in ("in_proj.weight", "out_proj.weight", "conv1d.bias"):
        return {"ssm_" + part.replace("_proj", ""): values}
    groups = family.keys["ssm.group_count"]
    make = {"A_log": lambda: {"ssm_a": -np.exp(values)[:, None]},
            "D": lambda: {"ssm_d": values[:, None]}, "dt_bias": lambda: {"ssm_dt.bias": values},
            "conv1d.weight": lambda: {"ssm_conv1d.weight": values[:, 0]},
            "norm.weight": lambda: {"ssm_norm.weight": values.reshape(groups, -1)}}.get(part)
    return make() if make else None


def kimi_layout(_: Family, rest: str, values: np.ndarray) -> dict[str, np.ndarray] | None:
    """Kimi Delta Attention: one convolution there, of queries, keys and values."""
    part = rest.removeprefix("self_attn.").removeprefix("forget_gate.").removesuffix(".weight")
    if part == "conv1d":
        return {f"ssm_conv1d_{name}.weight": piece.reshape(1, -1, 1, values.shape[-1])
                for name, piece in zip("qkv", np.split(values, 3))}
    if part == "A_log":
        return {"ssm_a": -np.exp(values)}
    name = {"f_a_proj": "ssm_f_a.weight", "f_b_proj": "ssm_f_b.weight", "dt_bias": "ssm_dt.bias",
            "b_proj": "ssm_beta.weight", "g_a_proj": "ssm_g_a.weight",
            "g_b_proj": "ssm_g_b.weight", "o_norm": "ssm_norm.weight"}.get(part)
    return {name: values} if name else None


def mamba_layout(_: Family, rest: str, values: np.ndarray) -> dict[str, np.ndarray] | None:
    """State spaces of Mamba-1, with Jamba's norms and without."""
    if rest == "pre_ff_layernorm.weight":
        return {"ffn_norm.weight": values}
    if not rest.startswith(("mixer.", "mamba.")):
        return None
    part = rest.split(".", 1)[1]
    if part == "A_log":
        return {"ssm_a": -np.exp(values)}
    if part == "D":
        return {"ssm_d": values}
    if part == "conv1d.weight":
        values = values[:, 0]
    return {"ssm_" + part.replace("_proj", "").replace("_layernorm", "_norm"): values}


def plamo2_layout(_: Family, rest: str, values: np.ndarray) -> dict[str, np.ndarray] | None:
    """As Mamba-1's state spaces; some norms are named by themselves, and heads have their own."""
    own = {"post_mixer_norm.weight": "post_attention_norm", "post_mlp_norm.weight": "post_ffw_norm"}
    if rest in own:
        return {own[rest]: values}
    if rest in ("self_attn.q_norm.weight", "self_attn.k_norm.weight"):
        return {f"attn_{rest[10]}_norm.weight": values[:, 0]}
    if rest.startswith("mixer.") and rest.endswith("_norm.weight"):
        return {f"ssm_{rest[6:-7]}": values}
    return mamba_layout(_, rest, values)


def falcon_layout(family: Family, rest: str, values: np.ndarray) -> dict[str, np.ndarray] | None:
    """The queries of each KV head have its key and value behind them there."""
    if rest != "self_attention.query_key_value.weight":
        return None
    groups = values.reshape(family.kv_heads, -1, family.head, family.hidden)
    parts = (groups[:, :-2], groups[:, -2:-1], groups[:, -1:])
    return {"attn_qkv.weight": np.concatenate([part.reshape(-1, family.hidden) for part in parts])}


def apertus_layout(_: Family, rest: str, __: np.ndarray) -> dict[str, np.ndarray] | None:
    """The activation's two parameters are keys."""
    return {} if "act_fn" in rest else None


def xielu(name: str) -> Callable[[torch.nn.Module], list[float]]:
    """The value of a key: one of the activation's parameters, of each layer."""
    return lambda network: [getattr(layer.mlp.act_fn, name).item()
                            for layer in network.model.layers]


FAMILIES = (
    # llama.cpp reads no epsilon of this one and takes 0.
    Family("qwen2vl", "qwen2vl", "Qwen2VLTextModel", epsilon=1e-12, rope_base=1e6, rope=MROPE,
           sections=SECTIONS),
    Family("paddleocr", "paddleocr", "PaddleOCRTextModel", rope=MROPE, sections=SECTIONS),
    # llama.cpp does not turn the pairs that are left over where interleaved sections are uneven by
    # more than one; of published models these are the slowest two, which hardly turn.
    Family("qwen3vl", "qwen3vl", "Qwen3VLTextModel", rope_base=1e6, head=32, kv_heads=2,
           rope={"mrope_section": [6, 5, 5], "mrope_interleaved": True}, sections=(6, 5, 5, 0)),
    Family("qwen3vl-q8_0", "qwen3vl", "Qwen3VLTextModel", rope_base=1e6, head=32, format="Q8_0",
           feed_forward=64, rope={"mrope_section": [6, 5, 5], "mrope_interleaved": True},
           sections=(6, 5, 5, 0)),
    Family("qwen3vlmoe", "qwen3vlmoe", "Qwen3VLMoeTextModel", rope_base=1e6, feed_forward=20,
           rope={"mrope_section": [3, 3, 2], "mrope_interleaved": True}, sections=(3, 3, 2, 0),
           experts=3, chosen=3),
    Family("internlm2", "internlm2", "LlamaForCausalLM", is_permuted=True, rope_base=1e6,
           is_tied=False),
    Family("xverse", "xverse", "LlamaForCausalLM", is_permuted=True, kv_heads=2,
           is_tied=False),
    Family("exaone", "exaone", "LlamaForCausalLM", rope_base=1e6),
    Family("ernie4_5", "ernie4_5", "Ernie4_5ForCausalLM", {"use_bias": False}, rope_base=5e5),
    Family("seed_oss", "seed_oss", "SeedOssForCausalLM",
           {"attention_bias": True, "attention_out_bias": False}, rope_base=1e7,
           norm_before_feed_forward="post_attention_norm"),
    Family("pangu-embedded", "pangu-embedded", "LlamaForCausalLM", BIASES, rope_base=1e6),
    Family("maincoder", "maincoder", "Llama with norms behind its rotary positions",
           rope_base=1e6),
    Family("smollm3", "smollm3", "SmolLM3ForCausalLM",
           {"no_rope_layers": [1, 1, 1, 0, 1]}, is_permuted=True, layers=5, rope_base=5e6),
    Family("baichuan", "baichuan", "LlamaForCausalLM", is_permuted=True, layers=32, heads=4, head=8,
           kv_heads=4, feed_forward=8, is_tied=False),
    Family("phi3-long", "phi3", "Phi3ForCausalLM", rope=LONG | {"original": 64},
           lengths=(80, 100), fused=("attn_qkv", "ffn_up")),
    Family("phi3-short", "phi3", "Phi3ForCausalLM", rope=LONG | {"original": 256},
           served_context=256, fused=("attn_qkv", "ffn_up")),
    Family("qwen2-yarn", "qwen2", "Qwen2ForCausalLM", rope=YARN),
    Family("llama-yarn", "llama", "LlamaForCausalLM", is_permuted=True,
           rope=YARN | {"factor": 8.0}),
    Family("llama-biases", "llama", "LlamaForCausalLM", BIASES | {"mlp_bias": True},
           is_permuted=True),
    Family("qwen2-fused", "qwen2", "Qwen2ForCausalLM", rope=YARN, same_as="qwen2-yarn",
           fused=("attn_qkv",)),
    Family("llama-biases-fused", "llama", "LlamaForCausalLM", BIASES | {"mlp_bias": True},
           is_permuted=True, same_as="llama-biases", fused=("attn_qkv", "ffn_up"),
           has_llama_logits=False),
    Family("qwen3moe-apart", "qwen3moe", "Qwen3MoeForCausalLM", feed_forward=20, experts=3,
           chosen=3),
    Family("qwen3moe-fused", "qwen3moe", "Qwen3MoeForCausalLM", feed_forward=20, experts=3,
           chosen=3, same_as="qwen3moe-apart", fused=("ffn_gate_up_exps",),
           has_llama_logits=False),
    Family("deepseek2-v3", "deepseek2", "DeepseekV3ForCausalLM", V3_OPTIONS, V3_KEYS,
           epsilon=1e-6, layers=3, heads=4, is_tied=False, rope=YARN | V3_YARN,
           latent=Latent(query_rank=32), experts=4, chosen=2, expert_feed_forward=20,
           layer_gain=0.5),
    Family("deepseek2-v3-q8_0", "deepseek2", "DeepseekV3ForCausalLM", V3_OPTIONS, V3_KEYS,
           epsilon=1e-6, layers=3, heads=4, is_tied=False, rope=YARN | V3_YARN,
           latent=Latent(query_rank=32), experts=4, chosen=2, expert_feed_forward=32,
           layer_gain=0.5, feed_forward=64, format="Q8_0"),
    Family("deepseek2-groups", "deepseek2", "DeepseekV3ForCausalLM",
           V3_OPTIONS | {"n_group": 4, "topk_group": 2},
           V3_KEYS | {"expert_group_count": 4, "expert_group_used_count": 2}, epsilon=1e-6,
           is_tied=False, latent=Latent(query_rank=32), experts=8, chosen=3,
           expert_feed_forward=12, groups=4, selection_biases=(0.05, -0.45), layer_gain=0.5),
    Family("deepseek2-lite", "deepseek2", "DeepseekV2ForCausalLM", LITE_OPTIONS,
           OLD_LITE_KEYS | LITE_KEYS, epsilon=1e-6, is_tied=False, rope=YARN | LITE_YARN,
           latent=Latent(), experts=4, chosen=2, expert_feed_forward=20, layer_gain=0.5),
    Family("deepseek2-lite-old", "deepseek2", "DeepseekV2ForCausalLM", LITE_OPTIONS,
           OLD_LITE_KEYS, epsilon=1e-6, is_tied=False, rope=YARN | LITE_YARN,
           latent=Latent(is_old=True), experts=4, chosen=2, expert_feed_forward=20,
           layer_gain=0.5, same_as="deepseek2-lite"),
    Family("qwen2moe", "qwen2moe", "Qwen2MoeForCausalLM",
           {"shared_expert_intermediate_size": 40, "norm_topk_prob": False},
           {"expert_shared_feed_forward_length": 40}, epsilon=1e-6, is_tied=False, rope_base=1e6,
           has_rope_dimension=False, experts=4, chosen=2, expert_feed_forward=20, layer_gain=0.5),
    Family("glm4moe", "glm4moe", "Glm4MoeForCausalLM", GLM_OPTIONS, GLM_KEYS, heads=4,
           is_tied=False, rope_base=1e6, rope={"partial_rotary_factor": 0.5}, experts=4, chosen=2,
           expert_feed_forward=20, layer_gain=0.5,
           norm_before_feed_forward="post_attention_norm"),
    Family("glm4moe-norms", "glm4moe", "Glm4MoeForCausalLM",
           GLM_OPTIONS | {"use_qk_norm": True, "routed_scaling_factor": 2.5},
           GLM_KEYS | {"expert_weights_scale": 2.5, "nextn_predict_layers": 1}, heads=4,
           is_tied=False, rope_base=1e6, rope={"partial_rotary_factor": 0.5}, experts=4, chosen=2,
           expert_feed_forward=12, layer_gain=0.5, has_draft_layer=True,
           norm_before_feed_forward="post_attention_norm"),
    Family("dots1", "dots1", "Dots1ForCausalLM", DOTS_OPTIONS, V3_KEYS | {"expert_shared_count": 2},
           kv_heads=2, epsilon=1e-6, is_tied=False, rope_base=1e7, has_rope_dimension=False,
           experts=4, chosen=2, expert_feed_forward=20, selection_biases=(0.3, -0.4),
           layer_gain=0.5),
    Family("deepseek", "deepseek", "Llama with DeepseekV2Moe",
           LLAMA_MIXTURE | {"first_k_dense_replace": 1, "norm_topk_prob": False},
           OLD_LITE_KEYS | {"expert_gating_func": gguf.ExpertGatingFuncType.SOFTMAX,
                            "rope.scaling.type": "none"},
           is_permuted=True, kv_heads=2, epsilon=1e-6, is_tied=False, experts=4, chosen=2,
           expert_feed_forward=20, layer_gain=0.5),
    Family("bailingmoe", "bailingmoe", "Llama with DeepseekV2Moe",
           LLAMA_MIXTURE | {"first_k_dense_replace": 0, "norm_topk_prob": True},
           OLD_LITE_KEYS | {"leading_dense_block_count": 0, "expert_weights_norm": True},
           is_permuted=True, epsilon=1e-6, is_tied=False, rope_base=6e5, experts=4, chosen=2,
           expert_feed_forward=12, layer_gain=0.5),
    Family("ernie4_5-moe", "ernie4_5-moe", "Ernie4_5_MoeForCausalLM",
           {"use_bias": False, "moe_num_shared_experts": 2, "moe_layer_start_index": 1,
            "moe_layer_interval": 1},
           {"interleave_moe_layer_step": 1, "leading_dense_block_count": 1,
            "expert_shared_count": 2, "expert_shared_feed_forward_length": 40},
           feed_forward=40, rope_base=5e5, has_rope_dimension=False, experts=4, chosen=2,
           expert_feed_forward=20, layer_gain=0.5),
    Family("hunyuan-moe", "hunyuan-moe", "HunYuanMoEV1ForCausalLM", {},
           {"expert_shared_feed_forward_length": 24, "expert_shared_count": 1},
           rope={"rope_type": "dynamic", "alpha": 1000.0, "factor": 1.0}, context=262144,
           served_context=512, has_rope_dimension=False, experts=4, chosen=2, layer_gain=0.5),
    Family("hunyuan-dense", "hunyuan-dense", "HunYuanDenseV1ForCausalLM", heads=4, kv_heads=2,
           rope={"rope_type": "dynamic", "alpha": 1000.0, "factor": 1.0}, context=262144,
           served_context=512, last_keys=UNSAID),
    Family("olmoe", "olmoe", "OlmoeForCausalLM", {"norm_topk_prob": False}, kv_heads=2,
           is_tied=False, has_rope_dimension=False, experts=4, chosen=2, has_expert_length=False,
           layer_gain=0.5),
    Family("minimax-m2", "minimax-m2", "MiniMaxM2ForCausalLM", {},
           {"expert_gating_func": gguf.ExpertGatingFuncType.SIGMOID}, epsilon=1e-6, heads=4,
           kv_heads=2, is_tied=False, rope_base=5e6, rope={"partial_rotary_factor": 0.5},
           experts=4, chosen=2, selection_biases=(0.05, -0.45), layer_gain=0.5,
           last_keys={"vocab_size": None}),
    # Weights are the softmax of the chosen scores alone, which is what normalized ones are.
    Family("granitemoe", "granitemoe", "GraniteMoeForCausalLM",
           GRANITE_OPTIONS | {"num_local_experts": 4}, GRANITE_KEYS, is_permuted=True, kv_heads=2,
           heads=4, head=8, epsilon=1e-6, experts=4, chosen=2, has_expert_length=False,
           layer_gain=2.0),
    Family("granitemoe-shared", "granitemoe", "GraniteMoeSharedForCausalLM",
           GRANITE_OPTIONS | {"num_local_experts": 4, "shared_intermediate_size": 40},
           GRANITE_KEYS | {"expert_shared_feed_forward_length": 40}, is_permuted=True, epsilon=1e-6,
           experts=4, chosen=2, has_expert_length=False, layer_gain=2.0),
    # The converter writes no rotary keys: llama.cpp takes all dimensions of a head and 10000.
    Family("gemma", "gemma", "GemmaForCausalLM", {"hidden_act": "gelu_pytorch_tanh"},
           last_keys=NO_ROTARY_KEYS | HEAD_LENGTHS, adds_one=True, has_table_gelu=True),
    Family("gemma2", "gemma2", "Gemma2ForCausalLM",
           {"query_pre_attn_scalar": 16, "sliding_window": 20, "attn_logit_softcapping": 3.0,
            "final_logit_softcapping": 4.0},
           names=NORMS_AROUND, adds_one=True, has_table_gelu=True,
           last_keys=NO_ROTARY_KEYS | HEAD_LENGTHS | {
               "attention.sliding_window": 20, "attn_logit_softcapping": 3.0,
               "final_logit_softcapping": 4.0}),
    # In window layers llama.cpp takes the base of its key, or 10000, and no scaling.
    Family("gemma3", "gemma3", "Gemma3ForCausalLM",
           {"query_pre_attn_scalar": 16, "sliding_window": 20, "rope_parameters": {
               "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
               "sliding_attention": {"rope_type": "default", "rope_theta": 20000.0}}},
           layers=7, hidden=32, feed_forward=16, rope_base=1e6, names=NORMS_AROUND, adds_one=True,
           has_table_gelu=True,
           last_keys=UNSAID | HEAD_LENGTHS | {
               "attention.sliding_window": 20, "rope.scaling.type": "linear",
               "rope.scaling.factor": 8.0, "rope.freq_base_swa": 20000.0}),
    # Values are keys before their norm where there is no window.
    Family("gemma4", "gemma4", "Gemma4ForCausalLM",
           GEMMA4_OPTIONS | {"attention_k_eq_v": True, "num_global_key_value_heads": 1},
           layers=6, heads=4, kv_heads=2, rope_base=1e6, rope=GEMMA4_ROPE, names=GEMMA4_NAMES,
           layout=gemma4_layout, has_table_gelu=True,
           last_keys=GEMMA4_KEYS | {"attention.head_count_kv": [2] * 5 + [1],
                                    "attention.sliding_window_pattern": [True] * 5 + [False]}),
    Family("gemma4-e", "gemma4", "Gemma4ForCausalLM",
           GEMMA4_OPTIONS | {
               "layer_types": ["sliding_attention", "sliding_attention", "full_attention"] * 2,
               "hidden_size_per_layer_input": 32, "vocab_size_per_layer_input": 131,
               "num_kv_shared_layers": 3, "use_double_wide_mlp": True},
           layers=6, heads=2, rope_base=1e6, rope=GEMMA4_ROPE, names=GEMMA4_NAMES,
           layout=gemma4_layout, has_table_gelu=True,
           last_keys=GEMMA4_KEYS | {
               "attention.sliding_window_pattern": [True, True, False] * 2,
               "feed_forward_length": [24] * 3 + [48] * 3, "attention.shared_kv_layers": 3,
               "embedding_length_per_layer_input": 32}),
    Family("gemma4-moe", "gemma4", "Gemma4ForCausalLM",
           GEMMA4_OPTIONS | {"layer_types": ["sliding_attention", "full_attention"],
                             "enable_moe_block": True, "top_k_experts": 2},
           heads=4, rope_base=1e6, rope=GEMMA4_ROPE, names=GEMMA4_NAMES, layout=gemma4_layout,
           experts=4, chosen=2, expert_feed_forward=20, layer_gain=0.5, router_gain=2.0,
           has_table_gelu=True,
           last_keys=GEMMA4_KEYS | {"attention.sliding_window_pattern": [True, False]}),
    # The published model has "truncate": false in its YaRN, which no key says: llama.cpp rounds the
    # bounds of the ramp to whole dimensions here as well. With this base they are the first and the
    # last dimension, rounded or not. Half of the experts' values are clamped.
    Family("gpt-oss", "gpt-oss", "GptOssForCausalLM",
           {"sliding_window": 20}, hidden=32, feed_forward=20, is_tied=False, rope_base=6.0,
           rope=YARN | BOUNDS | {"factor": 8.0, "truncate": False,
                                 "original_max_position_embeddings": 200},
           experts=4, chosen=2, has_gate=False, layout=gpt_oss_layout,
           gains={"experts.gate_up_proj": 12.0},
           names={"post_attention_layernorm": "post_attention_norm", "mlp.router": "ffn_gate_inp"},
           last_keys=UNSAID | HEAD_LENGTHS | {"attention.sliding_window": 20} | BOUNDS_KEYS),
    # With bounds within a head, as the published model has them.
    Family("gpt-oss-yarn", "gpt-oss", "GptOssForCausalLM",
           {"sliding_window": 20}, hidden=32, feed_forward=20, is_tied=False, rope_base=150000.0,
           rope=YARN | BOUNDS | {"factor": 8.0, "truncate": False}, has_llama_logits=False,
           experts=4, chosen=2, has_gate=False, layout=gpt_oss_layout,
           gains={"experts.gate_up_proj": 12.0},
           names={"post_attention_layernorm": "post_attention_norm", "mlp.router": "ffn_gate_inp"},
           last_keys=UNSAID | HEAD_LENGTHS | {"attention.sliding_window": 20} | BOUNDS_KEYS),
    Family("olmo2", "olmo2", "Olmo2ForCausalLM", is_tied=False, rope_base=5e5, names=NORMS_BEHIND,
           last_keys=UNSAID),
    # llama.cpp does not read the factor of attention, and takes what is written here: the default.
    # Window layers have the same base, and no scaling.
    Family("olmo3", "olmo2", "Olmo3ForCausalLM",
           {"sliding_window": 20,
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
            "rope_parameters": {
                "full_attention": YARN | BOUNDS | {"factor": 8.0, "rope_theta": 5e5,
                                                   "attention_factor": OLMO3_FACTOR},
                "sliding_attention": {"rope_type": "default", "rope_theta": 5e5}}},
           layers=3, is_tied=False, rope_base=5e5, rope=YARN | {"factor": 8.0}, names=NORMS_BEHIND,
           last_keys=UNSAID | BOUNDS_KEYS | {
               "attention.sliding_window": 20,
               "attention.sliding_window_pattern": [True, False, True],
               "rope.freq_base_swa": 5e5, "rope.scaling.yarn_attn_factor": OLMO3_FACTOR}),
    Family("exaone4", "exaone4", "Exaone4ForCausalLM",
           {"sliding_window": None, "layer_types": ["full_attention"] * 2}, rope_base=1e6,
           names=NORMS_BEHIND, last_keys=HEAD_LENGTHS | {"rope.dimension_count": None}),
    # llama.cpp has windows in this architecture where there are 64 layers; those without one have
    # no rotary positions then.
    Family("exaone4-window", "exaone4", "Exaone4ForCausalLM",
           {"sliding_window": 20, "sliding_window_pattern": 4}, layers=64, heads=4, head=8,
           feed_forward=8, rope_base=1e6, is_tied=False, names=NORMS_BEHIND,
           gains={"post_attention_layernorm.weight": 0.2,
                  "post_feedforward_layernorm.weight": 0.2},
           last_keys={
               "attention.key_length": 8, "attention.value_length": 8,
               "rope.dimension_count": None, "attention.sliding_window": 20,
               "attention.sliding_window_pattern": [True, True, True, False] * 16}),
    Family("granite", "granite", "GraniteForCausalLM", GRANITE_OPTIONS, is_permuted=True,
           last_keys=GRANITE_KEYS),
    Family("command-r", "command-r", "CohereForCausalLM", {"logit_scale": 2.0}, rope_base=8e6,
           last_keys=UNSAID | LAYER_NORM | NO_SCALING | {"logit_scale": 2.0}),
    Family("cohere2", "cohere2", "Cohere2ForCausalLM",
           {"logit_scale": 2.0, "sliding_window": 20, "rotary_pct": 1.0}, layers=4, rope_base=5e4,
           last_keys=HEAD_LENGTHS | LAYER_NORM | NO_SCALING | {
               "logit_scale": 2.0, "attention.sliding_window": 20}),
    Family("starcoder2", "starcoder2", "Starcoder2ForCausalLM",
           {"hidden_act": "gelu_pytorch_tanh"}, rope_base=1e5, has_table_gelu=True,
           names={"mlp.c_fc": "ffn_up", "mlp.c_proj": "ffn_down"}, last_keys=UNSAID | LAYER_NORM),
    Family("glm4", "glm4", "Glm4ForCausalLM", {"attention_bias": True}, is_tied=False,
           rope={"partial_rotary_factor": 0.5}, fused=("ffn_up",),
           names={"post_self_attn_layernorm": "post_attention_norm",
                  "post_mlp_layernorm": "post_ffw_norm"},
           last_keys=HEAD_LENGTHS | {"rope.dimension_count": 8, "vocab_size": None}),
    Family("nemotron", "nemotron", "NemotronForCausalLM", {"hidden_act": "relu2"}, is_tied=False,
           rope={"partial_rotary_factor": 0.5}, adds_one=True,
           last_keys=HEAD_LENGTHS | LAYER_NORM | NO_SCALING | {"rope.dimension_count": 8}),
    Family("stablelm", "stablelm", "StableLmForCausalLM", {"use_qkv_bias": True}, is_tied=False,
           rope={"partial_rotary_factor": 0.25},
           last_keys=NO_ROTARY_KEYS | LAYER_NORM | {"rope.dimension_count": 4,
                                               "use_parallel_residual": False}),
    Family("phi2", "phi2", "PhiForCausalLM", {"hidden_act": "gelu_new"}, is_tied=False, kv_heads=2,
           feed_forward=128, rope={"partial_rotary_factor": 0.5}, has_table_gelu=True,
           names={"model.final_layernorm": "output_norm", "self_attn.dense": "attn_output",
                  "mlp.fc1": "ffn_up", "mlp.fc2": "ffn_down"},
           last_keys=NO_ROTARY_KEYS | LAYER_NORM | {"rope.dimension_count": 8}),
    # Published models have GELU itself; llama.cpp has its approximation by tanh also here.
    Family("falcon", "falcon", "FalconForCausalLM", {"num_kv_heads": 1}, feed_forward=128,
           layout=falcon_layout, has_table_gelu=True,
           names=FALCON_NAMES | {"input_layernorm": "attn_norm"}, last_keys=FALCON_KEYS),
    Family("falcon-40b", "falcon", "FalconForCausalLM",
           {"new_decoder_architecture": True, "num_kv_heads": 2}, heads=4, kv_heads=2, head=8,
           feed_forward=128, layout=falcon_layout, has_table_gelu=True, names=FALCON_NAMES,
           last_keys=FALCON_KEYS),
    Family("orion", "orion", "Llama with layer norms", is_tied=False,
           last_keys=NO_ROTARY_KEYS | LAYER_NORM | {"tensor_data_layout": "Meta AI original pth"}),
    Family("arcee", "arcee", "ArceeForCausalLM", {"hidden_act": "relu2"}, is_permuted=True,
           is_tied=False, last_keys=HEAD_LENGTHS),
    Family("apertus", "apertus", "ApertusForCausalLM", {"hidden_act": "xielu"}, is_tied=False,
           rope_base=12e6, layout=apertus_layout,
           names={"attention_layernorm": "attn_norm", "feedforward_layernorm": "ffn_norm"},
           last_keys={f"xielu.{name}": xielu(name)
                      for name in ("alpha_n", "alpha_p", "beta", "eps")}),
    # Its published code computes what Granite does, with the scores' usual scale. Where the logits'
    # scale is missing, llama.cpp divides by 256 / hidden: the inverse of what such files mean.
    Family("minicpm", "minicpm", "GraniteForCausalLM",
           {"embedding_multiplier": 12.0, "residual_multiplier": 1.4 / math.sqrt(2),
            "attention_multiplier": 0.25, "logits_scaling": 0.5}, is_permuted=True,
           last_keys=UNSAID | {"embedding_scale": 12.0, "residual_scale": 1.4 / math.sqrt(2),
                          "logit_scale": 0.5}),
    Family("mistral3", "mistral3", "Ministral3ForCausalLM", is_permuted=True, is_tied=False,
           rope_base=1e6,
           rope=YARN | BOUNDS | {"factor": 8.0, "mscale": 1.0, "mscale_all_dim": 1.0,
                                 "llama_4_scaling_beta": 0.5},
           last_keys=HEAD_LENGTHS | BOUNDS_KEYS | {
               "rope.scaling.yarn_log_multiplier": 1.0, "attention.temperature_scale": 0.5}),
    # The converter does not write this one's temperature, though llama.cpp would read it.
    Family("mistral4", "mistral4", "Mistral4ForCausalLM",
           MISTRAL4_OPTIONS | {"first_k_dense_replace": 0},
           MISTRAL4_KEYS | {"leading_dense_block_count": 0}, epsilon=1e-6, heads=4, is_tied=False,
           rope=YARN | V3_YARN | {"llama_4_scaling_beta": 0.0}, latent=Latent(query_rank=32),
           experts=4, chosen=2, expert_feed_forward=20, layer_gain=0.5,
           fused=("ffn_gate_up_exps",)),
    # Mistral Large 3. Tokens of the longer sequence have four temperatures.
    Family("deepseek2-temperature", "deepseek2", "Mistral4ForCausalLM",
           MISTRAL4_OPTIONS | {"first_k_dense_replace": 1},
           MISTRAL4_KEYS | {"leading_dense_block_count": 1,
                            "expert_gating_func": gguf.ExpertGatingFuncType.SOFTMAX},
           epsilon=1e-6, heads=4, is_tied=False,
           rope=YARN | V3_YARN | {"factor": 16.0, "original_max_position_embeddings": 32,
                                  "llama_4_scaling_beta": 0.5},
           latent=Latent(query_rank=32), experts=4, chosen=2, expert_feed_forward=20,
           layer_gain=0.5,
           last_keys={"attention.temperature_scale": 0.5, "attention.temperature_length": 32}),
    # llama.cpp takes sections of 8192 tokens and temperatures that change as often, whatever keys
    # say.
    Family("llama4", "llama4", "Llama4ForCausalLM", LLAMA4_OPTIONS, LLAMA4_KEYS, layers=4,
           is_tied=False, rope_base=5e5, experts=4, chosen=1, expert_feed_forward=20,
           layer_gain=0.5, router_output=1),
    Family("llama4-sections", "llama4", "Llama4ForCausalLM",
           LLAMA4_OPTIONS | {"attention_chunk_size": 20, "floor_scale": 16, "attn_scale": 0.5},
           LLAMA4_KEYS | {"attention.sliding_window": 20, "attention.temperature_scale": 0.5,
                          "attention.temperature_length": 16},
           layers=4, is_tied=False, rope_base=5e5, experts=4, chosen=2, expert_feed_forward=20,
           layer_gain=0.5, router_output=1, has_llama_logits=False),
    # llama.cpp knows by 64 layers that heads have norms.
    Family("command-r-plus", "command-r", "CohereForCausalLM",
           {"logit_scale": 2.0, "use_qk_norm": True}, layers=64, heads=4, head=8, feed_forward=8,
           rope_base=8e6, last_keys=UNSAID | LAYER_NORM | NO_SCALING | {"logit_scale": 2.0}),
    Family("stablelm-12b", "stablelm", "StableLmForCausalLM",
           {"use_qkv_bias": False, "qk_layernorm": True, "use_parallel_residual": True},
           is_tied=False, heads=4, kv_heads=2, head=8, layout=stablelm_layout,
           rope={"partial_rotary_factor": 0.25},
           last_keys=NO_ROTARY_KEYS | LAYER_NORM | {"rope.dimension_count": 2,
                                                    "use_parallel_residual": True}),
    Family("olmo", "olmo", "OlmoForCausalLM", {"clip_qkv": 0.7}, is_permuted=True, is_tied=False,
           last_keys=UNSAID | LAYER_NORM | {"attention.clamp_kqv": 0.7}),
    Family("refact", "refact", "PlainDecoder", {"parts": {"pairs": None, "alibi": 8.0}},
           heads=4, head=8, is_tied=False, last_keys=NO_ROTARY_KEYS),
    # ALiBi instead of rotary positions where there are 40 layers.
    Family("baichuan-13b", "baichuan", "PlainDecoder", {"parts": {"pairs": None, "alibi": 8.0}},
           layers=40, hidden=32, heads=4, head=8, kv_heads=4, feed_forward=8, is_tied=False),
    Family("plamo", "plamo", "PlainDecoder", {"parts": {"pairs": "halves", "is_parallel": True}},
           is_tied=False, last_keys=UNSAID),
    Family("openelm", "openelm", "PlainDecoder",
           {"parts": {"pairs": "halves", "head_norms": True, "heads": [2, 4, 6],
                      "kv_heads": [1, 2, 3], "feed_forward": [16, 24, 40]}},
           layers=3, fused=("attn_qkv",),
           last_keys=HEAD_LENGTHS | {"attention.head_count": [2, 4, 6],
                                     "attention.head_count_kv": [1, 2, 3],
                                     "feed_forward_length": [16, 24, 40]}),
    # Layers without attention, with a product in its place, and without both parts.
    Family("deci", "deci", "PlainDecoder",
           {"parts": {"pairs": "neighbours", "heads": [4, 0, 4, 0, 4],
                      "kv_heads": [2, 0, 0, 0, 1], "feed_forward": [24, 40, 24, 0, 16]}},
           layers=5, heads=4, head=8, is_tied=False,
           last_keys={"attention.key_length": 8, "attention.value_length": 8,
                      "attention.head_count": [4, 0, 4, 0, 4],
                      "attention.head_count_kv": [2, 0, 0, 0, 1],
                      "feed_forward_length": [24, 40, 24, 0, 16]}),
    # Attention is neither in the first layer, of which llama.cpp takes its sizes, nor in the last.
    Family("deci-middle", "deci", "PlainDecoder",
           {"parts": {"pairs": "neighbours", "heads": [0, 4, 4, 0], "kv_heads": [0, 2, 0, 0],
                      "feed_forward": [24, 0, 16, 24]}},
           layers=4, heads=4, head=8, is_tied=False,
           last_keys={"attention.key_length": 8, "attention.value_length": 8,
                      "attention.head_count": [0, 4, 4, 0], "attention.head_count_kv": [0, 2, 0, 0],
                      "feed_forward_length": [24, 0, 16, 24]},
           has_llama_logits=False),
    # The dense feed-forward is as wide as the residual.
    Family("arctic", "arctic", "PlainDecoder",
           {"parts": {"pairs": "neighbours", "experts": "beside", "feed_forward": [32, 32]}},
           feed_forward=20, experts=4, chosen=2, has_expert_length=False, layer_gain=0.5,
           is_tied=False, names={"experts_layernorm": "ffn_norm_exps"}),
    # Windows are of 4096 tokens in llama.cpp, whatever the key says.
    Family("smallthinker", "smallthinker", "PlainDecoder",
           {"parts": {"pairs": "halves", "unturned_every": 4, "experts": "alone",
                      "routes_before": True, "activation": "relu", "sigmoid": True}},
           {"expert_gating_func": gguf.ExpertGatingFuncType.SIGMOID,
            "attention.sliding_window": 4096},
           layers=5, experts=4, chosen=2, layer_gain=0.5, is_tied=False),
    # llama.cpp lets adjugate experts read what the others made, and weighs them by the scores of the
    # experts whose numbers are those of the groups.
    Family("grovemoe", "grovemoe", "PlainDecoder", {"parts": GROVE_PARTS},
           {"experts_per_group": 2, "expert_chunk_feed_forward_length": 32,
            "expert_group_scale": 0.5}, rope_base=1e6, experts=8, chosen=3, feed_forward=32,
           layer_gain=0.5, is_tied=False, differs_in_llama=True),
    Family("jais2", "jais2", "Jais2ForCausalLM",
           {"hidden_act": "relu2", "attention_bias": True, "mlp_bias": True}, kv_heads=2,
           is_tied=False, last_keys=LAYER_NORM),
    Family("exaone-moe", "exaone-moe", "ExaoneMoeForCausalLM",
           {"sliding_window": 20, "sliding_window_pattern": 4, "num_shared_experts": 1,
            "first_k_dense_replace": 1, "routed_scaling_factor": 2.5, "n_group": 1,
            "topk_group": 1, "mlp_layer_types": ["dense", "sparse", "sparse", "sparse"]},
           V3_KEYS | {"expert_shared_feed_forward_length": 20, "attention.sliding_window": 20,
                      "attention.sliding_window_pattern": [True, True, True, False]},
           layers=4, rope_base=1e6, is_tied=False, experts=4, chosen=2, expert_feed_forward=20,
           selection_biases=(0.05, -0.45), layer_gain=0.5, last_keys=HEAD_LENGTHS | NO_SCALING),
    Family("minicpm3", "minicpm3", "MiniCPM3ForCausalLM",
           {"scale_emb": 12, "scale_depth": 1.4, "dim_model_base": 256}, heads=2, hidden=64,
           latent=Latent(query_rank=32, is_old=True), is_tied=False,
           last_keys={"attention.value_length": None}),
    Family("glm-dsa", "glm-dsa", "GlmMoeDsaForCausalLM",
           V3_OPTIONS | INDEXER_OPTIONS, V3_KEYS | INDEXER_KEYS, epsilon=1e-5, layers=3, heads=4,
           is_tied=False, latent=Latent(query_rank=32), experts=4, chosen=2,
           expert_feed_forward=20, selection_biases=(0.05, -0.45), layer_gain=0.5,
           layout=indexer_layout),
    Family("deepseek32", "deepseek32", "DeepseekV32ForCausalLM",
           V3_OPTIONS | INDEXER_OPTIONS, V3_KEYS | INDEXER_KEYS, epsilon=1e-6, layers=3, heads=4,
           is_tied=False, rope=YARN | V3_YARN, latent=Latent(query_rank=32), experts=4, chosen=2,
           expert_feed_forward=20, layer_gain=0.5, layout=indexer_layout),
    Family("mimo2", "mimo2", "MiMoV2FlashForCausalLM", MIMO2_OPTIONS, MIMO2_KEYS, layers=3,
           heads=4, is_tied=False, rope_base=5e6, experts=4, chosen=2, expert_feed_forward=20,
           selection_biases=(0.05, -0.45), layer_gain=0.5, layout=mimo2_layout,
           last_keys=MIMO2_LAST_KEYS),
    Family("lfm2", "lfm2", "Lfm2ForCausalLM",
           LFM2_OPTIONS | {"layer_types": ["conv", "full_attention", "conv", "conv"]},
           {"shortconv.l_cache": 3}, layers=4, rope_base=1e6, names=LFM2_NAMES, layout=lfm2_layout,
           last_keys={"attention.head_count_kv": [0, 1, 0, 0]}),
    Family("lfm2-long", "lfm2", "Lfm2ForCausalLM",
           LFM2_OPTIONS | {"layer_types": ["conv", "full_attention"], "conv_L_cache": 4},
           {"shortconv.l_cache": 4}, rope_base=1e6, hidden=64, head=32, feed_forward=32,
           names=LFM2_NAMES, layout=lfm2_layout, last_keys={"attention.head_count_kv": [0, 1]}),
    Family("lfm2moe", "lfm2moe", "Lfm2MoeForCausalLM",
           {"num_dense_layers": 1, "layer_types": ["conv", "full_attention", "conv"]},
           {"shortconv.l_cache": 3, "leading_dense_block_count": 1,
            "expert_gating_func": gguf.ExpertGatingFuncType.SIGMOID},
           layers=3, rope_base=1e6, experts=4, chosen=2, expert_feed_forward=20,
           selection_biases=(0.05, -0.45), layer_gain=0.25, names=LFM2_NAMES, layout=lfm2_layout,
           last_keys={"attention.head_count_kv": [0, 1, 0]}),
    Family("qwen35", "qwen35", "Qwen3_5ForCausalLM", DELTA_OPTIONS,
           DELTA_KEYS | {"attention.recurrent_layers": [True, False, True]}, layers=3,
           epsilon=1e-6, rope_base=1e7, rope=QWEN35_ROPE, sections=(2, 1, 1, 0), adds_one=True,
           norm_before_feed_forward="post_attention_norm", layout=qwen35_layout,
           gains=DELTA_GAINS),
    Family("qwen35moe", "qwen35moe", "Qwen3_5MoeForCausalLM",
           DELTA_OPTIONS | {"shared_expert_intermediate_size": 40},
           DELTA_KEYS | {"full_attention_interval": 2, "expert_shared_feed_forward_length": 40},
           layers=3, epsilon=1e-6, rope_base=1e7, rope=QWEN35_ROPE, sections=(2, 1, 1, 0),
           adds_one=True, norm_before_feed_forward="post_attention_norm", layout=qwen35_layout,
           gains=DELTA_GAINS, experts=4, chosen=2, expert_feed_forward=20, layer_gain=0.25),
    Family("qwen3next", "qwen3next", "Qwen3NextForCausalLM", layout=next_layout, **NEXT),
    Family("qwen3next-old", "qwen3next", "Qwen3NextForCausalLM", layout=old_next_layout,
           same_as="qwen3next", **NEXT),
    Family("kimi-linear", "kimi-linear", "KimiLinearForCausalLM",
           {"layer_types": ["linear_attention", "full_attention", "linear_attention"],
            "mlp_layer_types": ["dense", "sparse", "sparse"], "linear_head_dim": 32,
            "linear_num_heads": 4, "routed_scaling_factor": 2.5, "n_shared_experts": 1,
            "n_group": 1, "topk_group": 1},
           {"ssm.conv_kernel": 4, "kda.head_dim": 32, "leading_dense_block_count": 1,
            "expert_shared_count": 1, "expert_weights_scale": 2.5,
            "expert_gating_func": gguf.ExpertGatingFuncType.SIGMOID},
           layers=3, epsilon=1e-6, heads=4, latent=Latent(), experts=4, chosen=2,
           expert_feed_forward=20, layer_gain=0.5, selection_biases=(0.6, -0.4),
           layout=kimi_layout, gains=SCAN_GAINS,
           last_keys={"attention.head_count_kv": [0, 1, 0]}),
    Family("mamba", "mamba", "MambaForCausalLM",
           {"state_size": 16, "time_step_rank": 32, "intermediate_size": 64,
            "layer_norm_epsilon": 1e-5},
           MAMBA_KEYS | {"ssm.dt_b_c_rms": False}, gains=MAMBA_GAINS, layout=mamba_layout,
           names=MAMBA_NAMES, last_keys=NO_ATTENTION),
    Family("falcon-mamba", "mamba", "FalconMambaForCausalLM",
           {"state_size": 16, "time_step_rank": 32, "intermediate_size": 64,
            "layer_norm_epsilon": 1e-5, "mixer_rms_eps": 1e-5},
           MAMBA_KEYS | {"ssm.dt_b_c_rms": True}, gains=MAMBA_GAINS, layout=mamba_layout,
           names=MAMBA_NAMES, last_keys=NO_ATTENTION),
    Family("jamba", "jamba", "JambaForCausalLM",
           {"attn_layer_period": 3, "attn_layer_offset": 1, "expert_layer_period": 2,
            "expert_layer_offset": 1, "mamba_d_state": 16, "mamba_dt_rank": 32},
           MAMBA_KEYS, layers=4, experts=4, chosen=2, has_expert_length=False, layer_gain=0.25,
           router_gain=0.3,
           gains=MAMBA_GAINS | {"out_proj.weight": 0.2}, layout=mamba_layout,
           names={"model.final_layernorm": "output_norm"},
           last_keys={"attention.head_count_kv": [0, 1, 0, 0]}),
    # In models the first layer has a scan; llama.cpp turns no pairs then, and its rope never ends.
    Family("plamo2", "plamo2", "Plamo2Decoder",
           {"parts": {"pairs": "halves", "head_norms": True, "heads": [2, 0, 0],
                      "scan": {"heads": 4, "head": 16, "state": 16, "few": 64}}},
           SCAN_KEYS | {"ssm.group_count": 0}, epsilon=1e-6, layers=3,
           gains=SCAN_GAINS | {"dt_proj.bias": 4.0}, layout=plamo2_layout,
           fused=("attn_qkv", "ffn_up"),
           last_keys={"attention.head_count": [2, 0, 0], "attention.head_count_kv": [1, 0, 0],
                      "attention.key_length": 16, "attention.value_length": 16,
                      "rope.dimension_count": None}),
    Family("mamba2", "mamba2", "Mamba2ForCausalLM",
           {"num_heads": 4, "head_dim": 16, "state_size": 16, "n_groups": 1,
            "layer_norm_epsilon": 1e-5}, SCAN_KEYS, gains=SCAN_GAINS, layout=scan_layout,
           names=MAMBA_NAMES, last_keys=NO_ATTENTION),
    Family("granitehybrid", "granitehybrid", "GraniteMoeHybridForCausalLM",
           layout=scan_layout, **GRANITE_HYBRID | {
               "options": GRANITE_HYBRID["options"] | {"num_local_experts": 0}}),
    Family("granitehybrid-moe", "granitehybrid", "GraniteMoeHybridForCausalLM",
           layout=scan_layout, experts=4, chosen=2, has_expert_length=False, layer_gain=2.0,
           **GRANITE_HYBRID | {
               "options": GRANITE_HYBRID["options"] | {
                   "num_local_experts": 4, "shared_intermediate_size": 40},
               "keys": GRANITE_HYBRID["keys"] | {"expert_shared_feed_forward_length": 40}}),
    Family("falcon-h1", "falcon-h1", "FalconH1ForCausalLM",
           {"mamba_n_heads": 4, "mamba_d_head": 16, "mamba_d_ssm": 64, "mamba_n_groups": 2,
            "mamba_d_state": 16}, SCAN_KEYS | {"ssm.group_count": 2}, gains=SCAN_GAINS,
           layout=scan_layout, names={"model.final_layernorm": "output_norm"}),
    Family("nemotron_h", "nemotron_h", "NemotronHForCausalLM",
           NEMOTRON_OPTIONS | {"layers_block_type": ["mamba", "attention", "mlp", "mamba"]},
           NEMOTRON_KEYS, layers=4, gains=SCAN_GAINS, layout=scan_layout, names=NEMOTRON_NAMES,
           last_keys={"attention.head_count_kv": [0, 1, 0, 0],
                      "feed_forward_length": [0, 0, 24, 0]}),
    Family("nemotron_h_moe", "nemotron_h_moe", "NemotronHForCausalLM", layout=scan_layout,
           **NEMOTRON_MIXTURE),
    Family("nemotron_h_moe-latent", "nemotron_h_moe", "NemotronHForCausalLM", layout=scan_layout,
           **NEMOTRON_MIXTURE | {
               "options": NEMOTRON_MIXTURE["options"] | {"moe_latent_size": 16},
               "keys": NEMOTRON_MIXTURE["keys"] | {"moe_latent_size": 16}}),
)


def reference_of(name: str) -> tuple[type, Callable]:
    if name in REFERENCES:
        return REFERENCES[name]
    network_class = getattr(transformers, name)
    return network_class.config_class, network_class


def stored(values: np.ndarray, name: str, family: Family) -> np.ndarray:
    """The values as the file's format has them, in float32."""
    if family.format == "F32" or not is_matrix(values, name):
        return values
    kind = gguf.GGMLQuantizationType[family.format]
    return gguf.quants.dequantize(gguf.quants.quantize(values, kind), kind)


def is_matrix(values: np.ndarray, name: str) -> bool:
    return values.ndim > 1 and not name.endswith("mlp.gate.weight")


def stored_latent(values: np.ndarray, name: str, family: Family) -> np.ndarray:
    """As stored(), of attn_k_b and attn_v_b, in the one tensor that transformers has."""
    key_part, value_part = (stored(part, name, family) for part in split_latent(values, family))
    return np.concatenate([key_part.swapaxes(1, 2), value_part], axis=1).reshape(values.shape)


def split_latent(values: np.ndarray, family: Family) -> tuple[np.ndarray, np.ndarray]:
    """What makes keys and values out of a narrow row: [heads, rank, own], [heads, value, rank]."""
    latent = family.latent
    heads = values.reshape(family.heads, latent.own + latent.value, latent.rank)
    key_part, value_part = np.split(heads, [latent.own], axis=1)
    return key_part.swapaxes(1, 2), value_part


def make_network(family: Family) -> torch.nn.Module:
    """The reference with random weights, rounded to what the file will hold."""
    config_class, make = reference_of(family.reference)
    rope = {key: value for key, value in family.rope.items() if key not in ("original", "freqs")}
    rope = {"rope_type": "default", "rope_theta": family.rope_base} | rope
    options = dict(family.options)
    if "original" in family.rope:
        rope["original_max_position_embeddings"] = family.rope["original"]
        options |= {"original_max_position_embeddings": family.rope["original"]}
    if family.reference.startswith("Phi3"):
        options |= {"resid_pdrop": 0.0, "sliding_window": None}
    if family.latent:
        latent = family.latent
        options |= {"q_lora_rank": latent.query_rank or None, "kv_lora_rank": latent.rank,
                    "qk_nope_head_dim": latent.own, "qk_rope_head_dim": family.head,
                    "v_head_dim": latent.value}
    if family.experts:
        options = {"num_experts": family.experts, "n_routed_experts": family.experts,
                   "num_experts_per_tok": family.chosen, "norm_topk_prob": True,
                   "moe_intermediate_size": expert_feed_forward(family)} | options
    common = {
        "hidden_size": family.hidden, "intermediate_size": family.feed_forward,
        "num_hidden_layers": family.layers, "num_attention_heads": family.heads,
        "num_key_value_heads": family.heads if family.latent else family.kv_heads,
        "head_dim": family.head,
        "vocab_size": family.vocabulary, "rms_norm_eps": family.epsilon,
        "max_position_embeddings": family.context, "tie_word_embeddings": family.is_tied,
        "hidden_act": "silu", "rope_parameters": rope, "attn_implementation": "eager",
        "pad_token_id": None}
    if isinstance(getattr(config_class, "head_dim", None), property):
        del common["head_dim"]
    config = config_class(**common | options)
    network = make(config).float().eval()
    generator = torch.Generator().manual_seed(SEED)
    for name, parameter in all_parameters(network):
        name = common_name(name)
        noise = torch.randn(parameter.shape, generator=generator)
        if name.endswith(SELECTION_BIAS):
            values = torch.zeros_like(noise)
            values[..., 0], values[..., -1] = family.selection_biases
        elif name.endswith("router.bias"):
            values = 0.3 * noise + chosen_apart(family, int(name.split(".")[2]))
        elif name.endswith("bias"):
            values = 0.3 * noise
        elif name.endswith("sinks"):
            values = noise
        elif noise.dim() == 1 or name.endswith("_norm.weight"):
            values = 0.2 * noise + (0 if family.adds_one else 1)
        elif "embed" in name or "lm_head" in name:
            values = 0.3 * noise
        else:
            gain = 1.5 if any(part in name for part in STRONG) else 1.0
            values = noise * gain / math.sqrt(noise.shape[-1])
            if "o_proj" in name or "down_proj" in name:
                values /= math.sqrt(family.layers / 2) / family.layer_gain
        for end, gain in family.gains.items():
            if name.endswith(end):
                values *= gain
        if has_choice(family):
            values = set_experts_apart(family, apart_name(name), values, generator)
            if family.groups > 1:
                values = set_groups_apart(family, name, values, generator)
            if name.endswith("mlp.gate.weight"):
                values *= family.router_gain
        rounded = stored_latent if family.latent and "kv_b_proj" in name else stored
        parameter.data.copy_(torch.from_numpy(rounded(values.numpy(), name, family)))
    return network


def set_groups_apart(family: Family, name: str, values: torch.Tensor,
                     generator: torch.Generator) -> torch.Tensor:
    """As set_experts_apart(), which it follows, with scores that are evenly spaced from group to
    group, and further apart within a group: the best experts are not all in the best groups.
    """
    size = family.experts // family.groups
    if "embed_tokens" in name:
        for row in values:
            groups = torch.randperm(family.groups, generator=generator) - (family.groups - 1) / 2
            within = torch.stack([torch.randperm(size, generator=generator)
                                  for _ in range(family.groups)]) - (size - 1) / 2
            row[:family.experts] = (0.6 * groups[:, None] + 2 * within).flatten()
    elif name.endswith("mlp.gate.weight"):  # whose rows are turned by a whole group per layer
        values = values.roll(int(name.split(".")[2]) * (size - 1), dims=0)
    return values


def all_parameters(network: torch.nn.Module) -> list[tuple[str, torch.Tensor]]:
    """With what transformers does not call a parameter though the file has it."""
    return [*network.named_parameters(), *(named for named in network.named_buffers()
                                           if named[0].endswith(BUFFERS))]


def common_name(name: str) -> str:
    for part, common in COMMON_NAMES.items():
        name = name.replace(part, common)
    return name


def apart_name(name: str) -> str:
    for part, common in APART_NAMES.items():
        name = name.replace(part, common)
    if name.split(".", 3)[-1] == "norm.weight":  # a layer's only one
        name = name.replace("norm", "post_attention_layernorm")
    return name


def has_choice(family: Family) -> bool:
    """Whether weights of gates keep a token's experts apart from the others."""
    return family.has_gate and family.chosen < family.experts


def chosen_apart(family: Family, layer: int) -> torch.Tensor:
    """Biases by which all tokens go to the same experts, to others in every layer."""
    return 8.0 * ((torch.arange(family.experts) + layer) % family.experts < family.chosen)


def expert_feed_forward(family: Family) -> int:
    return family.expert_feed_forward or family.feed_forward


def check_choice(family: Family, network: torch.nn.Module, tokens: torch.Tensor) -> float:
    """That no token's experts are near to being others; returns by how much they are not."""
    gaps = []

    def check(mixture, output):
        scores = output[family.router_output] if isinstance(output, tuple) else output
        scores = scores.sigmoid() if is_sigmoid(family) else scores.softmax(dim=1)
        for name, bias in all_parameters(mixture):
            if common_name(name).endswith(SELECTION_BIAS):
                scores = scores + bias
        if family.groups > 1:
            groups = scores.view(len(scores), family.groups, -1).topk(2).values.sum(dim=2)
            kept = family.keys["expert_group_used_count"]
            gaps.append(gap_after(groups, kept))
            bound = groups.topk(kept).values[:, -1:]
            outside = (groups < bound).repeat_interleave(family.experts // family.groups, dim=1)
            scores = scores.masked_fill(outside, -math.inf)
        gaps.append(gap_after(scores, family.chosen))

    hooks = []
    for name, router in network.named_modules():
        if name.endswith(ROUTERS):
            mixture = network.get_submodule(name.rpartition(".")[0])
            hooks.append(router.register_forward_hook(
                lambda _, __, output, mixture=mixture: check(mixture, output)))
    network(tokens)
    for hook in hooks:
        hook.remove()
    if min(gaps) < SCORE_GAP_MIN:
        raise ValueError(f"{family.name}: an expert is chosen by {min(gaps):.3f}")
    return min(gaps)


def is_sigmoid(family: Family) -> bool:
    return family.keys.get("expert_gating_func") == gguf.ExpertGatingFuncType.SIGMOID


def gap_after(scores: torch.Tensor, chosen: int) -> float:
    """The least by which a row's chosen scores are above the others."""
    ordered = scores.sort(descending=True).values
    return float((ordered[:, chosen - 1] - ordered[:, chosen]).min())


def layer_tensors(family: Family, block: str, rest: str, values: np.ndarray) -> dict:
    """What the file has of one of transformers' tensors within a layer, each in its own tensor."""
    if rest.endswith(SELECTION_BIAS):
        return {f"{block}.exp_probs_b.bias": values}
    if family.layout and (pieces := family.layout(family, rest, values)) is not None:
        return {f"{block}.{name}": piece for name, piece in pieces.items()}
    part, kind = rest.rsplit(".", 1)
    queries, keys = family.heads * family.head, family.kv_heads * family.head
    if part == "self_attn.qkv_proj":
        pieces = np.split(values, [queries, queries + keys])
        return {f"{block}.attn_{name}.{kind}": piece for name, piece in zip("qkv", pieces)}
    end = ""
    for shared in SHARED_EXPERTS:
        if part.startswith(f"mlp.{shared}."):
            part, end = part.replace(f"{shared}.", ""), "_shexp"
    if part == "mlp.gate_up_proj":
        gate, up = np.split(values, 2)
        return {f"{block}.ffn_gate{end}.{kind}": gate, f"{block}.ffn_up{end}.{kind}": up}
    if end:
        return {f"{block}.{TENSOR_NAMES[part]}{end}.{kind}": values}
    if part == "self_attn.kv_b_proj" and not family.latent.is_old:
        key_part, value_part = split_latent(values, family)
        return {f"{block}.attn_k_b.weight": key_part, f"{block}.attn_v_b.weight": value_part}
    feed_forward = expert_feed_forward(family)
    if rest == "mlp.experts.gate_up_proj":
        if values.shape[1:] != (2 * feed_forward, family.hidden):  # some have them transposed
            values = values.swapaxes(1, 2)
        gate, up = np.split(values, 2, axis=1)
        return {f"{block}.ffn_gate_exps.weight": gate, f"{block}.ffn_up_exps.weight": up}
    if rest == "mlp.chunk_experts.gate_up_proj":
        gate, up = np.split(values, 2, axis=1)
        return {f"{block}.ffn_gate_chexps.weight": gate, f"{block}.ffn_up_chexps.weight": up}
    if rest == "mlp.chunk_experts.down_proj":
        return {f"{block}.ffn_down_chexps.weight": values}
    if rest == "mlp.experts.down_proj":
        if values.shape[1:] != (family.hidden, feed_forward):
            values = values.swapaxes(1, 2)
        return {f"{block}.ffn_down_exps.weight": values}
    if family.is_permuted and part.endswith(("q_proj", "k_proj")):
        values = interleaved(values, family.heads if "q_proj" in part else family.kv_heads)
    name = (FILE_NAMES | family.names)[part]
    if name == "ffn_norm" and part not in family.names:
        name = family.norm_before_feed_forward
    return {f"{block}.{name}.{kind}": values}


def file_tensors(family: Family, network: torch.nn.Module) -> dict[str, np.ndarray]:
    whole = {"model.embed_tokens": "token_embd", "lm_head": "output",
             "model.norm": "output_norm"} | family.names
    tensors = {}
    for name, parameter in all_parameters(network):
        values = parameter.detach().numpy()
        adds_one = family.adds_one and not name.endswith("linear_attn.norm.weight")
        if adds_one and name.endswith("norm.weight"):
            values = values + np.float32(1)
        part, kind = name.rsplit(".", 1)
        if part in whole:
            tensors[f"{whole[part]}.{kind}"] = values
            continue
        _, _, layer, rest = common_name(name).split(".", 3)
        tensors |= layer_tensors(family, f"blk.{layer}", rest, values)
    for layer in range(family.layers):
        fuse(family, tensors, f"blk.{layer}.")
        for part in "qk":  # of each head
            name = f"blk.{layer}.attn_{part}_norm.weight"
            norms = [tensors.pop(f"{name}.{head}") for head in range(family.heads)
                     if f"{name}.{head}" in tensors]
            if norms:
                tensors[name] = np.stack(norms)
    if family.has_draft_layer:
        tensors |= draft_layer(family, tensors)
    return tensors


def draft_layer(family: Family, tensors: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """A layer as the last one, and the tensors around it."""
    last, block = f"blk.{family.layers - 1}.", f"blk.{family.layers}."
    norm = tensors["output_norm.weight"]
    around = {"eh_proj": np.ones((family.hidden, 2 * family.hidden), np.float32), "enorm": norm,
              "hnorm": norm, "shared_head_norm": norm,
              "embed_tokens": tensors["token_embd.weight"],
              "shared_head_head": tensors["output.weight"]}
    return ({block + name.removeprefix(last): values for name, values in tensors.items()
             if name.startswith(last)}
            | {f"{block}nextn.{name}.weight": values for name, values in around.items()})


def fuse(family: Family, tensors: dict[str, np.ndarray], block: str) -> None:
    """Puts tensors of a layer into one, as `fused` says."""
    parts = {"attn_qkv": ("attn_q", "attn_k", "attn_v"), "ffn_up": ("ffn_gate", "ffn_up"),
             "ffn_gate_up_exps": ("ffn_gate_exps", "ffn_up_exps")}
    for name in family.fused:
        for kind in ("weight", "bias"):
            names = [f"{block}{part}.{kind}" for part in parts[name]]
            if names[0] in tensors:
                axis = 1 if name.endswith("exps") else 0
                values = np.concatenate([tensors.pop(each) for each in names], axis=axis)
                tensors[f"{block}{name}.{kind}"] = values


def add_rope(writer: gguf.GGUFWriter, family: Family) -> None:
    base = family.rope_base
    if "alpha" in family.rope:  # which files have in their base
        base *= family.rope["alpha"] ** (family.head / (family.head - 2))
        writer.add_rope_scaling_type(gguf.RopeScalingType.NONE)
        writer.add_rope_scaling_factor(1)
        writer.add_rope_scaling_orig_ctx_len(family.context)
    writer.add_rope_freq_base(base)
    if family.sections:
        writer.add_rope_dimension_sections(list(family.sections))
    kind = family.rope.get("rope_type")
    if kind == "yarn":
        writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
        writer.add_rope_scaling_factor(family.rope["factor"])
        writer.add_rope_scaling_orig_ctx_len(family.rope["original_max_position_embeddings"])
        if "beta_fast" in family.rope:
            writer.add_rope_scaling_yarn_beta_fast(family.rope["beta_fast"])
            writer.add_rope_scaling_yarn_beta_slow(family.rope["beta_slow"])
        if "mscale_all_dim" in family.rope:
            writer.add_rope_scaling_yarn_log_mul(0.1 * family.rope["mscale_all_dim"])
    if "freqs" in family.rope:
        writer.add_tensor("rope_freqs.weight", np.array(family.rope["freqs"], dtype=np.float32))
    if kind == "longrope":
        original = family.rope["original"]
        growth = family.context / original
        writer.add_rope_scaling_orig_ctx_len(original)
        writer.add_rope_scaling_attn_factors(math.sqrt(1 + math.log(growth) / math.log(original)))
        for which in ("long", "short"):
            writer.add_tensor(f"rope_factors_{which}.weight",
                              np.array(family.rope[f"{which}_factor"], dtype=np.float32))


def add_heads(writer: gguf.GGUFWriter, family: Family) -> None:
    writer.add_head_count(family.heads)
    latent = family.latent
    if not latent:
        writer.add_head_count_kv(family.kv_heads)
        if family.heads * family.head != family.hidden:
            writer.add_key_length(family.head)
            writer.add_value_length(family.head)
        return
    if latent.query_rank:
        writer.add_q_lora_rank(latent.query_rank)
    writer.add_kv_lora_rank(latent.rank)
    if latent.is_old:
        writer.add_head_count_kv(family.heads)
        writer.add_key_length(latent.own + family.head)
        writer.add_value_length(latent.value)
        return
    writer.add_head_count_kv(1)
    writer.add_key_length(latent.rank + family.head)
    writer.add_value_length(latent.rank)
    writer.add_key_length_mla(latent.own + family.head)
    writer.add_value_length_mla(latent.value)


def add_keys(writer: gguf.GGUFWriter, family: Family, keys: dict,
             network: torch.nn.Module) -> None:
    """What the family's row names: values, or functions that give them for a network."""
    for key, value in keys.items():
        name = key if key.startswith("xielu.") else f"{family.architecture}.{key}"
        writer.kv_data[0].pop(name, None)
        if callable(value):
            value = value(network)
        if value is not None:
            add = {bool: writer.add_bool, float: writer.add_float32, str: writer.add_string,
                   list: writer.add_array}.get(type(value), writer.add_uint32)
            add(name, value)


def round_to_copy(family: Family, network: torch.nn.Module) -> bool:
    """Rounds the weights to what a copy in Q8_0 holds; returns whether it holds others at all."""
    parameters = [parameter for _, parameter in all_parameters(network)]
    values = [parameter.detach().clone() for parameter in parameters]
    written = {name: tensor.copy() for name, tensor in file_tensors(family, network).items()}
    # A file of the weights' places tells where each of its elements comes from.
    start = 0
    for parameter in parameters:
        places = torch.arange(start, start + parameter.numel(), dtype=torch.float32)
        parameter.data.copy_(places.view(parameter.shape))
        start += parameter.numel()
    assert start < 1 << 24  # places are exact
    flat = torch.cat([each.flatten() for each in values]).numpy()
    found = False
    for name, places in file_tensors(family, network).items():
        if is_quantized(name, places) and ".nextn." not in name:
            found = True
            flat[places.astype(np.int64)] = rounded_to_q8_0(written[name])
    for parameter in parameters:
        count = parameter.numel()
        parameter.data.copy_(torch.from_numpy(flat[:count]).view(parameter.shape))
        flat = flat[count:]
    return found


def write_file(path: Path, family: Family, network: torch.nn.Module) -> None:
    writer = gguf.GGUFWriter(str(path), family.architecture)
    writer.add_name("tiny")  # llama.cpp wants certain tokens of a vocabulary named "phi3"
    writer.add_context_length(family.context)
    writer.add_embedding_length(family.hidden)
    writer.add_block_count(family.layers + family.has_draft_layer)
    writer.add_feed_forward_length(family.feed_forward)
    if family.experts:
        writer.add_expert_count(family.experts)
        writer.add_expert_used_count(family.chosen)
        if family.has_expert_length:
            writer.add_expert_feed_forward_length(expert_feed_forward(family))
    add_keys(writer, family, family.keys, network)
    add_heads(writer, family)
    if family.has_rope_dimension:
        writer.add_rope_dimension_count(
            int(family.head * family.rope.get("partial_rotary_factor", 1)))
    writer.add_layer_norm_rms_eps(family.epsilon)
    writer.add_vocab_size(family.vocabulary)
    add_rope(writer, family)
    add_keys(writer, family, family.last_keys, network)
    for name, values in file_tensors(family, network).items():
        if family.format != "F32" and is_quantized(name, values):
            kind = gguf.GGMLQuantizationType[family.format]
            writer.add_tensor(name, gguf.quants.quantize(values, kind), raw_dtype=kind)
        else:
            writer.add_tensor(name, np.ascontiguousarray(values))
    add_tokenizer(writer, family.vocabulary)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def table_gelu(values: torch.Tensor) -> torch.Tensor:
    """GELU's approximation by tanh as llama.cpp computes it: both sides of its table are f16."""
    table = torch.nn.functional.gelu(values.half().float(), approximate="tanh").half().float()
    return torch.where(values <= -10, 0, torch.where(values >= 10, values, table))


def use_table_gelu(network: torch.nn.Module) -> None:
    activations = [each for each in network.modules() if "GELU" in type(each).__name__]
    if not activations:
        raise ValueError("there is no GELU")
    for activation in activations:
        activation.forward = table_gelu


def use_llama_parts(network: torch.nn.Module) -> None:
    for each in network.modules():
        if isinstance(each, PlainExperts):
            each.parts = each.parts | {"as_llama": True}


def last_logits(network: torch.nn.Module, tokens: np.ndarray) -> np.ndarray:
    with torch.no_grad():
        return network(torch.from_numpy(tokens)[None]).logits[0, -ROWS:].numpy()


def llama_logits_of(path: Path, family: Family, tokens: np.ndarray) -> np.ndarray:
    return llama_logits(path, tokens, family.served_context or family.context, family.vocabulary,
                        ROWS, family.latent is not None and not family.latent.query_rank)


def copy_entry(folder: Path, family: Family, network: torch.nn.Module, tokens: np.ndarray,
               spread: float) -> dict:
    """The logits of a copy in Q8_0, which the tests make; {} where all would stay F32."""
    if family.format != "F32" or family.same_as or not round_to_copy(family, network):
        return {}
    rows = logits = last_logits(network, tokens)
    copy = {"logits": f"{family.name}-q8_0.f32"}
    if family.has_llama_logits and not family.differs_in_llama:
        path = folder / f"{family.name}-q8_0.gguf"
        write_file(path, replace(family, format="Q8_0"), network)
        others = llama_logits_of(path, family, tokens)
        path.unlink()
        difference = float(np.sqrt(np.square(others - logits).mean())) / spread
        print(f"  in Q8_0 llama.cpp differs by {difference:.1e}", flush=True)
        if difference > COPY_DIFFERENCE_MAX:
            raise ValueError(f"{family.name}: in Q8_0 transformers and llama.cpp differ by "
                             f"{difference}")
        copy["llama_cpp"] = {"difference": float(f"{difference:.1e}")}
        rows = np.concatenate([logits, others])
    rows.astype("<f4").tofile(folder / copy["logits"])
    return {"q8_0": copy}


def llama_entry(folder: Path, family: Family, network: torch.nn.Module, tokens: np.ndarray,
                logits: np.ndarray, spread: float) -> dict:
    """What llama.cpp gives for the file, beside the network's logits of the tokens."""
    rows = llama_logits_of(folder / f"{family.name}.gguf", family, tokens)
    difference = float(np.abs(rows - logits).max()) / spread
    print(f"  llama.cpp differs by {difference:.1e}", flush=True)
    if family.has_table_gelu:
        use_table_gelu(network)
        by_row = np.abs(rows - last_logits(network, tokens)).max(axis=1) / spread
        difference = float(by_row.max())
        print(f"  and by {difference:.1e} with its GELU, of a row {by_row.min():.1e}")
        if difference < TABLE_DIFFERENCE_MAX and by_row.min() < DIFFERENCE_MAX[family.format]:
            return {"llama_cpp_gelu": {"difference": float(f"{difference:.1e}")}}
    if family.differs_in_llama:
        published = difference
        use_llama_parts(network)
        difference = float(np.abs(rows - last_logits(network, tokens)).max()) / spread
        print(f"  and by {difference:.1e} from its own graph", flush=True)
    if difference > DIFFERENCE_MAX[family.format]:
        raise ValueError(f"{family.name}: transformers and llama.cpp differ by {difference}")
    if family.differs_in_llama:
        return {"llama_cpp_graph": {"difference": float(f"{difference:.1e}"),
                                    "published": float(f"{published:.1e}")}}
    file = f"{family.name}-llama.f32"
    rows.astype("<f4").tofile(folder / file)
    return {"llama_cpp": {"logits": file, "difference": float(f"{difference:.1e}")}}


def write_family(folder: Path, family: Family) -> dict:
    network = make_network(family)
    path = folder / f"{family.name}.gguf"
    write_file(path, family, network)
    random, sequences, kept, gaps = np.random.default_rng(SEED), [], [], []
    for length in family.lengths:
        tokens = random.integers(0, family.vocabulary, length)
        if has_choice(family):
            with torch.no_grad():
                gaps.append(check_choice(family, network, torch.from_numpy(tokens)[None]))
        logits = last_logits(network, tokens)
        file = f"{family.same_as or family.name}-{length}.f32"
        if not family.same_as:
            logits.astype("<f4").tofile(folder / file)
        kept.append(logits)
        sequences.append({"tokens": tokens.tolist(), "first_row": length - ROWS,
                          "row_count": ROWS, "logits": file})
    spread = float(np.std(np.concatenate(kept)))
    choice = f", experts are chosen by {min(gaps):.3f}" if gaps else ""
    print(f"{family.name}: {path.stat().st_size} bytes, spread {spread:.2f}{choice}", flush=True)
    entry = {"name": family.name, "file": path.name, "architecture": family.architecture,
             "format": family.format, "reference": family.reference,
             "vocabulary": family.vocabulary, "spread": round(spread, 4)}
    if family.same_as:
        entry["same_as"] = f"{family.same_as}.gguf"
    if family.served_context:
        entry["context"] = family.served_context
    copy = copy_entry(folder, family, make_network(family), tokens, spread)
    if family.has_llama_logits:
        entry |= llama_entry(folder, family, network, tokens, logits, spread)
    return entry | copy | {"sequences": sequences}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=Path("tests/fixtures/families"))
    parser.add_argument("--only", action="append",
                        help="the name of one, again for more; the index keeps the others' entries")
    arguments = parser.parse_args()
    arguments.output.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)
    quiet = quiet_llama()  # as long as llama.cpp may call it
    index = arguments.output / "index.json"
    entries = {}
    if arguments.only and index.exists():
        entries = {entry["name"]: entry for entry in json.loads(index.read_text())["models"]}
    for family in FAMILIES:
        if not arguments.only or family.name in arguments.only:
            entries[family.name] = write_family(arguments.output, family)
    versions = {"torch": torch.__version__, "transformers": transformers.__version__,
                "gguf": version("gguf"), "llama-cpp-python": llama_cpp.__version__}
    lines = ",\n".join("  " + json.dumps(entries[family.name]) for family in FAMILIES
                       if family.name in entries)
    index.write_text(f'{{"versions": {json.dumps(versions)},\n"models": [\n{lines}\n]}}\n')


if __name__ == "__main__":
    main()
