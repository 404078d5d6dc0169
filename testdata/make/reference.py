"""Logits of a model folder by `transformers`, each scheme checked against the plain f64 road."""

import copy
import json

import torch
from transformers import AutoConfig, AutoModelForCausalLM

from common import difference, generator, record_difference, save_tensors
from fake_quant import SCHEMES, convert
from plain import Plain

# Share of the largest logit that f32 may be away from f64. An activation that rounds the other way moves the
# logits by about 2e-2 of it, so the bound also shows that none does.
FLOAT_SHARE = 1e-5


def load(config_folder, tensors):
    """The model over f32 copies of the stored tensors; every tensor must be used, none invented."""
    config = AutoConfig.from_pretrained(config_folder)
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager", dtype=torch.float32)
    weights = {k: v.float() for k, v in tensors.items()}
    if config.tie_word_embeddings:
        weights["lm_head.weight"] = weights["model.embed_tokens.weight"]
    missing, unexpected = model.load_state_dict(weights, strict=False)
    assert not missing and not unexpected, (missing, unexpected)
    return model.eval()


def rounding_noise(model, road):
    """How far the f32 model's scaled activations, about to be rounded, are from those of the f64 road."""
    theirs = dict(model.named_modules())
    pairs = [(theirs[name].scaled, layer.scaled) for name, layer in road.quantised.items() if layer.activations]
    return max(((a - b).abs().max().item() for a, b in pairs), default=0.0)


def run(model, ids):
    return model(ids[None], use_cache=False).logits[0].float()


def expected(name, config_folder, tensors, ids, schemes, margin):
    """The tensors of `expected.safetensors`, with the distances to f64 recorded under `name`."""
    config = json.loads((config_folder / "config.json").read_text())
    stored = {k: v.float() for k, v in tensors.items()}
    base = load(config_folder, tensors)
    out = {"ids": ids, "positions": torch.arange(len(ids)), "logits": run(base, ids)}
    apart, noise = {"logits": difference(out["logits"], Plain(config, stored).logits(ids[None])[0])}, 0.0
    for scheme in schemes:
        key = f"logits_{scheme}"
        model, road = convert(copy.deepcopy(base), scheme), Plain(config, stored, scheme)
        out[key] = run(model, ids)
        apart[key] = difference(out[key], road.logits(ids[None])[0])
        noise = max(noise, rounding_noise(model, road))
    assert noise < margin, (name, noise, margin)
    for key, value in apart.items():
        assert value["max_abs"] <= value["largest"] * FLOAT_SHARE, (name, key, value)
    record_difference(name, margin, noise, apart)
    return out


def choose_ids(seed, count, limit, config, tensors, schemes):
    """Random ids [count] below `limit` whose activations all round clearly, in every scheme, and the margin kept.

    Token after token, the best of all: without this, two correct float orders would round a few activations
    differently and the quantised logits could only be compared loosely.
    """
    rng = generator(seed)
    stored = {k: v.float() for k, v in tensors.items()}
    roads = [Plain(config, stored, s) for s in schemes if SCHEMES[s][1]]
    ids, kept = torch.zeros(0, dtype=torch.int64), 0.5
    for _ in range(count):
        token, margin = clearest(roads, ids, torch.from_numpy(rng.permutation(limit)))
        ids, kept = torch.cat([ids, token]), min(kept, margin)
    return ids, kept


def clearest(roads, ids, candidates):
    """The candidate after `ids` with the widest margin; each scheme hands on its better half."""
    margin = torch.full((len(candidates),), 0.5, dtype=torch.float64)
    for road in roads:
        road.logits(torch.cat([ids.expand(len(candidates), -1), candidates[:, None]], dim=1))
        margin = torch.minimum(margin, road.margin)
        order = margin.argsort(descending=True, stable=True)[: max(1, len(candidates) // 2)]
        candidates, margin = candidates[order], margin[order]
    return candidates[:1], margin[0].item()


def write_expected(name, path, config_folder, tensors, seed, count, limit, schemes=tuple(SCHEMES)):
    config = json.loads((config_folder / "config.json").read_text())
    ids, margin = choose_ids(seed, count, limit, config, tensors, schemes)
    save_tensors(path, expected(name, config_folder, tensors, ids, schemes, margin))
    return ids
