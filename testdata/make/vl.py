"""Expected results of the Qwen3-VL checkpoints by `transformers`: pixels, positions, embeddings, logits, greedy tokens."""

import copy
import hashlib
import json
from types import SimpleNamespace

import numpy as np
import torch
from PIL import Image
from tokenizers import Tokenizer
from transformers import AutoImageProcessor, AutoTokenizer, Qwen3VLConfig, Qwen3VLForConditionalGeneration

import vl_clear
import vl_formats
import vl_images
import vl_tables
from common import ROOT, difference, folder, record_difference, save_tensors, write_json
from fake_quant import convert
from reference import FLOAT_SHARE, rounding_noise
from vl_models import MODELS, TEMPLATE, write_model
from vl_plain import PlainVision, PlainVl, positions_of

GENERATED = 12
# Per checkpoint: its prompts (None: all) and, for which of them, the quantised logits.
CHOICE = {
    "tiny": dict(prompts=None, schemes=("w8a16", "w8a8"), quantised=None),
    "late": dict(prompts=("two", "three", "text", "turns", "middle"), schemes=("w8a16",), quantised=("two", "text")),
}
IMAGES = ROOT / "vl" / "images"
# Full `pixel_values` are stored up to this many patches, beyond them every 8th row and every 16th column.
FULL_PATCHES = 32
VISION = "<|vision_start|><|image_pad|><|vision_end|>"


def text(value):
    return {"type": "text", "text": value}


def image(name):
    return {"type": "image", "image": name + ".png"}


def user(*parts):
    return {"role": "user", "content": list(parts)}


PROMPTS = {
    "two": [user(text("Look at "), image("photo"), text(" and then at "), image("tall"), text(" now."))],
    "three": [user(image("dot"), text("P"), image("wide"), text("QQ"), image("gray"), text("Which one?"))],
    "text": [{"role": "system", "content": "Be brief."}, user(text("What is the capital of France?"))],
    "earlier": [
        user(image("tall"), text("What is this?")),
        {"role": "assistant", "content": "A box."},
        user(text("And its color?")),
    ],
    "turns": [
        user(text("a"), image("palette")),
        {"role": "assistant", "content": [text("b")]},
        user(image("photo"), text("c")),
    ],
    "beside": [user(image("gray"), image("palette"), text("compare"))],
    # Given as text in which control tokens count.
    "begins": (VISION + "What is this", ["photo"]),
    "ends": ("The picture is here: " + VISION, ["tall"]),
    # Ten tokens, an image, ten tokens: chunk borders fall on all of its edges.
    "middle": ("0123456789<|vision_start|><|image_pad|><|vision_end|>9876543210", ["photo"]),
}


class Reference:
    """A checkpoint as the reference reads it from its own files."""

    def __init__(self, name):
        self.path = ROOT / "vl" / name
        self.config = json.loads((self.path / "config.json").read_text())
        self.processor = AutoImageProcessor.from_pretrained(self.path)
        assert type(self.processor).__name__ == "Qwen2VLImageProcessorPil", type(self.processor)
        self.tokenizer = AutoTokenizer.from_pretrained(self.path)
        self.pad = self.config["image_token_id"]
        self.merge = self.config["vision_config"]["spatial_merge_size"]

    def load(self, tensors):
        """The model over f32 copies of the stored tensors; every tensor must be used, none invented."""
        config = Qwen3VLConfig.from_pretrained(self.path)
        model = Qwen3VLForConditionalGeneration._from_config(config, attn_implementation="eager", dtype=torch.float32)
        weights = {k: v.float() for k, v in tensors.items()}
        if self.config["tie_word_embeddings"]:
            weights["lm_head.weight"] = weights["model.language_model.embed_tokens.weight"]
        missing, unexpected = model.load_state_dict(weights, strict=False)
        assert not missing and not unexpected, (missing, unexpected)
        model.generation_config.eos_token_id = None
        return model.eval()

    def pixels(self, names):
        """`pixel_values` and `image_grid_thw` of the pictures."""
        made = self.processor([Image.open(IMAGES / n) for n in names], return_tensors="pt")
        return made["pixel_values"], made["image_grid_thw"]

    def ids(self, rendered, grids):
        """The prompt's ids, each image pad repeated as often as its image has tokens."""
        once = torch.tensor(self.tokenizer.encode(rendered, add_special_tokens=False))
        counts = torch.ones_like(once)
        counts[once == self.pad] = grids.prod(1) // self.merge**2
        return once.repeat_interleave(counts)

    def inputs(self, ids, pixels, grids):
        given = {"input_ids": ids[None], "attention_mask": torch.ones_like(ids)[None]}
        if len(grids):
            kinds = (ids == self.pad).int()[None]
            given |= {"pixel_values": pixels, "image_grid_thw": grids, "mm_token_type_ids": kinds}
        return given


