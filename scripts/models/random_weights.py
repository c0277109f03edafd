"""Random weights in the stored form of each format; imported by make_model.py."""

import functools
import math
import zlib

import gguf
import numpy as np

from model_tensors import ALIGNMENT, TensorPlan

Q = gguf.GGMLQuantizationType

# The byte of a block at which the half lies that multiplies the block's scales.
HALF_PLACES = {Q.Q2_K: 80, Q.Q3_K: 108, Q.IQ4_NL: 0, Q.IQ4_XS: 0, Q.IQ3_S: 0, Q.IQ3_XXS: 0,
               Q.IQ2_S: 0, Q.IQ2_XS: 0, Q.IQ2_XXS: 0, Q.IQ1_S: 0, Q.TQ1_0: 52, Q.TQ2_0: 64}
CHUNK_ELEMENTS = 1 << 22  # made and written at a time: bounds the memory


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
