"""The shapes of published models, and what files of each architecture hold; imported by
make_model.py.
"""

import dataclasses

# Values of the key expert_gating_func.
SOFTMAX, SIGMOID = 1, 2


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
    shared_feed_forward: int = 0  # the key for all shared experts together; 0: there is none
    scale: float = 0.0  # the key for the factor of weights; 0: there is none

    @property
    def shared_columns(self) -> int:
        return self.shared_feed_forward or self.shared * self.feed_forward


@dataclasses.dataclass(frozen=True)
class Latents:
    """Multi-head latent attention; Shape.rotary_size has positions, head_size has none."""
    size: int  # of keys and values
    query: int  # of queries; 0: they have none
    value_size: int  # of a head


@dataclasses.dataclass(frozen=True)
class FullLayers:
    """What differs in layers without a window."""
    head_size: int
    kv_heads: int
    rotated_part: float  # of a head's rotary pairs
    has_values: bool = False  # without, keys are values


@dataclasses.dataclass(frozen=True)
class Window:
    """Layers whose tokens see the last so many alone; of `period` layers the last sees all."""
    tokens: int
    period: int
    rope_base: float = 0.0  # the key of these layers' base; 0: there is none
    full: FullLayers | None = None

    def holds(self, layer: int) -> bool:
        return (layer + 1) % self.period != 0


@dataclasses.dataclass(frozen=True)
class DeltaNets:
    """The gated delta nets of all but every `period`-th layer, which has attention."""
    key_heads: int
    value_heads: int
    head_size: int = 128  # of keys and of values
    taps: int = 4  # tokens that the convolutions before them are over
    period: int = 4

    @property
    def key_columns(self) -> int:
        return self.key_heads * self.head_size

    @property
    def value_columns(self) -> int:
        return self.value_heads * self.head_size

    @property
    def keys(self) -> dict:
        return {"ssm.conv_kernel": self.taps, "ssm.state_size": self.head_size,
                "ssm.group_count": self.key_heads, "ssm.time_step_rank": self.value_heads,
                "ssm.inner_size": self.value_columns, "full_attention_interval": self.period}


@dataclasses.dataclass(frozen=True)
class RowDecays:
    """Delta nets with a decay for each row of a state, in the layers that do not attend."""
    head_size: int = 128
    taps: int = 4

    @property
    def keys(self) -> dict:
        return {"ssm.conv_kernel": self.taps, "kda.head_dim": self.head_size}


@dataclasses.dataclass(frozen=True)
class Scans:
    """State spaces of Mamba-2, in the layers that do not attend."""
    heads: int
    head_size: int
    state_size: int = 128
    groups: int = 1
    taps: int = 4

    @property
    def columns(self) -> int:
        return self.heads * self.head_size

    @property
    def keys(self) -> dict:
        return {"ssm.conv_kernel": self.taps, "ssm.state_size": self.state_size,
                "ssm.group_count": self.groups, "ssm.time_step_rank": self.heads,
                "ssm.inner_size": self.columns}


@dataclasses.dataclass(frozen=True)
class SharingLayers:
    """The last layers, which read the keys and values of earlier ones."""
    count: int
    feed_forward: int


@dataclasses.dataclass(frozen=True)
class Family:
    """What an architecture's files hold, where that is not what Llama's do."""
    # Before attention and before the feed-forward; empty: there is none.
    norms: tuple[str, str] = ("attn_norm", "ffn_norm")
    more_norms: tuple[str, ...] = ()  # of the residual, too
    expert_norms: tuple[str, ...] = ()  # likewise, of layers with experts
    is_layer_norm: bool = False  # the key of the epsilon
    has_norm_biases: bool = False
    # The norms of queries and keys: "" for none, "head" for weights of one head that all share,
    # "whole" for weights of all heads.
    head_norms: str = ""
    has_query_gates: bool = False  # attn_q has a gate behind each head's queries
    output_norm: str = "output_norm"
    has_plain_scores: bool = False  # of attention: norms divide by the root of a head's columns
    biases: tuple[str, ...] = ()  # of these products, which may be experts'
    vectors: tuple[str, ...] = ()  # of VECTORS
    # Tensors that hold others as well: any of attn_qkv, ffn_up, ffn_gate_up_exps, ssm_ba.
    fused: tuple[str, ...] = ()
    is_gated: bool = True  # the feed-forward
    has_both: bool = False  # a dense feed-forward beside experts
    writes_pattern: bool = False  # which layers have a window
    writes_layer_keys: bool = False  # of Shape.layer_embedding and Shape.sharing
    keys: dict = dataclasses.field(default_factory=dict)  # beside those of Shape.keys


