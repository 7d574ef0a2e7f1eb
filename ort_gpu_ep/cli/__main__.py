"""python -m ort_gpu_ep.cli"""

from ort_gpu_ep.cli import app

app()
