"""Pictures in every format and kind that is read, and what Pillow and the reference processor make of them."""

import hashlib
import io
import struct
import zlib

import numpy as np
from PIL import Image, ImageDraw, ImageOps
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

from common import folder, generator, write_json

HEIGHT, WIDTH = 32, 64

# Sides from and to: up, down, far down, unchanged, one pixel.
SIDES = [(1, 1), (1, 2), (1, 32), (2, 1), (3, 5), (7, 7), (16, 96), (17, 96), (31, 32), (33, 32), (37, 100), (64, 32)]
SIDES += [(97, 32), (100, 37), (128, 128), (149, 288), (255, 64), (300, 7), (331, 1), (500, 96)]

# Bounds on pixels for the patches: small, so that the arrays are.
BUDGETS = [(1024, 4096), (2048, 1 << 24)]


def build():
    out = folder("images")
    for old in [*out.glob("*.*"), *folder("images", "lossy").glob("*.*")]:
        old.unlink()
    files = pictures()
    for name, data in files.items():
        (out / name).write_bytes(data)
    decoded = {}
    for name, data in files.items():
        rgb = reference_rgb(data)
        decoded[name] = {"size": list(rgb.shape[:2]), "sha256": sha256(rgb)}
        if not is_exact(name):
            Image.fromarray(rgb).save(folder("images", "lossy") / f"{name}.png", optimize=True)
    expected = {"decoded": decoded, "resized": resized(), "patches": patches(files), "alpha": sha256(alpha_table())}
    write_json(out / "expected.json", compact(expected))


def reference_rgb(data):
    """Upright, alpha over white: what the reference processor starts from. Grey of 16 bits is our own rule."""
    image = ImageOps.exif_transpose(Image.open(io.BytesIO(data)))
    if image.mode.startswith("I;16"):
        grey = (np.array(image) >> 8).astype(np.uint8)
        return np.repeat(grey[..., None], 3, axis=2)
    if "A" in image.getbands() or image.info.get("transparency") is not None:
        image = image.convert("RGBA")
        white = Image.new("RGBA", image.size, (255, 255, 255, 255))
        return np.array(Image.alpha_composite(white, image).convert("RGB"))
    return np.array(image.convert("RGB"))


def is_exact(name):
    return not name.endswith((".jpg", "lossy.webp", "lossy-alpha.webp", "animated.webp"))


def pictures():
    """File names and bytes."""
    scene, halves = draw_scene(), draw_halves()
    alpha = with_alpha(scene)
    files = {f"exif-{i}.jpg": saved(halves, "JPEG", quality=90, exif=orientation(i)) for i in range(1, 9)}
    files["exif-broken.jpg"] = saved(halves, "JPEG", quality=90, exif=b"Exif\0\0MM\0\x2a\0\0\xff\xf0broken")
    files["exif-6.png"] = saved(halves, "PNG", exif=orientation(6))
    files["exif-6.webp"] = saved(halves, "WEBP", lossless=True, exif=orientation(6))
    files |= jpegs(scene) | pngs(scene, alpha)
    files["lossy.webp"] = saved(scene, "WEBP", quality=80)
    files["lossless.webp"] = saved(scene, "WEBP", lossless=True)
    files["lossless-alpha.webp"] = saved(alpha, "WEBP", lossless=True, exact=True)
    files["lossy-alpha.webp"] = saved(alpha, "WEBP", quality=80)
    frames = [Image.new("RGB", (WIDTH, HEIGHT), colour) for colour in ("red", "lime", "blue")]
    files["animated.webp"] = saved(frames[0], "WEBP", save_all=True, append_images=frames[1:], duration=100)
    files["frames.gif"] = saved(frames[0], "GIF", save_all=True, append_images=frames[1:], duration=100)
    files["scene.gif"] = saved(scene.convert("P", palette=Image.Palette.ADAPTIVE), "GIF")
    files["transparent.gif"] = saved(palette_image(scene), "GIF", transparency=3)
    files["rgb.bmp"] = saved(scene, "BMP")
    files["palette.bmp"] = saved(palette_image(scene), "BMP")
    files["bits.bmp"] = saved(scene.convert("1"), "BMP")
    files["alpha.bmp"] = saved(alpha, "BMP")
    for name, kind, options in SOLIDS:
        files["red-" + name] = saved(Image.new("RGB", (64, 64), "red"), kind, **options)
    return files


