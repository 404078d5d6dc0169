"""Qwen3-VL written out in f64: vision tower, positions and decoder, the second road beside the reference."""

import math

import torch

from fake_quant import DequantisedEmbedding, QuantisedLinear
from plain import Plain, norm, rotate


def layer_norm(x, weight, bias):
    centred = x - x.mean(-1, keepdim=True)
    return centred / torch.sqrt(centred.pow(2).mean(-1, keepdim=True) + 1e-6) * weight + bias


def gelu(x):
    return 0.5 * x * (1 + torch.erf(x / math.sqrt(2)))


def gelu_tanh(x):
    return 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def patches_in_order(height, width, merge):
    """Row and column [patches] of each patch: merge blocks row by row, and inside a block row by row."""
    row, column = torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij")
    blocks = lambda t: t.reshape(height // merge, merge, width // merge, merge).transpose(1, 2).flatten()
    return blocks(row), blocks(column)


def interpolated(table, height, width, merge):
    """The square position table [side * side, hidden] sampled at corner-aligned points, in patch order."""
    side = math.isqrt(len(table))
    grid = table.view(side, side, -1)

    def axis(index, size):
        point = index.double() * (side - 1) / max(size - 1, 1)
        low = point.floor().long()
        return low, (low + 1).clamp(max=side - 1), (point - low)[:, None]

    row, column = patches_in_order(height, width, merge)
    (top, bottom, down), (left, right, along) = axis(row, height), axis(column, width)
    upper = grid[top, left] * (1 - along) + grid[top, right] * along
    lower = grid[bottom, left] * (1 - along) + grid[bottom, right] * along
    return upper * (1 - down) + lower * down


def vision_angles(height, width, merge, dim, theta=10000.0):
    """[patches, dim]: row angles, column angles, and both again."""
    frequency = theta ** (-torch.arange(0, dim // 2, 2, dtype=torch.float64) / (dim // 2))
    row, column = patches_in_order(height, width, merge)
    return torch.cat([row[:, None] * frequency, column[:, None] * frequency], dim=1).repeat(1, 2)


class PlainVision:
    def __init__(self, config, tensors):
        self.config, prefix = config, "model.visual."
        self.tensors = {k.removeprefix(prefix): v.double() for k, v in tensors.items() if k.startswith(prefix)}

    def linear(self, x, name):
        return x @ self.tensors[name + ".weight"].T + self.tensors[name + ".bias"]

    def norm(self, x, name):
        return layer_norm(x, self.tensors[name + ".weight"], self.tensors[name + ".bias"])

    def attention(self, x, name, angle):
        heads = self.config["num_heads"]
        q, k, v = self.linear(x, name + "qkv").view(len(x), 3, heads, -1).unbind(1)
        q, k = (rotate(t, angle.cos()[:, None], angle.sin()[:, None]) for t in (q, k))
        scores = torch.einsum("ihd,jhd->hij", q, k) / math.sqrt(q.shape[-1])
        return self.linear(torch.einsum("hij,jhd->ihd", scores.softmax(-1), v).reshape(len(x), -1), name + "proj")

    def merge(self, x, name, before):
        """`before`: the norm sees single patches; else the four of a block together."""
        width = self.config["hidden_size"] * self.config["spatial_merge_size"] ** 2
        x = self.norm(x, name + "norm").view(-1, width) if before else self.norm(x.view(-1, width), name + "norm")
        return self.linear(gelu(self.linear(x, name + "linear_fc1")), name + "linear_fc2")

    def image(self, pixels, grid):
        """Patches [patches, 1536] of one image to its embeddings and its DeepStack levels."""
        config, (height, width) = self.config, grid[1:]
        merge = config["spatial_merge_size"]
        kernel = self.tensors["patch_embed.proj.weight"].flatten(1)
        x = pixels.double() @ kernel.T + self.tensors["patch_embed.proj.bias"]
        x = x + interpolated(self.tensors["pos_embed.weight"], height, width, merge)
        angle = vision_angles(height, width, merge, config["hidden_size"] // config["num_heads"])
        levels = []
        for number in range(config["depth"]):
            block = f"blocks.{number}."
            x = x + self.attention(self.norm(x, block + "norm1"), block + "attn.", angle)
            inner = gelu_tanh(self.linear(self.norm(x, block + "norm2"), block + "mlp.linear_fc1"))
            x = x + self.linear(inner, block + "mlp.linear_fc2")
            if number in config["deepstack_visual_indexes"]:
                merger = config["deepstack_visual_indexes"].index(number)
                levels.append(self.merge(x, f"deepstack_merger_list.{merger}.", before=False))
        return [self.merge(x, "merger.", before=True), *levels]

    def images(self, pixels, grids):
        """Embeddings and levels, each [image tokens, hidden], of all images; none sees another."""
        parts = pixels.split([int(g.prod()) for g in grids])
        outputs = [self.image(p, g.tolist()) for p, g in zip(parts, grids)]
        return [torch.cat(same) for same in zip(*outputs)]


def positions_of(ids, grids, image_pad, merge):
    """Positions [3, tokens] (time, row, column) and what a later token adds to its index."""
    columns, at, grids, index = [], 0, list(grids), 0
    while index < len(ids):
        if ids[index] != image_pad:
            columns.append(torch.full((3, 1), at))
            at, index = at + 1, index + 1
            continue
        _, height, width = (grids.pop(0) // torch.tensor([1, merge, merge])).tolist()
        row, column = patches_in_order(height, width, 1)
        columns.append(torch.stack([torch.zeros_like(row), row, column]) + at)
        at, index = at + max(height, width), index + height * width
    return torch.cat(columns, dim=1), at - len(ids)


class PlainVl(Plain):
    """The decoder: three-axis positions, DeepStack. Works on embeddings [batch, tokens, hidden]."""

    def __init__(self, config, tensors, scheme=None):
        text = config["text_config"] | {"tie_word_embeddings": config["tie_word_embeddings"]}
        names = {k.replace("language_model.", ""): v for k, v in tensors.items() if "visual" not in k}
        super().__init__(text, names, scheme)
        rope = text.get("rope_parameters") or text["rope_scaling"]
        self.section = rope["mrope_section"]
        self.angle = None

    def axes(self):
        """Which axis turns each frequency: time, row, column in turn until a section is used up, then time."""
        axis = torch.zeros(self.dim // 2, dtype=torch.int64)
        for number in (1, 2):
            axis[number : 3 * self.section[number] : 3] = number
        return axis

    def attention(self, x, layer):
        prefix, (batch, count) = f"model.layers.{layer}.self_attn.", x.shape[:2]
        split = lambda name, heads: self.linear(x, prefix + name).view(batch, count, heads, self.dim)
        q, k, v = split("q_proj", self.heads), split("k_proj", self.kv_heads), split("v_proj", self.kv_heads)
        q = norm(q, self.tensors[prefix + "q_norm.weight"], self.config["rms_norm_eps"])
        k = norm(k, self.tensors[prefix + "k_norm.weight"], self.config["rms_norm_eps"])
        q, k = (rotate(t, self.angle.cos(), self.angle.sin()) for t in (q, k))
        k, v = (t.repeat_interleave(self.heads // self.kv_heads, dim=2) for t in (k, v))
        scores = torch.einsum("bihd,bjhd->bhij", q, k) / math.sqrt(self.dim)
        later = torch.ones(count, count, dtype=torch.bool).triu(1)
        weights = scores.masked_fill(later, -math.inf).softmax(-1)
        mixed = torch.einsum("bhij,bjhd->bihd", weights, v).reshape(batch, count, -1)
        return self.linear(mixed, prefix + "o_proj")

    def embeddings(self, ids):
        table = self.tensors["model.embed_tokens.weight"]
        tied = self.config["tie_word_embeddings"]
        return DequantisedEmbedding(table, exact=True)(ids) if self.scheme and tied else table[ids].double()

    def run(self, ids, positions, image, levels, last=1):
        """Logits [batch, tokens, vocabulary] of ids [batch, tokens]; `image` [tokens] marks image tokens, whose
        embeddings and DeepStack features [batch or 1, image tokens, hidden] are `levels`. `margin` covers the last
        `last` tokens."""
        self.last = last
        self.margin = torch.full(ids.shape[:1], 0.5, dtype=torch.float64)
        axis = positions.double()[self.axes(), :].T
        self.angle = (axis * self.frequencies).repeat(1, 2)[:, None]
        x = self.embeddings(ids)
        if image.any():
            x[:, image] = levels[0].double()
        for layer in range(self.config["num_hidden_layers"]):
            name, eps = f"model.layers.{layer}.", self.config["rms_norm_eps"]
            x = x + self.attention(norm(x, self.tensors[name + "input_layernorm.weight"], eps), layer)
            x = x + self.mlp(norm(x, self.tensors[name + "post_attention_layernorm.weight"], eps), layer)
            if image.any() and layer + 1 < len(levels):
                x[:, image] = x[:, image] + levels[layer + 1].double()
        x = norm(x, self.tensors["model.norm.weight"], self.config["rms_norm_eps"])
        tied = self.config["tie_word_embeddings"]
        head = self.tensors["model.embed_tokens.weight" if tied else "lm_head.weight"]
        return QuantisedLinear(head, None, 8, False, 0, exact=True)(x) if self.scheme else x @ head.double().T

    def linear(self, x, name):
        """As the base, but the margin of several last tokens counts."""
        kept = self.margin
        y = super().linear(x, name)
        if self.margin is not kept:
            scaled = x[:, -self.last :]
            scaled = scaled * (127.0 / scaled.abs().amax(-1, keepdim=True))
            apart = ((scaled - scaled.floor()) - 0.5).abs().amin((-1, -2))
            self.margin = torch.minimum(kept, apart)
        return y
