"""A prompt with two pictures whose activations keep clear of rounding borders when they are quantised."""

import torch
from PIL import Image

import vl_images
from common import generator
from vl_plain import PlainVl, positions_of

# Single bytes that no merge and no split pattern joins: any run of them is one token each.
LETTERS = 5
CANDIDATES = 800
# The checkpoint that leaves small pictures small: beyond a few image tokens no picture is clear.
MODEL = "tiny"
SIZES = [(64, 64), (128, 32)]


def plain_tokens(reference):
    """Ids of tokens that come back as the same ids when their text is split again, in any order."""
    marks = "!#$%&()*+,-./:;=?@[]^_{}~0123456789"
    return torch.tensor([reference.tokenizer.encode(c, add_special_tokens=False)[0] for c in marks])


class Chooser:
    """Appends tokens and pictures, each time those of many with the widest rounding margin."""

    def __init__(self, reference, model, tensors):
        self.reference, self.model = reference, model
        self.road = PlainVl(reference.config, tensors, "w8a8")
        self.ids, self.grids = torch.zeros(0, dtype=torch.int64), torch.zeros(0, 3, dtype=torch.int64)
        self.levels, self.margin, self.files = [], 0.5, []

    def margins(self, tails, levels):
        """The rounding margin of each of the `tails` [candidates, tokens] after what is there."""
        ids = torch.cat([self.ids.expand(len(tails), -1), tails], dim=1)
        marked = ids[0] == self.reference.pad
        positions, _ = positions_of(ids[0].tolist(), self.grids, self.reference.pad, self.reference.merge)
        self.road.run(ids, positions, marked, levels, tails.shape[1])
        return self.road.margin

    def keep(self, tail, margin):
        self.ids, self.margin = torch.cat([self.ids, tail]), min(self.margin, margin)

    def token(self, candidates):
        tails = candidates[:, None]
        best = (margins := self.margins(tails, self.levels)).argmax()
        self.keep(tails[best], margins[best].item())

    def picture(self, number, width, height):
        """Vision start, a picture and vision end: the clearest of many pictures."""
        files, features = [], []
        for seed in range(CANDIDATES):
            drawn = vl_images.drawn(7000 + 1000 * number + seed, width, height)
            files.append(drawn)
            features.append(self.features(drawn))
        grid = self.grid(width, height)
        self.grids = torch.cat([self.grids, grid])
        config = self.reference.config
        pads = [self.reference.pad] * int(grid.prod() // 4)
        tail = torch.tensor([config["vision_start_token_id"], *pads, config["vision_end_token_id"]])
        levels = [torch.stack(same) for same in zip(*features)]
        if self.levels:
            levels = [torch.cat([a.expand(CANDIDATES, -1, -1), b], dim=1) for a, b in zip(self.levels, levels)]
        margins = self.margins(tail.expand(CANDIDATES, -1), levels)
        best = margins.argmax().item()
        self.levels = [f[best : best + 1] for f in levels]
        self.keep(tail, margins[best].item())
        self.files.append(f"clear-{number}.png")
        vl_images.write_picture(self.files[-1].removesuffix(".png"), files[best])

    def grid(self, width, height):
        return self.reference.processor([Image.new("RGB", (width, height))], return_tensors="pt")["image_grid_thw"]

    def features(self, drawn):
        made = self.reference.processor([drawn], return_tensors="pt")
        out = self.model.model.visual(made["pixel_values"], grid_thw=made["image_grid_thw"], return_dict=True)
        return [out.pooler_output, *out.deepstack_features]


def choose(reference, model, tensors):
    """The prompt as raw text and picture names."""
    rng, tokens = generator(77), plain_tokens(reference)
    chooser = Chooser(reference, model, tensors)
    for number, (width, height) in enumerate(SIZES):
        for _ in range(LETTERS):
            chooser.token(tokens[torch.from_numpy(rng.permutation(len(tokens)))])
        chooser.picture(number, width, height)
    for _ in range(LETTERS):
        chooser.token(tokens)
    print(f"vl/{MODEL}: clear prompt of {len(chooser.ids)} tokens, margin {chooser.margin:.2e}")
    pads, shown = reference.pad, []
    for index, token in enumerate(chooser.ids.tolist()):
        if token != pads or chooser.ids[index - 1] != pads:
            shown.append(reference.tokenizer.decode([token]))
    raw = "".join(shown)
    assert torch.equal(reference.ids(raw, chooser.grids), chooser.ids)
    return raw, [f.removesuffix(".png") for f in chooser.files]
