#!/usr/bin/env python3
"""Writes a GGUF model file of a real architecture's shape with random weights.

For measuring speed and memory without a download: tensors, names, formats and metadata are those of
the real model, the text it generates is noise. The weights are scaled so that activations stay
finite and of order one. The same arguments give the same bytes.

Needs numpy and the gguf package:
    python3 -m venv .venv && .venv/bin/pip install numpy gguf
    scripts/models/make_model.py --shape llama-3.2-1b --format Q4_0 --output 1b.gguf

Formats: those of --help. The name of one gives every matrix that format, but the output matrix (the
embedding, where it is also the output) of a format below 8 bits is Q6_K, as published files have
it; --pure gives it the same format as all others. Q4_K_M and Q5_K_M also keep part of the attn_v
and ffn_down matrices in Q6_K. Beside 8 experts, attn_k and attn_v are Q8_0, and attn_output is Q5_K
where most are Q4_K. A matrix whose rows are not whole blocks of 256 gets Q5_0 instead of Q4_K, Q5_1
instead of Q5_K, Q8_0 instead of Q6_K, IQ4_NL instead of others; one whose rows are not whole blocks
of 32 or 64 gets F16. Vectors (norms, biases, rope factors) and the routers of mixtures are always F32.
"""

import argparse
import dataclasses
import functools
import math
import sys
import time
import zlib

try:
    import gguf
    import numpy as np
except ImportError as error:
    sys.exit(f"{error}; install what is needed with: python3 -m venv .venv && "
             ".venv/bin/pip install numpy gguf, then run this with .venv/bin/python")


@dataclasses.dataclass(frozen=True)
class RopeScaling:
    """The frequency scaling of Llama 3.1 and later."""
    factor: float
    low_frequency_factor: float = 1.0
    high_frequency_factor: float = 4.0
    original_context: int = 8192


@dataclasses.dataclass(frozen=True)
class Mixture:
    """The experts that each layer has instead of one feed-forward."""
    experts: int
    used: int  # for a token
    feed_forward: int  # of an expert
    shared: int = 0  # experts that every token goes to
    dense_layers: int = 0  # the first ones, without experts


@dataclasses.dataclass(frozen=True)
class Latents:
    """Multi-head latent attention; Shape.rotary_size has positions, head_size has none."""
    size: int  # of keys and values
    query: int  # of queries; 0: they have none
    value_size: int  # of a head


@dataclasses.dataclass(frozen=True)
class Shape:
    architecture: str
    layers: int
    embedding: int
    feed_forward: int
    heads: int
    kv_heads: int
    head_size: int
    vocabulary: int
    context: int
    rope_base: float
    epsilon: float
    tied: bool  # the embedding is also the output matrix
    rope_scaling: RopeScaling | None = None
    mixture: Mixture | None = None
    sections: tuple[int, ...] = ()  # of rotary pairs: time, height, width
    rotary_size: int = 0  # of a head; 0: all of it
    original_context: int = 0  # LongRoPE's; 0: it has none
    latents: Latents | None = None

    @property
    def rotated(self) -> int:
        return self.rotary_size or self.head_size


