"""Tables for unit tests of the vision side: sizes, interpolation, 2-D rope, positions. No model is needed."""

import torch
from transformers import Qwen3VLConfig
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import smart_resize
from transformers.models.qwen3_vl.modeling_qwen3_vl import Qwen3VLModel, Qwen3VLVisionRotaryEmbedding
from transformers.vision_utils import get_vision_interpolation_indices_and_weights, get_vision_position_ids

from common import folder, save_tensors, write_json
from vl_plain import interpolated, positions_of, vision_angles

SIDE, MERGE, FACTOR = 48, 2, 32
GRIDS = [(2, 2), (16, 16), (32, 52), (96, 6)]
FAMILY = (65536, 16777216)  # the family's minimum and maximum of pixels
START, END, PAD, TEXT = 1, 2, 3, 9

# (height, width) and the limits in pixels
SIZES = [(hw, FAMILY) for hw in [
    (30, 305), (1, 1), (2, 2), (31, 31), (16, 200), (80, 1024), (240, 1040), (272, 400), (336, 1008), (375, 512),
    (300, 300), (512, 512), (768, 768), (831, 1280), (480, 640), (1080, 1920), (6000, 8000), (1, 200), (200, 1), (48, 80),
]] + [
    ((1080, 1920), (65536, 200000)),
    ((31, 639), (4096, 20480)),
    ((512, 512), (1048576, 16777216)),
    ((60, 900), (4096, 32768)),
    ((50, 70), (4096, 32768)),
]

# Pieces: a number is that many text tokens, a pair is an image of so many rows and columns of merged tokens.
POSITIONS = {
    "one image of 512 x 512": [2, (16, 16), 1],
    "text": [7],
    "two images": [3, (8, 8), 4, (2, 5), 2],
    "side by side": [(8, 8), (15, 20)],
    "tiny and wide": [1, (1, 1), 1, (1, 21), 1, (7, 2)],
    "at the end": [4, (3, 2)],
}


def sizes():
    out = []
    for (height, width), (least, most) in SIZES:
        rows, columns = smart_resize(height, width, FACTOR, least, most)
        out.append(dict(height=height, width=width, min_pixels=least, max_pixels=most, resized=[rows, columns],
                        tokens=rows * columns // FACTOR**2))
    return out


def interpolation(tensors):
    """Of a table whose entry at (row, column) is 1000 row + column, and of two random columns."""
    row, column = torch.meshgrid(torch.arange(SIDE), torch.arange(SIDE), indexing="ij")
    table = (1000.0 * row + column).reshape(-1, 1)
    for height, width in GRIDS:
        indices, weights = get_vision_interpolation_indices_and_weights(
            torch.tensor([[1, height, width]]), SIDE, "bilinear", True, MERGE
        )
        made = (table[indices] * weights[:, :, None]).sum(1)
        assert (made - interpolated(table, height, width, MERGE)).abs().max() < 1e-2
        name = f"{height}x{width}"
        tensors |= {f"interpolated.{name}": made[:, 0], f"indices.{name}": indices, f"weights.{name}": weights}


def rope(tensors):
    """cos and sin [patches, head size] of the tower with heads of 64, as large checkpoints have them."""
    config = Qwen3VLConfig().vision_config
    config.hidden_size, config.num_heads = 128, 2
    table = Qwen3VLVisionRotaryEmbedding(config)
    for height, width in [(2, 2), (4, 6), (16, 16)]:
        places = get_vision_position_ids(torch.tensor([[1, height, width]]), MERGE)
        cos, sin = table(torch.zeros(1), places)
        angle = vision_angles(height, width, MERGE, 64)
        assert (cos - angle.cos()).abs().max() < 1e-5 and (sin - angle.sin()).abs().max() < 1e-5
        name = f"{height}x{width}"
        tensors |= {f"places.{name}": places, f"cos.{name}": cos, f"sin.{name}": sin}


def sequence(pieces):
    """Ids and grids of patches of a prompt in pieces."""
    ids, grids = [], []
    for piece in pieces:
        if isinstance(piece, int):
            ids += [TEXT] * piece
        else:
            ids += [START, *[PAD] * (piece[0] * piece[1]), END]
            grids.append([1, piece[0] * MERGE, piece[1] * MERGE])
    return torch.tensor(ids), torch.tensor(grids).view(-1, 3)


class Positions(torch.nn.Module):
    """As much of the model as the reference's position code looks at."""

    get_rope_index, get_vision_position_ids = Qwen3VLModel.get_rope_index, Qwen3VLModel.get_vision_position_ids

    def __init__(self):
        super().__init__()
        self.config = Qwen3VLConfig()


def positions(tensors):
    """Writes ids, grids and positions of each prompt; gives the list of them."""
    model, listed = Positions(), []
    for number, (name, pieces) in enumerate(POSITIONS.items()):
        ids, grids = sequence(pieces)
        made, delta = model.get_rope_index(ids[None], (ids == PAD).int()[None], image_grid_thw=grids)
        mine = positions_of(ids.tolist(), grids, PAD, MERGE)
        assert torch.equal(made[:, 0], mine[0]) and delta.item() == mine[1]
        tensors |= {f"positions.{number}": made[:, 0], f"ids.{number}": ids}
        first = made.max().item() + 1
        listed.append(dict(name=name, grids=grids.tolist(), tokens=len(ids), delta=delta.item(), first_generated=first))
    return listed


def build():
    path, tensors = folder("vl", "tables"), {}
    interpolation(tensors)
    rope(tensors)
    listed = positions(tensors)
    tokens = dict(vision_start=START, vision_end=END, image_pad=PAD, text=TEXT)
    save_tensors(path / "tables.safetensors", tensors)
    write_json(path / "tables.json", dict(sizes=sizes(), token_ids=tokens, positions=listed))
