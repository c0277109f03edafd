"""The tensors of a model file: names, sizes, formats; imported by make_model.py."""

import dataclasses
import math

import gguf
import numpy as np

from model_shapes import TAPS, VECTORS, Shape

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
    "MXFP4_MOE": (Q.MXFP4, gguf.LlamaFileType.MOSTLY_MXFP4_MOE),
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
WIDE_FORMATS = (Q.F32, Q.F16, Q.BF16, Q.Q8_0)  # keep the output matrix as it is
ALIGNMENT = 32
ROUTER = "ffn_gate_inp.weight"
DECAYS, SKIPS, SCAN_NORM = "ssm_a", "ssm_d", "ssm_norm.weight"
OF_STATES = ("shortconv.conv.weight", "ssm_conv1d.weight",
             *(f"ssm_conv1d_{name}.weight" for name in "qkv"), DECAYS, SKIPS, SCAN_NORM)


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


def rope_factors(shape: Shape) -> np.ndarray | None:
    """What each rotary frequency is divided by; without a window, where some layers have one."""
    scaling = shape.rope_scaling
    if shape.window and shape.window.full:
        pairs = shape.window.full.head_size // 2
        rotated = round(pairs * shape.window.full.rotated_part)
        return np.array([1.0] * rotated + [1e30] * (pairs - rotated), dtype=np.float32)
    if not scaling:
        return None
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


def matrix(name: str, rows: int, columns: int, gain: float = 1.0, **more: int) -> TensorPlan:
    return TensorPlan(name, rows, columns, gain / math.sqrt(columns), **more)


def norm(name: str, columns: int, **more: int) -> TensorPlan:
    return TensorPlan(name, 0, columns, 0.1, mean=1.0, **more)


def layer_gain(shape: Shape) -> float:
    """A layer's addition to the stream shrinks with their number, so that the sum does not grow."""
    return 1 / math.sqrt(2 * shape.layers)


def plan_latent_attention(shape: Shape, block: str) -> list[TensorPlan]:
    latents, own, rotated = shape.latents, shape.head_size, shape.rotary_size
    embedding = shape.embedding
    queries = shape.heads * (own + rotated)
    made = [matrix(block + "attn_q.weight", queries, embedding)]
    if latents.query:
        made = [matrix(block + "attn_q_a.weight", latents.query, embedding),
                norm(block + "attn_q_a_norm.weight", latents.query),
                matrix(block + "attn_q_b.weight", queries, latents.query)]
    return made + [
        matrix(block + "attn_kv_a_mqa.weight", latents.size + rotated, embedding),
        norm(block + "attn_kv_a_norm.weight", latents.size),
        matrix(block + "attn_k_b.weight", latents.size, own, heads=shape.heads),
        matrix(block + "attn_v_b.weight", latents.value_size, latents.size, heads=shape.heads),
        matrix(block + "attn_output.weight", embedding, shape.heads * latents.value_size,
               layer_gain(shape))]


def plan_convolution(shape: Shape, block: str) -> list[TensorPlan]:
    embedding = shape.embedding
    return [matrix(block + "shortconv.in_proj.weight", 3 * embedding, embedding),
            matrix(block + "shortconv.conv.weight", embedding, TAPS),
            matrix(block + "shortconv.out_proj.weight", embedding, embedding, layer_gain(shape))]


def plan_delta_net(shape: Shape, block: str) -> list[TensorPlan]:
    net, embedding = shape.delta_nets, shape.embedding
    convolved, heads = 2 * net.key_columns + net.value_columns, net.value_heads
    factors = [matrix(f"{block}ssm_{name}.weight", heads, embedding) for name in ("beta", "alpha")]
    if "ssm_ba" in shape.family.fused:
        factors = [matrix(block + "ssm_ba.weight", 2 * heads, embedding)]
    return [matrix(block + "attn_qkv.weight", convolved, embedding),
            matrix(block + "attn_gate.weight", net.value_columns, embedding),
            matrix(block + "ssm_conv1d.weight", convolved, net.taps), *factors,
            TensorPlan(block + "ssm_a", 0, heads, 0.1, mean=-1.0),
            TensorPlan(block + "ssm_dt.bias", 0, heads, 1.0),
            norm(block + "ssm_norm.weight", net.head_size),
            matrix(block + "ssm_out.weight", embedding, net.value_columns, layer_gain(shape))]


