"""Text from language models: tokens one after another, each chosen where the logits are."""

from ort_gpu_ep.generation.generator import Generator, generate

__all__ = ["Generator", "generate"]
