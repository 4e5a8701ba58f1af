"""Importing this module makes `import torchvision` work, whatever torch it was built for.

torchvision's wheels from PyPI are built for the CUDA build of torch: on a CPU-only torch their
compiled operators do not load, and `import torchvision` fails while it registers shape rules for
operators that do not exist. Lightning and torchmetrics import torchvision where it is installed,
so they fail too. Declaring the two operators is all that is missing: models, transforms and image
grids are plain Python. Calling the operators themselves still raises an error.

Nothing is done where torchvision imports by itself. Import this module before lightning.
"""

import importlib
import sys

import torch

_SCHEMA = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
_declared: list[torch.library.Library] = []  # a library that is collected takes its operators along


def _import_torchvision() -> None:
    try:
        importlib.import_module("torchvision")
    except ModuleNotFoundError:
        return  # not installed: only the ResNet encoder and image grids need it
    except RuntimeError as error:
        if "torchvision::" not in str(error):
            raise
        # A failed import leaves submodules behind that would hide the second attempt.
        for name in [name for name in sys.modules if name.split(".")[0] == "torchvision"]:
            del sys.modules[name]
        library = torch.library.Library("torchvision", "FRAGMENT")  # type: ignore[no-untyped-call]
        for name in ("nms", "qnms"):
            library.define(name + _SCHEMA)  # type: ignore[no-untyped-call]
        _declared.append(library)
        importlib.import_module("torchvision")


_import_torchvision()