@dataclasses.dataclass(frozen=True)
class Vector:
    """A tensor of one dimension that some layers have."""
    size: str  # "heads", "experts", "embedding" or "one"
    deviation: float
    mean: float = 0.0


VECTORS = {
    "attn_sinks.weight": Vector("heads", 1.0),
    "exp_probs_b.bias": Vector("experts", 0.01),
    "ffn_gate_inp.scale": Vector("embedding", 0.1, 1.0),
    "ffn_gate_inp_shexp.weight": Vector("embedding", 0.02),
    "ffn_down_exps.scale": Vector("experts", 0.1, 1.0),
    "layer_output_scale.weight": Vector("one", 0.05, 1.0),
}
INPUTS = ("attn_q", "attn_k", "attn_v")
POST_NORMS = ("post_attention_norm", "post_ffw_norm")
SIGMOID_KEYS = {"expert_gating_func": SIGMOID, "expert_weights_norm": True}
NO_SCALING = {"rope.scaling.type": "none"}
TAPS = 3  # tokens that a short convolution is over

# By architecture; others are as Llama.
FAMILIES = {
    "bailingmoe": Family(keys={"expert_weights_norm": True}),
    "cohere2": Family(norms=("attn_norm", ""), is_layer_norm=True, keys=NO_SCALING),
    "command-r": Family(norms=("attn_norm", ""), is_layer_norm=True, keys=NO_SCALING),
    "dots1": Family(head_norms="head", vectors=("exp_probs_b.bias",), keys=SIGMOID_KEYS),
    "ernie4_5-moe": Family(vectors=("exp_probs_b.bias",), keys={"interleave_moe_layer_step": 1}),
    "exaone4": Family(norms=("", ""), more_norms=POST_NORMS, head_norms="head",
                      writes_pattern=True),
    "gemma2": Family(more_norms=POST_NORMS),
    "gemma3": Family(more_norms=POST_NORMS, head_norms="head"),
    "gemma4": Family(more_norms=POST_NORMS,
                     expert_norms=("pre_ffw_norm_2", "post_ffw_norm_1", "post_ffw_norm_2"),
                     head_norms="head", has_plain_scores=True, fused=("ffn_gate_up_exps",),
                     has_both=True, writes_pattern=True,
                     vectors=("ffn_gate_inp.scale", "ffn_down_exps.scale",
                              "layer_output_scale.weight"),
                     writes_layer_keys=True),
    "glm4": Family(more_norms=POST_NORMS, fused=("ffn_up",)),
    "glm4moe": Family(norms=("attn_norm", "post_attention_norm"), biases=INPUTS,
                      vectors=("exp_probs_b.bias",), keys=SIGMOID_KEYS),
    "gpt-oss": Family(norms=("attn_norm", "post_attention_norm"),
                      biases=(*INPUTS, "attn_output", "ffn_gate_inp", "ffn_gate_exps",
                              "ffn_up_exps", "ffn_down_exps"),
                      vectors=("attn_sinks.weight",)),
    "hunyuan-dense": Family(head_norms="head"),
    "hunyuan-moe": Family(head_norms="head"),
    "lfm2": Family(head_norms="head", output_norm="token_embd_norm",
                   keys={"shortconv.l_cache": TAPS}),
    "maincoder": Family(head_norms="head"),
    "minimax-m2": Family(head_norms="whole", vectors=("exp_probs_b.bias",),
                         keys={"expert_gating_func": SIGMOID}),
    "mistral4": Family(fused=("ffn_gate_up_exps",), keys={"expert_weights_norm": True}),
    "nemotron": Family(is_layer_norm=True, has_norm_biases=True, is_gated=False, keys=NO_SCALING),
    "olmo2": Family(norms=("", ""), more_norms=POST_NORMS, head_norms="whole"),
    "olmoe": Family(head_norms="whole"),
    "pangu-embedded": Family(biases=(*INPUTS, "attn_output")),
    "phi3": Family(fused=("attn_qkv", "ffn_up")),
    "qwen2": Family(biases=INPUTS),
    "qwen2moe": Family(biases=INPUTS, vectors=("ffn_gate_inp_shexp.weight",)),
    "qwen2vl": Family(biases=INPUTS),
    "qwen3": Family(head_norms="head"),
    "qwen35": Family(norms=("attn_norm", "post_attention_norm"), head_norms="head",
                     has_query_gates=True),
    "qwen35moe": Family(norms=("attn_norm", "post_attention_norm"), head_norms="head",
                        has_query_gates=True, vectors=("ffn_gate_inp_shexp.weight",)),
    "qwen3moe": Family(head_norms="head"),
    "qwen3next": Family(norms=("attn_norm", "post_attention_norm"), head_norms="head",
                        has_query_gates=True, fused=("ssm_ba",),
                        vectors=("ffn_gate_inp_shexp.weight",)),
    "qwen3vl": Family(head_norms="head"),
    "qwen3vlmoe": Family(head_norms="head"),
    "seed_oss": Family(norms=("attn_norm", "post_attention_norm"), biases=INPUTS),
    "stablelm": Family(is_layer_norm=True, has_norm_biases=True, biases=INPUTS,
                       keys={"use_parallel_residual": False}),
    "starcoder2": Family(is_layer_norm=True, has_norm_biases=True, is_gated=False,
                         biases=(*INPUTS, "attn_output", "ffn_up", "ffn_down")),
}


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
    window: Window | None = None
    layer_embedding: int = 0  # columns of an embedding that each layer has of each token
    sharing: SharingLayers | None = None
    # Layers, where others have a short convolution, or what `row_decays` or `scans` say; (): all.
    attending: tuple[int, ...] = ()
    delta_nets: DeltaNets | None = None
    row_decays: RowDecays | None = None
    scans: Scans | None = None
    vectors: tuple[str, ...] = ()  # beside the family's
    predicting: int = 0  # blocks behind the layers that predict further tokens
    keys: dict = dataclasses.field(default_factory=dict)  # more, by what follows the architecture

    @property
    def rotated(self) -> int:
        return self.rotary_size or self.head_size

    @property
    def family(self) -> Family:
        return FAMILIES.get(self.architecture, Family())

    def full(self, layer: int) -> FullLayers | None:
        """The sizes of a layer without a window, where they are not the usual ones."""
        return self.window.full if self.window and not self.window.holds(layer) else None

    def is_sharing(self, layer: int) -> bool:
        return self.sharing is not None and layer >= self.layers - self.sharing.count

    def attends(self, layer: int) -> bool:
        if layer >= self.layers:
            return True
        if self.delta_nets:
            return (layer + 1) % self.delta_nets.period == 0
        return not self.attending or layer in self.attending

    def feed_forward_of(self, layer: int) -> int:
        return self.sharing.feed_forward if self.is_sharing(layer) else self.feed_forward

    def has_experts(self, layer: int) -> bool:
        return self.mixture is not None and layer >= self.mixture.dense_layers


