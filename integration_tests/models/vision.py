"""Unmodified timm and torchvision models, with random weights."""

from __future__ import annotations

import inspect
from dataclasses import dataclass, field
from typing import Any

import torch

_libraries: list[torch.library.Library] = []


def import_torchvision() -> Any:
    """torchvision; under a CPU torch its wheel lacks the C++ operators, whose schemas the import
    needs.
    """
    if torch.version.cuda is None and not _libraries:
        library = torch.library.Library("torchvision", "FRAGMENT")
        library.define("nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        library.define("qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        _libraries.append(library)
    import torchvision

    return torchvision


@dataclass(frozen=True, slots=True)
class Vision:
    """A model of timm or torchvision by name."""

    library: str
    architecture: str
    size: int = 64
    settings: dict[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """Library and architecture."""
        return f"{self.library}-{self.architecture}"

    def build(self) -> torch.nn.Module:
        """The model with random weights; the same after the same ``torch.manual_seed``."""
        torchvision = import_torchvision()
        if self.library == "torchvision":
            return torchvision.models.get_model(
                self.architecture, weights=None, num_classes=10, **self.settings
            )
        import timm

        return timm.create_model(self.architecture, num_classes=10, **self.settings)

    def example(self, model: torch.nn.Module, batch: int, length: int) -> dict[str, torch.Tensor]:
        """Keyword arguments of a call."""
        name = next(iter(inspect.signature(model.forward).parameters))
        return {name: torch.randn(batch, 3, self.size, self.size)}


def timm_(name: str, size: int = 64, **settings: Any) -> Vision:
    return Vision("timm", name, size, settings)


def torchvision_(name: str, size: int = 64, **settings: Any) -> Vision:
    return Vision("torchvision", name, size, settings)


NAMED = [
    timm_("resnet50"),
    timm_("convnext_tiny"),
    timm_("efficientnet_b0"),
    timm_("vit_base_patch16_224", img_size=64, depth=3),
    timm_("swin_tiny_patch4_window7_224", img_size=64, window_size=4),
    timm_("mixer_b16_224", img_size=64),
    timm_("regnety_032"),
    timm_("densenet121"),
    torchvision_("resnet18"),
    torchvision_("vgg16"),
    torchvision_("shufflenet_v2_x1_0"),
    torchvision_("squeezenet1_1"),
]

EXTRA = [
    timm_("deit_tiny_patch16_224", img_size=64),
    timm_("deit3_small_patch16_224", img_size=64, depth=2),
    timm_("beit_base_patch16_224", img_size=64, depth=2),
    timm_("cait_xxs24_224", img_size=64, depth=2),
    timm_("maxvit_tiny_rw_224", img_size=64),
    timm_("mobilenetv3_large_100"),
    timm_("mobilevit_s"),
    timm_("coat_tiny", img_size=64),
    timm_("coatnet_0_rw_224", img_size=64),
    timm_("convit_tiny", img_size=64),
    timm_("convmixer_768_32"),
    timm_("crossvit_tiny_240", 240),
    timm_("cspdarknet53"),
    timm_("dla34"),
    timm_("dpn68"),
    timm_("eca_botnext26ts_256", 256),
    timm_("edgenext_small"),
    timm_("efficientformer_l1", 224),
    timm_("eva02_tiny_patch14_224", 56, img_size=56),
    timm_("gcvit_xxtiny", img_size=64, window_size=(2, 2, 2, 2)),
    timm_("ghostnet_100"),
    timm_("gmlp_s16_224", img_size=64),
    timm_("hrnet_w18_small"),
    timm_("inception_v3", 128),
    timm_("levit_128s", 224),
    timm_("lcnet_050"),
    timm_("nfnet_l0"),
    timm_("pit_ti_224", 224),
    timm_("poolformer_s12"),
    timm_("pvt_v2_b0"),
    timm_("regnetx_002"),
    timm_("repvgg_a0"),
    timm_("res2net50_26w_4s"),
    timm_("resmlp_12_224", img_size=64),
    timm_("resnest14d"),
    timm_("rexnet_100"),
    timm_("selecsls42"),
    timm_("sequencer2d_s"),
    timm_("skresnet18"),
    timm_("swinv2_tiny_window8_256", img_size=64, window_size=4),
    timm_("tf_efficientnet_b0"),
    timm_("tinynet_a"),
    timm_("tnt_s_patch16_224", 224),
    timm_("tresnet_m"),
    timm_("twins_svt_small", 224),
    timm_("visformer_tiny", 224),
    timm_("volo_d1_224", 224),
    timm_("vovnet39a"),
    timm_("xcit_nano_12_p16_224"),
    torchvision_("alexnet", 128),
    torchvision_("mobilenet_v2"),
    torchvision_("mobilenet_v3_small"),
    torchvision_("efficientnet_b0"),
    torchvision_("efficientnet_v2_s"),
    torchvision_("googlenet", aux_logits=True, init_weights=False),
    torchvision_("inception_v3", 299, aux_logits=True, init_weights=False),
    torchvision_("convnext_tiny"),
    torchvision_("densenet121"),
    torchvision_("maxvit_t", 224),
    torchvision_("mnasnet0_5"),
    torchvision_("regnet_y_400mf"),
    torchvision_("resnext50_32x4d"),
    torchvision_("swin_t"),
    torchvision_("swin_v2_t"),
    torchvision_("vit_b_32", image_size=64),
    torchvision_("wide_resnet50_2"),
    torchvision_("fcn_resnet50", weights_backbone=None),
    torchvision_("deeplabv3_mobilenet_v3_large", weights_backbone=None),
    torchvision_("lraspp_mobilenet_v3_large", weights_backbone=None),
]
