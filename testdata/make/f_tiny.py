"""F-TINY: a Qwen3 of 2.4 million recipe weights with a tokenizer and template, for tests of whole programs."""

import json

import torch
from transformers import AutoTokenizer

from common import folder, save_tensors, write_json
from recipe import checksum, tensors_of
from reference import choose_ids, expected, load
from tokenizer_files import CHATML, Trained, write_cases

MERGES = 218
GENERATED = 16
SCHEMES = ("w8a16", "w4a16_g64", "w8a8", "w4a8_g64")

CONFIG = {
    "architectures": ["Qwen3ForCausalLM"],
    "attention_bias": False,
    "attention_dropout": 0.0,
    "head_dim": 32,
    "hidden_act": "silu",
    "hidden_size": 256,
    "initializer_range": 0.02,
    "intermediate_size": 512,
    "max_position_embeddings": 131072,
    "max_window_layers": 4,
    "model_type": "qwen3",
    "num_attention_heads": 8,
    "num_hidden_layers": 4,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-06,
    "rope_scaling": None,
    "rope_theta": 1000000,
    "sliding_window": None,
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
    "use_cache": True,
    "use_sliding_window": False,
    "vocab_size": 512,
}

CHATS = [
    dict(messages=[{"role": "user", "content": "What is the capital of France?"}], add_generation_prompt=True),
    dict(
        messages=[
            {"role": "system", "content": "You are brief."},
            {"role": "user", "content": "Hi 😀"},
            {"role": "assistant", "content": "Hello."},
            {"role": "user", "content": "Bye\n\n世界"},
        ],
        add_generation_prompt=True,
        enable_thinking=False,
    ),
    dict(messages=[{"role": "user", "content": [{"type": "text", "text": "two "}, {"type": "text", "text": "parts"}]}],
         add_generation_prompt=False),
]


def recipe():
    hidden, inner, dim = CONFIG["hidden_size"], CONFIG["intermediate_size"], CONFIG["head_dim"]
    queries, keys = CONFIG["num_attention_heads"] * dim, CONFIG["num_key_value_heads"] * dim
    tensors = [dict(name="model.embed_tokens.weight", shape=[CONFIG["vocab_size"], hidden], kind="random", shift=9)]
    add = lambda name, shape, **kind: tensors.append(dict(name=name + ".weight", shape=shape, **kind))
    for layer in range(CONFIG["num_hidden_layers"]):
        name = f"model.layers.{layer}."
        add(name + "input_layernorm", [hidden], kind="random_norm")
        add(name + "self_attn.q_proj", [queries, hidden], kind="random", shift=10)
        add(name + "self_attn.k_proj", [keys, hidden], kind="random", shift=10)
        add(name + "self_attn.v_proj", [keys, hidden], kind="random", shift=10)
        add(name + "self_attn.o_proj", [hidden, queries], kind="random", shift=10)
        add(name + "self_attn.q_norm", [dim], kind="random_norm")
        add(name + "self_attn.k_norm", [dim], kind="random_norm")
        add(name + "post_attention_layernorm", [hidden], kind="random_norm")
        add(name + "mlp.gate_proj", [inner, hidden], kind="random", shift=10)
        add(name + "mlp.up_proj", [inner, hidden], kind="random", shift=10)
        add(name + "mlp.down_proj", [hidden, inner], kind="random", shift=10)
    add("model.norm", [hidden], kind="random_norm")
    return {"format": 1, "seed": 7, "dtype": "bfloat16", "tensors": tensors}


def write_recipe(path, recipe, tensors):
    """One tensor a line."""
    head = {k: v for k, v in recipe.items() if k != "tensors"} | {"checksum": checksum(tensors)}
    lines = ",\n".join("    " + json.dumps(t) for t in recipe["tensors"])
    text = json.dumps(head, indent=2)[:-2] + ',\n  "tensors": [\n' + lines + "\n  ]\n}\n"
    (path / "recipe.json").write_text(text, encoding="utf-8")


def greedy(model, ids):
    """The next tokens by argmax, and the smallest lead of a winner over the runner-up."""
    lead, start = float("inf"), len(ids)
    for _ in range(GENERATED):
        best = model(ids[None], use_cache=False).logits[0, -1].topk(2)
        lead = min(lead, (best.values[0] - best.values[1]).item())
        ids = torch.cat([ids, best.indices[:1]])
    return ids[start:], lead


def clear_prompt(model, ids):
    """The beginning of `ids` whose greedy continuation is decided most clearly, and that continuation."""
    found = [(*greedy(model, ids[:count]), count) for count in range(4, len(ids))]
    varied = [f for f in found if len(f[0].unique()) >= GENERATED // 2]
    generated, lead, count = max(varied, key=lambda f: f[1])
    print(f"f-tiny: {generated.tolist()} after {count} prompt tokens, the winner leads by {lead:.2f} or more")
    assert lead > 0.1, lead
    return ids[:count], generated


def write_tokenizer(path):
    trained = Trained("qwen2", MERGES)
    assert len(trained.tokens) == 500
    trained.write_json(path)
    trained.write_config(path, "Qwen2Tokenizer", CHATML, list_added=True)
    return trained


def write_chats(path):
    tokenizer, out = AutoTokenizer.from_pretrained(path), []
    for chat in CHATS:
        options = {k: v for k, v in chat.items() if k != "messages"}
        text = tokenizer.apply_chat_template(chat["messages"], tokenize=False, **options)
        out.append(chat | {"text": text, "ids": tokenizer.encode(text, add_special_tokens=False)})
    write_cases(path / "chats.json", out)


def build():
    path, made = folder("f-tiny"), recipe()
    tensors = tensors_of(made)
    write_recipe(path, made, tensors)
    trained = write_tokenizer(path)
    ends = {"bos_token_id": trained.id("<|endoftext|>"), "eos_token_id": trained.id("<|im_end|>")}
    write_json(path / "config.json", CONFIG | ends)
    sampling = {"do_sample": True, "temperature": 0.6, "top_k": 20, "top_p": 0.95}
    write_json(path / "generation_config.json", ends | {"eos_token_id": [trained.id("<|im_end|>"), trained.id("<|endoftext|>")]} | sampling)
    write_chats(path)
    ids, margin = choose_ids(1007, 40, len(trained.tokens), CONFIG, tensors, SCHEMES)
    out = expected("f-tiny", path, tensors, ids, SCHEMES, margin)
    out["prompt"], out["generated"] = clear_prompt(load(path, tensors), ids)
    save_tensors(path / "expected.safetensors", out)