def plan_row_decays(shape: Shape, block: str) -> list[TensorPlan]:
    """Kimi Delta Attention."""
    net, embedding = shape.row_decays, shape.embedding
    wide = shape.heads * net.head_size
    made = [each for name in "qkv" for each in
            (matrix(f"{block}attn_{name}.weight", wide, embedding),
             matrix(f"{block}ssm_conv1d_{name}.weight", 1, net.taps, heads=wide))]
    for name in "fg":
        made += [matrix(f"{block}ssm_{name}_a.weight", net.head_size, embedding),
                 matrix(f"{block}ssm_{name}_b.weight", wide, net.head_size)]
    return [*made, matrix(block + "ssm_beta.weight", shape.heads, embedding),
            TensorPlan(block + DECAYS, shape.heads, 1, 0.1, mean=-1.0),
            TensorPlan(block + "ssm_dt.bias", 0, wide, 1.0),
            norm(block + "ssm_norm.weight", net.head_size),
            matrix(block + "attn_output.weight", embedding, wide, layer_gain(shape))]


def plan_scan(shape: Shape, block: str) -> list[TensorPlan]:
    scans, embedding = shape.scans, shape.embedding
    convolved = scans.columns + 2 * scans.groups * scans.state_size
    return [matrix(block + "ssm_in.weight", scans.columns + convolved + scans.heads, embedding),
            matrix(block + "ssm_conv1d.weight", convolved, scans.taps),
            TensorPlan(block + "ssm_conv1d.bias", 0, convolved, 0.1),
            TensorPlan(block + "ssm_dt.bias", 0, scans.heads, 1.0),
            TensorPlan(block + DECAYS, scans.heads, 1, 0.1, mean=-1.0),
            TensorPlan(block + SKIPS, scans.heads, 1, 0.1, mean=1.0),
            TensorPlan(block + SCAN_NORM, scans.groups, scans.columns // scans.groups, 0.1,
                       mean=1.0),
            matrix(block + "ssm_out.weight", embedding, scans.columns, layer_gain(shape))]


def plan_attention(shape: Shape, layer: int, block: str) -> list[TensorPlan]:
    """The matrices, or those of a delta net, a scan or a convolution in its place."""
    if not shape.attends(layer) and shape.scans:
        return plan_scan(shape, block)
    if not shape.attends(layer) and shape.row_decays:
        return plan_row_decays(shape, block)
    if not shape.attends(layer):
        return plan_delta_net(shape, block) if shape.delta_nets else plan_convolution(shape, block)
    if shape.latents:
        return plan_latent_attention(shape, block)
    full = shape.full(layer)
    embedding, head_size = shape.embedding, full.head_size if full else shape.head_size
    query = shape.heads * head_size
    key = (full.kv_heads if full else shape.kv_heads) * head_size
    output = matrix(block + "attn_output.weight", embedding, query, layer_gain(shape))
    if "attn_qkv" in shape.family.fused:
        return [matrix(block + "attn_qkv.weight", query + 2 * key, embedding), output]
    rows = 2 * query if shape.family.has_query_gates else query
    made = [matrix(block + "attn_q.weight", rows, embedding)]
    if shape.is_sharing(layer):
        return [*made, output]
    made.append(matrix(block + "attn_k.weight", key, embedding))
    if not full or full.has_values:
        made.append(matrix(block + "attn_v.weight", key, embedding))
    return [*made, output]


