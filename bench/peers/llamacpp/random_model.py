#!/usr/bin/env python3
"""Writes a GGUF file in Q8_0 with random weights in the shape of Qwen3-0.6B, without a vocabulary.

    bench/peers/llamacpp/random_model.py FILE.gguf

Needs nothing but Python. What a model costs does not depend on what it knows.
"""

import random
import struct
import sys

HIDDEN, INNER, LAYERS, HEADS, KV_HEADS, HEAD_SIZE, VOCABULARY = 1024, 3072, 28, 16, 8, 128, 151_936
ALIGNMENT = 32
# Numbers of the formats of tensors and of the types of metadata in a GGUF file.
F32, Q8_0 = 0, 8
UNSIGNED, FLOAT, STRING = 4, 6, 8
FORMATS = {str: STRING, int: UNSIGNED, float: FLOAT}
# A block of Q8_0 is a scale in f16 and so many signed bytes.
BLOCK = 32
POOL_BLOCKS = 1 << 20


def main():
    random.seed(1)
    tensors = list(shapes())
    with open(sys.argv[1], "wb") as file:
        file.write(b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(METADATA)))
        for key, value in METADATA.items():
            packed = text(value) if isinstance(value, str) else struct.pack("<f" if isinstance(value, float) else "<I", value)
            file.write(text(key) + struct.pack("<I", FORMATS[type(value)]) + packed)
        offset = 0
        for name, shape in tensors:
            file.write(text(name) + struct.pack(f"<I{len(shape)}Q", len(shape), *shape))
            file.write(struct.pack("<IQ", F32 if len(shape) == 1 else Q8_0, offset))
            offset += -(-size(shape) // ALIGNMENT) * ALIGNMENT
        pool = random_blocks()
        for _, shape in tensors:
            file.write(bytes(-file.tell() % ALIGNMENT))
            write_values(file, shape, pool)


def shapes():
    """Names and shapes of all tensors, the fastest dimension first."""
    queries, keys = HEADS * HEAD_SIZE, KV_HEADS * HEAD_SIZE
    yield "token_embd.weight", (HIDDEN, VOCABULARY)
    yield "output_norm.weight", (HIDDEN,)
    for layer in range(LAYERS):
        for part, shape in (
            ("attn_norm", (HIDDEN,)),
            ("attn_q", (HIDDEN, queries)),
            ("attn_k", (HIDDEN, keys)),
            ("attn_v", (HIDDEN, keys)),
            ("attn_q_norm", (HEAD_SIZE,)),
            ("attn_k_norm", (HEAD_SIZE,)),
            ("attn_output", (queries, HIDDEN)),
            ("ffn_norm", (HIDDEN,)),
            ("ffn_gate", (HIDDEN, INNER)),
            ("ffn_up", (HIDDEN, INNER)),
            ("ffn_down", (INNER, HIDDEN)),
        ):
            yield f"blk.{layer}.{part}.weight", shape


def size(shape):
    """Bytes of a tensor."""
    return 4 * shape[0] if len(shape) == 1 else shape[0] * shape[1] // BLOCK * (2 + BLOCK)


def random_blocks():
    """Blocks with one scale, so that weights have the size of those of a trained model: 1 / 32 at most."""
    scale = struct.pack("<e", 2**-12)
    values = random.randbytes(POOL_BLOCKS * BLOCK)
    return b"".join(scale + values[start : start + BLOCK] for start in range(0, len(values), BLOCK))


def write_values(file, shape, pool):
    """Ones for a norm; for a matrix blocks of the pool from a random place on."""
    if len(shape) == 1:
        file.write(struct.pack("<f", 1.0) * shape[0])
        return
    left = size(shape)
    while left:
        start = random.randrange(POOL_BLOCKS) * (2 + BLOCK)
        part = pool[start : start + left]
        file.write(part)
        left -= len(part)


def text(value):
    return struct.pack("<Q", len(value)) + value.encode()


METADATA = {
    "general.architecture": "qwen3",
    "qwen3.block_count": LAYERS,
    "qwen3.context_length": 40960,
    "qwen3.embedding_length": HIDDEN,
    "qwen3.feed_forward_length": INNER,
    "qwen3.attention.head_count": HEADS,
    "qwen3.attention.head_count_kv": KV_HEADS,
    "qwen3.attention.key_length": HEAD_SIZE,
    "qwen3.attention.value_length": HEAD_SIZE,
    "qwen3.attention.layer_norm_rms_epsilon": 1e-6,
    "qwen3.rope.freq_base": 1e6,
    "qwen3.vocab_size": VOCABULARY,
    "tokenizer.ggml.model": "no_vocab",
}

if __name__ == "__main__":
    main()
