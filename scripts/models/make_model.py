#!/usr/bin/env python3
"""Writes a GGUF model file of a real architecture's shape with random weights.

For measuring speed and memory without a download: tensors, names, formats and metadata are those of
the real model, the text it generates is noise. The weights are scaled so that activations stay
finite and of order one. The same arguments give the same bytes.

Needs numpy and the gguf package:
    python3 -m venv .venv && .venv/bin/pip install numpy gguf
    scripts/models/make_model.py --shape llama-3.2-1b --format Q4_0 --output 1b.gguf

Mixtures larger than the memory fit with fewer layers (--layers), which leaves all else as it is.

Formats: those of --help. The name of one gives every matrix that format, but the output matrix (the
embedding, where it is also the output) of a format below 8 bits is Q6_K, as published files have
it; --pure gives it the same format as all others. Q4_K_M and Q5_K_M also keep part of the attn_v
and ffn_down matrices in Q6_K; MXFP4_MOE has experts in MXFP4 and all others in Q8_0. Beside 8
experts, attn_k and attn_v are Q8_0, and attn_output is Q5_K where most are Q4_K. A matrix whose
rows are not whole blocks of 256 gets Q5_0 instead of Q4_K, Q5_1 instead of Q5_K, Q8_0 instead of
Q6_K, IQ4_NL instead of others; one whose rows are not whole blocks of 32 or 64 gets F16. Vectors
(norms, biases, rope factors), the routers of mixtures and the factors of convolutions are always
F32.
"""

import argparse
import dataclasses
import math
import sys
import time

try:
    import gguf
    import numpy as np
except ImportError as error:
    sys.exit(f"{error}; install what is needed with: python3 -m venv .venv && "
             ".venv/bin/pip install numpy gguf, then run this with .venv/bin/python")

from model_shapes import SHAPES, Shape, tiny
from model_tensors import ALIGNMENT, FORMATS, TensorPlan, choose_format, plan_tensors
from random_weights import write_tensor

UNUSED_TOKEN = 5  # the tokenizer's token type


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


def add_mixture(writer: gguf.GGUFWriter, shape: Shape) -> None:
    mixture = shape.mixture
    writer.add_expert_count(mixture.experts)
    writer.add_expert_used_count(mixture.used)
    if shape.architecture != "llama":
        writer.add_expert_feed_forward_length(mixture.feed_forward)
    if mixture.shared:
        writer.add_expert_shared_count(mixture.shared)
    if mixture.shared_feed_forward:
        writer.add_expert_shared_feed_forward_length(mixture.shared_feed_forward)
    if mixture.dense_layers:
        writer.add_leading_dense_block_count(mixture.dense_layers)
    if mixture.scale:
        writer.add_expert_weights_scale(mixture.scale)


def add_heads(writer: gguf.GGUFWriter, shape: Shape) -> None:
    writer.add_head_count(shape.heads)
    latents, window = shape.latents, shape.window
    if window and window.full:
        writer.add_head_count_kv([shape.kv_heads if window.holds(layer) else window.full.kv_heads
                                  for layer in range(shape.layers)])
        writer.add_key_length(window.full.head_size)
        writer.add_value_length(window.full.head_size)
        writer.add_key_length_swa(shape.head_size)
        writer.add_value_length_swa(shape.head_size)
        return
    writer.add_head_count_kv([shape.kv_heads if shape.attends(layer) else 0
                              for layer in range(shape.layers)] if shape.attending
                             else shape.kv_heads)
    if not latents:
        writer.add_key_length(shape.head_size)
        writer.add_value_length(shape.head_size)
        return
    writer.add_kv_lora_rank(latents.size)
    if latents.query:
        writer.add_q_lora_rank(latents.query)
    writer.add_key_length(latents.size + shape.rotary_size)
    writer.add_value_length(latents.size)
    writer.add_key_length_mla(shape.head_size + shape.rotary_size)
    writer.add_value_length_mla(latents.value_size)


