"""Finds the faces in a photo with MTCNN's networks and draws their boxes, eyes, nose and mouth.

Needs Pillow. Without a photo of yours it takes a portrait of Grace Hopper (US Navy, public domain), which it fetches
with the networks. usage: PYTHONPATH=. python examples/find_faces.py [PHOTO] [RESULT.png]
"""

import sys

import numpy as np
from PIL import Image, ImageDraw

import ort_gpu_ep as ort
from models import pretrained

SMALLEST, PARTS = 40, ("left eye", "right eye", "nose", "left of the mouth", "right of the mouth")


def pixels(image, size):
    """What the networks read: columns x rows x colours, from -1 to 1."""
    return (np.asarray(image.resize(size, Image.Resampling.BOX), np.float32).transpose(1, 0, 2) - 127.5) / 128


def apart(boxes, most):
    """The best of the boxes that overlap: a face is found many times. most: of intersection over union."""
    kept = []
    for box in boxes[np.argsort(-boxes[:, 4])]:
        if kept:
            others = np.array(kept)
            low, high = np.maximum(box[:2], others[:, :2]), np.minimum(box[2:4], others[:, 2:4])
            both = np.prod(np.clip(high - low, 0, None), axis=1)
            sizes = np.prod(others[:, 2:4] - others[:, :2], axis=1) + np.prod(box[2:4] - box[:2])
            if (both / (sizes - both)).max() > most:
                continue
        kept.append(box)
    return np.array(kept).reshape(-1, boxes.shape[1])


def proposed(image, session):
    """Squares that may be faces, with their scores: the proposal network sees the photo in many sizes."""
    (given,), found = session.get_inputs(), []
    scale = 12 / SMALLEST
    while min(image.size) * scale >= 12:
        size = [int(np.ceil(side * scale)) for side in image.size]
        regions, scores = sorted(
            session.run(None, {given.name: pixels(image, size)[None]}), key=lambda out: -out.shape[-1]
        )
        x, y = np.nonzero(scores[0, ..., 1] > 0.6)
        corner = np.stack([x, y], 1) * 2 / scale
        boxes = np.hstack([corner, corner + 12 / scale]) + regions[0, x, y] * 12 / scale
        found.append(apart(np.hstack([boxes, scores[0, x, y, 1:]]), 0.5))
        scale *= 0.709
    boxes = apart(np.vstack(found), 0.7)
    middle, half = (boxes[:, :2] + boxes[:, 2:4]) / 2, (boxes[:, 2:4] - boxes[:, :2]).max(axis=1, keepdims=True) / 2
    return np.hstack([middle - half, middle + half])


def main(photo=None, result="faces.png"):
    photo = photo or pretrained.fetch_file("portrait")
    print("photo:", photo)
    image = Image.open(photo).convert("RGB")
    names, options = ("mtcnn_pnet", "mtcnn_onet"), {"placement": "gpu"}
    sessions = [ort.InferenceSession(pretrained.fetch(name), provider_options=options) for name in names]
    squares = proposed(image, sessions[0])
    crops = np.array([pixels(image.crop(tuple(box)), (48, 48)) for box in squares.round().astype(int)], np.float32)
    outputs = sessions[1].run(None, {sessions[1].get_inputs()[0].name: crops.reshape(-1, 48, 48, 3)})
    marks, moves, scores = sorted(outputs, key=lambda out: -out.shape[-1])
    side = squares[:, 2:] - squares[:, :2]
    boxes = squares + moves * np.tile(side, 2)
    points = squares[:, None, :2] + np.stack([marks[:, :5], marks[:, 5:]], 2) * side[:, None]
    faces = apart(np.hstack([boxes, scores[:, 1:], points.reshape(-1, 10)])[scores[:, 1] > 0.9], 0.3)

    draw = ImageDraw.Draw(image)
    for number, face in enumerate(faces, 1):
        print(f"face {number}: {face[4]:.0%}, from ({face[0]:.0f}, {face[1]:.0f}) to ({face[2]:.0f}, {face[3]:.0f})")
        draw.rectangle(tuple(face[:4]), outline="lime", width=3)
        draw.text((face[0], face[1] - 12), f"face {face[4]:.0%}", "lime")
        for (x, y), part in zip(face[5:].reshape(5, 2), PARTS, strict=True):
            print(f"  {part}: ({x:.0f}, {y:.0f})")
            draw.ellipse((x - 3, y - 3, x + 3, y + 3), fill="red")
    image.save(result)
    print(f"written: {result}; {sum(s.explain().count('gpu') for s in sessions)} nodes on the GPU")


main(*sys.argv[1:])