def yarn(factor: float, original_context: int, **more: float) -> dict:
    """The keys of YaRN; `more` by what follows rope.scaling.yarn_."""
    return {"rope.scaling.type": "yarn", "rope.scaling.factor": factor,
            "rope.scaling.original_context_length": original_context,
            **{f"rope.scaling.yarn_{name}": value for name, value in more.items()}}


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
                              False, mixture=Mixture(64, 6, 1408, 2, 1, scale=1.0), rotary_size=64,
                              latents=Latents(512, 0, 128),
                              keys=yarn(40.0, 4096, log_multiplier=0.0707)
                              | {"expert_gating_func": SOFTMAX}),
    "deepseek-v3": Shape("deepseek2", 61, 7168, 18432, 128, 1, 128, 129280, 163840, 1e4, 1e-6,
                         False, mixture=Mixture(256, 8, 2048, 1, 3, scale=2.5), rotary_size=64,
                         latents=Latents(512, 1536, 128), vectors=("exp_probs_b.bias",),
                         keys=yarn(40.0, 4096, log_multiplier=0.1) | SIGMOID_KEYS
                         | {"expert_group_count": 8, "expert_group_used_count": 4}),
    "kimi-k2": Shape("deepseek2", 61, 7168, 18432, 64, 1, 128, 163840, 131072, 5e4, 1e-6, False,
                     mixture=Mixture(384, 8, 2048, 1, 1, scale=2.827), rotary_size=64,
                     latents=Latents(512, 1536, 128), vectors=("exp_probs_b.bias",),
                     keys=yarn(32.0, 4096, log_multiplier=0.1, beta_fast=1.0, beta_slow=1.0)
                     | SIGMOID_KEYS),
    "kimi-linear-48b-a3b": Shape("kimi-linear", 27, 2304, 9216, 32, 1, 128, 163840, 1048576, 1e4,
                                 1e-5, False, mixture=Mixture(256, 8, 1024, 1, 1, scale=2.446),
                                 rotary_size=64, latents=Latents(512, 0, 128),
                                 attending=(3, 7, 11, 15, 19, 23, 26), row_decays=RowDecays(),
                                 vectors=("exp_probs_b.bias",), keys=SIGMOID_KEYS),
    "glm-4.7-flash": Shape("deepseek2", 47, 2048, 10240, 20, 1, 192, 154880, 202752, 1e6, 1e-5,
                           False, mixture=Mixture(64, 4, 1536, 1, 1, scale=1.8), rotary_size=64,
                           latents=Latents(512, 768, 256), vectors=("exp_probs_b.bias",),
                           keys=SIGMOID_KEYS),
    "mistral-small-4-119b": Shape("mistral4", 36, 4096, 12288, 32, 1, 64, 131072, 1048576, 1e4,
                                  1e-6, False, mixture=Mixture(128, 4, 2048, 1, scale=1.0),
                                  rotary_size=64, latents=Latents(256, 1024, 128),
                                  keys=yarn(128.0, 8192, log_multiplier=0.1)),
    "gpt-oss-20b": Shape("gpt-oss", 24, 2880, 2880, 64, 8, 64, 201088, 131072, 1.5e5, 1e-5, False,
                         mixture=Mixture(32, 4, 2880), window=Window(128, 2),
                         keys=yarn(32.0, 4096, beta_fast=32.0, beta_slow=1.0)),
    "gemma-2b": Shape("gemma", 18, 2048, 16384, 8, 1, 256, 256000, 8192, 1e4, 1e-6, True),
    "gemma-2-2b": Shape("gemma2", 26, 2304, 9216, 8, 4, 256, 256000, 8192, 1e4, 1e-6, True,
                        window=Window(4096, 2), keys={"attn_logit_softcapping": 50.0,
                                                      "final_logit_softcapping": 30.0}),
    "gemma-3-4b": Shape("gemma3", 34, 2560, 10240, 8, 4, 256, 262144, 131072, 1e6, 1e-6, True,
                        window=Window(1024, 6, 1e4),
                        keys={"rope.scaling.type": "linear", "rope.scaling.factor": 8.0}),
    "gemma-4-26b-a4b": Shape("gemma4", 30, 2816, 2112, 16, 8, 256, 262144, 262144, 1e6, 1e-6, True,
                             mixture=Mixture(128, 8, 704),
                             window=Window(1024, 6, 1e4, FullLayers(512, 2, 0.25)),
                             keys={"final_logit_softcapping": 30.0}),
    "gemma-4-31b": Shape("gemma4", 60, 5376, 21504, 32, 16, 256, 262144, 262144, 1e6, 1e-6, True,
                         window=Window(1024, 6, 1e4, FullLayers(512, 4, 0.25)),
                         keys={"final_logit_softcapping": 30.0}),
    "gemma-4-e2b": Shape("gemma4", 35, 1536, 6144, 8, 1, 256, 262144, 131072, 1e6, 1e-6, True,
                         window=Window(512, 5, 1e4, FullLayers(512, 1, 0.25, True)),
                         layer_embedding=256, sharing=SharingLayers(20, 12288),
                         keys={"final_logit_softcapping": 30.0}),
    "gemma-4-e4b": Shape("gemma4", 42, 2560, 10240, 8, 2, 256, 262144, 131072, 1e6, 1e-6, True,
                         window=Window(512, 6, 1e4, FullLayers(512, 2, 0.25, True)),
                         layer_embedding=256, sharing=SharingLayers(18, 10240),
                         keys={"final_logit_softcapping": 30.0}),
    "glm-4-9b": Shape("glm4", 40, 4096, 13696, 32, 2, 128, 151552, 32768, 1e4, 1e-5, False,
                      rotary_size=64),
    "glm-4.5-air": Shape("glm4moe", 46, 4096, 10944, 96, 8, 128, 151552, 131072, 1e6, 1e-5, False,
                         mixture=Mixture(128, 8, 1408, 1, 1, scale=1.0), rotary_size=64),
    "minimax-m2": Shape("minimax-m2", 62, 3072, 1536, 48, 8, 128, 200064, 196608, 5e6, 1e-6, False,
                        mixture=Mixture(256, 8, 1536), rotary_size=64),
    "qwen1.5-moe-a2.7b": Shape("qwen2moe", 24, 2048, 5632, 16, 16, 128, 151936, 8192, 1e6, 1e-6,
                               False, mixture=Mixture(60, 4, 1408, shared_feed_forward=5632)),
    "ministral-3-8b": Shape("mistral3", 34, 4096, 14336, 32, 8, 128, 131072, 262144, 1e6, 1e-5,
                            False, keys=yarn(16.0, 16384, beta_fast=32.0, beta_slow=1.0,
                                             log_multiplier=1.0)
                            | {"attention.temperature_scale": 0.1}),
    "llama-4-scout": Shape("llama4", 48, 5120, 16384, 40, 8, 128, 202048, 10485760, 5e5, 1e-5,
                           False, RopeScaling(16.0, high_frequency_factor=1.0),
                           mixture=Mixture(16, 1, 8192, 1),
                           keys={"interleave_moe_layer_step": 1}),
    "olmo-2-7b": Shape("olmo2", 32, 4096, 11008, 32, 32, 128, 100352, 4096, 5e5, 1e-6, False),
    "olmoe-1b-7b": Shape("olmoe", 16, 2048, 1024, 16, 16, 128, 50304, 4096, 1e4, 1e-5, False,
                         mixture=Mixture(64, 8, 1024)),
    "granite-3.3-2b": Shape("granite", 40, 2048, 8192, 32, 8, 64, 49159, 131072, 1e7, 1e-5, True,
                            keys={"embedding_scale": 12.0, "residual_scale": 0.22,
                                  "attention.scale": 0.015625, "logit_scale": 8.0}),
    "granite-3.1-3b-a800m": Shape("granitemoe", 32, 1536, 512, 24, 8, 64, 49155, 131072, 1e7, 1e-5,
                                  True, mixture=Mixture(40, 8, 512),
                                  keys={"embedding_scale": 12.0, "residual_scale": 0.22,
                                        "attention.scale": 0.015625, "logit_scale": 6.0}),
    "granite-4.0-h-1b": Shape("granitehybrid", 40, 1536, 4096, 12, 4, 128, 100352, 131072, 1e4,
                              1e-5, True, attending=(5, 15, 25, 35), scans=Scans(48, 64),
                              keys={"embedding_scale": 12.0, "residual_scale": 0.22,
                                    "attention.scale": 0.0078125, "logit_scale": 6.0,
                                    "rope.scaling.finetuned": False}),
    "command-r-35b": Shape("command-r", 40, 8192, 22528, 64, 64, 128, 256000, 131072, 8e6, 1e-5,
                           True, keys={"logit_scale": 0.0625}),
    "command-r7b": Shape("cohere2", 32, 4096, 14336, 32, 8, 128, 256000, 132096, 5e4, 1e-5, True,
                         window=Window(4096, 4), keys={"logit_scale": 0.25}),
    "ernie-4.5-21b-a3b": Shape("ernie4_5-moe", 28, 2560, 12288, 20, 4, 128, 103424, 131072, 5e5,
                               1e-5, True, mixture=Mixture(64, 6, 1536, 2, 1, 3072)),
    "exaone-4.0-1.2b": Shape("exaone4", 30, 2048, 4096, 32, 8, 64, 102400, 65536, 1e6, 1e-5, True,
                             RopeScaling(16.0)),
    "exaone-4.0-32b": Shape("exaone4", 64, 5120, 27392, 40, 8, 128, 102400, 131072, 1e6, 1e-5,
                            False, RopeScaling(16.0), window=Window(4096, 4)),
    "hunyuan-7b": Shape("hunyuan-dense", 32, 4096, 14336, 32, 8, 128, 128167, 262144, 11158840.0,
                        1e-5, True),
    "hunyuan-a13b": Shape("hunyuan-moe", 32, 4096, 3072, 32, 8, 128, 128167, 262144, 11158840.0,
                          1e-5, True, mixture=Mixture(64, 8, 3072, 1, shared_feed_forward=3072)),
    "dots.llm1": Shape("dots1", 62, 4096, 10944, 32, 32, 128, 152064, 32768, 1e7, 1e-5, False,
                       mixture=Mixture(128, 6, 1408, 2, 1, scale=2.5)),
    "ling-lite-1.5": Shape("bailingmoe", 28, 2048, 5632, 16, 4, 128, 126464, 32768, 6e5, 1e-6,
                           False, mixture=Mixture(64, 6, 1408, 2, scale=1.0)),
    "starcoder2-3b": Shape("starcoder2", 30, 3072, 12288, 24, 2, 128, 49152, 16384, 999999.4, 1e-5,
                           True),
    "nemotron-4b": Shape("nemotron", 32, 3072, 9216, 24, 8, 128, 256000, 4096, 1e4, 1e-5, False,
                         rotary_size=64),
    "stablelm-2-1.6b": Shape("stablelm", 24, 2048, 5632, 32, 32, 64, 100352, 4096, 1e4, 1e-5, False,
                             rotary_size=16),
    "lfm2-1.2b": Shape("lfm2", 16, 2048, 8192, 32, 8, 64, 65536, 128000, 1e6, 1e-5, True,
                       attending=(2, 5, 8, 10, 12, 14)),
    "qwen3-next-80b-a3b": Shape("qwen3next", 48, 2048, 5120, 16, 2, 256, 151936, 262144, 1e7, 1e-6,
                                False, mixture=Mixture(512, 10, 512, shared_feed_forward=512),
                                rotary_size=64, delta_nets=DeltaNets(16, 32)),
    "qwen3.5-0.8b": Shape("qwen35", 24, 1024, 3584, 8, 2, 256, 248320, 262144, 1e7, 1e-6, True,
                          sections=(11, 11, 10, 0), rotary_size=64, delta_nets=DeltaNets(16, 16)),
    "qwen3.5-4b": Shape("qwen35", 32, 2560, 9216, 16, 4, 256, 248320, 262144, 1e7, 1e-6, True,
                        sections=(11, 11, 10, 0), rotary_size=64, delta_nets=DeltaNets(16, 32)),
    "qwen3.5-35b-a3b": Shape("qwen35moe", 40, 2048, 512, 16, 2, 256, 248320, 262144, 1e7, 1e-6,
                             False, mixture=Mixture(256, 8, 512, shared_feed_forward=512),
                             sections=(11, 11, 10, 0), rotary_size=64,
                             delta_nets=DeltaNets(16, 32)),
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