def add_positions(writer: gguf.GGUFWriter, shape: Shape) -> None:
    """Rotary ones, and which layers see a window."""
    window = shape.window
    writer.add_rope_freq_base(shape.rope_base)
    has_sizes = window is not None and window.full is not None
    writer.add_rope_dimension_count(window.full.head_size if has_sizes else shape.rotated)
    if has_sizes:
        writer.add_rope_dimension_count_swa(shape.rotated)
    if shape.sections:
        writer.add_rope_dimension_sections(list(shape.sections))
    if shape.original_context:
        growth = shape.context / shape.original_context
        writer.add_rope_scaling_orig_ctx_len(shape.original_context)
        writer.add_rope_scaling_attn_factors(
            math.sqrt(1 + math.log(growth) / math.log(shape.original_context)))
    if not window:
        return
    writer.add_sliding_window(window.tokens)
    if window.rope_base:
        writer.add_float32(f"{shape.architecture}.rope.freq_base_swa", window.rope_base)
    if shape.family.writes_pattern:
        writer.add_sliding_window_pattern([window.holds(layer) for layer in range(shape.layers)])


def add_keys(writer: gguf.GGUFWriter, shape: Shape) -> None:
    """Those of the tables that are the family's or the model's own."""
    keys = shape.family.keys | shape.keys
    if shape.delta_nets:
        keys |= shape.delta_nets.keys
    if shape.row_decays:
        keys |= shape.row_decays.keys
    if shape.scans:
        keys |= shape.scans.keys
    for key, value in keys.items():
        add = {bool: writer.add_bool, float: writer.add_float32, str: writer.add_string}
        add.get(type(value), writer.add_uint32)(f"{shape.architecture}.{key}", value)


def write_header(path, shape: Shape, tensors, vocabulary, name: str, mix: str) -> None:
    writer = gguf.GGUFWriter(path, shape.architecture)
    writer.add_type("model")
    writer.add_name(name)
    writer.add_block_count(shape.layers + shape.predicting)
    if shape.predicting:
        writer.add_nextn_predict_layers(shape.predicting)
    writer.add_context_length(shape.context)
    writer.add_embedding_length(shape.embedding)
    writer.add_feed_forward_length(
        [shape.feed_forward_of(layer) for layer in range(shape.layers)] if shape.sharing
        else shape.feed_forward)
    if shape.mixture:
        add_mixture(writer, shape)
    add_heads(writer, shape)
    add_positions(writer, shape)
    if shape.family.is_layer_norm:
        writer.add_layer_norm_eps(shape.epsilon)
    else:
        writer.add_layer_norm_rms_eps(shape.epsilon)
    if shape.family.writes_layer_keys:
        writer.add_embedding_length_per_layer_input(shape.layer_embedding)
        writer.add_shared_kv_layers(shape.sharing.count if shape.sharing else 0)
    add_keys(writer, shape)
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


def write_model(path, shape: Shape, mix: str, name: str, vocabulary: dict | None = None,
                is_pure: bool = False, seed: int = 1,
                prepare=None) -> tuple[list[TensorPlan], int]:
    """Returns the tensors and the file's bytes. `prepare`: is called with the tensors before they
    are written, and may change what they hold."""
    tensors = plan_tensors(shape)
    for tensor in tensors:
        tensor.format = choose_format(tensor, shape, mix, is_pure)
    if prepare is not None:
        prepare(tensors)
    # llama.cpp wants certain tokens where a name has "phi-3" or "phi3".
    name = name.replace("phi-3", "phi 3").replace("phi3", "phi 3")
    write_header(path, shape, tensors, vocabulary or made_up_vocabulary(shape.vocabulary),
                 f"{name} (random weights)", mix)
    with open(path, "ab") as file:
        file.write(bytes(-file.tell() % ALIGNMENT))
        for tensor in tensors:
            write_tensor(file, tensor, seed)
        return tensors, file.tell()


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
    parser.add_argument("--tiny", action="store_true",
                        help="narrow matrices, few experts and a vocabulary of 512, but the "
                        "shape's layers and parts: for tests")
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
    if arguments.tiny:
        shape = tiny(shape)
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
    tensors, size = write_model(arguments.output, shape, arguments.format, arguments.shape,
                                vocabulary, arguments.pure, arguments.seed)
    parameters = sum(tensor.elements() for tensor in tensors)
    print(f"{arguments.output}: {arguments.shape}, {arguments.format}, {parameters / 1e6:.1f} M "
          f"parameters{used_parameters(shape, tensors)}, {size / 1e6:.1f} MB in "
          f"{time.monotonic() - started:.1f} s")


if __name__ == "__main__":
    main()
