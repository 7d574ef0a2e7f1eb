"""Programs of users: each uses a package that carries its own ONNX models, through that package's own code, on made-up
inputs.

usage: python programs.py CLIENT ANSWERS.json
"""

from __future__ import annotations

import gc
import io
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from tests.clients.more_programs import MORE

Client = TypeVar("Client")
_kept: list[Any] = []


def kept(client: Client) -> Client:
    """It lives until its sessions were asked."""
    _kept.append(client)
    return client


def page(lines: tuple[str, ...], size: tuple[int, int] = (480, 200), height: int = 36) -> Any:
    """Black text on white, RGB."""
    image = Image.new("RGB", size, "white")
    draw = ImageDraw.Draw(image)
    for row, line in enumerate(lines):
        draw.text((20, 20 + row * (height + 24)), line, "black", ImageFont.load_default(height))
    return image


def rapidocr() -> Any:
    """Boxes, texts and scores of a page of two lines: detection, direction, recognition."""
    from rapidocr_onnxruntime import RapidOCR

    client = kept(RapidOCR(det_limit_type="max", det_limit_side_len=480))
    found, _ = client(np.asarray(page(("Graphics 2026", "processing unit")))[..., ::-1].copy())
    return [[np.asarray(box).tolist(), text, float(score)] for box, text, score in found]


def magika() -> Any:
    """The kinds of some contents, and the scores of all kinds."""
    from magika import Magika

    contents = {
        "python": b"import os\n\n\ndef main(path: str) -> None:\n    for name in os.listdir(path):\n        "
        b"print(name)\n" * 5,
        "json": json.dumps({"name": "a", "values": list(range(40)), "nested": {"true": True}}, indent=1).encode(),
        "html": b"<!DOCTYPE html>\n<html><head><title>t</title></head><body><p>text</p></body></html>\n" * 3,
        "csv": b"id,name,value\n" + b"".join(b"%d,row%d,%d\n" % (i, i, i * i) for i in range(50)),
        "noise": np.random.default_rng(3).bytes(3000),
    }
    client = kept(Magika())
    results = [client.identify_bytes(content) for content in contents.values()]
    return [[str(r.output.label), str(r.dl.label), float(r.score)] for r in results]


def silero_vad() -> Any:
    """Where speech is in three seconds of a buzzing, modulated voice between silences, and its probability for each
    window."""
    import torch
    from silero_vad import get_speech_timestamps, load_silero_vad

    rate = 16000
    t = np.arange(3 * rate) / rate
    phase = 2 * np.pi * np.cumsum(120 + 20 * np.sin(2 * np.pi * 3 * t)) / rate
    voice = sum(
        np.sin(k * phase) / k * np.exp(-(((k * 120 - f) / 300) ** 2)) for k in range(1, 30) for f in (700, 1200, 2500)
    )
    envelope = ((t > 0.8) & (t < 2.2)) * (0.6 + 0.4 * np.sin(2 * np.pi * 4 * t))
    sound = torch.from_numpy(
        (0.3 * voice * envelope + 0.001 * np.random.default_rng(5).standard_normal(len(t))).astype("f")
    )
    model = kept(load_silero_vad(onnx=True))
    stamps = get_speech_timestamps(sound, model, sampling_rate=rate)
    fast, slow = model.audio_forward(sound[None], rate), model.audio_forward(sound[None, ::2].contiguous(), rate // 2)
    return [stamps, fast.tolist(), slow.tolist()]


def nudenet() -> Any:
    """Boxes, classes and scores on a drawn face, and the largest of each row that the model gives."""
    from nudenet import NudeDetector

    image = Image.new("RGB", (320, 320), (90, 120, 160))
    draw = ImageDraw.Draw(image)
    draw.ellipse((90, 180, 230, 420), (224, 172, 138))
    draw.ellipse((110, 40, 210, 180), (224, 172, 138))
    for x in (139, 181):
        draw.ellipse((x - 9, 90, x + 9, 102), "white")
        draw.ellipse((x - 4, 92, x + 4, 100), "black")
    draw.polygon(((160, 105), (150, 130), (170, 130)), (200, 140, 110))
    draw.arc((135, 125, 185, 160), 20, 160, (150, 40, 40), 5)
    draw.pieslice((105, 25, 215, 140), 180, 360, (60, 40, 20))
    detector = kept(NudeDetector())
    rows = detector.onnx_session.run(
        None, {detector.input_name: np.asarray(image, "f").transpose(2, 0, 1)[None] / 255}
    )[0]
    return [detector.detect(np.asarray(image)[..., ::-1].copy()), rows.max(-1).tolist()]


def ddddocr() -> Any:
    """A word read by both recognizers, and the boxes in a picture of two words."""
    from ddddocr import DdddOcr

    def png(image: Any) -> bytes:
        held = io.BytesIO()
        image.save(held, "PNG")
        return held.getvalue()

    word, two = png(page(("k7Wm",), (160, 64), 32)), png(page(("first", "second"), (240, 160)))
    old, new, boxes = (kept(DdddOcr(show_ad=False, **how)) for how in ({}, {"beta": True}, {"det": True, "ocr": False}))
    return [old.classification(word), new.classification(word), np.asarray(boxes.detection(two)).tolist()]


CLIENTS: dict[str, Callable[[], Any]] = {f.__name__: f for f in (rapidocr, magika, silero_vad, nudenet, ddddocr)}


def sessions() -> list[dict[str, Any]]:
    """What the kept clients' sessions of this package say of themselves; none without `ort-gpu-ep exec`."""
    from onnxruntime import InferenceSession

    # by type(): isinstance() looks through weak proxies, of which some packages leave dead ones
    found = [s for s in gc.get_objects() if issubclass(type(s), InferenceSession) and hasattr(s, "explain")]
    return [
        {
            "gpu": s.explain().count("gpu"),
            "cpu": s.explain().count("cpu"),
            "providers": s.get_providers(),
            "stats": s.stats(),
        }
        for s in found
    ]


def main(name: str, path: str) -> None:
    answers = {**CLIENTS, **MORE}[name]()
    Path(path).write_text(json.dumps({"answers": answers, "sessions": sessions()}, default=str), "utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