# From the config.json that each model was published with.
SHAPES = {
    # Columns: as the fields of Shape.
    "llama-3.2-1b": Shape("llama", 16, 2048, 8192, 32, 8, 64, 128256, 131072, 5e5, 1e-5, True,
                          RopeScaling(32.0)),
    "llama-3.2-3b": Shape("llama", 28, 3072, 8192, 24, 8, 128, 128256, 131072, 5e5, 1e-5, True,
                          RopeScaling(32.0)),
    "llama-3.1-8b": Shape("llama", 32, 4096, 14336, 32, 8, 128, 128256, 131072, 5e5, 1e-5, False,
                          RopeScaling(8.0)),
    "llama-3-8b": Shape("llama", 32, 4096, 14336, 32, 8, 128, 128256, 8192, 5e5, 1e-5, False),
    "llama-2-7b": Shape("llama", 32, 4096, 11008, 32, 32, 128, 32000, 4096, 1e4, 1e-5, False),
    "mistral-7b": Shape("llama", 32, 4096, 14336, 32, 8, 128, 32768, 32768, 1e6, 1e-5, False),
    "tinyllama-1.1b": Shape("llama", 22, 2048, 5632, 32, 4, 64, 32000, 2048, 1e4, 1e-5, False),
    "smollm2-135m": Shape("llama", 30, 576, 1536, 9, 3, 64, 49152, 8192, 1e5, 1e-5, True),
    "qwen2.5-0.5b": Shape("qwen2", 24, 896, 4864, 14, 2, 64, 151936, 32768, 1e6, 1e-6, True),
    "qwen2.5-7b": Shape("qwen2", 28, 3584, 18944, 28, 4, 128, 152064, 32768, 1e6, 1e-6, False),
    "qwen3-0.6b": Shape("qwen3", 28, 1024, 3072, 16, 8, 128, 151936, 40960, 1e6, 1e-6, True),
    "qwen3-8b": Shape("qwen3", 36, 4096, 12288, 32, 8, 128, 151936, 40960, 1e6, 1e-6, False),
    "mixtral-8x7b": Shape("llama", 32, 4096, 14336, 32, 8, 128, 32000, 32768, 1e6, 1e-5, False,
                          mixture=Mixture(8, 2, 14336)),
    "qwen3-30b-a3b": Shape("qwen3moe", 48, 2048, 6144, 32, 4, 128, 151936, 40960, 1e6, 1e-6, False,
                           mixture=Mixture(128, 8, 768)),
    # From here to the next comment: of the size of these models, but not compared with the files
    # they were published with. Factors of LongRoPE are arbitrary.
    "qwen2.5-vl-7b": Shape("qwen2vl", 28, 3584, 18944, 28, 4, 128, 152064, 128000, 1e6, 1e-6, False,
                           sections=(16, 24, 24, 0)),
    "qwen3-vl-2b": Shape("qwen3vl", 28, 2048, 6144, 16, 8, 128, 151936, 262144, 5e6, 1e-6, True,
                         sections=(24, 20, 20, 0)),
    "qwen3-vl-30b-a3b": Shape("qwen3vlmoe", 48, 2048, 6144, 32, 4, 128, 151936, 262144, 5e6, 1e-6,
                              False, mixture=Mixture(128, 8, 768), sections=(24, 20, 20, 0)),
    "paddleocr-vl-0.9b": Shape("paddleocr", 18, 1024, 3072, 16, 2, 128, 103424, 131072, 5e5, 1e-5,
                               False, sections=(16, 24, 24, 0)),
    "phi-4-mini": Shape("phi3", 32, 3072, 8192, 24, 8, 128, 200064, 131072, 1e4, 1e-5, True,
                        rotary_size=96, original_context=4096),
    "phi-3.5-mini": Shape("phi3", 32, 3072, 8192, 32, 32, 96, 32064, 131072, 1e4, 1e-5, False,
                          original_context=4096),
    "internlm2.5-7b": Shape("internlm2", 32, 4096, 14336, 32, 8, 128, 92544, 32768, 1e6, 1e-5,
                            False),
    "xverse-7b": Shape("xverse", 32, 4096, 10944, 32, 32, 128, 100534, 8192, 1e4, 1e-6, False),
    "exaone-3.5-7.8b": Shape("exaone", 32, 4096, 14336, 32, 8, 128, 102400, 32768, 1e6, 1e-5, False,
                             RopeScaling(8.0)),
    "ernie-4.5-0.3b": Shape("ernie4_5", 18, 1024, 3072, 16, 2, 128, 103424, 131072, 5e5, 1e-5,
                            True),
    "seed-oss-36b": Shape("seed_oss", 64, 5120, 27648, 80, 8, 128, 155136, 524288, 1e7, 1e-6,
                          False),
    "pangu-embedded-7b": Shape("pangu-embedded", 34, 4096, 12800, 32, 8, 128, 153376, 32768, 1.6e7,
                               1e-5, False),
    "maincoder-1b": Shape("maincoder", 32, 1536, 4096, 16, 4, 96, 151936, 2048, 1e6, 1e-5, True),
    "smollm3-3b": Shape("smollm3", 36, 2048, 11008, 16, 4, 128, 128256, 65536, 5e6, 1e-6, True),
    "baichuan2-7b": Shape("baichuan", 32, 4096, 11008, 32, 32, 128, 125696, 4096, 1e4, 1e-6, False),
    "deepseek-v2-lite": Shape("deepseek2", 27, 2048, 10944, 16, 1, 128, 102400, 163840, 1e4, 1e-6,
                              False, mixture=Mixture(64, 6, 1408, 2, 1), rotary_size=64,
                              latents=Latents(512, 0, 128)),
    # Nobody's: a mixture, and one with latents, for machines with little memory.
    "mla-1.9b-a0.4b": Shape("deepseek2", 16, 1024, 4096, 16, 1, 128, 102400, 163840, 1e4, 1e-6,
                            True, mixture=Mixture(64, 6, 512, 1, 1), rotary_size=64,
                            latents=Latents(512, 512, 128)),
    "moe-2.6b-a0.5b": Shape("qwen3moe", 24, 1024, 3072, 16, 8, 64, 128256, 40960, 1e6, 1e-6, True,
                            mixture=Mixture(64, 8, 512)),
    # Nobody's: for tests.
    "tiny-llama": Shape("llama", 2, 256, 512, 4, 2, 64, 512, 512, 1e4, 1e-5, True),
    "tiny-llama3": Shape("llama", 2, 256, 512, 4, 2, 64, 512, 512, 5e5, 1e-5, False,
                         RopeScaling(8.0, original_context=128)),
    "tiny-qwen2": Shape("qwen2", 2, 256, 512, 4, 2, 64, 512, 512, 1e6, 1e-6, True),
    "tiny-qwen3": Shape("qwen3", 2, 256, 512, 4, 2, 128, 512, 512, 1e6, 1e-6, False),
    "tiny-phi3": Shape("phi3", 2, 256, 512, 4, 2, 64, 512, 512, 1e4, 1e-5, False,
                       original_context=128),
    "tiny-mixtral": Shape("llama", 2, 256, 256, 4, 2, 64, 512, 512, 1e6, 1e-5, True,
                          mixture=Mixture(8, 2, 256)),
    "tiny-qwen3moe": Shape("qwen3moe", 2, 256, 512, 4, 2, 128, 512, 512, 1e6, 1e-6, False,
                           mixture=Mixture(16, 4, 256)),
}

