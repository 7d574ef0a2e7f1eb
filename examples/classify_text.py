"""Tells what kind of text or data some contents are, with magika's network of 3 MB.

The network reads the first and the last 1,024 bytes and scores more than 200 kinds.
usage: PYTHONPATH=. python examples/classify_text.py [FILE...]
"""

import json
import sys
from pathlib import Path

import numpy as np

import ort_gpu_ep as ort
from models import pretrained

PART, PADDING = 1024, 256
EXAMPLES = {
    "a Python function": b"import os\n\n\ndef main(path: str) -> None:\n    for name in os.listdir(path):\n        "
    b"print(name)\n" * 5,
    "a web page": b"<!DOCTYPE html>\n<html><head><title>t</title></head><body><p>text</p></body></html>\n" * 3,
    "a table": b"id,name,value\n" + b"".join(b"%d,row%d,%d\n" % (i, i, i * i) for i in range(50)),
    "a shell script": b'#!/bin/sh\nset -eu\nfor f in *.txt; do\n  echo "$f"\n  grep -c word "$f" || true\ndone\n' * 4,
    "a C program": b'#include <stdio.h>\n\nint main(int argc, char **argv) {\n    printf("%d\\n", argc);\n    '
    b"return 0;\n}\n" * 4,
}


def features(content):
    """The bytes that the network reads: from the beginning and the end, without white space around, filled up to 1,024
    each."""
    content = content.strip()
    begin, end = content[:PART], content[-PART:]
    return [*begin, *[PADDING] * (PART - len(begin)), *[PADDING] * (PART - len(end)), *end]


def main(*paths):
    contents = {path: Path(path).read_bytes() for path in paths} or EXAMPLES
    kinds = json.loads(pretrained.fetch_file("magika_classes").read_text("utf-8"))["target_labels_space"]
    session = ort.InferenceSession(pretrained.fetch("magika"), provider_options={"placement": "gpu"})
    (scores,) = session.run(None, {"bytes": np.array([features(content) for content in contents.values()], np.int32)})
    for name, row in zip(contents, scores, strict=True):
        print(f"{name}: {kinds[row.argmax()]} ({row.max():.0%})")
    print(session.explain().count("gpu"), "nodes on the GPU,", session.explain().count("cpu"), "on the CPU")


if __name__ == "__main__":
    main(*sys.argv[1:])
