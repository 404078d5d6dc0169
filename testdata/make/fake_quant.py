"""Law 1 of the numerics in torch: replaces a model's linears by ones that quantise as the engine must."""

import torch
from torch import nn

ZERO_ROW = 2.0**-100
SEGMENT = 1024

# scheme name -> (weight bits, activations quantised, group along K; 0 = per channel)
SCHEMES = {
    "w8a16": (8, False, 0),
    "w4a16_g64": (4, False, 64),
    "w8a8": (8, True, 0),
    "w8a8_g64": (8, True, 64),
    "w8a8_g32": (8, True, 32),
    "w4a8_g64": (4, True, 64),
    "w4a8": (4, True, 0),
}


def groups_of(k, group):
    """Borders of the groups along K; the last one may be shorter."""
    step = group or k
    return [(start, min(start + step, k)) for start in range(0, k, step)]


def quantise_weight(weight, bits, group):
    """Integers [N, K] and scales [N, groups], both as the f32 values the engine stores."""
    limit = 127.0 if bits == 8 else 7.0
    integers, scales = [], []
    for start, end in groups_of(weight.shape[1], group):
        part = weight[:, start:end].float()
        scale = part.abs().amax(dim=1) / limit
        scale = torch.where(scale == 0, torch.ones_like(scale), scale)
        integers.append(torch.round(part / scale[:, None]).clamp(-limit, limit))
        scales.append(scale)
    return torch.cat(integers, dim=1), torch.stack(scales, dim=1)


def quantise_rows(x):
    """Per token: integers of x's shape and scales [..., 1], in x's own dtype."""
    largest = x.abs().amax(dim=-1, keepdim=True)
    zero = largest < ZERO_ROW
    safe = torch.where(zero, torch.ones_like(largest), largest)
    integers = torch.round(x * (127.0 / safe)).clamp(-127, 127)
    integers = torch.where(zero, torch.zeros_like(integers), integers)
    return integers, torch.where(zero, torch.ones_like(safe), safe / 127.0)


def fma(a, b, c):
    """A fused multiply-add of f32 values through f64 (the product is exact there)."""
    return (a.double() * b.double() + c.double()).to(a.dtype)


class QuantisedLinear(nn.Module):
    """A linear over integer weights. `exact` keeps every float in f64."""

    def __init__(self, weight, bias, bits, activations, group, exact=False):
        super().__init__()
        self.integers, self.scales = quantise_weight(weight, bits, group)
        self.bias, self.activations = bias, activations
        self.borders = groups_of(weight.shape[1], group)
        self.dtype = torch.float64 if exact else torch.float32
        self.scaled = None  # of the last call, to compare roads

    def group_sum(self, x, start, end):
        part = self.integers[:, start:end]
        if self.activations:
            return (x[..., start:end].double() @ part.double().T).to(self.dtype)
        return x[..., start:end] @ part.to(self.dtype).T

    def forward(self, x):
        bias = torch.zeros(len(self.integers)) if self.bias is None else self.bias
        bias, scales = bias.to(self.dtype), self.scales.to(self.dtype)
        if self.activations:
            self.scaled = (x * (127.0 / x.abs().amax(-1, keepdim=True))).double()
        x, row_scale = quantise_rows(x) if self.activations else (x, None)
        if len(self.borders) == 1:
            scale = scales[:, 0] if row_scale is None else row_scale * scales[:, 0]
            return fma(self.group_sum(x, *self.borders[0]), scale, bias)
        total = self.grouped(x, scales)
        return total + bias if row_scale is None else fma(total, row_scale, bias)

    def grouped(self, x, scales):
        """Groups ascending inside K segments of 1024, segments added in order."""
        total = segment = torch.zeros(*x.shape[:-1], len(self.integers), dtype=self.dtype)
        for g, (start, end) in enumerate(self.borders):
            if start % SEGMENT == 0 and start:
                total, segment = total + segment, torch.zeros_like(segment)
            segment = fma(self.group_sum(x, start, end), scales[:, g], segment)
        return total + segment


class DequantisedEmbedding(nn.Module):
    """A tied table: stored once as the INT8 head, its rows dequantised on lookup."""

    def __init__(self, weight, exact=False):
        super().__init__()
        integers, scales = quantise_weight(weight, 8, 0)
        self.table = integers * scales
        self.dtype = torch.float64 if exact else torch.float32

    def forward(self, ids):
        return self.table[ids].to(self.dtype)


def convert(model, scheme):
    """In place: decoder linears by `scheme`, the head INT8 per channel with float activations."""
    bits, activations, group = SCHEMES[scheme]
    for layer in model.model.layers:
        for parent in (layer.self_attn, layer.mlp):
            for name, child in list(parent.named_children()):
                if isinstance(child, nn.Linear):
                    quantised = QuantisedLinear(child.weight.data, child.bias, bits, activations, group)
                    setattr(parent, name, quantised)
    head = model.lm_head.weight.data
    if model.config.tie_word_embeddings:
        model.model.embed_tokens = DequantisedEmbedding(head)
    model.lm_head = QuantisedLinear(head, None, 8, False, 0)
    return model
