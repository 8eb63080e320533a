"""Every network of the zoo in a size that is quick to compile and still has all its parts."""

from typing import Any

SMALL: dict[str, dict[str, Any]] = {
    "bert_base": {"batch": 2, "tokens": 7, "layers": 2, "width": 16, "heads": 4, "words": 50},
    "clip_vit_b32": {
        "batch": 2,
        "image": 32,
        "patch": 8,
        "layers": 2,
        "width": 24,
        "heads": 3,
        "hidden": 56,
        "shared": 12,
    },
    "convnext_tiny": {"image": 64, "layers": (1, 1, 2, 1), "width": 8, "classes": 10},
    "dcgan": {"batch": 2, "noise": 10, "width": 8},
    "ddpm_unet": {"image": 16, "width": 8, "multiples": (1, 2), "layers": 1, "attention": 8},
    "efficientnet_b0": {"image": 64, "width": 0.25, "classes": 10},
    "gpt2_block": {"batch": 2, "tokens": 3, "past": 5, "width": 16, "heads": 4, "hidden": 40},
    "hifi_gan": {"batch": 2, "frames": 5, "width": 16, "rates": (4, 2)},
    "minilm_l6": {"batch": 2, "tokens": 7, "layers": 2, "width": 16, "heads": 4, "words": 50},
    "mlp": {"batch": 3},
    "mobilenet_v2": {"image": 64, "width": 0.25, "classes": 10},
    "r3d_18": {"frames": 4, "image": 32, "width": 8, "classes": 10},
    "resnet18": {"image": 64, "width": 16, "classes": 10, "batch": 2},
    "resnet50": {"image": 64, "width": 8, "classes": 10},
    "sam2_tiny_encoder": {
        "image": 64,
        "layers": (1, 1, 2, 1),
        "width": 8,
        "windows": (4, 2, 6, 3),
        "whole": (3,),
        "features": 12,
    },
    "segformer_b0": {"image": 64, "layers": 1, "decoder": 16, "classes": 10},
    "smollm2_135m": {
        "batch": 2,
        "tokens": 5,
        "layers": 2,
        "width": 24,
        "heads": 6,
        "key_heads": 2,
        "hidden": 40,
        "words": 50,
    },
    "smollm2_135m_step": {
        "batch": 2,
        "past": 5,
        "layers": 2,
        "width": 24,
        "heads": 6,
        "key_heads": 2,
        "hidden": 40,
        "words": 50,
    },
    "swin_tiny": {"image": 64, "window": 2, "layers": (2, 1, 2, 1), "width": 12, "classes": 10},
    "unet": {"image": 32, "width": 4},
    "vit_small": {"batch": 2, "image": 32, "patch": 8, "layers": 2, "width": 24, "heads": 3, "hidden": 56},
    "whisper_tiny_encoder": {"batch": 2, "frames": 22, "layers": 2, "width": 16, "heads": 4, "hidden": 40},
    "whisper_tiny_step": {
        "batch": 2,
        "past": 5,
        "heard": 9,
        "layers": 2,
        "width": 16,
        "heads": 4,
        "hidden": 40,
        "words": 50,
        "positions": 9,
    },
    "yolov8n": {"image": 64, "width": 4, "classes": 5},
}

PROGRAMS: dict[str, dict[str, Any]] = {
    "gpt2_greedy": {"width": 16, "heads": 4, "hidden": 40, "words": 50, "positions": 24},
}
"""As above, those with loops and shapes that are known when they run."""
