"""A conversation with a language model: onnxruntime-genai's own loop, with its caches on the GPU.

usage: PYTHONPATH=. python examples/chat.py [FOLDER] [--say TEXT]

FOLDER: a model of onnxruntime-genai (genai_config.json, model.onnx, tokenizer). Without one a small model with random
weights is made, whose answers mean nothing. --say: one message in place of a conversation. Needs onnxruntime-genai (pip
install onnxruntime-genai).
"""

import argparse
import json
import tempfile
from pathlib import Path

import onnxruntime_genai as genai

import ort_gpu_ep
from models.genai import save_folder

arguments = argparse.ArgumentParser()
arguments.add_argument("folder", nargs="?")
arguments.add_argument("--say")
given = arguments.parse_args()

with tempfile.TemporaryDirectory() as made:
    if given.folder is None:
        save_folder(Path(made))
    # It keeps caches on the devices of providers that it knows by name: this one is ONNX Runtime's WebGPU provider.
    genai.register_execution_provider_library("WebGpuExecutionProvider", ort_gpu_ep.get_library_path())
    config = genai.Config(given.folder or made)
    config.clear_providers()
    config.append_provider("WebGPU")
    config.set_provider_option("WebGPU", "placement", "gpu")
    model = genai.Model(config)
    tokenizer = genai.Tokenizer(model)
print("caches on:", model.device_type)

settings = genai.GeneratorParams(model)
settings.set_search_options(max_length=256)
generator, stream = genai.Generator(model, settings), tokenizer.create_stream()
while text := given.say or input("> "):
    if given.folder is not None:
        text = tokenizer.apply_chat_template(
            json.dumps([{"role": "user", "content": text}]), add_generation_prompt=True
        )
    generator.append_tokens(tokenizer.encode(text))
    count, limit = 0, 24 if given.folder is None else 256
    while count < limit and not generator.is_done():
        generator.generate_next_token()
        count += 1
        print(stream.decode(generator.get_next_tokens()[0]), end="", flush=True)
    print(f"\n[{count} tokens]")
    if given.say:
        break
