"""A slow llama in numpy, written from the model's definition: the hidden rows that ours must have."""

import gguf
import numpy as np


class Llama:
    """The model of a GGUF file of the llama architecture without rotary scaling."""

    def __init__(self, path):
        reader = gguf.GGUFReader(path)
        self.weights = {
            tensor.name: gguf.quants.dequantize(tensor.data, tensor.tensor_type).astype(np.float64)
            for tensor in reader.tensors}

        def value(key, default=None):
            field = reader.get_field(f"llama.{key}")
            return default if field is None else field.contents()

        self.layers = value("block_count")
        self.heads = value("attention.head_count")
        self.kv_heads = value("attention.head_count_kv", self.heads)
        self.epsilon = value("attention.layer_norm_rms_epsilon")
        dimension = value("attention.key_length", value("embedding_length") // self.heads)
        pairs = value("rope.dimension_count", dimension) // 2
        self.frequencies = value("rope.freq_base", 10000.0) ** (-np.arange(pairs) / pairs)

    def norm(self, x, name):
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + self.epsilon) * self.weights[name]

    def rotate(self, x):
        """[token, head, dimension]: pairs of neighbours, turned by their position's angle."""
        angles = np.arange(len(x))[:, None, None] * self.frequencies
        turned = x.copy()
        pairs = 2 * len(self.frequencies)
        even, odd = x[..., 0:pairs:2], x[..., 1:pairs:2]
        turned[..., 0:pairs:2] = even * np.cos(angles) - odd * np.sin(angles)
        turned[..., 1:pairs:2] = even * np.sin(angles) + odd * np.cos(angles)
        return turned

    def attention(self, x, block):
        def heads(name, count):
            return (x @ self.weights[f"{block}.{name}.weight"].T).reshape(len(x), count, -1)

        queries = self.rotate(heads("attn_q", self.heads))
        keys = self.rotate(heads("attn_k", self.kv_heads))
        group = self.heads // self.kv_heads
        keys = keys.repeat(group, axis=1)
        values = heads("attn_v", self.kv_heads).repeat(group, axis=1)
        scores = np.einsum("qhd,khd->hqk", queries, keys) / np.sqrt(queries.shape[-1])
        scores += np.triu(np.full((len(x), len(x)), -np.inf), 1)
        shares = np.exp(scores - scores.max(-1, keepdims=True))
        shares /= shares.sum(-1, keepdims=True)
        mixed = np.einsum("hqk,khd->qhd", shares, values).reshape(len(x), -1)
        return mixed @ self.weights[f"{block}.attn_output.weight"].T

    def feed_forward(self, x, block):
        gate = x @ self.weights[f"{block}.ffn_gate.weight"].T
        up = x @ self.weights[f"{block}.ffn_up.weight"].T
        return (gate / (1 + np.exp(-gate)) * up) @ self.weights[f"{block}.ffn_down.weight"].T

    def hidden_rows(self, tokens):
        """What the last norm makes of each token."""
        x = self.weights["token_embd.weight"][tokens]
        for layer in range(self.layers):
            block = f"blk.{layer}"
            x = x + self.attention(self.norm(x, f"{block}.attn_norm.weight"), block)
            x = x + self.feed_forward(self.norm(x, f"{block}.ffn_norm.weight"), block)
        return self.norm(x, "output_norm.weight")

    def embedding(self, tokens, pooling):
        rows = self.hidden_rows(tokens)
        row = rows.mean(0) if pooling == "mean" else rows[-1]
        return row / np.linalg.norm(row)
