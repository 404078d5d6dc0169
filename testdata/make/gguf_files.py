"""GGUF files: every tensor type once, and two whole models whose logits come from the dequantised weights."""

import gguf
import numpy as np
import torch
from gguf import GGMLQuantizationType as Type

import models
from common import ROOT, folder, generator, save_tensors, write_json
from plain import inverse_frequencies
from reference import write_expected
from tokenizer_files import CHATML, Trained, write_cases

ROWS, COLUMNS = 3, 512
SCHEMES = ("w8a16", "w8a8")

# Types without a quantiser in the package: byte offsets of the f16 scales in a block; all other bytes are free.
RAW = {
    Type.Q2_K: (80, 82),
    Type.Q3_K: (108,),
    Type.Q4_K: (0, 2),
    Type.Q5_K: (0, 2),
    Type.Q6_K: (208,),
    Type.IQ4_NL: (0,),
}
# Scale and minimum that give values of unit deviation and mean zero when all other bytes are random.
UNIT = {
    Type.Q2_K: (1 / 12.5, 1.5 / 12.5),
    Type.Q3_K: (1 / 45,),
    Type.Q4_K: (1 / 200, 7.5 / 200),
    Type.Q5_K: (1 / 410, 15.5 / 410),
    Type.Q6_K: (1 / 1370,),
    Type.IQ4_NL: (1 / 65,),
}
QUANTISED = [Type.F32, Type.F16, Type.BF16, Type.Q8_0, Type.Q4_0, Type.Q4_1, Type.Q5_0, Type.Q5_1]

NAMES = {
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
FIXED_NAMES = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}


