"""The two Qwen3-VL checkpoints of `testdata/vl`: configurations in the old and the new spelling, random weights."""

import json

import torch

from common import folder, generator, normal, save_tensors, write_json
from tokenizer_files import Trained

MERGES = 64
VOCABULARY = 352  # 346 tokens; the last ids have no text, as in the real family

TEMPLATE = """\
{%- set seen = namespace(images=0) -%}
{%- for message in messages -%}
    {{- '<|im_start|>' + message.role + '\\n' -}}
    {%- if message.content is string -%}
        {{- message.content -}}
    {%- else -%}
        {%- for part in message.content -%}
            {%- if part.type == 'image' or part.type == 'image_url' -%}
                {%- set seen.images = seen.images + 1 -%}
                {%- if add_vision_id -%}{{- 'Picture ' + (seen.images | string) + ': ' -}}{%- endif -%}
                {{- '<|vision_start|><|image_pad|><|vision_end|>' -}}
            {%- elif part.type == 'text' -%}
                {{- part.text -}}
            {%- endif -%}
        {%- endfor -%}
    {%- endif -%}
    {{- '<|im_end|>\\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n' -}}{%- endif -%}
"""


def old_spelling(token):
    """config.json as the first public checkpoints have it."""
    text = {
        "attention_bias": False,
        "attention_dropout": 0.0,
        "bos_token_id": token("<|endoftext|>"),
        "dtype": "bfloat16",
        "eos_token_id": token("<|im_end|>"),
        "head_dim": 32,
        "hidden_act": "silu",
        "hidden_size": 64,
        "initializer_range": 0.02,
        "intermediate_size": 96,
        "max_position_embeddings": 4096,
        "model_type": "qwen3_vl_text",
        "num_attention_heads": 4,
        "num_hidden_layers": 4,
        "num_key_value_heads": 2,
        "rms_norm_eps": 1e-06,
        "rope_scaling": {"mrope_interleaved": True, "mrope_section": [6, 5, 5], "rope_type": "default"},
        "rope_theta": 5000000,
        "tie_word_embeddings": True,
        "use_cache": True,
        "vocab_size": VOCABULARY,
    }
    vision = {
        "deepstack_visual_indexes": [0, 1, 3],
        "depth": 4,
        "hidden_act": "gelu_pytorch_tanh",
        "hidden_size": 48,
        "in_channels": 3,
        "initializer_range": 0.02,
        "intermediate_size": 96,
        "model_type": "qwen3_vl",
        "num_heads": 3,
        "num_position_embeddings": 2304,
        "out_hidden_size": 64,
        "patch_size": 16,
        "spatial_merge_size": 2,
        "temporal_patch_size": 2,
    }
    return whole(token, text, vision, tie_word_embeddings=True, transformers_version="4.57.0.dev0")


def new_spelling(token):
    """config.json as today's `transformers` writes it; an untied head, one DeepStack level from the last block."""
    text = {
        "attention_bias": False,
        "attention_dropout": 0.0,
        "bos_token_id": token("<|endoftext|>"),
        "dtype": "bfloat16",
        "eos_token_id": token("<|im_end|>"),
        "head_dim": 24,
        "hidden_act": "silu",
        "hidden_size": 72,
        "initializer_range": 0.02,
        "intermediate_size": 112,
        "max_position_embeddings": 4096,
        "model_type": "qwen3_vl_text",
        "num_attention_heads": 6,
        "num_hidden_layers": 3,
        "num_key_value_heads": 2,
        "pad_token_id": None,
        "rms_norm_eps": 1e-06,
        "rope_parameters": {
            "mrope_interleaved": True,
            "mrope_section": [6, 4, 2],
            "rope_theta": 10000.0,
            "rope_type": "default",
        },
        "use_cache": True,
        "vocab_size": VOCABULARY,
    }
    vision = {
        "deepstack_visual_indexes": [4],
        "depth": 5,
        "dtype": "bfloat16",
        "hidden_act": "gelu_pytorch_tanh",
        "hidden_size": 32,
        "in_channels": 3,
        "initializer_range": 0.02,
        "intermediate_size": 56,
        "model_type": "qwen3_vl_vision",
        "num_heads": 2,
        "num_position_embeddings": 576,
        "out_hidden_size": 72,
        "patch_size": 16,
        "rope_parameters": {"rope_theta": 10000.0, "rope_type": "axial"},
        "spatial_merge_size": 2,
        "temporal_patch_size": 2,
    }
    return whole(token, text, vision, dtype="bfloat16", tie_word_embeddings=False, transformers_version="5.24.0")


