"""The tiny checkpoints in the Hugging Face layout: random weights, logits by `transformers`."""

import copy
import json

import torch

from common import folder, generator, normal, save_tensors, write_json
from reference import load, run, write_expected

VOCABULARY = 320
TOKENS = 40
SHORT = ("w8a16", "w8a8")


def config(kind, **changes):
    """A config.json as the family writes it; `changes` win, and None removes a key."""
    base = {
        "architectures": [f"{kind.capitalize()}ForCausalLM"],
        "model_type": kind,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-05 if kind == "llama" else 1e-06,
        "vocab_size": VOCABULARY,
        "max_position_embeddings": 256,
        "initializer_range": 0.02,
        "use_cache": True,
        "bos_token_id": 0,
        "eos_token_id": 2,
    }
    return {k: v for k, v in (base | changes).items() if v is not None}


def weights(config, seed):
    """Random tensors in the family's names, f32; gains keep attention peaked and logits near unit size."""
    rng = generator(seed)
    hidden, inner = config["hidden_size"], config["intermediate_size"]
    heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    dim = config.get("head_dim") or hidden // heads
    kind = config["model_type"]
    qkv_bias = kind == "qwen2" or config.get("attention_bias", False)
    # A small tied table keeps the layers' share of the residual stream large.
    deviation = 0.3 if config["tie_word_embeddings"] else 1.0
    out = {"model.embed_tokens.weight": normal(rng, (VOCABULARY, hidden), deviation)}

    def linear(name, rows, columns, gain, bias):
        out[name + ".weight"] = normal(rng, (rows, columns), gain * columns**-0.5)
        if bias:
            out[name + ".bias"] = normal(rng, (rows,), 0.3)

    def norm(name, size):
        out[name + ".weight"] = 1.0 + normal(rng, (size,), 0.2)

    for layer in range(config["num_hidden_layers"]):
        name = f"model.layers.{layer}."
        norm(name + "input_layernorm", hidden)
        linear(name + "self_attn.q_proj", heads * dim, hidden, 1.5, qkv_bias)
        linear(name + "self_attn.k_proj", kv_heads * dim, hidden, 1.5, qkv_bias)
        linear(name + "self_attn.v_proj", kv_heads * dim, hidden, 1.0, qkv_bias)
        linear(name + "self_attn.o_proj", hidden, heads * dim, 1.0, kind == "llama" and qkv_bias)
        if kind == "qwen3":
            norm(name + "self_attn.q_norm", dim)
            norm(name + "self_attn.k_norm", dim)
        norm(name + "post_attention_layernorm", hidden)
        for part, rows, columns in (("gate", inner, hidden), ("up", inner, hidden), ("down", hidden, inner)):
            linear(f"{name}mlp.{part}_proj", rows, columns, 1.2, config.get("mlp_bias", False))
    norm("model.norm", hidden)
    if not config["tie_word_embeddings"]:
        linear("lm_head", VOCABULARY, hidden, 1.0, False)
    return out


def write_model(name, config, seed, dtype=torch.bfloat16, shards=1):
    path = folder(name)
    write_json(path / "config.json", config)
    tensors = {k: v.to(dtype) for k, v in weights(config, seed).items()}
    if shards == 1:
        save_tensors(path / "model.safetensors", tensors)
    else:
        write_shards(path, tensors, shards)
    return path, tensors


