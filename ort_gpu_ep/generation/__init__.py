"""Generates text with language models; tokens are chosen on the device."""

from ort_gpu_ep.generation.batch import Batch
from ort_gpu_ep.generation.decoding import decoding_session
from ort_gpu_ep.generation.encoder_decoder import EncoderDecoder
from ort_gpu_ep.generation.generator import Generator, generate

__all__ = ["Batch", "EncoderDecoder", "Generator", "decoding_session", "generate"]
