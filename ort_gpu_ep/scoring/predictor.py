"""A model as a callable for batches: what Ray Data's `map_batches` takes, and anything else that has batches."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from ort_gpu_ep.errors import DeviceError, OutOfDeviceMemoryError
from ort_gpu_ep.scoring import columns as columns_of
from ort_gpu_ep.scoring import outputs as outputs_of
from ort_gpu_ep.scoring.columns import Rows
from ort_gpu_ep.scoring.model import read_model
from ort_gpu_ep.scoring.require import require
from ort_gpu_ep.scoring.running import open_session, score_rows
from ort_gpu_ep.scoring.visible import AUTO, chosen


class Predictor:
    """`ray.data.read_parquet(...).map_batches(Predictor, fn_constructor_kwargs={"model": "model.onnx"}, num_gpus=1,
    batch_size=64)`

    model: a path, the bytes of a model, or what `ray.put` made of these (once a node then). adapter: as in the option,
    `cpu`, or `auto`: the GPU that CUDA_VISIBLE_DEVICES gives this process, by its UUID or PCI address; else one that no
    other process on the machine has claimed; the CPU where there is none. columns, outputs, options: as in `score`.

    Called with columns (numpy arrays or pyarrow's), it gives a pyarrow table: the columns that are no inputs, the
    outputs, and `error`. In an actor of Ray a lost device ends the process, so that Ray starts another one and does the
    batch again. Raises ScoringError, ModelError, AdapterError, ConfigError.
    """

    def __init__(
        self,
        model: str | Path | bytes | Any,
        *,
        adapter: str = AUTO,
        columns: Mapping[str, str | Sequence[str]] | None = None,
        outputs: Sequence[str] | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        require("pyarrow", "Predictor")
        if not isinstance(model, (str, Path, bytes)):
            model = require("ray", "a model by reference").get(model)
        self.adapter = chosen(adapter, options or {})[0] if adapter == AUTO else adapter
        self._model = read_model(model, outputs)
        self._session = open_session(model if isinstance(model, bytes) else str(model), self.adapter, options or {})
        self._given = {
            name: text if isinstance(text, str) else ",".join(text) for name, text in (columns or {}).items()
        }

    def __call__(self, batch: Mapping[str, Any]) -> Any:
        mapped = columns_of.mapping(self._model, list(batch), self._given, "the batch")
        used = {name for names in mapped.values() for name in names}
        packed = columns_of.pack(
            self._model, mapped, Rows(len(next(iter(batch.values()))), {name: batch[name] for name in used})
        )
        names = [value.name for value in self._model.outputs]
        try:
            scored = (
                score_rows(partial(self._session.run, names), self._model, packed.arrays) if len(packed.kept) else None
            )
        except OutOfDeviceMemoryError:
            raise
        except DeviceError as error:
            self._leave(error)
            raise
        pieces = [(scored.arrays, scored.errors)] if scored is not None else []
        return outputs_of.table(
            self._model.outputs, packed, {name: v for name, v in batch.items() if name not in used}, pieces
        )

    @staticmethod
    def _leave(error: DeviceError) -> None:
        """A lost device stays lost in its process. Ray starts an actor anew that has ended, not one that raises."""
        ray = sys.modules.get("ray")
        if ray is not None and ray.is_initialized() and ray.get_runtime_context().get_actor_id() is not None:
            sys.stderr.write(
                f"ort_gpu_ep: this actor ends, for Ray to start another one: {type(error).__name__}: {error}\n"
            )
            sys.stderr.flush()
            os._exit(1)
