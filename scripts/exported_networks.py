"""Networks of transformers and torchvision with small random configurations, written by PyTorch's exporters
(exporters.py runs them).

A family is a torch module of tensors alone, the values it is called with, and which of their axes are left open.
FAMILIES leave open what transformers' users do; OPEN has the axes that optimum and torchvision's documentation leave
open, by TorchScript, as they export. Needs torch, transformers and onnxscript, for detectors torchvision.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx
import torch
import transformers as tf

VOCABULARY = 211
WIDTH, HEADS, LAYERS, INNER = 64, 4, 2, 128
SIZES = {"hidden_size": WIDTH, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS, "intermediate_size": INNER}


@dataclass
class Network:
    """module: called with the values of `inputs` in their order. axes: of each input, its open axes by name. outputs:
    names.

    optimizer: `model_type` of onnxruntime.transformers.optimizer, "" where it has none. heads, width: what that is
    told. sizes: of open axes that it is run with, one run after another. first: the decoder's step without a cache,
    which becomes a branch of one model.
    """

    module: torch.nn.Module
    inputs: dict[str, torch.Tensor]
    axes: dict[str, dict[int, str]]
    outputs: list[str]
    optimizer: str = ""
    heads: int = HEADS
    width: int = WIDTH
    sizes: tuple[dict[str, int], ...] = ()
    first: Network | None = None


class Call(torch.nn.Module):
    """A network as a function of tensors: names its arguments, picks its outputs."""

    def __init__(self, network: torch.nn.Module, names: list[str], pick: Callable[[Any], Any], **fixed: Any) -> None:
        super().__init__()
        self.network, self.names, self.pick, self.fixed = network.eval(), names, pick, fixed

    def forward(self, *values: torch.Tensor) -> Any:
        return self.pick(self.network(**dict(zip(self.names, values, strict=True)), **self.fixed))


def ids(batch: int, length: int) -> torch.Tensor:
    return torch.randint(3, VOCABULARY, (batch, length))


def mask(batch: int, length: int) -> torch.Tensor:
    """Ones, and padding at the end of the last row."""
    ones = torch.ones(batch, length, dtype=torch.int64)
    ones[-1, length - 2 :] = 0
    return ones


TEXT = {0: "batch", 1: "length"}


def text_encoder(network: torch.nn.Module, optimizer: str, *more: str) -> Network:
    inputs = {"input_ids": ids(2, 10), "attention_mask": mask(2, 10)}
    if more:
        inputs["token_type_ids"] = torch.randint(0, 2, (2, 10))
    call = Call(network, list(inputs), lambda y: y.last_hidden_state)
    return Network(call, inputs, dict.fromkeys(inputs, TEXT), ["last_hidden_state"], optimizer)


def small(**more: Any) -> dict[str, Any]:
    return {**SIZES, "vocab_size": VOCABULARY, **more}


def bert() -> Network:
    return text_encoder(
        tf.BertModel(tf.BertConfig(**small(), max_position_embeddings=64), add_pooling_layer=False), "bert", "types"
    )


def roberta() -> Network:
    return text_encoder(
        tf.RobertaModel(tf.RobertaConfig(**small(), max_position_embeddings=66), add_pooling_layer=False), "bert"
    )


def distilbert() -> Network:
    sizes = {"dim": WIDTH, "n_layers": LAYERS, "n_heads": HEADS, "hidden_dim": INNER}
    return text_encoder(
        tf.DistilBertModel(tf.DistilBertConfig(vocab_size=VOCABULARY, **sizes, max_position_embeddings=64)), "bert"
    )


def vit() -> Network:
    network = tf.ViTForImageClassification(tf.ViTConfig(**SIZES, image_size=32, patch_size=8, num_labels=10))
    inputs = {"pixel_values": torch.randn(2, 3, 32, 32)}
    return Network(
        Call(network, list(inputs), lambda y: y.logits), inputs, {"pixel_values": {0: "batch"}}, ["logits"], "vit"
    )


def clip() -> Network:
    text = {
        **SIZES,
        "vocab_size": VOCABULARY,
        "max_position_embeddings": 20,
        "bos_token_id": 0,
        "eos_token_id": 2,
        "pad_token_id": 1,
    }
    network = tf.CLIPModel(
        tf.CLIPConfig(text_config=text, vision_config={**SIZES, "image_size": 32, "patch_size": 8}, projection_dim=32)
    )
    inputs = {"input_ids": ids(2, 10), "pixel_values": torch.randn(2, 3, 32, 32), "attention_mask": mask(2, 10)}
    inputs["input_ids"][:, -1] = 2
    axes = {
        "input_ids": {0: "texts", 1: "length"},
        "pixel_values": {0: "images"},
        "attention_mask": {0: "texts", 1: "length"},
    }
    outputs = ["logits_per_image", "text_embeds", "image_embeds"]
    return Network(
        Call(network, list(inputs), lambda y: tuple(y[name] for name in outputs)), inputs, axes, outputs, "clip"
    )


def gpt2_network() -> Any:
    sizes = {"vocab_size": VOCABULARY, "n_embd": WIDTH, "n_layer": LAYERS, "n_head": HEADS, "n_positions": 64}
    return tf.GPT2LMHeadModel(tf.GPT2Config(**sizes, bos_token_id=0, eos_token_id=0))


def gpt2() -> Network:
    inputs = {"input_ids": ids(2, 10), "attention_mask": mask(2, 10)}
    call = Call(gpt2_network(), list(inputs), lambda y: y.logits, use_cache=False)
    return Network(call, inputs, dict.fromkeys(inputs, TEXT), ["logits"], "gpt2")


def without_vmap(mask_function: Callable[..., torch.Tensor], bh_indices: bool = True) -> Callable[..., torch.Tensor]:
    """Stands in for transformers' vmap over a mask's function, which torchscript can't trace."""

    def broadcast(batch: Any, head: Any, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
        if bh_indices:
            batch, head = batch[:, None, None, None], head[None, :, None, None]
        made = mask_function(batch, head, query[:, None], key[None, :])
        return (made if made.ndim == 4 else made[None, None]).expand(batch.shape[0], -1, -1, -1) if bh_indices else made

    return broadcast


class WithPast(torch.nn.Module):
    """A decoder's step as optimum exports it: past_key_values.N.key and .value in, present.N.key and .value out."""

    def __init__(self, network: torch.nn.Module, layers: int) -> None:
        super().__init__()
        self.network, self.layers = network.eval(), layers

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor, *past: torch.Tensor) -> Any:
        cache = tf.DynamicCache.from_legacy_cache(tuple((past[2 * i], past[2 * i + 1]) for i in range(self.layers)))
        y = self.network(input_ids=input_ids, attention_mask=attention_mask, past_key_values=cache, use_cache=True)
        return (y.logits, *(x for layer in y.past_key_values.to_legacy_cache() for x in layer))


