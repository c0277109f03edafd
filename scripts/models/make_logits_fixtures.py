#!/usr/bin/env python3
"""Writes tiny random models of each architecture and the logits transformers computes for them.

For every row of MODELS below: <name>.gguf, laid out as llama.cpp's converters do it, and for each
of two fixed sequences of token ids <name>-<length>.f32, the expected logits of some rows as raw
little-endian float32, [rows, vocabulary]. index.json lists them:

    {"models": [{"name", "file", "architecture", "format", "vocabulary", "spread",
                 "sequences": [{"tokens": [...], "first_row", "row_count", "logits": "<file>"}]}]}

Rows first_row … first_row + row_count - 1 are the ones in the file; row r holds the logits that
follow token r. `spread` is the standard deviation of the model's logits. A mixture has `experts`
as well: how many. The weights are rounded to the file's format first, and transformers then
computes in float32 on the rounded weights.
It needs torch, transformers, gguf and numpy.
"""

import argparse
import json
import math
from dataclasses import dataclass
from pathlib import Path

import gguf
import numpy as np
import torch
from transformers import (LlamaConfig, LlamaForCausalLM, MixtralConfig, MixtralForCausalLM,
                          Qwen2Config, Qwen2ForCausalLM, Qwen3Config, Qwen3ForCausalLM,
                          Qwen3MoeConfig, Qwen3MoeForCausalLM)

SEED = 41
CLASSES = {"llama": (LlamaConfig, LlamaForCausalLM), "qwen2": (Qwen2Config, Qwen2ForCausalLM),
           "qwen3": (Qwen3Config, Qwen3ForCausalLM), "mixtral": (MixtralConfig, MixtralForCausalLM),
           "qwen3moe": (Qwen3MoeConfig, Qwen3MoeForCausalLM)}
TENSOR_NAMES = {  # within one layer: transformers' name to the file's
    "input_layernorm": "attn_norm", "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm",
    "post_attention_layernorm": "ffn_norm", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down", "mlp.gate": "ffn_gate_inp"}
LLAMA3_SCALING = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0,
                  "high_freq_factor": 4.0, "original_max_position_embeddings": 64}
SEQUENCES = ((40, 0), (100, 60))  # length, first row whose logits are kept: pages end at row 64
CONTEXT = 256
# The least that a token's experts are ahead of the others, in units of the spread of its scores.
# Rounding to bf16 on the way moves logits of such models by up to 0.06 of theirs.
SCORE_GAP_MIN = 0.15
UNUSED_FEED_FORWARD = 104  # what qwen3moe's files say of layers without experts, which none has


@dataclass(frozen=True)
class Model:
    """One fixture. Sizes are odd on purpose: tails of rows and vocabularies must be right."""

    name: str
    architecture: str
    is_f16: bool
    hidden: int = 64
    feed_forward: int = 72
    heads: int = 4
    kv_heads: int = 2
    head: int = 16
    vocabulary: int = 259
    is_tied: bool = False
    has_bias: bool = False
    rope_base: float = 10000.0
    scaling: dict | None = None
    epsilon: float = 1e-5
    experts: int = 0  # of a mixture; feed_forward is that of an expert
    chosen: int = 0
    has_tensor_per_expert: bool = False  # as old files of Mixtral have

    @property
    def family(self) -> str:
        """What transformers calls the architecture."""
        return "mixtral" if self.architecture == "llama" and self.experts else self.architecture


