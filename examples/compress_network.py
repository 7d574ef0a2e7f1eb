"""Compresses magika's network by several methods, and shows how many files each recognizes: files of your Python
installation.

usage: PYTHONPATH=. python examples/compress_network.py
"""

import json
import sysconfig
import tempfile
from pathlib import Path

import numpy as np
from classify_text import features

from models import pretrained
from ort_gpu_ep.compression import compress

KINDS = {
    ".py": "python",
    ".pyc": "pythonbytecode",
    ".h": "c",
    ".so": "elf",
    ".json": "json",
    ".txt": "txt",
    ".html": "html",
    ".css": "css",
    ".js": "javascript",
    ".c": "c",
    ".svg": "svg",
    ".png": "png",
    ".toml": "toml",
    ".zip": "zip",
    ".whl": "zip",
    ".gif": "gif",
}
EACH = 20


def main():
    kinds = json.loads(pretrained.fetch_file("magika_classes").read_text("utf-8"))["target_labels_space"]
    found, counts = [], dict.fromkeys(KINDS, 0)
    for folder in (sysconfig.get_path("stdlib"), sysconfig.get_path("include"), sysconfig.get_path("purelib")):
        for path in sorted(Path(folder).rglob("*")):
            if counts.get(path.suffix, EACH) < EACH and path.is_file() and path.stat().st_size > 200:
                counts[path.suffix] += 1
                found.append((features(path.read_bytes()), kinds.index(KINDS[path.suffix])))
    order = np.random.default_rng(0).permutation(len(found))
    data, labels = np.array([found[k][0] for k in order], np.int32), np.array([found[k][1] for k in order])
    print(f"{len(data)} files of {len(set(labels.tolist()))} kinds")
    with tempfile.TemporaryDirectory() as folder:
        for method in ("int8", "codebook5", "prune80"):
            report = compress(
                pretrained.fetch("magika"),
                Path(folder) / f"{method}.onnx",
                method,
                calibrate={"bytes": data},
                labels=labels,
            )
            print(
                f"{method}: {report.file_nbytes[0]:,} -> {report.file_nbytes[1]:,} B,",
                next(line for line in report.lines() if line.startswith("right predictions")),
            )


if __name__ == "__main__":
    main()