def raw_blocks(rng, kind, rows, columns, deviation):
    """Random bytes [rows, bytes] with plain f16 scales, no two blocks alike."""
    block, size = gguf.GGML_QUANT_SIZES[kind]
    data = rng.integers(0, 256, (rows, columns // block, size), dtype=np.uint8)
    for offset, unit in zip(RAW[kind], UNIT[kind]):
        scales = (unit * deviation * (0.75 + 0.5 * rng.random((rows, columns // block)))).astype("<f2")
        data[:, :, offset : offset + 2] = scales[..., None].view(np.uint8)
    return data.reshape(rows, -1)


def encoded(rng, kind, weight):
    """Bytes (or floats) of `weight` in `kind`; raw types only keep its shape and deviation."""
    if kind in RAW:
        return raw_blocks(rng, kind, *weight.shape, float(weight.std()))
    return gguf.quantize(weight, kind)


def decoded(data, kind):
    return torch.from_numpy(np.ascontiguousarray(gguf.dequantize(data, kind).astype(np.float32)))


def finish(writer):
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def every_type():
    rng, path = generator(41), folder("gguf")
    writer, out = gguf.GGUFWriter(path / "types.gguf", "llama"), {}
    for kind in [*QUANTISED, *RAW]:
        weight = rng.standard_normal((ROWS, COLUMNS)).astype(np.float32)
        # A block of zeros, and one whose largest value is negative.
        weight[1, :32], weight[2, 32] = 0, -9
        data = encoded(rng, kind, weight)
        out[kind.name] = decoded(data, kind)
        assert abs(out[kind.name].std().item() - 1) < 0.4 and abs(out[kind.name].mean().item()) < 0.4, kind.name
        writer.add_tensor(kind.name, data, raw_dtype=kind)
    finish(writer)
    save_tensors(path / "types-expected.safetensors", out)


def gguf_name(name):
    """Stem and ending of a Hugging Face tensor name in the GGUF convention."""
    stem, ending = name.rsplit(".", 1)
    if stem in FIXED_NAMES:
        return f"{FIXED_NAMES[stem]}.{ending}"
    layer, part = stem.removeprefix("model.layers.").split(".", 1)
    return f"blk.{layer}.{NAMES[part]}.{ending}"


def interleaved(data, heads):
    """Rows of a query or key projection in the order of neighbouring rotary pairs; rows keep their bytes."""
    return data.reshape(heads, 2, len(data) // heads // 2, *data.shape[1:]).swapaxes(1, 2).reshape(data.shape)


def add_metadata(writer, config, kind):
    writer.add_name(f"tiny {config['model_type']}")
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(config["rope_theta"])
    writer.add_vocab_size(config["vocab_size"])
    writer.add_file_type(kind)
    writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
    if config["model_type"] == "llama":
        writer.add_rope_dimension_count(config["head_dim"])
    else:
        writer.add_key_length(config["head_dim"])
        writer.add_value_length(config["head_dim"])


def rope_factors(config):
    """The divisors of the default frequencies that stand for the llama3 scaling."""
    default, _ = inverse_frequencies({"rope_theta": config["rope_theta"]}, config["head_dim"])
    scaled, _ = inverse_frequencies(config["rope_scaling"] | {"rope_theta": config["rope_theta"]}, config["head_dim"])
    return (default / scaled).float().numpy()


def write_model(name, config, family, merges, type_of, file_type, seed):
    """One whole model; the reference reads the same numbers back from the quantised bytes."""
    path, rng = folder("gguf"), generator(seed + 1)
    trained = Trained(family, merges)
    assert len(trained.tokens) == config["vocab_size"], len(trained.tokens)
    ends = {"bos_token_id": trained.id(trained.facts["bos"]), "eos_token_id": trained.id(trained.facts["eos"])}
    config = config | {k: v for k, v in ends.items() if v is not None}
    writer = gguf.GGUFWriter(path / f"{name}.gguf", config["model_type"])
    add_metadata(writer, config, file_type)
    trained.add_to_gguf(writer, chat_template=CHATML)
    if config.get("rope_scaling"):
        writer.add_tensor("rope_freqs.weight", rope_factors(config))
    tensors, permuted = {}, config["model_type"] == "llama"
    for key, weight in models.weights(config, seed).items():
        kind = Type.F32 if weight.ndim == 1 else type_of(gguf_name(key))
        data = encoded(rng, kind, weight.numpy())
        tensors[key] = decoded(data, kind)
        if permuted and ("q_proj" in key or "k_proj" in key):
            data = interleaved(data, config["num_attention_heads" if "q_proj" in key else "num_key_value_heads"])
        writer.add_tensor(gguf_name(key), np.ascontiguousarray(data), raw_dtype=kind)
    finish(writer)
    write_json(path / f"{name}-config.json", config)
    write_cases(path / f"{name}-ids.json", trained.cases())
    scratch = ROOT.parent / "target" / name
    scratch.mkdir(parents=True, exist_ok=True)
    write_json(scratch / "config.json", config)
    write_expected(f"gguf/{name}", path / f"{name}-expected.safetensors", scratch, tensors, seed + 1000, 40, 320, SCHEMES)


def llama_q8():
    rope = dict(factor=8.0, high_freq_factor=4.0, low_freq_factor=1.0, original_max_position_embeddings=32, rope_type="llama3")
    config = models.config(
        "llama", hidden_size=96, intermediate_size=160, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, head_dim=24, attention_bias=False, mlp_bias=False, tie_word_embeddings=True,
        rope_theta=10000.0, rope_scaling=rope,
    )
    q8 = lambda name: Type.Q8_0
    write_model("llama-q8", config, "llama-bpe", 57, q8, gguf.LlamaFileType.MOSTLY_Q8_0, 42)


def qwen3_mixed():
    """Rows of 160 cannot hold blocks of 256, so each tensor has the type its width allows."""
    config = models.config(
        "qwen3", hidden_size=160, intermediate_size=256, num_hidden_layers=2, num_attention_heads=8,
        num_key_value_heads=2, head_dim=32, attention_bias=False, tie_word_embeddings=False, rope_theta=1000000.0,
    )
    kinds = {
        "token_embd.weight": Type.Q8_0,
        "output.weight": Type.F16,
        "blk.0.attn_q.weight": Type.Q5_0,
        "blk.0.attn_k.weight": Type.Q4_0,
        "blk.0.attn_v.weight": Type.Q8_0,
        "blk.0.attn_output.weight": Type.Q4_K,
        "blk.0.ffn_gate.weight": Type.Q4_1,
        "blk.0.ffn_up.weight": Type.Q5_1,
        "blk.0.ffn_down.weight": Type.Q6_K,
        "blk.1.attn_q.weight": Type.Q4_0,
        "blk.1.attn_k.weight": Type.BF16,
        "blk.1.attn_v.weight": Type.F32,
        "blk.1.attn_output.weight": Type.Q5_K,
        "blk.1.ffn_gate.weight": Type.Q5_0,
        "blk.1.ffn_up.weight": Type.Q5_0,
        "blk.1.ffn_down.weight": Type.Q4_K,
    }
    write_model("qwen3-mixed", config, "qwen2", 38, kinds.__getitem__, gguf.LlamaFileType.MOSTLY_Q4_K_M, 43)


def build():
    every_type()
    llama_q8()
    qwen3_mixed()
