"""Searches sentences by meaning: MiniLM turns each into a vector of 384 numbers, and close vectors mean similar things.

usage: PYTHONPATH=. python examples/search_sentences.py [QUESTION]
"""

import json
import re
import sys

import numpy as np

import ort_gpu_ep as ort
from models import pretrained

SENTENCES = """The cat sleeps on the warm windowsill all afternoon.
Heavy rain has flooded several streets in the city centre.
Add a pinch of salt and let the soup simmer for twenty minutes.
The central bank raised interest rates by a quarter of a percent.
Our train to Berlin leaves from platform nine at half past six.
The doctor told him to rest and to drink plenty of water.
Scientists have found water ice below the surface of Mars.
She won the final in three sets after saving two match points.
My computer is slow since the last update of its operating system.
The museum shows paintings from the seventeenth century.""".splitlines()


def tokens(text, words):
    """Numbers of a sentence's words, of which unknown ones are cut into known pieces, the longest first."""
    found = [words["[CLS]"]]
    for word in re.findall(r"\w+|[^\w\s]", text.lower()):
        pieces, start = [], 0
        while start < len(word):
            ends = (end for end in range(len(word), start, -1) if ("##" * (start > 0) + word[start:end]) in words)
            end = next(ends, None)
            if end is None:
                pieces = [words["[UNK]"]]
                break
            pieces.append(words["##" * (start > 0) + word[start:end]])
            start = end
        found += pieces
    return [*found, words["[SEP]"]]


def main(question="What is the weather like?"):
    words = json.loads(pretrained.fetch_file("minilm_tokenizer").read_text("utf-8"))["model"]["vocab"]
    session = ort.InferenceSession(pretrained.fetch("minilm_int8"), provider_options={"placement": "gpu"})
    numbers = [tokens(text, words) for text in (question, *SENTENCES)]
    longest = max(map(len, numbers))
    ids = np.array([[*row, *[0] * (longest - len(row))] for row in numbers])
    mask = (np.arange(longest) < np.array([[len(row)] for row in numbers])).astype(np.int64)
    feeds = {"input_ids": ids, "attention_mask": mask, "token_type_ids": np.zeros_like(ids)}
    states = session.run(None, {given.name: feeds[given.name] for given in session.get_inputs()})[0]
    vectors = (states * mask[..., None]).sum(axis=1)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    print("question:", question)
    for score, text in sorted(zip(vectors[1:] @ vectors[0], SENTENCES, strict=True), reverse=True)[:3]:
        print(f"  {score:.2f}  {text}")
    print(session.explain().count("gpu"), "nodes on the GPU,", session.explain().count("cpu"), "on the CPU")


if __name__ == "__main__":
    main(*sys.argv[1:])
