"""Logits by llama.cpp, by way of llama-cpp-python; imported by what compares with it."""

import ctypes
from pathlib import Path

import llama_cpp
import numpy as np
from llama_cpp import llama_cpp as llama


def quiet_llama() -> object:
    """Lets llama.cpp print its errors alone while what is returned is kept."""
    printer = llama.llama_log_callback(lambda level, text, data: print(text.decode(), end="")
                                       if level == 4 else None)
    llama.llama_log_set(printer, ctypes.c_void_p(0))
    return printer


def llama_tokens(path: Path, text: str) -> list[int]:
    """The ids of a text by the vocabulary of a file, of which nothing else is read."""
    options = llama.llama_model_default_params()
    options.vocab_only = True
    model = llama.llama_model_load_from_file(str(path).encode(), options)
    if not model:
        raise ValueError(f"{path}: llama.cpp does not load it")
    data = text.encode()
    ids = (llama.llama_token * (len(data) + 1))()
    count = llama.llama_tokenize(llama.llama_model_get_vocab(model), data, len(data), ids,
                                 len(ids), False, False)
    llama.llama_model_free(model)
    return list(ids[:count])


def llama_logits(path: Path, tokens, context_tokens: int, vocabulary: int, rows: int,
                 lacks_query_rank: bool = False) -> np.ndarray:
    """The logits of the last `rows` rows, in f32 throughout: [rows, vocabulary]."""
    options = llama.llama_model_default_params()
    options.n_gpu_layers = 0
    if lacks_query_rank:
        # llama.cpp knows by the number of layers, 26 and 27, which models lack this key.
        overrides = (llama.llama_model_kv_override * 2)()
        overrides[0].key = b"deepseek2.attention.q_lora_rank"
        overrides[0].tag = llama.LLAMA_KV_OVERRIDE_TYPE_INT
        options.kv_overrides = overrides
    model = llama.llama_model_load_from_file(str(path).encode(), options)
    if not model:
        raise ValueError(f"{path}: llama.cpp does not load it")
    options = llama.llama_context_default_params()
    options.n_ctx = context_tokens
    options.n_batch = options.n_ubatch = 256
    options.n_threads = options.n_threads_batch = 1
    options.type_k = options.type_v = llama_cpp.GGML_TYPE_F32
    options.flash_attn_type = 0
    context = llama.llama_init_from_model(model, options)
    batch = llama.llama_batch_init(len(tokens), 0, 1)
    batch.n_tokens = len(tokens)
    for index, token in enumerate(tokens):
        batch.token[index] = int(token)
        batch.pos[index] = index
        batch.n_seq_id[index] = 1
        batch.seq_id[index][0] = 0
        batch.logits[index] = 1
    if llama.llama_decode(context, batch) != 0:
        raise ValueError(f"{path}: llama.cpp does not compute it")
    found = []
    for index in range(len(tokens) - rows, len(tokens)):
        row = llama.llama_get_logits_ith(context, index)
        found.append(np.ctypeslib.as_array(row, (vocabulary,)).copy())
    llama.llama_batch_free(batch)
    llama.llama_free(context)
    llama.llama_model_free(model)
    return np.array(found)