def with_past(network: Any, heads: int, depth: int, optimizer: str = "") -> Network:
    inputs = {"input_ids": ids(2, 3), "attention_mask": torch.ones(2, 8, dtype=torch.int64)}
    axes = {"input_ids": TEXT, "attention_mask": {0: "batch", 1: "total"}}
    outputs = ["logits"]
    for layer in range(LAYERS):
        for kind in ("key", "value"):
            inputs[f"past_key_values.{layer}.{kind}"] = torch.randn(2, heads, 5, depth)
            axes[f"past_key_values.{layer}.{kind}"] = {0: "batch", 2: "past"}
            outputs.append(f"present.{layer}.{kind}")
    return Network(WithPast(network, LAYERS), inputs, axes, outputs, optimizer)


def gpt2_past() -> Network:
    return with_past(gpt2_network(), HEADS, WIDTH // HEADS, "gpt2")


def llama_past() -> Network:
    network = tf.LlamaForCausalLM(tf.LlamaConfig(**small(), num_key_value_heads=2, max_position_embeddings=64))
    return with_past(network, 2, WIDTH // HEADS, "gpt2")  # as onnxruntime.transformers.models.llama has it


def qwen3_past() -> Network:
    network = tf.Qwen3ForCausalLM(
        tf.Qwen3Config(**small(), num_key_value_heads=2, head_dim=16, max_position_embeddings=64)
    )
    return with_past(network, 2, 16, "qwen3")


def t5_network() -> Any:
    return tf.T5ForConditionalGeneration(
        tf.T5Config(
            vocab_size=VOCABULARY,
            d_model=WIDTH,
            d_kv=16,
            d_ff=INNER,
            num_layers=LAYERS,
            num_heads=HEADS,
            decoder_start_token_id=0,
        )
    )


def t5_encoder() -> Network:
    inputs = {"input_ids": ids(2, 10), "attention_mask": mask(2, 10)}
    call = Call(t5_network().encoder, list(inputs), lambda y: y.last_hidden_state)
    return Network(call, inputs, dict.fromkeys(inputs, TEXT), ["last_hidden_state"], "t5")


def t5_decoder() -> Network:
    inputs = {
        "encoder_hidden_states": torch.randn(2, 10, WIDTH),
        "attention_mask": mask(2, 10),
        "decoder_input_ids": ids(2, 7),
    }
    axes = {"encoder_hidden_states": TEXT, "attention_mask": TEXT, "decoder_input_ids": {0: "batch", 1: "target"}}

    class Decoder(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.network = t5_network().eval()

        def forward(
            self, states: torch.Tensor, attention_mask: torch.Tensor, decoder_input_ids: torch.Tensor
        ) -> torch.Tensor:
            return self.network(
                encoder_outputs=(states,),
                attention_mask=attention_mask,
                decoder_input_ids=decoder_input_ids,
                use_cache=False,
            ).logits

    return Network(Decoder(), inputs, axes, ["logits"], "t5")


def whisper_network() -> Any:
    return tf.WhisperForConditionalGeneration(
        tf.WhisperConfig(
            vocab_size=VOCABULARY,
            d_model=WIDTH,
            encoder_layers=LAYERS,
            decoder_layers=LAYERS,
            encoder_attention_heads=HEADS,
            decoder_attention_heads=HEADS,
            encoder_ffn_dim=INNER,
            decoder_ffn_dim=INNER,
            num_mel_bins=20,
            max_source_positions=24,
            max_target_positions=40,
            pad_token_id=0,
            bos_token_id=1,
            eos_token_id=2,
            decoder_start_token_id=1,
        )
    )


def whisper_encoder() -> Network:
    inputs = {"input_features": torch.randn(2, 20, 48)}
    call = Call(whisper_network().model.encoder, list(inputs), lambda y: y.last_hidden_state)
    return Network(call, inputs, {"input_features": {0: "batch"}}, ["last_hidden_state"], "bart")


def whisper_decoder() -> Network:
    inputs = {"decoder_input_ids": ids(2, 7), "encoder_hidden_states": torch.randn(2, 24, WIDTH)}
    axes = {"decoder_input_ids": {0: "batch", 1: "length"}, "encoder_hidden_states": {0: "batch"}}

    class Decoder(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.network = whisper_network().eval()

        def forward(self, decoder_input_ids: torch.Tensor, states: torch.Tensor) -> torch.Tensor:
            return self.network(decoder_input_ids=decoder_input_ids, encoder_outputs=(states,), use_cache=False).logits

    return Network(Decoder(), inputs, axes, ["logits"], "bart")


# ---- with the axes that optimum and torchvision leave open

PIXELS = {0: "batch_size", 1: "num_channels", 2: "height", 3: "width"}
IMAGES = ((56, 70), (70, 56), (84, 70), (98, 56), (112, 84), (126, 126))
"""Sizes that networks of any size are run with: multiples of 14, the patches of DINOv2."""
LARGER = ((64, 96), (96, 64), (128, 64), (160, 160))
"""For networks that make an image 32 times smaller: a length of 1 broadcasts, which is another plan."""


def image_network(
    network: torch.nn.Module, pick: Callable[[Any], Any], sizes: Sequence[tuple[int, int]], **fixed: Any
) -> Network:
    """Of pixel_values, as optimum exports it. sizes: height and width, of the export first."""
    inputs = {"pixel_values": torch.randn(2, 3, *sizes[0])}
    for parameter in network.parameters():
        if not parameter.any():  # as biases begin: an output of zeros would say nothing
            torch.nn.init.normal_(parameter, std=0.1)
    runs = tuple({"batch_size": 2, "num_channels": 3, "height": height, "width": width} for height, width in sizes)
    return Network(Call(network, list(inputs), pick, **fixed), inputs, {"pixel_values": PIXELS}, ["y"], sizes=runs)


def open_vit() -> Network:
    network = tf.ViTForImageClassification(tf.ViTConfig(**SIZES, image_size=32, patch_size=8, num_labels=10))
    return image_network(network, lambda y: y.logits, [(32, 32)])


def open_resnet() -> Network:
    config = tf.ResNetConfig(
        embedding_size=16, hidden_sizes=[16, 32, 48, 64], depths=[1, 1, 2, 1], layer_type="basic", num_labels=10
    )
    return image_network(tf.ResNetForImageClassification(config), lambda y: y.logits, IMAGES)


def open_convnext() -> Network:
    config = tf.ConvNextConfig(hidden_sizes=[16, 32, 48, 64], depths=[1, 1, 2, 1], num_labels=10)
    return image_network(tf.ConvNextForImageClassification(config), lambda y: y.logits, LARGER)


def open_segformer() -> Network:
    config = tf.SegformerConfig(
        depths=[1, 1, 1, 1],
        hidden_sizes=[16, 32, 48, 64],
        decoder_hidden_size=32,
        num_labels=5,
        num_attention_heads=[1, 2, 4, 8],
    )
    return image_network(tf.SegformerForSemanticSegmentation(config), lambda y: y.logits, LARGER)


class FirstStep(WithPast):
    """A decoder's step without a cache."""

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> Any:
        y = self.network(input_ids=input_ids, attention_mask=attention_mask, use_cache=True)
        return (y.logits, *(x for layer in y.past_key_values.to_legacy_cache() for x in layer))


def gpt2_merged() -> Network:
    network = gpt2_network()
    step = with_past(network, HEADS, WIDTH // HEADS)
    inputs = {"input_ids": ids(2, 5), "attention_mask": mask(2, 5)}
    axes = {"input_ids": TEXT, "attention_mask": {0: "batch", 1: "total"}}
    step.first = Network(FirstStep(network, LAYERS), inputs, axes, step.outputs)
    return step


def merged(step: onnx.ModelProto, first: onnx.ModelProto) -> onnx.ModelProto:
    """An If over both, as optimum's merge_decoders makes it: use_cache_branch tells which one answers."""
    branches = {"then_branch": step.graph, "else_branch": first.graph}
    flag = onnx.helper.make_tensor_value_info("use_cache_branch", onnx.TensorProto.BOOL, [1])
    node = onnx.helper.make_node("If", [flag.name], [output.name for output in step.graph.output])
    for name, graph in branches.items():
        body = onnx.GraphProto()
        body.CopyFrom(graph)
        body.name = name
        del body.input[:]
        for output in body.output:
            output.type.tensor_type.ClearField("shape")
            body.node.add(op_type="Identity", input=[output.name], output=[f"{name}/{output.name}"])
            output.name = f"{name}/{output.name}"
        node.attribute.append(onnx.helper.make_attribute(name, body))
    graph = onnx.helper.make_graph([node], "merged", [*step.graph.input, flag], list(step.graph.output))
    return onnx.helper.make_model(graph, opset_imports=step.opset_import, ir_version=step.ir_version)


DINO = {"hidden_size": WIDTH, "num_hidden_layers": 4, "num_attention_heads": HEADS, "patch_size": 14, "image_size": 70}


def open_dinov2() -> Network:
    return image_network(tf.Dinov2Model(tf.Dinov2Config(**DINO)), lambda y: y.last_hidden_state, IMAGES)


def open_depth_anything() -> Network:
    backbone = tf.Dinov2Config(
        **DINO, out_features=[f"stage{k}" for k in (1, 2, 3, 4)], reshape_hidden_states=False, apply_layernorm=True
    )
    config = tf.DepthAnythingConfig(
        backbone_config=backbone,
        reassemble_hidden_size=WIDTH,
        patch_size=14,
        fusion_hidden_size=16,
        neck_hidden_sizes=[16, 24, 32, 48],
        head_hidden_size=8,
    )
    return image_network(tf.DepthAnythingForDepthEstimation(config), lambda y: y.predicted_depth, IMAGES)


def open_swin() -> Network:
    config = tf.SwinConfig(
        image_size=64, patch_size=4, embed_dim=24, depths=[2, 2], num_heads=[2, 4], window_size=4, num_labels=10
    )
    return image_network(tf.SwinForImageClassification(config), lambda y: y.logits, [(64, 64)])


def open_swin2sr() -> Network:
    config = tf.Swin2SRConfig(
        image_size=32, embed_dim=24, depths=[2, 2], num_heads=[2, 2], window_size=4, num_channels=3, upscale=2
    )
    return image_network(
        tf.Swin2SRForImageSuperResolution(config), lambda y: y.reconstruction, [(32, 48), (48, 32), (40, 40), (64, 32)]
    )


def open_mobilevit() -> Network:
    config = tf.MobileViTConfig(hidden_sizes=[16, 24, 32], neck_hidden_sizes=[8, 16, 16, 24, 32, 40, 48], num_labels=10)
    return image_network(tf.MobileViTForImageClassification(config), lambda y: y.logits, LARGER)


def open_dpt() -> Network:
    config = tf.DPTConfig(
        **SIZES | {"num_hidden_layers": 4},
        image_size=64,
        patch_size=16,
        backbone_out_indices=[0, 1, 2, 3],
        neck_hidden_sizes=[16, 24, 32, 48],
        fusion_hidden_size=16,
    )
    return image_network(tf.DPTForDepthEstimation(config), lambda y: y.predicted_depth, [(64, 64)])


def open_deeplab() -> Network:
    from torchvision.models import segmentation

    network = segmentation.lraspp_mobilenet_v3_large(weights=None, weights_backbone=None, num_classes=5)
    network.forward, inner = lambda pixel_values: inner(pixel_values)["out"], network.forward
    return image_network(network, lambda y: y, LARGER)


def open_sam() -> Network:
    config = tf.SamVisionConfig(
        hidden_size=WIDTH,
        output_channels=32,
        num_hidden_layers=2,
        num_attention_heads=HEADS,
        image_size=128,
        patch_size=16,
        window_size=4,
        global_attn_indexes=[1],
        mlp_dim=INNER,
    )
    return image_network(tf.SamVisionModel(config), lambda y: y.last_hidden_state, [(128, 128)])


def mixtral_past() -> Network:
    config = tf.MixtralConfig(
        **small(), num_key_value_heads=2, max_position_embeddings=64, num_local_experts=4, num_experts_per_tok=2
    )
    return with_past(tf.MixtralForCausalLM(config), 2, WIDTH // HEADS)


class Detector(torch.nn.Module):
    """A detector of torchvision, which takes a list of images."""

    def __init__(self, network: torch.nn.Module) -> None:
        super().__init__()
        self.network = network.eval()

    def forward(self, image: torch.Tensor) -> Any:
        found = self.network([image])[0]
        return found["boxes"], found["scores"], found["labels"]


def detector(name: str, **more: Any) -> Callable[[], Network]:
    def made() -> Network:
        from torchvision.models import detection

        network = getattr(detection, name)(weights=None, weights_backbone=None, num_classes=5, **more)
        runs = tuple(
            {"height": height, "width": width} for height, width in ((96, 128), (128, 96), (112, 80), (120, 120))
        )
        return Network(
            Detector(network),
            {"image": torch.rand(3, 96, 128)},
            {"image": {1: "height", 2: "width"}},
            ["boxes", "scores", "labels"],
            sizes=runs,
        )

    return made


TWO_STAGE = {"min_size": 96, "max_size": 128, "rpn_post_nms_top_n_test": 50}
ONE_STAGE = {"min_size": 96, "max_size": 128, "topk_candidates": 50}

OPEN: dict[str, Callable[[], Network]] = {
    "vit": open_vit,
    "resnet": open_resnet,
    "convnext": open_convnext,
    "segformer": open_segformer,
    "dinov2": open_dinov2,
    "depth-anything": open_depth_anything,
    "swin": open_swin,
    "swin2sr": open_swin2sr,
    "mobilevit": open_mobilevit,
    "deeplab": open_deeplab,
    "dpt": open_dpt,
    "sam-encoder": open_sam,
    "mixtral": mixtral_past,
    "gpt2-past": gpt2_past,
    "gpt2-merged": gpt2_merged,
    "ssdlite": detector("ssdlite320_mobilenet_v3_large"),
    "ssd": detector("ssd300_vgg16"),
    "retinanet": detector("retinanet_resnet50_fpn", **ONE_STAGE),
    "fcos": detector("fcos_resnet50_fpn", **ONE_STAGE),
    "fasterrcnn": detector("fasterrcnn_mobilenet_v3_large_320_fpn", **TWO_STAGE),
    "maskrcnn": detector("maskrcnn_resnet50_fpn", **TWO_STAGE),
}


FAMILIES: dict[str, Callable[[], Network]] = {
    "bert": bert,
    "distilbert": distilbert,
    "roberta": roberta,
    "vit": vit,
    "clip": clip,
    "gpt2": gpt2,
    "t5-encoder": t5_encoder,
    "t5-decoder": t5_decoder,
    "whisper-encoder": whisper_encoder,
    "whisper-decoder": whisper_decoder,
    "gpt2-past": gpt2_past,
    "llama-past": llama_past,
    "qwen3-past": qwen3_past,
}


def export(family: str, exporter: str, path: Path, families: Mapping[str, Callable[[], Network]] = FAMILIES) -> Network:
    """Writes the model. exporter: "torchscript" or "dynamo", and the opset: torchscript17."""
    torch.manual_seed(5)
    network = families[family]()
    write(network, exporter, path)
    if network.first is not None:
        step = onnx.load(path)
        write(network.first, exporter, path)
        onnx.save(merged(step, onnx.load(path)), path)
    return network


def write(network: Network, exporter: str, path: Path) -> None:
    kind, opset = exporter.rstrip("0123456789"), int(exporter.lstrip("abcdefghijklmnopqrstuvwxyz"))
    settings: dict[str, Any] = {
        "input_names": list(network.inputs),
        "output_names": network.outputs,
        "opset_version": opset,
    }
    values = tuple(network.inputs.values())
    if kind == "dynamo":
        shapes: tuple[Any, ...] = tuple(
            dict.fromkeys(network.axes[name], torch.export.Dim.DYNAMIC) for name in network.inputs
        )
        variadic = [
            p for p in inspect.signature(network.module.forward).parameters.values() if p.kind is p.VAR_POSITIONAL
        ]
        if variadic:
            plain = len(inspect.signature(network.module.forward).parameters) - 1
            shapes = (*shapes[:plain], shapes[plain:])
        torch.onnx.export(
            network.module,
            values,
            str(path),
            dynamo=True,
            dynamic_shapes=shapes,
            external_data=False,
            verbose=False,
            **settings,
        )
    else:
        tf.masking_utils._vmap_for_bhqkv = without_vmap
        tf.masking_utils.TransformGetItemToIndex = nullcontext
        # no sequences are packed; it needs aten::diff
        tf.masking_utils.find_packed_sequence_indices = lambda positions: None
        torch.onnx.export(
            network.module,
            values,
            str(path),
            dynamo=False,
            dynamic_axes=network.axes,
            do_constant_folding=True,
            **settings,
        )