def plan_feed_forward(shape: Shape, block: str, wide: int, end: str = "",
                      **more: int) -> list[TensorPlan]:
    """The matrices of a feed-forward, or of many: `end` is that of their names."""
    family, embedding = shape.family, shape.embedding
    raised = [matrix(f"{block}ffn_{part}{end}.weight", wide, embedding, **more)
              for part in (("gate", "up") if family.is_gated else ("up",))]
    for fused in ("ffn_up", "ffn_gate_up_exps"):
        if fused in family.fused and fused.endswith("exps") == (end == "_exps"):
            raised = [matrix(f"{block}{fused}.weight", 2 * wide, embedding, **more)]
    return [*raised, matrix(f"{block}ffn_down{end}.weight", embedding, wide, layer_gain(shape),
                            **more)]


def plan_experts(shape: Shape, layer: int, block: str) -> list[TensorPlan]:
    """The matrices of what follows attention."""
    mixture, made = shape.mixture, []
    if not shape.has_experts(layer) or shape.family.has_both:
        made = plan_feed_forward(shape, block, shape.feed_forward_of(layer))
    if not shape.has_experts(layer):
        return made
    if mixture.shared_columns:
        made += plan_feed_forward(shape, block, mixture.shared_columns, "_shexp")
    return [*made, matrix(block + ROUTER, mixture.experts, shape.embedding),
            *plan_feed_forward(shape, block, mixture.feed_forward, "_exps",
                               experts=mixture.experts)]


def plan_head_norms(shape: Shape, layer: int, block: str) -> list[TensorPlan]:
    if not shape.attends(layer):
        return []
    full, kind = shape.full(layer), shape.family.head_norms
    size = full.head_size if full else shape.head_size
    counts = (("q", shape.heads), ("k", full.kv_heads if full else shape.kv_heads))
    made = [norm(f"{block}attn_{part}_norm.weight", size * (count if kind == "whole" else 1))
            for part, count in counts if kind]
    if shape.family.has_plain_scores:
        made[1].mean /= math.sqrt(size)
        made[1].deviation /= math.sqrt(size)
    return made[:1] if shape.is_sharing(layer) else made


def plan_vectors(shape: Shape, layer: int, block: str) -> list[TensorPlan]:
    sizes = {"heads": shape.heads, "embedding": shape.embedding, "one": 1,
             "experts": shape.mixture.experts if shape.mixture else 0}
    of_experts = ("exp_probs", "ffn_gate_inp", "ffn_down_exps")
    return [TensorPlan(block + name, 0, sizes[VECTORS[name].size], VECTORS[name].deviation,
                       VECTORS[name].mean) for name in shape.family.vectors + shape.vectors
            if shape.has_experts(layer) or not name.startswith(of_experts)]


def plan_more_norms(shape: Shape, layer: int, block: str) -> list[TensorPlan]:
    names = shape.family.more_norms
    if shape.has_experts(layer):
        names += shape.family.expert_norms
    return [norm(f"{block}{name}.weight", shape.embedding) for name in names]


def plan_layer_embedding(shape: Shape, block: str) -> list[TensorPlan]:
    """What adds a token's embedding for the layer to the residual."""
    own, embedding = shape.layer_embedding, shape.embedding
    if not own:
        return []
    return [matrix(block + "inp_gate.weight", own, embedding),
            matrix(block + "proj.weight", embedding, own, layer_gain(shape)),
            norm(block + "post_norm.weight", embedding)]


def plan_layer_embeddings(shape: Shape) -> list[TensorPlan]:
    """The embeddings of all layers."""
    own = shape.layer_embedding
    if not own:
        return []
    columns = shape.layers * own
    return [TensorPlan("per_layer_token_embd.weight", shape.vocabulary, columns,
                       1 / math.sqrt(own)),
            matrix("per_layer_model_proj.weight", columns, shape.embedding,
                   math.sqrt(shape.embedding)),
            norm("per_layer_proj_norm.weight", own)]