def tiny(shape: Shape) -> Shape:
    """The same in the narrowest that shows every part: for tests, not for speed."""
    heads = max(2, 256 // shape.head_size)
    kv_heads = {1: 1, shape.heads: heads}.get(shape.kv_heads, heads // 2)
    is_square = shape.heads * shape.head_size == shape.embedding
    window, mixture, latents, sharing = shape.window, shape.mixture, shape.latents, shape.sharing
    delta_nets = shape.delta_nets
    feed_forward = 256
    if mixture:
        has_one_width = shape.feed_forward == mixture.feed_forward
        feed_forward = 64 if has_one_width else feed_forward
        experts = max(8, 2 * shape.keys.get("expert_group_count", 1))
        mixture = dataclasses.replace(
            mixture, experts=experts, used=min(mixture.used, 2), feed_forward=64,
            shared_feed_forward=mixture.shared_feed_forward and 64 * max(mixture.shared, 1))
    if window:
        full = window.full and dataclasses.replace(window.full, kv_heads=1)
        window = dataclasses.replace(window, tokens=32, full=full)
    if sharing:
        times = sharing.feed_forward // shape.feed_forward
        sharing = dataclasses.replace(sharing, feed_forward=times * feed_forward)
    if latents:
        latents = dataclasses.replace(latents, size=128, query=latents.query and 96)
    if delta_nets:
        of_each = delta_nets.value_heads // delta_nets.key_heads
        delta_nets = dataclasses.replace(delta_nets, key_heads=2, value_heads=2 * of_each,
                                         head_size=32)
    row_decays = shape.row_decays and dataclasses.replace(shape.row_decays, head_size=32)
    # llama.cpp wants twice the embedding's columns.
    scans = shape.scans and dataclasses.replace(shape.scans, heads=16, head_size=32,
                                                state_size=32)
    return dataclasses.replace(
        shape, embedding=heads * shape.head_size if is_square else 256, feed_forward=feed_forward,
        heads=heads, kv_heads=kv_heads, vocabulary=512,
        mixture=mixture, window=window, latents=latents, sharing=sharing, delta_nets=delta_nets,
        row_decays=row_decays, scans=scans,
        layer_embedding=min(shape.layer_embedding, 32))
