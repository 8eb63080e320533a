"""Every network of the zoo in a size that is quick to compile and still has all its parts."""

from typing import Any

SMALL: dict[str, dict[str, Any]] = {
    "bert_base": {"batch": 2, "tokens": 7, "layers": 2, "width": 16, "heads": 4, "hidden": 40, "words": 50},
    "convnext_tiny": {"image": 64, "layers": (1, 1, 2, 1), "width": 8, "classes": 10},
    "dcgan": {"batch": 2, "noise": 10, "width": 8},
    "efficientnet_b0": {"image": 64, "width": 0.25, "classes": 10},
    "gpt2_block": {"batch": 2, "tokens": 3, "past": 5, "width": 16, "heads": 4, "hidden": 40},
    "mlp": {"batch": 3},
    "mobilenet_v2": {"image": 64, "width": 0.25, "classes": 10},
    "r3d_18": {"frames": 4, "image": 32, "width": 8, "classes": 10},
    "resnet18": {"image": 64, "width": 16, "classes": 10, "batch": 2},
    "resnet50": {"image": 64, "width": 8, "classes": 10},
    "segformer_b0": {"image": 64, "layers": 1, "decoder": 16, "classes": 10},
    "unet": {"image": 32, "width": 4},
    "vit_small": {"batch": 2, "image": 32, "patch": 8, "layers": 2, "width": 24, "heads": 3, "hidden": 56},
}

PROGRAMS: dict[str, dict[str, Any]] = {
    "gpt2_greedy": {"width": 16, "heads": 4, "hidden": 40, "words": 50, "positions": 24},
}
"""As above, those with loops and shapes that are known when they run."""