Q = gguf.GGMLQuantizationType

# --format: the format of most matrices, and the number of the mix in general.file_type.
FORMATS = {
    "F32": (Q.F32, gguf.LlamaFileType.ALL_F32),
    "F16": (Q.F16, gguf.LlamaFileType.MOSTLY_F16),
    "BF16": (Q.BF16, gguf.LlamaFileType.MOSTLY_BF16),
    "Q8_0": (Q.Q8_0, gguf.LlamaFileType.MOSTLY_Q8_0),
    "Q4_0": (Q.Q4_0, gguf.LlamaFileType.MOSTLY_Q4_0),
    "Q4_1": (Q.Q4_1, gguf.LlamaFileType.MOSTLY_Q4_1),
    "Q5_0": (Q.Q5_0, gguf.LlamaFileType.MOSTLY_Q5_0),
    "Q5_1": (Q.Q5_1, gguf.LlamaFileType.MOSTLY_Q5_1),
    "Q4_K": (Q.Q4_K, gguf.LlamaFileType.MOSTLY_Q4_K_S),
    "Q4_K_M": (Q.Q4_K, gguf.LlamaFileType.MOSTLY_Q4_K_M),
    "Q5_K": (Q.Q5_K, gguf.LlamaFileType.MOSTLY_Q5_K_S),
    "Q5_K_M": (Q.Q5_K, gguf.LlamaFileType.MOSTLY_Q5_K_M),
    "Q6_K": (Q.Q6_K, gguf.LlamaFileType.MOSTLY_Q6_K),
    "Q2_K": (Q.Q2_K, gguf.LlamaFileType.MOSTLY_Q2_K),
    "Q3_K": (Q.Q3_K, gguf.LlamaFileType.MOSTLY_Q3_K_S),
    "IQ4_NL": (Q.IQ4_NL, gguf.LlamaFileType.MOSTLY_IQ4_NL),
    "IQ4_XS": (Q.IQ4_XS, gguf.LlamaFileType.MOSTLY_IQ4_XS),
    "MXFP4": (Q.MXFP4, gguf.LlamaFileType.MOSTLY_MXFP4_MOE),
    "NVFP4": (Q.NVFP4, gguf.LlamaFileType.MOSTLY_NVFP4),
    "IQ3_S": (Q.IQ3_S, gguf.LlamaFileType.MOSTLY_IQ3_S),
    "IQ3_XXS": (Q.IQ3_XXS, gguf.LlamaFileType.MOSTLY_IQ3_XXS),
    "IQ2_S": (Q.IQ2_S, gguf.LlamaFileType.MOSTLY_IQ2_S),
    "IQ2_XS": (Q.IQ2_XS, gguf.LlamaFileType.MOSTLY_IQ2_XS),
    "IQ2_XXS": (Q.IQ2_XXS, gguf.LlamaFileType.MOSTLY_IQ2_XXS),
    "IQ1_S": (Q.IQ1_S, gguf.LlamaFileType.MOSTLY_IQ1_S),
    "IQ1_M": (Q.IQ1_M, gguf.LlamaFileType.MOSTLY_IQ1_M),
    "TQ1_0": (Q.TQ1_0, gguf.LlamaFileType.MOSTLY_TQ1_0),
    "TQ2_0": (Q.TQ2_0, gguf.LlamaFileType.MOSTLY_TQ2_0),
}
FALLBACKS = {Q.Q4_K: Q.Q5_0, Q.Q5_K: Q.Q5_1, Q.Q6_K: Q.Q8_0,
             **{FORMATS[name][0]: Q.IQ4_NL for name in
                ("Q2_K", "Q3_K", "IQ4_XS", "IQ3_S", "IQ3_XXS", "IQ2_S", "IQ2_XS", "IQ2_XXS",
                 "IQ1_S", "IQ1_M", "TQ1_0", "TQ2_0")}}