SOLIDS = [
    ("png.png", "PNG", {}),
    ("baseline.jpg", "JPEG", {}),
    ("progressive.jpg", "JPEG", {"progressive": True}),
    ("lossy.webp", "WEBP", {}),
    ("lossless.webp", "WEBP", {"lossless": True}),
    ("gif.gif", "GIF", {}),
    ("bmp.bmp", "BMP", {}),
]


def jpegs(scene):
    files = {
        "444.jpg": saved(scene, "JPEG", quality=90, subsampling="4:4:4"),
        "422.jpg": saved(scene, "JPEG", quality=90, subsampling="4:2:2"),
        "420.jpg": saved(scene, "JPEG", quality=90, subsampling="4:2:0"),
        "odd-420.jpg": saved(scene.crop((0, 0, 61, 29)), "JPEG", quality=75, subsampling="4:2:0"),
        "progressive.jpg": saved(scene, "JPEG", quality=85, progressive=True),
        "restart.jpg": saved(scene, "JPEG", quality=85, restart_marker_blocks=1),
        "rgb.jpg": saved(scene, "JPEG", quality=90, keep_rgb=True),
        "grey.jpg": saved(scene.convert("L"), "JPEG", quality=90),
        "cmyk.jpg": saved(scene.convert("CMYK"), "JPEG", quality=90),
    }
    # The same scans read as YCCK: the last byte of Adobe's segment names the transform.
    adobe = files["cmyk.jpg"].index(b"Adobe") + 11
    assert files["cmyk.jpg"][adobe] == 0
    files["ycck.jpg"] = files["cmyk.jpg"][:adobe] + b"\2" + files["cmyk.jpg"][adobe + 1 :]
    return files


def pngs(scene, alpha):
    rng = generator(71)
    wide = rng.integers(0, 65536, (HEIGHT, WIDTH, 4), dtype=np.uint16)
    rgb = np.array(scene)
    files = {
        "rgb.png": saved(scene, "PNG"),
        "rgba.png": saved(alpha, "PNG"),
        "grey.png": saved(scene.convert("L"), "PNG"),
        "grey-alpha.png": saved(alpha.convert("LA"), "PNG"),
        "palette.png": saved(palette_image(scene), "PNG", bits=4),
        "palette-alpha.png": saved(palette_image(scene), "PNG", transparency=bytes([255, 0, 128, 7, 255, 90])),
        "bits.png": saved(scene.convert("1"), "PNG"),
        "rgb-key.png": saved(scene, "PNG", transparency=tuple(int(v) for v in rgb[0, 0])),
        "grey-key.png": saved(scene.convert("L"), "PNG", transparency=int(np.array(scene.convert("L"))[0, 0])),
        "grey2.png": png(np.array(scene.convert("L"))[..., None] >> 6, 2, 0),
        "rgb-interlaced.png": png(rgb, 8, 2, interlaced=True),
        "grey16.png": png(wide[..., :1], 16, 0),
        "rgb16.png": png(wide[..., :3], 16, 2),
        "grey-alpha16.png": png(wide[..., :2], 16, 4),
        "rgba16.png": png(wide, 16, 6),
        "one.png": saved(Image.new("RGB", (1, 1), (10, 200, 30)), "PNG"),
        "thin.png": saved(scene.resize((200, 16)), "PNG"),
    }
    return files


def resized():
    """[height, width, new height, new width, SHA-256] of bicubic resizing on noise."""
    rows = []
    for i, (height, new_height) in enumerate(SIDES):
        for width, new_width in SIDES[i % 3 :: 3]:
            image = Image.fromarray(noise(height, width)).resize((new_width, new_height), Image.Resampling.BICUBIC)
            rows.append([height, width, new_height, new_width, sha256(np.array(image))])
    return rows


def noise(height, width):
    """Byte i is the top byte of the SplitMix64 finaliser of i."""
    with np.errstate(over="ignore"):
        z = np.arange(height * width * 3, dtype=np.uint64) + np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        z ^= z >> np.uint64(31)
    return (z >> np.uint64(56)).astype(np.uint8).reshape(height, width, 3)


def patches(files):
    """The reference processor's grid and the SHA-256 of its pixel values, in several settings."""
    rows = []
    for name in ["rgb.png", "thin.png", "exif-6.png", "palette-alpha.png", "one.png", "red-png.png"]:
        for low, high in BUDGETS:
            for settings in PROCESSORS:
                values, grid = processed(files[name], low, high, settings)
                row = {"file": name, "min_pixels": low, "max_pixels": high, "settings": settings}
                rows.append(row | {"grid_thw": grid.tolist(), "sha256": sha256(values)})
    return rows