MODELS = (
    Model("llama-mha-f32", "llama", False, kv_heads=4, vocabulary=131),
    Model("llama-gqa-f16", "llama", True, hidden=96, heads=6, feed_forward=104),
    Model("llama-mqa-tied-f32", "llama", False, kv_heads=1, is_tied=True),
    Model("llama-wide-head-f16", "llama", True, kv_heads=1, head=32, is_tied=True),
    Model("llama-rope-llama3-f32", "llama", False, head=32, heads=2, kv_heads=1, is_tied=True,
          rope_base=500000.0, scaling=LLAMA3_SCALING),
    Model("llama-rope-linear-f16", "llama", True, vocabulary=131,
          scaling={"rope_type": "linear", "factor": 4.0}),
    Model("llama-bias-f32", "llama", False, has_bias=True, is_tied=True, vocabulary=131),
    Model("qwen2-gqa-f32", "qwen2", False, has_bias=True, rope_base=1e6, epsilon=1e-6,
          is_tied=True),
    Model("qwen2-mha-f16", "qwen2", True, kv_heads=4, has_bias=True, rope_base=1e6, vocabulary=131,
          epsilon=1e-6),
    Model("qwen3-gqa-f32", "qwen3", False, head=32, is_tied=True, rope_base=1e6, epsilon=1e-6),
    Model("qwen3-mha-f16", "qwen3", True, heads=3, kv_heads=3, head=48, hidden=96, rope_base=1e6,
          vocabulary=131, epsilon=1e-6),
    Model("mixtral-mqa-f32", "llama", False, feed_forward=40, heads=2, kv_heads=1, vocabulary=131,
          is_tied=True, experts=5, chosen=2),
    Model("mixtral-old-f16", "llama", True, feed_forward=40, vocabulary=131, rope_base=1e6,
          experts=8, chosen=3, has_tensor_per_expert=True),
    Model("qwen3moe-mqa-f32", "qwen3moe", False, feed_forward=40, heads=2, kv_heads=1,
          vocabulary=131, is_tied=True, rope_base=1e6, epsilon=1e-6, experts=5, chosen=3),
    Model("qwen3moe-gqa-f16", "qwen3moe", True, feed_forward=72, vocabulary=131, rope_base=1e6,
          epsilon=1e-6, experts=5, chosen=2),
)


def mixture_options(model: Model) -> dict:
    """What the configuration of a mixture says beside the others'."""
    if model.family == "mixtral":
        return {"num_local_experts": model.experts, "num_experts_per_tok": model.chosen}
    if model.family == "qwen3moe":
        return {"num_experts": model.experts, "num_experts_per_tok": model.chosen,
                "moe_intermediate_size": model.feed_forward, "norm_topk_prob": True}
    return {}


def set_experts_apart(model: Model, name: str, values: torch.Tensor,
                      generator: torch.Generator) -> torch.Tensor:
    """Of one tensor of a mixture: makes the first columns of the residual say which experts a token
    goes to. There the embedding has the same evenly spaced numbers for all tokens, in an order of
    its own for each, and layers add little. But for some noise, each of these columns is the score
    of one expert, of another in every layer.
    """
    columns = slice(0, model.experts)
    if "embed_tokens" in name:
        orders = torch.stack([torch.randperm(model.experts, generator=generator)
                              for _ in range(model.vocabulary)])
        values[:, columns] = 0.6 * (orders - (model.experts - 1) / 2)
    elif "post_attention_layernorm" in name:
        values[columns] = 1
    elif "o_proj" in name or "down_proj" in name:
        values[..., columns, :] *= 0.05
    elif name.endswith("mlp.gate.weight"):
        order = torch.eye(model.experts, model.hidden).roll(int(name.split(".")[2]), dims=0)
        values = 0.05 * values + 2 * order
    return values


def make_network(model: Model) -> torch.nn.Module:
    """transformers' own network with random weights, rounded to what the file will hold."""
    config_class, network_class = CLASSES[model.family]
    biases = {"attention_bias": model.has_bias} if model.architecture != "qwen2" else {}
    config = config_class(
        hidden_size=model.hidden, intermediate_size=model.feed_forward, num_hidden_layers=2,
        num_attention_heads=model.heads, num_key_value_heads=model.kv_heads, head_dim=model.head,
        vocab_size=model.vocabulary, rms_norm_eps=model.epsilon, max_position_embeddings=CONTEXT,
        tie_word_embeddings=model.is_tied, hidden_act="silu",
        rope_parameters={"rope_type": "default", "rope_theta": model.rope_base} |
        (model.scaling or {}), attn_implementation="eager", **biases, **mixture_options(model))
    network = network_class(config).float().eval()
    generator = torch.Generator().manual_seed(SEED)
    for name, parameter in network.named_parameters():
        noise = torch.randn(parameter.shape, generator=generator)
        if name.endswith("o_proj.bias"):
            values = torch.zeros_like(noise)  # the file format's llama has none here
        elif name.endswith("bias"):
            values = 0.5 * noise
        elif noise.dim() == 1:
            values = 1 + 0.2 * noise
        elif "embed_tokens" in name or "lm_head" in name:
            values = 0.3 * noise
        else:
            values = noise * (1.5 if "q_proj" in name or "k_proj" in name else 1.0) / math.sqrt(
                noise.shape[-1])
        if model.experts:
            values = set_experts_apart(model, name, values, generator)
        if model.is_f16 and is_matrix(name, noise.dim()):
            values = values.half().float()
        parameter.data.copy_(values)
    return network