def write_shards(path, tensors, count):
    """Tensors dealt out in order, so that one layer spans two files."""
    names = list(tensors)
    size = -(-len(names) // count)
    index = {"metadata": {"total_size": sum(t.numel() * t.element_size() for t in tensors.values())}, "weight_map": {}}
    for i in range(count):
        file = f"model-{i + 1:05}-of-{count:05}.safetensors"
        part = names[i * size : (i + 1) * size]
        save_tensors(path / file, {n: tensors[n] for n in part})
        index["weight_map"] |= {n: file for n in part}
    index["weight_map"] = dict(sorted(index["weight_map"].items()))
    write_json(path / "model.safetensors.index.json", index)


def fixture(name, config, seed, schemes=None, **how):
    path, tensors = write_model(name, config, seed, **how)
    args = (name, path / "expected.safetensors", path, tensors, seed + 1000, TOKENS, VOCABULARY)
    ids = write_expected(*args, **({"schemes": schemes} if schemes else {}))
    return path, tensors, ids


def must_differ(path, tensors, ids, change):
    """A fixture proves nothing if the setting it is about does not move the logits."""
    text = (path / "config.json").read_text()
    before = run(load(path, tensors), ids)
    try:
        write_json(path / "config.json", json.loads(text) | change)
        after = run(load(path, tensors), ids)
    finally:
        (path / "config.json").write_text(text, encoding="utf-8")
    assert (before - after).abs().max() > 0.05 * before.abs().max(), (path.name, change)
    return after


def llama3_tied():
    rope = {
        "factor": 8.0,
        "high_freq_factor": 4.0,
        "low_freq_factor": 1.0,
        "original_max_position_embeddings": 32,
        "rope_type": "llama3",
    }
    shape = dict(hidden_size=96, intermediate_size=160, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2)
    made = config(
        "llama", **shape, head_dim=24, attention_bias=False, mlp_bias=False, tie_word_embeddings=True,
        rope_theta=10000.0, rope_scaling=rope, torch_dtype="bfloat16", eos_token_id=[2, 1],
    )
    path, tensors, ids = fixture("llama3-tied", made, 11)
    write_json(path / "generation_config.json", {"bos_token_id": 0, "eos_token_id": [2, 1, 3], "do_sample": False})
    must_differ(path, tensors, ids, {"rope_scaling": None})


def llama_mha_bias():
    shape = dict(hidden_size=72, intermediate_size=136, num_hidden_layers=2, num_attention_heads=3, num_key_value_heads=3)
    made = config(
        "llama", **shape, attention_bias=True, mlp_bias=True, tie_word_embeddings=False,
        rope_theta=10000.0, rope_scaling=None, torch_dtype="float16",
    )
    fixture("llama-mha-bias", made, 12, dtype=torch.float16)


def qwen3_headdim():
    shape = dict(hidden_size=64, intermediate_size=112, num_hidden_layers=2, num_attention_heads=6, num_key_value_heads=2)
    made = config(
        "qwen3", **shape, head_dim=32, attention_bias=False, tie_word_embeddings=False, use_sliding_window=False,
        sliding_window=4, max_window_layers=1, rope_parameters={"rope_theta": 1000000.0, "rope_type": "default"}, dtype="bfloat16",
    )
    fixture("qwen3-headdim", made, 13, shards=3)


def qwen2_bias():
    shape = dict(hidden_size=100, intermediate_size=150, num_hidden_layers=2, num_attention_heads=5, num_key_value_heads=1)
    made = config(
        "qwen2", **shape, tie_word_embeddings=True, use_sliding_window=False, sliding_window=8, max_window_layers=0,
        rope_theta=1000000.0, torch_dtype="float32",
    )
    fixture("qwen2-bias", made, 14, dtype=torch.float32)


def rope_variants():
    shape = dict(hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2)
    common = dict(attention_bias=False, mlp_bias=False, tie_word_embeddings=True, rope_theta=10000.0)
    yarn = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64, "beta_fast": 8.0, "beta_slow": 1.0}
    made = config("llama", **shape, **common, rope_scaling=yarn, torch_dtype="bfloat16")
    path, tensors, ids = fixture("llama-yarn", made, 15, schemes=SHORT)
    must_differ(path, tensors, ids, {"rope_scaling": None})
    must_differ(path, tensors, ids, {"rope_scaling": yarn | {"attention_factor": 1.0}})
    # The older spelling of the key.
    linear = {"type": "linear", "factor": 4.0}
    made = config("llama", **shape, **common, rope_scaling=linear, torch_dtype="bfloat16")
    path, tensors, ids = fixture("llama-linear", made, 16, schemes=SHORT)
    must_differ(path, tensors, ids, {"rope_scaling": None})


def qwen2_window():
    shape = dict(hidden_size=64, intermediate_size=96, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2)
    kinds = ["sliding_attention", "full_attention", "sliding_attention"]
    made = config(
        "qwen2", **shape, tie_word_embeddings=True, use_sliding_window=True, sliding_window=8, max_window_layers=3,
        layer_types=kinds, rope_parameters={"rope_theta": 10000.0, "rope_type": "default"}, dtype="bfloat16",
    )
    path, tensors, ids = fixture("qwen2-window", made, 17, schemes=SHORT)
    variants = {
        "logits_no_window": {"use_sliding_window": False, "layer_types": None},
        "logits_null_window": {"sliding_window": None, "layer_types": None},
        "logits_from_layer_1": {"layer_types": None, "max_window_layers": 1},
    }
    save_tensors(path / "variants.safetensors", {k: must_differ(path, tensors, ids, v) for k, v in variants.items()})
    write_json(path / "variants.json", variants)


def build():
    llama3_tied()
    llama_mha_bias()
    qwen3_headdim()
    qwen2_bias()
    rope_variants()
    qwen2_window()