def with_bias(tensor: TensorPlan) -> list[TensorPlan]:
    """A norm, and what it adds."""
    return [tensor, TensorPlan(tensor.name.replace(".weight", ".bias"), 0, tensor.columns, 0.1)]


def plan_layer(shape: Shape, layer: int) -> list[TensorPlan]:
    block, family = f"blk.{layer}.", shape.family
    norms = [[norm(f"{block}{name}.weight", shape.embedding)] if name else []
             for name in family.norms]
    if family.has_norm_biases:
        norms = [[each for tensor in some for each in with_bias(tensor)] for some in norms]
    products = [plan_attention(shape, layer, block), plan_experts(shape, layer, block)]
    by_name = {tensor.name: tensor for some in products for tensor in some}
    biased = [by_name[f"{block}{name}.weight"] for name in family.biases]
    return [*norms[0], *products[0], *norms[1], *products[1],
            *(TensorPlan(tensor.name.replace(".weight", ".bias"), 0, tensor.rows, 0.1,
                         experts=tensor.experts) for tensor in biased),
            *plan_head_norms(shape, layer, block),
            *plan_more_norms(shape, layer, block), *plan_vectors(shape, layer, block),
            *plan_layer_embedding(shape, block)]


def plan_prediction(shape: Shape, layer: int) -> list[TensorPlan]:
    """A block that predicts: a layer behind the last token's row and the next one's embedding."""
    block, embedding = f"blk.{layer}.nextn.", shape.embedding
    return [*plan_layer(shape, layer), norm(block + "enorm.weight", embedding),
            norm(block + "hnorm.weight", embedding),
            norm(block + "shared_head_norm.weight", embedding),
            matrix(block + "eh_proj.weight", embedding, 2 * embedding),
            matrix(block + "shared_head_head.weight", shape.vocabulary, embedding)]


def plan_tensors(shape: Shape) -> list[TensorPlan]:
    """All tensors in the file's order; formats are not chosen yet."""
    embedding = shape.embedding
    tensors = [matrix("token_embd.weight", shape.vocabulary, embedding,
                      1.0 if shape.tied else math.sqrt(embedding))]
    factors = rope_factors(shape)
    if factors is not None:
        tensors.append(TensorPlan("rope_freqs.weight", 0, len(factors), 0, values=factors))
    if shape.original_context:
        tensors += [TensorPlan(f"rope_factors_{name}.weight", 0, shape.rotated // 2, 0,
                               values=np.linspace(1, most, shape.rotated // 2, dtype=np.float32))
                    for name, most in (("long", 60.0), ("short", 3.0))]
    tensors += plan_layer_embeddings(shape)
    for layer in range(shape.layers):
        tensors += plan_layer(shape, layer)
    for layer in range(shape.layers, shape.layers + shape.predicting):
        tensors += plan_prediction(shape, layer)
    last = norm(f"{shape.family.output_norm}.weight", embedding)
    tensors += with_bias(last) if shape.family.has_norm_biases else [last]
    if not shape.tied:
        tensors.append(matrix("output.weight", shape.vocabulary, embedding))
    return tensors


def takes_more_bits(layer: int, layers: int) -> bool:
    """Whether the _M mixes keep this layer's attn_v and ffn_down in Q6_K."""
    eighth = layers // 8
    return layer < eighth or layer >= 7 * layers // 8 or (layer - eighth) % 3 == 2


def choose_format(tensor: TensorPlan, shape: Shape, mix: str, pure: bool):
    if tensor.rows == 0 or tensor.name.endswith((ROUTER, *OF_STATES)):
        return Q.F32
    chosen = FORMATS[mix][0]
    if mix == "MXFP4_MOE":
        return chosen if tensor.experts else Q.Q8_0
    outputs = (("token_embd.weight", "per_layer_token_embd.weight") if shape.tied
               else ("output.weight",))
    if tensor.name in outputs and chosen not in WIDE_FORMATS and not pure:
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
