"""python -m ort_gpu_ep: the command `ort-gpu-ep`."""

from ort_gpu_ep.cli import app

app()