def convert_language(model, scheme):
    """As `fake_quant.convert`; the vision tower stays as it is."""
    view = SimpleNamespace(
        model=model.model.language_model, lm_head=model.lm_head, config=SimpleNamespace(tie_word_embeddings=model.config.tie_word_embeddings)
    )
    convert(view, scheme)
    model.lm_head = view.lm_head
    return model


def logits(model, inputs):
    model.model.rope_deltas = None
    return model(**inputs, use_cache=False).logits[0].float()


def rendered(reference, prompt):
    """Text with one pad an image, and the pictures' file names."""
    if isinstance(prompt, tuple):
        return prompt[0], [n + ".png" for n in prompt[1]]
    names = [p["image"] for m in prompt if isinstance(m["content"], list) for p in m["content"] if p["type"] == "image"]
    return reference.tokenizer.apply_chat_template(
        prompt, chat_template=TEMPLATE, tokenize=False, add_generation_prompt=True
    ), names


def generated(model, inputs):
    """Greedy tokens with a cache, the logits that chose each, and the smallest lead of a winner."""
    model.model.rope_deltas = None
    out = model.generate(
        **inputs, max_new_tokens=GENERATED, do_sample=False, temperature=None, top_k=None, top_p=None,
        output_logits=True, return_dict_in_generate=True, pad_token_id=0,
    )
    scores = torch.stack(out.logits)[:, 0].float()
    ids = out.sequences[0, inputs["input_ids"].shape[1] :]
    assert torch.equal(ids, scores.argmax(-1))
    best = scores.topk(2).values
    return ids, scores, (best[:, 0] - best[:, 1]).min().item()


def continued(reference, model, inputs, positions, delta, ids):
    """The logits of the generated tokens by one fresh forward over all tokens, positions continued by the delta."""
    prompt = inputs["input_ids"][0]
    count = len(prompt)
    later = torch.arange(count, count + len(ids) - 1) + delta
    whole = dict(inputs) | {
        "input_ids": torch.cat([prompt, ids[:-1]])[None],
        "attention_mask": torch.ones(1, count + len(ids) - 1, dtype=torch.int64),
        "position_ids": torch.cat([positions, later.expand(3, -1)], dim=1)[:, None],
    }
    whole.pop("mm_token_type_ids", None)
    return logits(model, whole)[count - 1 :]


def matters(name, base, *others):
    """A wrong reading must move the logits visibly, or a test would not see it."""
    for other in others:
        moved = (other - base).abs().max() / base.abs().max()
        assert moved > 0.01, (name, moved)


def check_sensitivity(name, model, inputs, base, positions):
    """Without DeepStack, with plain positions, and with the images' positions alone changed."""
    given = inputs | {"position_ids": torch.arange(positions.shape[1]).expand(3, 1, -1)}
    plain = logits(model, given)
    swapped = logits(model, inputs | {"position_ids": positions[[0, 2, 1]][:, None]})
    features = model.model.visual.forward

    def shallow(*args, **kwargs):
        out = features(*args, **kwargs)
        out.deepstack_features = [f * 0 for f in out.deepstack_features]
        return out

    model.model.visual.forward = shallow
    without = logits(model, inputs)
    model.model.visual.forward = features
    grids = inputs["image_grid_thw"]
    matters(name, base, plain, without, *([swapped] if (grids[:, 1] != grids[:, 2]).any() else []))


