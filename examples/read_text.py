"""Reads the text of a page with RapidOCR, whose own code names the CPU: patch() puts the GPU in front.

Needs `pip install rapidocr-onnxruntime` (Python 3.12 at most), which carries its models.
usage: PYTHONPATH=. python examples/read_text.py [PAGE.png]
"""

import sys

import numpy as np
from PIL import Image, ImageDraw, ImageFont

import ort_gpu_ep

if len(sys.argv) > 1:
    page = Image.open(sys.argv[1]).convert("RGB")
else:
    page = Image.new("RGB", (480, 120), "white")
    ImageDraw.Draw(page).text((20, 30), "Graphics 2026", "black", ImageFont.load_default(40))

with ort_gpu_ep.patch({"placement": "gpu"}):
    from rapidocr_onnxruntime import RapidOCR

    found, _ = RapidOCR()(np.asarray(page)[..., ::-1].copy())  # rows x columns x blue, green, red
for _, text, score in found or []:
    print(f"{float(score):.2f}  {text}")
