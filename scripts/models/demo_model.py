"""The demo model: a small network of the llama architecture in PyTorch, and its GGUF file.

Rotary pairs are interleaved as GGUF's llama architecture has them, so that no weight needs to be
permuted on the way into the file.
"""

from dataclasses import dataclass
from pathlib import Path

import gguf
import numpy as np
import torch
from torch import nn
from torch.nn import functional

CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}")
END_OF_TEXT, MESSAGE_START, MESSAGE_END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"


@dataclass(frozen=True)
class Shape:
    """Sizes of the network. Row lengths are multiples of 256, so every format can hold them."""

    vocabulary: int = 2048
    hidden: int = 256
    layers: int = 5
    heads: int = 4
    kv_heads: int = 2
    head: int = 64
    feed_forward: int = 768
    context: int = 512
    rope_base: float = 10000.0
    epsilon: float = 1e-5


def rotary_table(shape: Shape, length: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Cosines and sines, [length, head / 2], in float32."""
    exponent = torch.arange(0, shape.head, 2, dtype=torch.float64) / shape.head
    angles = torch.outer(torch.arange(length, dtype=torch.float64), shape.rope_base ** -exponent)
    return angles.cos().float(), angles.sin().float()


def rotate(x: torch.Tensor, cosine: torch.Tensor, sine: torch.Tensor) -> torch.Tensor:
    """Turns the pairs (0, 1), (2, 3), … of the last axis; x is [batch, heads, length, head]."""
    even, odd = x[..., 0::2].float(), x[..., 1::2].float()
    turned = torch.stack((even * cosine - odd * sine, even * sine + odd * cosine), dim=-1)
    return turned.flatten(-2).to(x.dtype)


class Layer(nn.Module):
    """One block: attention with grouped heads, then the gated feed-forward network."""

    def __init__(self, shape: Shape):
        super().__init__()
        self.shape = shape
        width, kv_width = shape.heads * shape.head, shape.kv_heads * shape.head
        self.attn_norm = nn.RMSNorm(shape.hidden, shape.epsilon)
        self.attn_q = nn.Linear(shape.hidden, width, bias=False)
        self.attn_k = nn.Linear(shape.hidden, kv_width, bias=False)
        self.attn_v = nn.Linear(shape.hidden, kv_width, bias=False)
        self.attn_output = nn.Linear(width, shape.hidden, bias=False)
        self.ffn_norm = nn.RMSNorm(shape.hidden, shape.epsilon)
        self.ffn_gate = nn.Linear(shape.hidden, shape.feed_forward, bias=False)
        self.ffn_up = nn.Linear(shape.hidden, shape.feed_forward, bias=False)
        self.ffn_down = nn.Linear(shape.feed_forward, shape.hidden, bias=False)

    def forward(self, x: torch.Tensor, cosine: torch.Tensor, sine: torch.Tensor) -> torch.Tensor:
        normed = self.attn_norm(x)
        q, k, v = (self.split_heads(w(normed)) for w in (self.attn_q, self.attn_k, self.attn_v))
        group = self.shape.heads // self.shape.kv_heads
        k = rotate(k, cosine, sine).repeat_interleave(group, dim=1)
        v = v.repeat_interleave(group, dim=1)
        mixed = functional.scaled_dot_product_attention(rotate(q, cosine, sine), k, v,
                                                        is_causal=True)
        x = x + self.attn_output(mixed.transpose(1, 2).flatten(2))
        normed = self.ffn_norm(x)
        return x + self.ffn_down(functional.silu(self.ffn_gate(normed)) * self.ffn_up(normed))

    def split_heads(self, x: torch.Tensor) -> torch.Tensor:
        return x.unflatten(-1, (-1, self.shape.head)).transpose(1, 2)


class DemoModel(nn.Module):
    """Token ids [batch, length] to the final hidden states, and from there to logits."""

    def __init__(self, shape: Shape):
        super().__init__()
        self.shape = shape
        self.token_embd = nn.Embedding(shape.vocabulary, shape.hidden)
        self.blk = nn.ModuleList(Layer(shape) for _ in range(shape.layers))
        self.output_norm = nn.RMSNorm(shape.hidden, shape.epsilon)
        cosine, sine = rotary_table(shape, shape.context)
        self.register_buffer("cosine", cosine, persistent=False)
        self.register_buffer("sine", sine, persistent=False)
        for name, parameter in self.named_parameters():
            if parameter.dim() == 2:
                is_last = "attn_output" in name or "ffn_down" in name
                deviation = 0.02 / (2 * shape.layers) ** 0.5 if is_last else 0.02
                nn.init.normal_(parameter, std=deviation)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        length = ids.shape[1]
        x = self.token_embd(ids)
        for layer in self.blk:
            x = layer(x, self.cosine[:length], self.sine[:length])
        return functional.linear(self.output_norm(x), self.token_embd.weight)


@torch.no_grad()
def generate(model: DemoModel, tokenizer, prompt: str, temperature: float = 0.0,
             limit: int = 120, seed: int = 1) -> str:
    """The model's own continuation of `prompt`, until it ends its text or message."""
    end = {tokenizer.token_to_id(END_OF_TEXT), tokenizer.token_to_id(MESSAGE_END)}
    ids = [tokenizer.token_to_id(END_OF_TEXT)] + tokenizer.encode(prompt).ids
    start, source = len(ids), torch.Generator().manual_seed(seed)
    while len(ids) < min(start + limit, model.shape.context):
        logits = model(torch.tensor([ids]))[0, -1].float()
        if temperature > 0:
            chances = torch.softmax(logits / temperature, dim=-1)
            token = int(torch.multinomial(chances, 1, generator=source))
        else:
            token = int(logits.argmax())
        if token in end:
            break
        ids.append(token)
    return tokenizer.decode(ids[start:])


def add_tokenizer(writer: gguf.GGUFWriter, tokenizer_json: dict, size: int) -> None:
    """Writes the byte-level BPE vocabulary as tokenizer.ggml.*; `tokenizer_json` is HF's own."""
    vocabulary = tokenizer_json["model"]["vocab"]
    special = {t["content"]: t["id"] for t in tokenizer_json["added_tokens"]}
    texts = {i: text for text, i in (vocabulary | special).items()}
    if sorted(texts) != list(range(size)):
        raise ValueError(f"the vocabulary has {len(texts)} tokens instead of {size}")
    merges = [m if isinstance(m, str) else " ".join(m) for m in tokenizer_json["model"]["merges"]]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list([texts[i] for i in range(size)])
    writer.add_token_types([gguf.TokenType.CONTROL if texts[i] in special
                            else gguf.TokenType.NORMAL for i in range(size)])
    writer.add_token_merges(merges)
    writer.add_bos_token_id(special[END_OF_TEXT])
    writer.add_eos_token_id(special[END_OF_TEXT])
    writer.add_eot_token_id(special[MESSAGE_END])
    writer.add_pad_token_id(special[END_OF_TEXT])
    writer.add_add_bos_token(True)
    writer.add_add_eos_token(False)
    writer.add_add_space_prefix(False)
    writer.add_chat_template(CHAT_TEMPLATE)


def write_gguf(path: Path, model: DemoModel, tokenizer_json: dict) -> None:
    """Writes the model to `path`: matrices in F16, norms in F32."""
    shape = model.shape
    writer = gguf.GGUFWriter(str(path), "llama")
    writer.add_name("lockstep-demo")
    writer.add_description("A small demonstration model: short stories and simple questions.")
    writer.add_license("MIT")
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_F16)
    writer.add_vocab_size(shape.vocabulary)
    writer.add_context_length(shape.context)
    writer.add_embedding_length(shape.hidden)
    writer.add_block_count(shape.layers)
    writer.add_feed_forward_length(shape.feed_forward)
    writer.add_head_count(shape.heads)
    writer.add_head_count_kv(shape.kv_heads)
    writer.add_key_length(shape.head)
    writer.add_value_length(shape.head)
    writer.add_rope_dimension_count(shape.head)
    writer.add_rope_freq_base(shape.rope_base)
    writer.add_layer_norm_rms_eps(shape.epsilon)
    add_tokenizer(writer, tokenizer_json, shape.vocabulary)
    for name, value in model.state_dict().items():
        array = value.detach().float().numpy()
        writer.add_tensor(name, array.astype(np.float16) if array.ndim == 2 else array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