class Expected:
    """The tensors of one prompt, each compared with the f64 road."""

    def __init__(self, reference, name, tensors, models):
        self.reference, self.name, self.tensors, self.models = reference, name, tensors, models
        self.apart, self.margin, self.noise, self.lead = {}, 0.0, 0.0, float("inf")

    def of(self, prompt, ids, pixels, grids):
        base, inputs = self.models[None], self.reference.inputs(ids, pixels, grids)
        out = {"ids": ids, "image_grid_thw": grids}
        out |= self.vision(base, pixels, grids)
        positions, delta = positions_of(ids.tolist(), grids, self.reference.pad, self.reference.merge)
        if len(grids):
            theirs, deltas = base.model.get_rope_index(ids[None], inputs["mm_token_type_ids"], image_grid_thw=grids)
            assert torch.equal(theirs[:, 0], positions) and deltas.item() == delta
        out |= {"positions": positions, "delta": torch.tensor([delta])}
        for scheme in self.schemes(prompt):
            self.decoder(prompt, scheme, inputs, out)
        if len(grids):
            check_sensitivity(f"{self.name}/{prompt}", base, inputs, out["logits"], positions)
        self.greedy(prompt, inputs, out)
        return out

    def schemes(self, prompt):
        quantised = CHOICE[self.name]["quantised"]
        return (None, *CHOICE[self.name]["schemes"]) if quantised is None or prompt in quantised else (None,)

    def vision(self, model, pixels, grids):
        if not len(grids):
            return {}
        made = model.model.visual(pixels, grid_thw=grids, return_dict=True)
        features = [made.pooler_output, *made.deepstack_features]
        keys = ["vision", *(f"deepstack_{i}" for i in range(len(features) - 1))]
        exact = PlainVision(self.reference.config["vision_config"], self.tensors).images(pixels, grids)
        for key, feature, road in zip(keys, features, exact):
            self.note(key, feature, road)
        self.levels = exact
        return dict(zip(keys, features))

    def decoder(self, prompt, scheme, inputs, out):
        key = f"logits_{scheme}" if scheme else "logits"
        out[key] = logits(self.models[scheme], inputs)
        road = PlainVl(self.reference.config, self.tensors, scheme)
        marked = out["ids"] == self.reference.pad
        levels = [f[None] for f in self.levels] if marked.any() else []
        exact = road.run(out["ids"][None], out["positions"], marked, levels, len(marked))[0]
        # Only the prompt chosen for it keeps clear of rounding borders: elsewhere a few integers may differ.
        if scheme != "w8a8" or prompt == "clear":
            self.note(key, out[key], exact)
        if scheme == "w8a8" and prompt == "clear":
            self.margin = road.margin.item()
            self.noise = rounding_noise(strip(self.models[scheme]), road)
            assert self.noise < self.margin, (self.noise, self.margin)

    def greedy(self, prompt, inputs, out):
        ids, scores, lead = generated(self.models[None], inputs)
        assert self.reference.pad not in ids, (self.name, prompt)
        fresh = continued(self.reference, self.models[None], inputs, out["positions"], out["delta"], ids)
        assert (fresh - scores).abs().max() < 1e-4 * scores.abs().max(), prompt
        if out["delta"].item():
            wrong = continued(self.reference, self.models[None], inputs, out["positions"], 0, ids)
            matters(f"{self.name}/{prompt} delta", scores, wrong)
        self.lead = min(self.lead, lead)
        out |= {"generated": ids, "generated_logits": scores}

    def note(self, key, tested, exact):
        found = difference(tested, exact)
        assert found["max_abs"] <= found["largest"] * FLOAT_SHARE, (self.name, key, found)
        known = self.apart.get(key)
        if known is None or found["max_abs"] / found["largest"] > known["max_abs"] / known["largest"]:
            self.apart[key] = found


def strip(model):
    """The model under the names of the plain road."""
    names = {k.replace("model.language_model.", "model."): m for k, m in model.named_modules()}
    return SimpleNamespace(named_modules=lambda: names.items())


