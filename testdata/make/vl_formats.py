"""One small picture in every format, mode and orientation an image input must read, and the pixels it must give."""

import struct
import zlib

import numpy as np
from PIL import Image, ImageOps
from PIL.PngImagePlugin import PngInfo

from common import folder, generator, save_tensors, write_json
from vl_images import drawn

WIDTH, HEIGHT = 24, 16
ORIENTATION = 0x0112


def over_white(image):
    image = image.convert("RGBA")
    ground = Image.new("RGBA", image.size, (255, 255, 255, 255))
    return Image.alpha_composite(ground, image).convert("RGB")


def chunk(kind, data):
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def png_16_bit(values):
    """A PNG of 16-bit samples [height, width, 1, 3 or 4]: Pillow itself writes only grey ones."""
    height, width, channels = values.shape
    color = {1: 0, 3: 2, 4: 6}[channels]
    rows = b"".join(b"\0" + row.astype(">u2").tobytes() for row in values)
    header = struct.pack(">IIBBBBB", width, height, 16, color, 0, 0, 0)
    parts = chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows, 9)) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + parts


def eighth(values):
    """16-bit samples to bytes, nearest."""
    return ((values.astype(np.int64) + 128) // 257).astype(np.uint8)


class Formats:
    def __init__(self):
        self.path, self.pixels, self.listed = folder("vl", "formats"), {}, {}
        self.picture = drawn(900, WIDTH, HEIGHT)

    def add(self, name, expected, tolerance, about):
        """`tolerance`: how far a byte may be off, where two right decoders differ."""
        array = np.asarray(expected)
        assert array.dtype == np.uint8 and array.ndim == 3, name
        self.pixels[name] = array.copy()
        self.listed[name] = {"width": array.shape[1], "height": array.shape[0], "tolerance": tolerance, "about": about}

    def save(self, name, image, about, tolerance=0, **options):
        """Written and read back by Pillow: orientation applied, alpha over white, first frame."""
        image.save(self.path / name, **options)
        read = ImageOps.exif_transpose(Image.open(self.path / name))
        self.add(name, over_white(read) if has_alpha(read) else read.convert("RGB"), tolerance, about)

    def png(self):
        rgb, grey = self.picture, self.picture.convert("L")
        alpha = Image.fromarray(np.linspace(0, 255, WIDTH * HEIGHT).reshape(HEIGHT, WIDTH).astype(np.uint8))
        clear = rgb.copy()
        clear.putalpha(alpha)
        few = rgb.quantize(8, dither=Image.Dither.NONE)
        self.save("rgb.png", rgb, "24 bit")
        self.save("one-bit.png", grey.convert("1", dither=Image.Dither.NONE), "black and white, one bit")
        self.save("grey.png", grey, "grey")
        self.save("grey-alpha.png", Image.merge("LA", (grey, alpha)), "grey with alpha", 1)
        self.save("rgba.png", clear, "alpha", 1)
        self.save("palette.png", few, "palette of 8, in 4 bits", bits=4)
        self.save("palette-alpha.png", few, "palette with a transparent entry", transparency=1)
        self.save("text-chunk.png", rgb, "with a text chunk", pnginfo=notes())
        self.sixteen()

    def sixteen(self):
        values = generator(901).integers(0, 65536, (HEIGHT, WIDTH, 4))
        for name, taken in (("grey-16.png", values[..., :1]), ("rgb-16.png", values[..., :3])):
            (self.path / name).write_bytes(png_16_bit(taken))
            self.add(name, np.broadcast_to(eighth(taken), (HEIGHT, WIDTH, 3)), 1, "16 bits a sample")
        (self.path / "rgba-16.png").write_bytes(png_16_bit(values))
        share = values[..., 3:] / 65535
        mixed = values[..., :3] * share + 65535 * (1 - share)
        self.add("rgba-16.png", eighth(np.round(mixed)), 2, "16 bits a sample, alpha")

    def jpeg(self):
        smooth = Image.fromarray(np.asarray(self.picture.resize((48, 32), Image.Resampling.BICUBIC)))
        cyan = np.asarray(smooth.convert("CMYK"))
        self.save("plain.jpg", smooth, "baseline, 4:2:0", 4, quality=90)
        self.save("progressive.jpg", smooth, "progressive, 4:4:4", 4, quality=90, progressive=True, subsampling=0)
        self.save("grey.jpg", smooth.convert("L"), "grey", 4, quality=90)
        self.save("cmyk.jpg", Image.fromarray(cyan, "CMYK"), "four inks", 4, quality=95)
        for number in range(1, 9):
            exif = Image.Exif()
            exif[ORIENTATION] = number
            self.save(f"orientation-{number}.jpg", smooth, f"EXIF orientation {number}", 4, quality=95, exif=exif, subsampling=0)
        exif = Image.Exif()
        exif[ORIENTATION] = 6
        self.save("orientation-6.png", self.picture, "EXIF orientation in a PNG", exif=exif)

    def rest(self):
        other = ImageOps.invert(self.picture)
        clear = self.picture.convert("RGBA")
        clear.putpixel((0, 0), (0, 0, 0, 0))
        self.save("still.gif", self.picture.quantize(16, dither=Image.Dither.NONE), "GIF")
        self.save("moving.gif", self.picture.quantize(16, dither=Image.Dither.NONE), "two frames: the first counts", save_all=True,
                  append_images=[other.quantize(16, dither=Image.Dither.NONE)], duration=100)
        self.save("rgb.bmp", self.picture, "BMP, 24 bit")
        self.save("palette.bmp", self.picture.quantize(16, dither=Image.Dither.NONE), "BMP, palette")
        self.save("lossless.webp", self.picture, "WebP without loss", lossless=True)
        self.save("lossless-alpha.webp", clear, "WebP without loss, alpha", 1, lossless=True)
        self.save("lossy.webp", self.picture.resize((48, 32), Image.Resampling.BICUBIC), "WebP with loss", 6, quality=90)
        (self.path / "png-named.jpg").write_bytes((self.path / "rgb.png").read_bytes())
        self.add("png-named.jpg", self.picture, 0, "a PNG under a wrong extension: the content decides")


def has_alpha(image):
    return image.mode in ("RGBA", "LA", "PA") or "transparency" in image.info


def notes():
    info = PngInfo()
    info.add_text("Comment", "seen by nobody")
    return info


def build():
    formats = Formats()
    formats.png()
    formats.jpeg()
    formats.rest()
    save_tensors(formats.path / "pixels.safetensors", formats.pixels)
    write_json(formats.path / "formats.json", formats.listed)
