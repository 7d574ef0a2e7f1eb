"""Finds speech in a recording with silero-vad's model: 32 ms windows through one session, the model's state from one to
the next.

`python -m models fetch silero_vad` fetches the model before, or this does.
usage: PYTHONPATH=. python examples/find_speech.py [MONO_16_KHZ.wav]
"""

import sys
import wave

import numpy as np

import ort_gpu_ep as ort
from models import pretrained

# samples a second, of a window, and of the one before it that the model sees again
RATE, WINDOW, BEFORE = 16000, 512, 64

if len(sys.argv) > 1:
    with wave.open(sys.argv[1]) as recording:
        assert (recording.getframerate(), recording.getnchannels(), recording.getsampwidth()) == (RATE, 1, 2), (
            "16 bits, 16 kHz, mono"
        )
        sound = np.frombuffer(recording.readframes(recording.getnframes()), "<i2").astype(np.float32) / 32768
else:  # a buzz with the resonances of a vowel, between silences
    t = np.arange(3 * RATE) / RATE
    phase = 2 * np.pi * np.cumsum(120 + 20 * np.sin(6 * np.pi * t)) / RATE
    voice = sum(
        np.sin(k * phase) / k * np.exp(-(((k * 120 - f) / 300) ** 2)) for k in range(1, 30) for f in (700, 1200, 2500)
    )
    sound = (0.3 * voice * ((t > 0.8) & (t < 2.2)) * (0.6 + 0.4 * np.sin(8 * np.pi * t))).astype(np.float32)

session = ort.InferenceSession(pretrained.fetch("silero_vad"), provider_options={"placement": "gpu"})
state, padded = np.zeros((2, 1, 128), np.float32), np.pad(sound, (BEFORE, WINDOW))
speech = []
for start in range(0, len(sound), WINDOW):
    window = padded[None, start : start + BEFORE + WINDOW]
    probability, state = session.run(None, {"input": window, "state": state, "sr": np.array(RATE)})
    speech.append(bool(probability[0, 0] > 0.5))

edges = np.flatnonzero(np.diff([False, *speech, False]))
for begin, end in edges.reshape(-1, 2) * WINDOW / RATE:
    print(f"speech from {begin:.2f} to {end:.2f} s")
print(session.explain().count("gpu"), "nodes on the GPU,", session.explain().count("cpu"), "on the CPU")