# The byte of a block at which the half lies that multiplies the block's scales.
HALF_PLACES = {Q.Q2_K: 80, Q.Q3_K: 108, Q.IQ4_NL: 0, Q.IQ4_XS: 0, Q.IQ3_S: 0, Q.IQ3_XXS: 0,
               Q.IQ2_S: 0, Q.IQ2_XS: 0, Q.IQ2_XXS: 0, Q.IQ1_S: 0, Q.TQ1_0: 52, Q.TQ2_0: 64}
WIDE_FORMATS = (Q.F32, Q.F16, Q.BF16, Q.Q8_0)  # keep the output matrix as it is

CHUNK_ELEMENTS = 1 << 22  # made and written at a time: bounds the memory
ALIGNMENT = 32
UNUSED_TOKEN = 5  # the tokenizer's token type
ROUTER = "ffn_gate_inp.weight"
FUSED = ("phi3",)  # queries, keys and values in one tensor, gate and up in another
FEED_FORWARD_NORMS = {"seed_oss": "post_attention_norm"}
BIASES = {"qwen2": ("q", "k", "v"), "qwen2vl": ("q", "k", "v"), "seed_oss": ("q", "k", "v"),
          "pangu-embedded": ("q", "k", "v", "output")}  # of attention, by architecture
HEAD_NORMS = ("qwen3", "maincoder")  # architectures that begin so


@dataclasses.dataclass
class TensorPlan:
    name: str
    rows: int  # 0 for a vector
    columns: int
    deviation: float
    mean: float = 0.0
    values: np.ndarray | None = None  # instead of random ones
    format: gguf.GGMLQuantizationType = Q.F32
    experts: int = 0  # so many matrices, one after the other; 0: one
    heads: int = 0  # likewise, all of which a token meets

    def elements(self) -> int:
        return max(self.experts, 1) * max(self.heads, 1) * max(self.rows, 1) * self.columns

    def bytes(self) -> int:
        elements, size = gguf.GGML_QUANT_SIZES[self.format]
        return self.elements() // elements * size

    def dimensions(self) -> list[int]:
        """The slowest first."""
        sizes = (self.experts, self.heads, self.rows, self.columns)
        return [size for size in sizes if size > 0]


def rope_factors(shape: Shape) -> np.ndarray:
    """What each rotary frequency is divided by."""
    scaling = shape.rope_scaling
    factors = []
    for index in range(0, shape.head_size, 2):
        wavelength = 2 * math.pi * shape.rope_base ** (index / shape.head_size)
        periods = scaling.original_context / wavelength
        if periods > scaling.high_frequency_factor:
            factors.append(1.0)
        elif periods < scaling.low_frequency_factor:
            factors.append(scaling.factor)
        else:
            smooth = ((periods - scaling.low_frequency_factor) /
                      (scaling.high_frequency_factor - scaling.low_frequency_factor))
            factors.append(1 / ((1 - smooth) / scaling.factor + smooth))
    return np.array(factors, dtype=np.float32)


