"""The same decoders written out in f64, to check the reference logits against a second, independent road."""

import math

import torch

from fake_quant import SCHEMES, DequantisedEmbedding, QuantisedLinear


def inverse_frequencies(rope, dim):
    """Frequencies [dim/2] and the factor on cos and sin."""
    base = rope["rope_theta"] ** (-torch.arange(0, dim, 2, dtype=torch.float64) / dim)
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind == "linear":
        return base / rope["factor"], 1.0
    if kind == "llama3":
        return llama3(base, rope), 1.0
    if kind == "yarn":
        return yarn(base, rope, dim), 0.1 * math.log(rope["factor"]) + 1.0
    return base, 1.0


def llama3(base, rope):
    low, high = rope["low_freq_factor"], rope["high_freq_factor"]
    turns = rope["original_max_position_embeddings"] * base / (2 * math.pi)
    smooth = ((turns - low) / (high - low)).clamp(0, 1)
    return base * (smooth + (1 - smooth) / rope["factor"])


def yarn(base, rope, dim):
    def border(turns):
        length = rope["original_max_position_embeddings"]
        return dim * math.log(length / (turns * 2 * math.pi)) / (2 * math.log(rope["rope_theta"]))

    low = max(math.floor(border(rope.get("beta_fast", 32))), 0)
    high = min(math.ceil(border(rope.get("beta_slow", 1))), dim - 1)
    ramp = ((torch.arange(dim // 2, dtype=torch.float64) - low) / max(high - low, 1e-3)).clamp(0, 1)
    return base * (1 - ramp) + base / rope["factor"] * ramp


def norm(x, weight, eps):
    return x / torch.sqrt(x.pow(2).mean(-1, keepdim=True) + eps) * weight.double()


def rotate(x, cos, sin):
    half = x.shape[-1] // 2
    turned = torch.cat([-x[..., half:], x[..., :half]], dim=-1)
    return x * cos + turned * sin


def rounding_margin(x):
    """How far the row's scaled values stay from a half, where rounding would turn: [...] for x [..., K]."""
    scaled = x * (127.0 / x.abs().amax(-1, keepdim=True))
    return ((scaled - scaled.floor()) - 0.5).abs().amin(-1)


class Plain:
    """A Llama, Qwen2 or Qwen3 decoder over named tensors; `scheme` None means dense. Works on ids [batch, tokens]."""

    def __init__(self, config, tensors, scheme=None):
        self.config, self.tensors, self.scheme = config, tensors, scheme
        self.heads, self.kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
        self.dim = config.get("head_dim") or config["hidden_size"] // self.heads
        rope = dict(config.get("rope_parameters") or config.get("rope_scaling") or {})
        rope.setdefault("rope_theta", config.get("rope_theta"))
        self.frequencies, self.factor = inverse_frequencies(rope, self.dim)
        self.quantised = {}
        self.margin = None

    def linear(self, x, name):
        weight, bias = self.tensors[name + ".weight"], self.tensors.get(name + ".bias")
        if self.scheme:
            if name not in self.quantised:
                self.quantised[name] = QuantisedLinear(weight, bias, *SCHEMES[self.scheme], exact=True)
            if SCHEMES[self.scheme][1]:
                self.margin = torch.minimum(self.margin, rounding_margin(x[:, -1]))
            return self.quantised[name](x)
        y = x @ weight.double().T
        return y if bias is None else y + bias.double()

    def window(self, layer):
        """Keys a query sees in `layer`, its own included; None is all."""
        config = self.config
        if not config.get("use_sliding_window"):
            return None
        kinds = config.get("layer_types")
        slides = kinds[layer] == "sliding_attention" if kinds else layer >= config["max_window_layers"]
        return config["sliding_window"] if slides else None

    def attention(self, x, layer):
        prefix, (batch, count) = f"model.layers.{layer}.self_attn.", x.shape[:2]
        split = lambda name, heads: self.linear(x, prefix + name).view(batch, count, heads, self.dim)
        q, k, v = split("q_proj", self.heads), split("k_proj", self.kv_heads), split("v_proj", self.kv_heads)
        if prefix + "q_norm.weight" in self.tensors:
            q = norm(q, self.tensors[prefix + "q_norm.weight"], self.config["rms_norm_eps"])
            k = norm(k, self.tensors[prefix + "k_norm.weight"], self.config["rms_norm_eps"])
        position = torch.arange(count, dtype=torch.float64)
        angle = (position[:, None] * self.frequencies).repeat(1, 2)[:, None]
        cos, sin = angle.cos() * self.factor, angle.sin() * self.factor
        q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        k, v = (t.repeat_interleave(self.heads // self.kv_heads, dim=2) for t in (k, v))
        scores = torch.einsum("bihd,bjhd->bhij", q, k) / math.sqrt(self.dim)
        distance = position[:, None] - position
        hidden = distance < 0
        if self.window(layer) is not None:
            hidden = hidden | (distance >= self.window(layer))
        weights = scores.masked_fill(hidden, -math.inf).softmax(-1)
        mixed = torch.einsum("bhij,bjhd->bihd", weights, v).reshape(batch, count, -1)
        return self.linear(mixed, prefix + "o_proj")

    def mlp(self, x, layer):
        prefix = f"model.layers.{layer}.mlp."
        gate = self.linear(x, prefix + "gate_proj")
        return self.linear(gate * torch.sigmoid(gate) * self.linear(x, prefix + "up_proj"), prefix + "down_proj")

    def logits(self, ids):
        """Logits [batch, tokens, vocabulary]; `margin` [batch] becomes the last token's rounding margin."""
        self.margin = torch.full(ids.shape[:1], 0.5, dtype=torch.float64)
        table, eps = self.tensors["model.embed_tokens.weight"], self.config["rms_norm_eps"]
        tied = self.config["tie_word_embeddings"]
        head = table if tied else self.tensors["lm_head.weight"]
        lookup = DequantisedEmbedding(table, exact=True) if self.scheme and tied else lambda i: table[i].double()
        x = lookup(ids)
        for layer in range(self.config["num_hidden_layers"]):
            name = f"model.layers.{layer}."
            x = x + self.attention(norm(x, self.tensors[name + "input_layernorm.weight"], eps), layer)
            x = x + self.mlp(norm(x, self.tensors[name + "post_attention_layernorm.weight"], eps), layer)
        x = norm(x, self.tensors["model.norm.weight"], eps)
        if self.scheme:
            return QuantisedLinear(head, None, 8, False, 0, exact=True)(x)
        return x @ head.double().T