def is_matrix(name: str, dimensions: int) -> bool:
    """Whether a file in F16 has it in F16; routers stay in F32."""
    return dimensions > 1 and not name.endswith("mlp.gate.weight")


def check_scores(model: Model, network: torch.nn.Module, tokens: torch.Tensor) -> None:
    """That no token's experts are near to being others."""
    def check(_, __, output):
        scores = output[0].sort(descending=True).values
        gaps = (scores[:, model.chosen - 1] - scores[:, model.chosen]) / scores.std(dim=1)
        if gaps.min() < SCORE_GAP_MIN:
            raise ValueError(f"{model.name}: an expert is chosen by {gaps.min():.2f}")

    hooks = [layer.mlp.gate.register_forward_hook(check) for layer in network.model.layers]
    network(tokens)
    for hook in hooks:
        hook.remove()


def interleaved(values: np.ndarray, heads: int) -> np.ndarray:
    """Rows (or elements) of each head reordered from split halves to neighbouring rotary pairs."""
    halves = values.reshape(heads, 2, values.shape[0] // heads // 2, *values.shape[1:])
    return halves.swapaxes(1, 2).reshape(values.shape)


def file_name_of(name: str) -> str:
    """transformers' name of a tensor to the file's."""
    whole = {"model.embed_tokens.weight": "token_embd.weight", "lm_head.weight": "output.weight",
             "model.norm.weight": "output_norm.weight"}
    if name in whole:
        return whole[name]
    _, _, layer, rest = name.split(".", 3)
    part, kind = rest.rsplit(".", 1)
    return f"blk.{layer}.{TENSOR_NAMES[part]}.{kind}"


def file_tensors(model: Model, name: str, values: np.ndarray) -> list[tuple[str, np.ndarray]]:
    """What the file has of one of transformers' tensors: names and values."""
    if ".mlp.experts." not in name:
        return [(file_name_of(name), values)]
    if name.endswith("gate_up_proj"):
        gates, ups = np.split(values, 2, axis=1)
        parts = [("ffn_gate", gates), ("ffn_up", ups)]
    else:
        parts = [("ffn_down", values)]
    block = f"blk.{name.split('.')[2]}"
    if model.has_tensor_per_expert:
        return [(f"{block}.{part}.{expert}.weight", matrix) for part, experts in parts
                for expert, matrix in enumerate(experts)]
    return [(f"{block}.{part}_exps.weight", experts) for part, experts in parts]


def add_tensors(writer: gguf.GGUFWriter, model: Model, network: torch.nn.Module) -> None:
    for name, parameter in network.named_parameters():
        if name.endswith("o_proj.bias"):
            continue
        values = parameter.detach().numpy()
        if model.architecture == "llama" and ("q_proj" in name or "k_proj" in name):
            values = interleaved(values, model.heads if "q_proj" in name else model.kv_heads)
        if model.is_f16 and is_matrix(name, values.ndim):
            values = values.astype(np.float16)
        for file_name, part in file_tensors(model, name, values):
            writer.add_tensor(file_name, np.ascontiguousarray(part))
    if model.scaling and model.scaling["rope_type"] == "llama3":
        writer.add_tensor("rope_freqs.weight", llama3_factors(model))


def llama3_factors(model: Model) -> np.ndarray:
    """What each rotary frequency is divided by, from the definition that came with Llama 3.1."""
    scaling = model.scaling
    low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
    factors = []
    for pair in range(model.head // 2):
        turns = scaling["original_max_position_embeddings"] / (
            2 * math.pi * model.rope_base ** (2 * pair / model.head))
        smooth = min(1.0, max(0.0, (turns - low) / (high - low)))
        factors.append(1 / ((1 - smooth) / scaling["factor"] + smooth))
    if not any(1 < f < scaling["factor"] for f in factors):
        raise ValueError(f"{model.name}: no frequency lies between the two bounds")
    return np.array(factors, dtype=np.float32)


def byte_letters() -> list[str]:
    """The letter that stands for each byte in a byte-level vocabulary, by byte."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [b for b in range(256) if b not in printable]
    letters = {b: chr(b) for b in printable} | {b: chr(256 + i) for i, b in enumerate(others)}
    return [letters[b] for b in range(256)]


def is_quantized(name: str, values: np.ndarray) -> bool:
    """Whether a copy of the file in Q8_0 has this so: tests/engine/runtime/quantized_copy.cpp,
    which makes copies, has the same rule.
    """
    unfit = ("norm", "ffn_gate_inp", "position_embd", "token_types")
    return (name.endswith(".weight") and values.ndim > 1 and values.shape[-1] % 32 == 0
            and not any(part in name for part in unfit))


def rounded_to_q8_0(values: np.ndarray) -> np.ndarray:
    kind = gguf.GGMLQuantizationType.Q8_0
    return gguf.quants.dequantize(gguf.quants.quantize(values, kind), kind)


def add_tokenizer(writer: gguf.GGUFWriter, vocabulary: int) -> None:
    """A byte-level vocabulary of so many tokens, of which two are merged and one is control."""
    merged = ["he", "\u0120t"]
    letters = byte_letters()[:vocabulary - len(merged) - 1]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(letters + merged + ["<|endoftext|>"])
    writer.add_token_types([gguf.TokenType.NORMAL] * (vocabulary - 1)
                           + [gguf.TokenType.CONTROL])
    writer.add_token_merges(["h e", "\u0120 t"])
    writer.add_bos_token_id(vocabulary - 1)
    writer.add_eos_token_id(vocabulary - 1)
    writer.add_add_bos_token(False)


def add_metadata(writer: gguf.GGUFWriter, model: Model) -> None:
    writer.add_name(model.name)
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(model.hidden)
    writer.add_block_count(2)
    if model.architecture == "qwen3moe":
        writer.add_feed_forward_length(UNUSED_FEED_FORWARD)
        writer.add_expert_feed_forward_length(model.feed_forward)
    else:
        writer.add_feed_forward_length(model.feed_forward)
    if model.experts:
        writer.add_expert_count(model.experts)
        writer.add_expert_used_count(model.chosen)
    writer.add_head_count(model.heads)
    writer.add_head_count_kv(model.kv_heads)
    writer.add_key_length(model.head)
    writer.add_value_length(model.head)
    if model.architecture == "llama":
        writer.add_rope_dimension_count(model.head)
    writer.add_rope_freq_base(model.rope_base)
    writer.add_layer_norm_rms_eps(model.epsilon)
    writer.add_vocab_size(model.vocabulary)
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_F16 if model.is_f16
                         else gguf.LlamaFileType.ALL_F32)
    if model.scaling and model.scaling["rope_type"] == "linear":
        writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(model.scaling["factor"])
    add_tokenizer(writer, model.vocabulary)


def write_model(folder: Path, model: Model) -> dict:
    """Writes one model and its logits; returns its entry of the index."""
    network = make_network(model)
    writer = gguf.GGUFWriter(str(folder / f"{model.name}.gguf"), model.architecture)
    add_metadata(writer, model)
    add_tensors(writer, model, network)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    random, sequences, kept = np.random.default_rng(SEED), [], []
    for length, first in SEQUENCES:
        tokens = random.integers(0, model.vocabulary, length)
        with torch.no_grad():
            if model.experts:
                check_scores(model, network, torch.from_numpy(tokens)[None])
            logits = network(torch.from_numpy(tokens)[None]).logits[0, first:].numpy()
        file = f"{model.name}-{length}.f32"
        logits.astype("<f4").tofile(folder / file)
        kept.append(logits)
        sequences.append({"tokens": tokens.tolist(), "first_row": first,
                          "row_count": len(logits), "logits": file})
    spread = float(np.std(np.concatenate(kept)))
    print(f"{model.name}: {(folder / f'{model.name}.gguf').stat().st_size} bytes, "
          f"spread of logits {spread:.2f}")
    mixture = {"experts": model.experts} if model.experts else {}
    return {"name": model.name, "file": f"{model.name}.gguf", "architecture": model.architecture,
            "format": "F16" if model.is_f16 else "F32", "vocabulary": model.vocabulary, **mixture,
            "spread": round(spread, 4), "sequences": sequences}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=Path("tests/fixtures/logits"))
    folder = parser.parse_args().output
    folder.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)
    entries = [write_model(folder, model) for model in MODELS]
    lines = ",\n".join("  " + json.dumps(entry) for entry in entries)
    (folder / "index.json").write_text('{"models": [\n' + lines + "\n]}\n")


if __name__ == "__main__":
    main()