def whole(token, text, vision, **rest):
    return rest | {
        "architectures": ["Qwen3VLForConditionalGeneration"],
        "image_token_id": token("<|image_pad|>"),
        "model_type": "qwen3_vl",
        "text_config": text,
        "video_token_id": token("<|video_pad|>"),
        "vision_config": vision,
        "vision_end_token_id": token("<|vision_end|>"),
        "vision_start_token_id": token("<|vision_start|>"),
    }


def old_processor():
    return {
        "preprocessor_config.json": {
            "min_pixels": 4096,
            "max_pixels": 32768,
            "patch_size": 16,
            "temporal_patch_size": 2,
            "merge_size": 2,
            "image_mean": [0.5, 0.5, 0.5],
            "image_std": [0.5, 0.5, 0.5],
            "processor_class": "Qwen3VLProcessor",
            "image_processor_type": "Qwen2VLImageProcessorFast",
        }
    }


def new_processor():
    """Another mean and deviation than the family's, and its own minimum of pixels."""
    image = {
        "do_convert_rgb": True,
        "do_normalize": True,
        "do_rescale": True,
        "do_resize": True,
        "image_mean": [0.1, 0.2, 0.3],
        "image_processor_type": "Qwen2VLImageProcessor",
        "image_std": [0.5, 0.25, 1.0],
        "merge_size": 2,
        "patch_size": 16,
        "resample": 3,
        "rescale_factor": 0.00392156862745098,
        "size": {"longest_edge": 16777216, "shortest_edge": 65536},
        "temporal_patch_size": 2,
    }
    video = image | {"video_processor_type": "Qwen3VLVideoProcessor", "fps": 2}
    del video["image_processor_type"]
    return {
        "processor_config.json": {
            "image_processor": image,
            "processor_class": "Qwen3VLProcessor",
            "video_processor": video,
        }
    }


def random_weights(config, seed):
    """Tensors in the names of the checkpoints; image embeddings and DeepStack features as large as the text's."""
    rng, out = generator(seed), {}
    text, vision = config["text_config"], config["vision_config"]

    def linear(name, rows, columns, gain, bias=0.0):
        out[name + ".weight"] = normal(rng, (rows, columns), gain * columns**-0.5)
        if bias:
            out[name + ".bias"] = normal(rng, (rows,), bias)

    def norm(name, size, bias=0.0):
        out[name + ".weight"] = 1.0 + normal(rng, (size,), 0.2)
        if bias:
            out[name + ".bias"] = normal(rng, (size,), bias)

    decoder(text, out, linear, norm, rng, config["tie_word_embeddings"])
    tower(vision, out, linear, norm, rng)
    return {k: v.to(torch.bfloat16) for k, v in sorted(out.items())}


