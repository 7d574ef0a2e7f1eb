"""The table of probes; importing it fills `probe.PROBES`, in this order."""

from __future__ import annotations

# isort: off
from ort_gpu_ep.health.probes import adapter, arithmetic, workgroup, special  # noqa: F401
from ort_gpu_ep.health.probes import elementwise, products, tiles, matrix_units, layouts, rows, movement  # noqa: F401
from ort_gpu_ep.health.probes import quantized, packed, recurrent, training, transformers, counted, problems  # noqa: F401
from ort_gpu_ep.health.probes import memory, timing  # noqa: F401
# isort: on
