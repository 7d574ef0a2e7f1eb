"""Speech to text by a network of Whisper's kind: an audio file in, tokens or text out.

usage: PYTHONPATH=. python examples/transcribe.py [FOLDER] [--audio MONO_16_KHZ.wav] [--language en] [--beams N]

FOLDER: what `optimum-cli export onnx --model openai/whisper-tiny FOLDER` writes. Without one a small network with
random weights is made, whose tokens mean nothing. Without --audio a tone that rises is heard. Of a longer recording, the
first 30 s are.
"""

import argparse
import json
import tempfile
import wave
from pathlib import Path

import numpy as np

from models.encoder_decoder import Sizes, save_folder
from ort_gpu_ep import EncoderDecoder

# samples a second, of a window, and between two windows; of a recording in seconds
RATE, WINDOW, HOP, SECONDS = 16000, 400, 160, 30


def filters(bands: int) -> np.ndarray:
    """Triangles of unit area, evenly spaced in mel (Slaney's: linear up to 1 kHz), [bands, WINDOW // 2 + 1]."""
    knee, step = 15.0, np.log(6.4) / 27
    top = knee + np.log(RATE / 2 / 1000) / step
    mel = np.linspace(0, top, bands + 2)
    edges = np.where(mel < knee, mel * 1000 / knee, 1000 * np.exp(step * (mel - knee)))[:, None]
    hertz = np.fft.rfftfreq(WINDOW, 1 / RATE)
    up, down = (hertz - edges[:-2]) / (edges[1:-1] - edges[:-2]), (edges[2:] - hertz) / (edges[2:] - edges[1:-1])
    return np.maximum(0, np.minimum(up, down)) * 2 / (edges[2:] - edges[:-2])


def features(sound: np.ndarray, bands: int) -> np.ndarray:
    """Logarithms of the power in each band, [bands, frames], as Whisper's feature extractor gives them."""
    sound = np.pad(sound[: SECONDS * RATE], (0, max(0, SECONDS * RATE - len(sound))))
    padded = np.pad(sound, WINDOW // 2, mode="reflect")
    windows = np.lib.stride_tricks.sliding_window_view(padded, WINDOW)[::HOP][:-1]
    power = np.abs(np.fft.rfft(windows * np.hanning(WINDOW + 1)[:-1])) ** 2
    logarithms = np.log10(np.maximum(filters(bands) @ power.T, 1e-10))
    return ((np.maximum(logarithms, logarithms.max() - 8) + 4) / 4).astype(np.float32)


def text_of(tokens: list[int], folder: Path) -> str:
    """Byte-level BPE: each character of a token stands for a byte."""
    vocabulary = json.loads((folder / "vocab.json").read_text("utf-8"))
    shown = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in shown]
    byte_of = {chr(byte): byte for byte in shown} | {chr(256 + k): byte for k, byte in enumerate(others)}
    words = {number: word for word, number in vocabulary.items()}
    letters = "".join(words.get(token, "") for token in tokens)
    return bytes(byte_of[letter] for letter in letters if letter in byte_of).decode("utf-8", "replace")


arguments = argparse.ArgumentParser()
arguments.add_argument("folder", nargs="?", type=Path)
arguments.add_argument("--audio")
arguments.add_argument("--language", default="en")
arguments.add_argument("--beams", type=int, default=1)
given = arguments.parse_args()

if given.audio:
    with wave.open(given.audio) as recording:
        form = recording.getframerate(), recording.getnchannels(), recording.getsampwidth()
        assert form == (RATE, 1, 2), f"{given.audio}: expected 16 bits, 16 kHz, mono; got {form}"
        sound = np.frombuffer(recording.readframes(recording.getnframes()), "<i2").astype(np.float32) / 32768
else:
    sound = 0.3 * np.sin(2 * np.pi * np.cumsum(np.linspace(200, 2000, 3 * RATE)) / RATE)

with tempfile.TemporaryDirectory() as made:
    if given.folder is None:
        save_folder(Path(made), sound=True, sizes=Sizes(vocabulary=1000, bands=80, frames=100 * SECONDS))
    network = EncoderDecoder.from_folder(given.folder or made)

bands, start, stop = 80, [1], [2]
if given.folder is not None:
    config = json.loads((given.folder / "config.json").read_text("utf-8"))
    rules = json.loads((given.folder / "generation_config.json").read_text("utf-8"))
    bands, start, stop = config["num_mel_bins"], [config["decoder_start_token_id"]], [config["eos_token_id"]]
    if languages := rules.get("lang_to_id"):  # those for several languages are told the language and what to do
        start += [languages[f"<|{given.language}|>"], rules["task_to_id"]["transcribe"]]
    if "no_timestamps_token_id" in rules:
        start.append(rules["no_timestamps_token_id"])
options = {"stop": stop, "max_new_tokens": 24 if given.folder is None else None}
heard = features(sound, bands)
if given.beams > 1:
    tokens = network.beam_search(heard, start, num_beams=given.beams, **options)[0].tokens
else:
    tokens = list(network.generate(heard, start, **options))
if given.folder is not None and (given.folder / "vocab.json").is_file():
    print(text_of([token for token in tokens if token not in stop], given.folder))
else:
    print(*tokens)
print(len(tokens), "tokens,", network.sessions[-1].explain().count("gpu"), "nodes of the decoder on the GPU")