def decoder(text, out, linear, norm, rng, tied):
    hidden, inner, dim = text["hidden_size"], text["intermediate_size"], text["head_dim"]
    queries, keys = text["num_attention_heads"] * dim, text["num_key_value_heads"] * dim
    table = (VOCABULARY, hidden)
    out["model.language_model.embed_tokens.weight"] = normal(rng, table, 0.3 if tied else 1.0)
    if not tied:
        linear("lm_head", *table, 1.5)
    for layer in range(text["num_hidden_layers"]):
        name = f"model.language_model.layers.{layer}."
        norm(name + "input_layernorm", hidden)
        linear(name + "self_attn.q_proj", queries, hidden, 1.5)
        linear(name + "self_attn.k_proj", keys, hidden, 1.5)
        linear(name + "self_attn.v_proj", keys, hidden, 1.0)
        linear(name + "self_attn.o_proj", hidden, queries, 1.0)
        norm(name + "self_attn.q_norm", dim)
        norm(name + "self_attn.k_norm", dim)
        norm(name + "post_attention_layernorm", hidden)
        linear(name + "mlp.gate_proj", inner, hidden, 1.0)
        linear(name + "mlp.up_proj", inner, hidden, 1.0)
        linear(name + "mlp.down_proj", hidden, inner, 1.0)
    norm("model.language_model.norm", hidden)


def tower(vision, out, linear, norm, rng):
    hidden, inner = vision["hidden_size"], vision["intermediate_size"]
    block, target = hidden * vision["spatial_merge_size"] ** 2, vision["out_hidden_size"]
    kernel = (hidden, 3, vision["temporal_patch_size"], vision["patch_size"], vision["patch_size"])
    out["model.visual.patch_embed.proj.weight"] = normal(rng, kernel, 0.04)
    out["model.visual.patch_embed.proj.bias"] = normal(rng, (hidden,), 0.2)
    out["model.visual.pos_embed.weight"] = normal(rng, (vision["num_position_embeddings"], hidden), 0.5)
    for number in range(vision["depth"]):
        name = f"model.visual.blocks.{number}."
        norm(name + "norm1", hidden, 0.2)
        linear(name + "attn.qkv", 3 * hidden, hidden, 1.5, 0.2)
        linear(name + "attn.proj", hidden, hidden, 1.0, 0.1)
        norm(name + "norm2", hidden, 0.2)
        linear(name + "mlp.linear_fc1", inner, hidden, 1.0, 0.2)
        linear(name + "mlp.linear_fc2", hidden, inner, 1.0, 0.1)
    mergers = {"merger.": hidden} | {f"deepstack_merger_list.{i}.": block for i in range(len(vision["deepstack_visual_indexes"]))}
    for name, width in mergers.items():
        norm(f"model.visual.{name}norm", width, 0.2)
        linear(f"model.visual.{name}linear_fc1", block, block, 1.5, 0.2)
        linear(f"model.visual.{name}linear_fc2", target, block, 1.0, 0.1)


# name -> configuration, processor files, seed, template file
MODELS = {
    "tiny": (old_spelling, old_processor, 31, "chat_template.json"),
    "late": (new_spelling, new_processor, 33, "chat_template.jinja"),
}


def write_model(name):
    """All files of a checkpoint; gives its configuration and tensors."""
    path = folder("vl", name)
    configure, process, seed, template = MODELS[name]
    trained = Trained("qwen2", MERGES)
    assert len(trained.tokens) == 346
    trained.write_json(path)
    trained.write_config(path, "Qwen2Tokenizer", list_added=True)
    if template.endswith(".json"):
        write_json(path / template, {"chat_template": TEMPLATE})
    else:
        (path / template).write_text(TEMPLATE, encoding="utf-8")
    config = configure(trained.id)
    write_json(path / "config.json", config)
    ends = [trained.id("<|im_end|>"), trained.id("<|endoftext|>")]
    sampling = {"do_sample": True, "temperature": 0.7, "top_k": 20, "top_p": 0.8}
    write_json(path / "generation_config.json", {"bos_token_id": ends[1], "eos_token_id": ends, "pad_token_id": ends[1]} | sampling)
    for file, value in process().items():
        write_json(path / file, value)
    tensors = random_weights(config, seed)
    save_tensors(path / "model.safetensors", tensors)
    return json.loads((path / "config.json").read_text()), tensors