PROCESSORS = [
    {},
    {"image_mean": [0.48145466, 0.4578275, 0.40821073], "image_std": [0.26862954, 0.26130258, 0.27577711]},
    {"patch_size": 14, "merge_size": 2, "temporal_patch_size": 1},
    {"do_normalize": False, "merge_size": 1},
    {"do_rescale": False, "rescale_factor": 0.5},
]


def processed(data, low, high, settings):
    base = {"patch_size": 16, "merge_size": 2, "temporal_patch_size": 2, "image_mean": [0.5] * 3, "image_std": [0.5] * 3}
    processor = Qwen2VLImageProcessorPil(size={"shortest_edge": low, "longest_edge": high}, **(base | settings))
    image = ImageOps.exif_transpose(Image.open(io.BytesIO(data)))
    result = processor(image, return_tensors="np")
    assert result["pixel_values"].dtype == np.float32
    return np.ascontiguousarray(result["pixel_values"]), result["image_grid_thw"][0]


def alpha_table():
    """Row a, column c: the colour c of alpha a over white."""
    pixels = np.zeros((256, 256, 4), np.uint8)
    pixels[..., :3] = np.arange(256)[None, :, None]
    pixels[..., 3] = np.arange(256)[:, None]
    white = Image.new("RGBA", (256, 256), (255, 255, 255, 255))
    return np.array(Image.alpha_composite(white, Image.fromarray(pixels)).convert("RGB"))[..., 0]


def draw_scene():
    """Gradients, edges and thin lines."""
    y, x = np.mgrid[0:HEIGHT, 0:WIDTH]
    image = Image.fromarray(np.stack([x * 4, y * 8, 255 - x * 2 - y * 3], axis=2).clip(0, 255).astype(np.uint8))
    draw = ImageDraw.Draw(image)
    draw.ellipse((6, 5, 28, 27), fill=(230, 40, 60))
    draw.rectangle((34, 8, 50, 22), fill=(20, 90, 220))
    draw.line((0, 31, 63, 2), fill=(255, 255, 0))
    draw.line((52, 0, 52, 31), fill=(0, 0, 0))
    return image


def draw_halves():
    image = Image.new("RGB", (WIDTH, HEIGHT), "red")
    image.paste("blue", (WIDTH // 2, 0, WIDTH, HEIGHT))
    return image


def with_alpha(scene):
    y, x = np.mgrid[0:HEIGHT, 0:WIDTH]
    image = scene.copy()
    image.putalpha(Image.fromarray(((x * 4 + y * 16) % 256).astype(np.uint8)))
    return image


def palette_image(scene):
    return scene.quantize(16, dither=Image.Dither.NONE)


def orientation(value):
    exif = Image.Exif()
    exif[0x112] = value
    return exif.tobytes()


def saved(image, kind, **options):
    data = io.BytesIO()
    image.save(data, kind, **options)
    return data.getvalue()


def png(samples, depth, colour, interlaced=False):
    """A PNG that Pillow does not write: 16 bits a sample, 2 bits, or Adam7."""
    passes = ADAM7 if interlaced else [(0, 0, 1, 1)]
    raw = b""
    for x, y, step_x, step_y in passes:
        for row in samples[y::step_y, x::step_x]:
            raw += b"\0" + packed(row, depth)
    height, width = samples.shape[:2]
    header = struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, int(interlaced))
    chunks = [(b"IHDR", header), (b"IDAT", zlib.compress(raw, 9)), (b"IEND", b"")]
    data = [struct.pack(">I", len(d)) + n + d + struct.pack(">I", zlib.crc32(n + d)) for n, d in chunks]
    return b"\x89PNG\r\n\x1a\n" + b"".join(data)


ADAM7 = [(0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4), (0, 2, 2, 4), (1, 0, 2, 2), (0, 1, 1, 2)]


def packed(row, depth):
    if depth == 16:
        return row.astype(">u2").tobytes()
    if depth == 8:
        return row.astype(np.uint8).tobytes()
    bits = np.unpackbits(row.astype(np.uint8).reshape(-1, 1), axis=1)[:, -depth:]
    return np.packbits(bits).tobytes()


def sha256(array):
    return hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest()


def compact(expected):
    """Rows of `resized` as strings, which JSON keeps on one line."""
    expected["resized"] = [" ".join(map(str, row)) for row in expected["resized"]]
    return expected
