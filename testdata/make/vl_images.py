"""Small seeded pictures of `testdata/vl/images`."""

import numpy as np
from PIL import Image, ImageDraw

from common import folder, generator

# name -> width, height, mode
PICTURES = {
    "photo": (70, 50, "RGB"),
    "tall": (45, 100, "RGB"),
    "dot": (1, 1, "RGB"),
    "wide": (900, 60, "RGB"),
    "gray": (64, 96, "L"),
    "palette": (96, 64, "P"),
}


def drawn(seed, width, height):
    """Soft waves under hard rectangles and a line: smooth parts, edges that make a bicubic kernel overshoot."""
    rng = generator(seed)
    y, x = np.mgrid[0:height, 0:width] / 32
    waves = [np.sin(rng.uniform(-2, 2) * x + rng.uniform(-2, 2) * y + rng.uniform(0, 6)) for _ in range(3)]
    pixels = (128 + 16 * np.round(7 * np.stack(waves, -1))).clip(0, 255).astype(np.uint8)
    image = Image.fromarray(pixels)
    draw = ImageDraw.Draw(image)
    for _ in range(max(2, width * height // 1500)):
        left, top = int(rng.integers(0, width)), int(rng.integers(0, height))
        size = rng.integers(2, 24, 2)
        color = tuple(int(v) for v in rng.choice([0, 255, 96], 3))
        draw.rectangle((left, top, left + int(size[0]), top + int(size[1])), fill=color)
    draw.line((0, 0, width - 1, height - 1), fill=(255, 255, 255))
    return image


def write_picture(name, image):
    path = folder("vl", "images") / f"{name}.png"
    image.save(path, "PNG", optimize=True)
    return path


def build():
    for number, (name, (width, height, mode)) in enumerate(PICTURES.items()):
        image = drawn(500 + number, width, height)
        if name == "dot":
            image = Image.new("RGB", (1, 1), (200, 30, 90))
        if mode == "P":
            image = image.quantize(32, method=Image.Quantize.MEDIANCUT, dither=Image.Dither.NONE)
        write_picture(name, image if mode == "P" else image.convert(mode))