def plan_tensors(shape: Shape) -> list[TensorPlan]:
    """All tensors in the file's order; formats are not chosen yet."""
    def matrix(name, rows, columns, gain=1.0):
        return TensorPlan(name, rows, columns, gain / math.sqrt(columns))

    def experts(name, rows, columns, gain=1.0):
        return dataclasses.replace(matrix(name, rows, columns, gain),
                                   experts=shape.mixture.experts)

    def norm(name, columns):
        return TensorPlan(name, 0, columns, 0.1, mean=1.0)

    def latent_attention(block):
        latents, own, rotated = shape.latents, shape.head_size, shape.rotary_size
        queries = shape.heads * (own + rotated)
        made = [matrix(block + "attn_q.weight", queries, embedding)]
        if latents.query:
            made = [matrix(block + "attn_q_a.weight", latents.query, embedding),
                    norm(block + "attn_q_a_norm.weight", latents.query),
                    matrix(block + "attn_q_b.weight", queries, latents.query)]
        return made + [
            matrix(block + "attn_kv_a_mqa.weight", latents.size + rotated, embedding),
            norm(block + "attn_kv_a_norm.weight", latents.size),
            dataclasses.replace(matrix(block + "attn_k_b.weight", latents.size, own),
                                heads=shape.heads),
            dataclasses.replace(matrix(block + "attn_v_b.weight", latents.value_size, latents.size),
                                heads=shape.heads),
            matrix(block + "attn_output.weight", embedding, shape.heads * latents.value_size, gain)]

    embedding = shape.embedding
    query = shape.heads * shape.head_size
    key = shape.kv_heads * shape.head_size
    # A layer's addition to the stream shrinks with the number of layers, so that the sum does not
    # grow.
    gain = 1 / math.sqrt(2 * shape.layers)
    tensors = [matrix("token_embd.weight", shape.vocabulary, embedding,
                      1.0 if shape.tied else math.sqrt(embedding))]
    if shape.rope_scaling:
        tensors.append(TensorPlan("rope_freqs.weight", 0, shape.head_size // 2, 0,
                                  values=rope_factors(shape)))
    if shape.original_context:
        tensors += [TensorPlan(f"rope_factors_{name}.weight", 0, shape.rotated // 2, 0,
                               values=np.linspace(1, most, shape.rotated // 2, dtype=np.float32))
                    for name, most in (("long", 60.0), ("short", 3.0))]
    for layer in range(shape.layers):
        block = f"blk.{layer}."
        tensors.append(norm(block + "attn_norm.weight", embedding))
        if shape.latents:
            tensors += latent_attention(block)
        elif shape.architecture in FUSED:
            tensors.append(matrix(block + "attn_qkv.weight", query + 2 * key, embedding))
        else:
            tensors += [
                matrix(block + "attn_q.weight", query, embedding),
                matrix(block + "attn_k.weight", key, embedding),
                matrix(block + "attn_v.weight", key, embedding),
            ]
        if not shape.latents:
            tensors.append(matrix(block + "attn_output.weight", embedding, query, gain))
        tensors.append(norm(block + FEED_FORWARD_NORMS.get(shape.architecture, "ffn_norm") +
                            ".weight", embedding))
        if shape.mixture and layer >= shape.mixture.dense_layers:
            shared = shape.mixture.shared * shape.mixture.feed_forward
            if shared:
                tensors += [matrix(block + "ffn_gate_shexp.weight", shared, embedding),
                            matrix(block + "ffn_up_shexp.weight", shared, embedding),
                            matrix(block + "ffn_down_shexp.weight", embedding, shared, gain)]
            tensors += [
                matrix(block + ROUTER, shape.mixture.experts, embedding),
                experts(block + "ffn_gate_exps.weight", shape.mixture.feed_forward, embedding),
                experts(block + "ffn_up_exps.weight", shape.mixture.feed_forward, embedding),
                experts(block + "ffn_down_exps.weight", embedding, shape.mixture.feed_forward,
                        gain),
            ]
        else:
            if shape.architecture in FUSED:
                tensors.append(matrix(block + "ffn_up.weight", 2 * shape.feed_forward, embedding))
            else:
                tensors += [matrix(block + "ffn_gate.weight", shape.feed_forward, embedding),
                            matrix(block + "ffn_up.weight", shape.feed_forward, embedding)]
            tensors.append(matrix(block + "ffn_down.weight", embedding, shape.feed_forward, gain))
        sizes = {"q": query, "k": key, "v": key, "output": embedding}
        tensors += [TensorPlan(f"{block}attn_{part}.bias", 0, sizes[part], 0.1)
                    for part in BIASES.get(shape.architecture, ())]
        if shape.architecture.startswith(HEAD_NORMS):
            tensors += [norm(block + "attn_q_norm.weight", shape.head_size),
                        norm(block + "attn_k_norm.weight", shape.head_size)]
    tensors.append(norm("output_norm.weight", embedding))
    if not shape.tied:
        tensors.append(matrix("output.weight", shape.vocabulary, embedding))
    return tensors


def takes_more_bits(layer: int, layers: int) -> bool:
    """Whether the _M mixes keep this layer's attn_v and ffn_down in Q6_K."""
    eighth = layers // 8
    return layer < eighth or layer >= 7 * layers // 8 or (layer - eighth) % 3 == 2


def choose_format(tensor: TensorPlan, shape: Shape, mix: str, pure: bool):
    if tensor.rows == 0 or tensor.name.endswith(ROUTER):
        return Q.F32
    chosen = FORMATS[mix][0]
    output = "token_embd.weight" if shape.tied else "output.weight"
    if tensor.name == output and chosen not in WIDE_FORMATS and not pure:
        chosen = Q.Q6_K
    large = ("attn_v.weight", "ffn_down.weight", "ffn_down_exps.weight")
    if mix.endswith("_K_M") and tensor.name.endswith(large):
        if takes_more_bits(int(tensor.name.split(".")[1]), shape.layers):
            chosen = Q.Q6_K
    if shape.mixture and shape.mixture.experts == 8 and chosen not in WIDE_FORMATS and not pure:
        if tensor.name.endswith(("attn_k.weight", "attn_v.weight")):
            chosen = Q.Q8_0
        elif tensor.name.endswith("attn_output.weight") and chosen == Q.Q4_K:
            chosen = Q.Q5_K
    for fallback in (FALLBACKS.get(chosen), Q.F16):
        if tensor.columns % gguf.GGML_QUANT_SIZES[chosen][0] != 0:
            chosen = fallback or Q.F16
    return chosen


def random_bytes(random: np.random.Generator, rows: int, columns: int) -> np.ndarray:
    words = -(-rows * columns // 8)
    raw = random.integers(0, 1 << 64, size=words, dtype=np.uint64, endpoint=False)
    return raw.view(np.uint8)[:rows * columns].reshape(rows, columns)


def random_scales(random: np.random.Generator, count: int, scale: float) -> np.ndarray:
    """Halves from 0.6 to 1.4 times `scale`, a row of two bytes each."""
    table = (np.linspace(0.6, 1.4, 256) * scale).astype(np.float16)
    return table[random_bytes(random, count, 1)[:, 0]]


def simple_blocks(random, count, deviation, levels, payload, has_minimum):
    """Q4_0, Q4_1, Q5_0, Q5_1: scale, perhaps minimum, then bits that are all free."""
    scale = random_scales(random, count, deviation * math.sqrt(12 / (levels * levels - 1)))
    head = [scale]
    if has_minimum:
        head.append((scale.astype(np.float32) * (-(levels - 1) / 2)).astype(np.float16))
    head = np.stack(head, axis=1).view(np.uint8)
    return np.concatenate([head, random_bytes(random, count, payload)], axis=1)


def q8_0_blocks(random, count, deviation):
    scale = random_scales(random, count, deviation / 73.6)[:, None].view(np.uint8)
    quants = np.maximum(random_bytes(random, count, 32).view(np.int8), -127)  # no quantizer: -128
    return np.concatenate([scale, quants.view(np.uint8)], axis=1)


def k_blocks(random, count, deviation, levels, payload):
    """Q4_K, Q5_K: a group's minimum is its scale times half the range, so that the mean is zero."""
    mean_square = sum(value * value for value in range(32, 64)) / 32
    level_deviation = math.sqrt((levels * levels - 1) / 12)
    scale = random_scales(random, count, deviation / (math.sqrt(mean_square) * level_deviation))
    minimum = (scale.astype(np.float32) * ((levels - 1) / 2)).astype(np.float16)
    head = np.stack([scale, minimum], axis=1).view(np.uint8)
    groups = random_bytes(random, count, 8) & 31 | 32
    low, high = groups[:, :4], groups[:, 4:]
    first = low | (high >> 4 << 6)
    last = (high & 15) | ((high & 15) << 4)
    return np.concatenate([head, first, first, last, random_bytes(random, count, payload)], axis=1)


def q6_k_blocks(random, count, deviation):
    groups = random_bytes(random, count, 16) & 31 | 32
    groups[:, ::2] = -groups[:, ::2].view(np.int8).view(np.uint8)
    mean_square = sum(value * value for value in range(32, 64)) / 32
    scale = random_scales(random, count, deviation / (math.sqrt(mean_square) * 18.5))
    return np.concatenate([random_bytes(random, count, 192), groups,
                           scale[:, None].view(np.uint8)], axis=1)


def with_scales(blocks: np.ndarray, chosen, scales: np.ndarray) -> np.ndarray:
    """Blocks of a format of codes with `scales` (halves), as near as the format can have them."""
    if chosen in HALF_PLACES:
        place = HALF_PLACES[chosen]
        blocks[:, place:place + 2] = scales[:, None].view(np.uint8)
    if chosen == Q.Q2_K:  # every minimum is what makes its group's mean zero
        blocks[:, :16] = (blocks[:, :16] & 15) * 17
        minimums = (scales.astype(np.float32) * 1.5).astype(np.float16)
        blocks[:, 82:84] = minimums[:, None].view(np.uint8)
    elif chosen == Q.TQ2_0:  # no pair of bits is 3
        pairs = blocks[:, :64] >> 1 & blocks[:, :64] & 0x55
        blocks[:, :64] ^= pairs
    elif chosen == Q.IQ1_M:
        words = blocks[:, 48:].view(np.uint16)
        bits = scales.view(np.uint16)[:, None] >> np.array([0, 4, 8, 12], np.uint16) & 15
        words[:] = words & 0x0FFF | bits << 12
    elif chosen == Q.MXFP4:
        exponents = np.round(np.log2(scales.astype(np.float32))) + 128
        blocks[:, 0] = np.clip(exponents, 2, 254).astype(np.uint8)
    elif chosen == Q.NVFP4:
        tiny = gguf.quants.NVFP4.fp32_to_ue4m3(2 * scales.astype(np.float32))
        blocks[:, :4] = tiny[:, None]
    return blocks


@functools.cache
def deviation_of_unit(chosen) -> float:
    """The deviation of the weights of random blocks whose scale is 1."""
    random = np.random.Generator(np.random.SFC64(1))
    size = gguf.GGML_QUANT_SIZES[chosen][1]
    blocks = with_scales(random_bytes(random, 512, size).copy(), chosen, np.ones(512, np.float16))
    return float(gguf.quants.dequantize(blocks, chosen).std())


def coded_blocks(random, count, deviation, chosen):
    blocks = random_bytes(random, count, gguf.GGML_QUANT_SIZES[chosen][1]).copy()
    return with_scales(blocks, chosen,
                       random_scales(random, count, deviation / deviation_of_unit(chosen)))


def random_rows(random, tensor: TensorPlan, elements: int) -> np.ndarray:
    """The stored form of `elements` elements, whole blocks."""
    deviation = tensor.deviation
    chosen = tensor.format
    if chosen in (Q.F32, Q.F16, Q.BF16):
        values = random.standard_normal(elements, dtype=np.float32)
        values *= np.float32(deviation)
        values += np.float32(tensor.mean)
        return gguf.quants.quantize(values, chosen)
    count = elements // gguf.GGML_QUANT_SIZES[chosen][0]
    if chosen == Q.Q8_0:
        return q8_0_blocks(random, count, deviation)
    if chosen == Q.Q6_K:
        return q6_k_blocks(random, count, deviation)
    if chosen == Q.Q4_K:
        return k_blocks(random, count, deviation, 16, 128)
    if chosen == Q.Q5_K:
        return k_blocks(random, count, deviation, 32, 160)
    if chosen in HALF_PLACES or chosen in (Q.MXFP4, Q.NVFP4, Q.IQ1_M):
        return coded_blocks(random, count, deviation, chosen)
    levels, payload, has_minimum = {Q.Q4_0: (16, 16, False), Q.Q4_1: (16, 16, True),
                                    Q.Q5_0: (32, 20, False), Q.Q5_1: (32, 20, True)}[chosen]
    return simple_blocks(random, count, deviation, levels, payload, has_minimum)


def write_tensor(file, tensor: TensorPlan, seed: int) -> None:
    start = file.tell()
    if tensor.values is not None:
        file.write(tensor.values.tobytes())
    else:
        random = np.random.Generator(np.random.SFC64([seed, zlib.crc32(tensor.name.encode())]))
        left = tensor.elements()
        while left > 0:
            elements = min(left, CHUNK_ELEMENTS)
            file.write(random_rows(random, tensor, elements).tobytes())
            left -= elements
    assert file.tell() - start == tensor.bytes(), tensor.name
    file.write(bytes(-file.tell() % ALIGNMENT))


def read_vocabulary(path: str) -> dict:
    """The tokenizer's metadata: key -> (value, type, type of an array's elements)."""
    result = {}
    for key, field in gguf.GGUFReader(path).fields.items():
        if key.startswith("tokenizer."):
            element = field.types[1] if len(field.types) > 1 else None
            result[key] = [field.contents(), field.types[0], element]
    if "tokenizer.ggml.tokens" not in result:
        sys.exit(f"--vocab {path}: it has no tokenizer.ggml.tokens")
    return result


def made_up_vocabulary(size: int) -> dict:
    """A SentencePiece-style vocabulary: three control tokens, 256 bytes, then random words."""
    if size < 259:
        sys.exit(f"a vocabulary of {size} cannot hold the 259 tokens that every text needs")
    words = [f"\u2581w{index}" for index in range(size - 259)]
    tokens = ["<unk>", "<s>", "</s>"] + [f"<0x{byte:02X}>" for byte in range(256)] + words
    types = [2, 3, 3] + [6] * 256 + [1] * len(words)
    scores = [0.0] * 259 + [-float(index) for index in range(len(words))]
    value_type = gguf.GGUFValueType
    return {
        "tokenizer.ggml.model": ["llama", value_type.STRING, None],
        "tokenizer.ggml.tokens": [tokens, value_type.ARRAY, value_type.STRING],
        "tokenizer.ggml.scores": [scores, value_type.ARRAY, value_type.FLOAT32],
        "tokenizer.ggml.token_type": [types, value_type.ARRAY, value_type.INT32],
        "tokenizer.ggml.bos_token_id": [1, value_type.UINT32, None],
        "tokenizer.ggml.eos_token_id": [2, value_type.UINT32, None],
        "tokenizer.ggml.unknown_token_id": [0, value_type.UINT32, None],
    }


def fit_vocabulary(vocabulary: dict, size: int) -> None:
    """Pads with unused tokens up to `size`."""
    missing = size - len(vocabulary["tokenizer.ggml.tokens"][0])
    if missing < 0:
        sys.exit(f"the vocabulary file has {size - missing} tokens, the shape only {size}; "
                 "give --vocab-size own to take the file's size")
    fills = {"tokenizer.ggml.tokens": [f"[UNUSED_{index}]" for index in range(missing)],
             "tokenizer.ggml.scores": [-1e6] * missing,
             "tokenizer.ggml.token_type": [UNUSED_TOKEN] * missing}
    for key, fill in fills.items():
        if key in vocabulary:
            vocabulary[key][0] = list(vocabulary[key][0]) + fill


def write_header(path, shape: Shape, tensors, vocabulary, name: str, mix: str) -> None:
    writer = gguf.GGUFWriter(path, shape.architecture)
    writer.add_type("model")
    writer.add_name(name)
    writer.add_block_count(shape.layers)
    writer.add_context_length(shape.context)
    writer.add_embedding_length(shape.embedding)
    writer.add_feed_forward_length(shape.feed_forward)
    if shape.mixture:
        writer.add_expert_count(shape.mixture.experts)
        writer.add_expert_used_count(shape.mixture.used)
        if shape.architecture != "llama":
            writer.add_expert_feed_forward_length(shape.mixture.feed_forward)
        if shape.mixture.shared:
            writer.add_expert_shared_count(shape.mixture.shared)
        if shape.mixture.dense_layers:
            writer.add_leading_dense_block_count(shape.mixture.dense_layers)
    writer.add_head_count(shape.heads)
    writer.add_head_count_kv(shape.kv_heads)
    if shape.latents:
        writer.add_kv_lora_rank(shape.latents.size)
        if shape.latents.query:
            writer.add_q_lora_rank(shape.latents.query)
        writer.add_key_length(shape.latents.size + shape.rotary_size)
        writer.add_value_length(shape.latents.size)
        writer.add_key_length_mla(shape.head_size + shape.rotary_size)
        writer.add_value_length_mla(shape.latents.value_size)
    else:
        writer.add_key_length(shape.head_size)
        writer.add_value_length(shape.head_size)
    writer.add_rope_freq_base(shape.rope_base)
    writer.add_rope_dimension_count(shape.rotated)
    if shape.sections:
        writer.add_rope_dimension_sections(list(shape.sections))
    if shape.original_context:
        growth = shape.context / shape.original_context
        writer.add_rope_scaling_orig_ctx_len(shape.original_context)
        writer.add_rope_scaling_attn_factors(
            math.sqrt(1 + math.log(growth) / math.log(shape.original_context)))
    writer.add_layer_norm_rms_eps(shape.epsilon)
    writer.add_vocab_size(shape.vocabulary)
    writer.add_file_type(FORMATS[mix][1])
    writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
    for key, (value, value_type, element_type) in vocabulary.items():
        writer.add_key_value(key, value, value_type, element_type)
    for tensor in tensors:
        writer.add_tensor_info(tensor.name, tensor.dimensions(), np.dtype(np.float32),
                               tensor.bytes(), tensor.format)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    writer.close()


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", required=True, choices=SHAPES)
    parser.add_argument("--format", required=True, choices=FORMATS)
    parser.add_argument("--output", required=True, metavar="FILE")
    parser.add_argument("--vocab", metavar="FILE.gguf",
                        help="copy the tokenizer of this file; without it a random one")
    parser.add_argument("--vocab-size", default="shape", choices=("shape", "own"),
                        help="the shape's vocabulary size, padded with unused tokens (default: "
                        "its speed is that of the real model), or the file's own")
    parser.add_argument("--layers", type=int, help="fewer or more layers than the shape has")
    parser.add_argument("--pure", action="store_true",
                        help="the output matrix in the same format as all others")
    parser.add_argument("--seed", type=int, default=1, help="of the weights (default: 1)")
    arguments = parser.parse_args()
    if arguments.layers is not None and arguments.layers < 1:
        parser.error("--layers must be at least 1")
    if arguments.seed < 0:
        parser.error("--seed must not be negative")
    return arguments


def used_parameters(shape: Shape, tensors: list[TensorPlan]) -> str:
    """Of a mixture: how many a token needs; of an embedding that is nothing else, hardly any."""
    if not shape.mixture:
        return ""
    used = sum(tensor.elements() * (shape.mixture.used if tensor.experts else 1) //
               max(tensor.experts, 1) for tensor in tensors
               if shape.tied or tensor.name != "token_embd.weight")
    return f" ({used / 1e6:.1f} M for a token)"


def main() -> None:
    arguments = parse_arguments()
    started = time.monotonic()
    shape = SHAPES[arguments.shape]
    if arguments.layers is not None:
        shape = dataclasses.replace(shape, layers=arguments.layers)
    if arguments.vocab:
        vocabulary = read_vocabulary(arguments.vocab)
        if arguments.vocab_size == "own":
            size = len(vocabulary["tokenizer.ggml.tokens"][0])
            shape = dataclasses.replace(shape, vocabulary=size)
    else:
        vocabulary = made_up_vocabulary(shape.vocabulary)
    fit_vocabulary(vocabulary, shape.vocabulary)
    tensors = plan_tensors(shape)
    for tensor in tensors:
        tensor.format = choose_format(tensor, shape, arguments.format, arguments.pure)
    name = f"{arguments.shape} (random weights)"
    write_header(arguments.output, shape, tensors, vocabulary, name, arguments.format)
    with open(arguments.output, "ab") as file:
        file.write(bytes(-file.tell() % ALIGNMENT))
        for tensor in tensors:
            write_tensor(file, tensor, arguments.seed)
        size = file.tell()
    parameters = sum(tensor.elements() for tensor in tensors)
    print(f"{arguments.output}: {arguments.shape}, {arguments.format}, {parameters / 1e6:.1f} M "
          f"parameters{used_parameters(shape, tensors)}, {size / 1e6:.1f} MB in "
          f"{time.monotonic() - started:.1f} s")


if __name__ == "__main__":
    main()