def resized(reference, file, grid):
    """The picture [height, width, 3] as Pillow resizes it, bytes."""
    side = reference.processor.patch_size
    picture = Image.open(IMAGES / file).convert("RGB")
    return np.asarray(picture.resize((grid[2] * side, grid[1] * side), Image.Resampling.BICUBIC))


def normalised(reference, pixels):
    """What `pixel_values` are made of: scaled in f64 and rounded to f32, then two f32 operations."""
    processor = reference.processor
    scaled = (pixels.astype(np.float64) * processor.rescale_factor).astype(np.float32)
    return (scaled - np.float32(processor.image_mean)) / np.float32(processor.image_std)


def in_patches(reference, pixels):
    """[height, width, 3] to rows in merge order, each channel by channel, the single frame twice."""
    side, merge = reference.processor.patch_size, reference.merge
    height, width, _ = pixels.shape
    blocks = pixels.reshape(height // side // merge, merge, side, width // side // merge, merge, side, 3)
    rows = blocks.transpose(0, 3, 1, 4, 6, 2, 5)[:, :, :, :, :, None]
    return np.repeat(rows, 2, axis=5).reshape(-1, 6 * side**2)


def digest(array):
    return hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest()


def write_images(reference, path):
    """Per picture: grid, digests of the resized bytes and of `pixel_values`, and those numbers, whole or sampled."""
    listed, tensors = {}, {}
    for file in sorted(p.name for p in IMAGES.glob("*.png")):
        if file.startswith("clear") and path.name != vl_clear.MODEL:
            continue
        pixels, grids = reference.pixels([file])
        small = resized(reference, file, grids[0].tolist())
        assert np.array_equal(in_patches(reference, normalised(reference, small)), pixels.numpy()), file
        whole = len(pixels) <= FULL_PATCHES
        tensors[file] = pixels if whole else pixels[::8, ::16]
        listed[file] = {
            "grid": grids[0].tolist(), "tokens": len(pixels) // reference.merge**2, "resized": [*small.shape[:2]],
            "resized_sha256": digest(small), "pixel_values_sha256": digest(pixels.numpy().astype("<f4")),
            "stored": "whole" if whole else "rows 0, 8, ... and columns 0, 16, ...",
        }
    save_tensors(path / "pixel_values.safetensors", tensors)
    write_json(path / "images.json", listed)


def write_expected(name):
    config, tensors = write_model(name)
    reference, path = Reference(name), folder("vl", name)
    base = reference.load(tensors)
    models = {None: base} | {s: convert_language(copy.deepcopy(base), s) for s in CHOICE[name]["schemes"]}
    expected, listed = Expected(reference, name, tensors, models), []
    clear = {"clear": vl_clear.choose(reference, base, tensors)} if name == vl_clear.MODEL else {}
    chosen = CHOICE[name]["prompts"] or PROMPTS
    for prompt, given in ({k: PROMPTS[k] for k in chosen} | clear).items():
        shown, names = rendered(reference, given)
        pixels, grids = reference.pixels(names) if names else (torch.zeros(0, 1536), torch.zeros(0, 3, dtype=torch.int64))
        ids = reference.ids(shown, grids)
        out = expected.of(prompt, ids, pixels, grids)
        save_tensors(folder("vl", name, "expected") / f"{prompt}.safetensors", {k: v for k, v in out.items() if v.numel()})
        entry = {"name": prompt, "images": names, "text": shown, "tokens": len(ids)}
        listed.append(entry | ({} if isinstance(given, tuple) else {"messages": given}))
    write_json(path / "prompts.json", listed)
    write_images(reference, path)
    print(f"vl/{name}: every greedy winner leads by {expected.lead:.3f} or more")
    assert expected.lead > 1e-2, expected.lead
    record_difference(f"vl/{name}", expected.margin, expected.noise, expected.apart)


def build():
    vl_images.build()
    for name in MODELS:
        write_expected(name)
    vl_tables.build()
    vl_formats.build()
