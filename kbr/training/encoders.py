"""Encoders: networks from one observation (an image, or a vector) to a feature vector psi(x).

Every encoder takes `shape`, the shape of one observation, and `n_features`, keyword-only; its input
is [b, *shape], its output [b, n_features]. A shape it cannot take is an error at construction.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib import import_module
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from kbr.core.errors import KbrError
from kbr.core.inputs import check_shares, check_sizes
from kbr.core.io import checkpoint

Encoder = Callable[..., nn.Module]

HOMES = (__name__, "kbr.training.sensor_encoder")  # of kbr's own
DEPTH = 30.0  # heat maps are cut this far below their peak: e^-30 of its probability
TOGETHER = 50  # images whose maps are computed at once: they fit into a CPU's cache


class SoftArgmaxCNN(nn.Module):
    """A small CNN that answers with places: expected coordinates of heat maps, then a small head.

    Math: q_k = softmax over pixels of heat map k,  (u_k, v_k) = sum_ij q_k(i, j) (u_j, v_i),
          psi(x) = head(u_1, v_1, ..., u_K, v_K),  coordinates in [-1, 1].
    Ref:  Levine et al. 2016 (spatial soft-argmax). Xu et al. 2022 use the MLP below.

    Where something is in the image is what a tracking task asks for, and this form says it from few
    examples. `dropout` acts on the head's hidden layer; without it, features of a few hundred
    training frames are sharper than those of new frames, and the filter trusts them too much.
    """

    MINIMUM = 4

    def __init__(
        self,
        *,
        shape: Sequence[int],
        n_features: int = 32,
        channels: int = 16,
        n_maps: int = 16,
        hidden: int = 64,
        dropout: float = 0.5,
    ) -> None:
        super().__init__()
        c, _, _ = image_shape(shape, encoder="SoftArgmaxCNN", minimum=self.MINIMUM)
        check_sizes(n_features=n_features, channels=channels, n_maps=n_maps, hidden=hidden)
        check_shares(dropout=dropout)
        self.maps = nn.Sequential(
            nn.Conv2d(c, channels, 5, stride=2, padding=2),
            nn.ReLU(),
            nn.Conv2d(channels, channels, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(channels, n_maps, 3, padding=1),
        )
        self.head = nn.Sequential(
            nn.Linear(2 * n_maps, hidden),
            nn.ReLU(),
            nn.Dropout(dropout),
            nn.Linear(hidden, n_features),
        )

    def coordinates(self, x: Float[Tensor, "b c h w"]) -> Float[Tensor, "b k 2"]:
        """Where each heat map looks: (u, v), u to the right and v downwards."""
        if len(x) <= TOGETHER or x.device.type != "cpu":
            return expected_coordinates(self.maps(x))
        parts = torch.split(x, TOGETHER)
        return torch.cat([expected_coordinates(self.maps(some)) for some in parts])

    def heat_maps(self, x: Float[Tensor, "b c h w"]) -> Float[Tensor, "b k i j"]:
        """How much each heat map looks at each pixel; a map sums to one."""
        return heat(self.maps(x))

    def forward(self, x: Float[Tensor, "b c h w"]) -> Float[Tensor, "b d"]:
        psi: Tensor = self.head(self.coordinates(x).flatten(1))
        return psi


class MLP(nn.Module):
    """The paper's network: fully connected, spectral and batch normalisation, ReLU.

    Ref: Xu et al. 2022, section 5.3 (the authors' released networks): 1024-512-128-32 units.
    """

    def __init__(
        self,
        *,
        shape: Sequence[int],
        n_features: int = 32,
        hidden: Sequence[int] = (1024, 512, 128),
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        if not shape or min(shape) < 1:
            raise KbrError(
                f"MLP needs observations with at least one number; got shape {tuple(shape)}. Pass "
                "vectors as shape (dx,)."
            )
        check_sizes(n_features=n_features, **{f"hidden[{i}]": h for i, h in enumerate(hidden)})
        check_shares(dropout=dropout)
        width = torch.Size(shape).numel()
        layers: list[nn.Module] = [nn.Flatten()]
        for units in hidden:
            linear = nn.utils.parametrizations.spectral_norm(nn.Linear(width, units))
            layers += [linear, nn.ReLU(), nn.BatchNorm1d(units), nn.Dropout(dropout)]
            width = units
        layers.append(nn.utils.parametrizations.spectral_norm(nn.Linear(width, n_features)))
        self.layers = nn.Sequential(*layers)

    def forward(self, x: Float[Tensor, "b ..."]) -> Float[Tensor, "b d"]:
        psi: Tensor = self.layers(x)
        return psi


class ResNet(nn.Module):
    """torchvision's ResNet-18, trained from scratch; the stem takes any number of channels.

    Ref: He et al. 2016.
    """

    MINIMUM = 32  # the network halves the image five times

    def __init__(self, *, shape: Sequence[int], n_features: int = 32, dropout: float = 0.0) -> None:
        super().__init__()
        c, _, _ = image_shape(shape, encoder="ResNet", minimum=self.MINIMUM)
        check_sizes(n_features=n_features)
        check_shares(dropout=dropout)
        from torchvision.models import resnet18  # slow to import; made to work by kbr.training

        self.network = resnet18(weights=None)
        self.network.conv1 = nn.Conv2d(c, 64, 7, stride=2, padding=3, bias=False)
        self.network.fc = nn.Sequential(nn.Dropout(dropout), nn.Linear(512, n_features))

    def forward(self, x: Float[Tensor, "b c h w"]) -> Float[Tensor, "b d"]:
        psi: Tensor = self.network(x)
        return psi


def heat(maps: Float[Tensor, "b k h w"]) -> Float[Tensor, "b k h w"]:
    """Softmax over the pixels of every map."""
    flat = maps.flatten(-2)
    # Below this depth probabilities and their gradients are denormal, ten times slower on a CPU.
    floor = flat.detach().amax(-1, keepdim=True) - DEPTH
    return flat.maximum(floor).softmax(-1).reshape(maps.shape)


def expected_coordinates(maps: Float[Tensor, "b k h w"]) -> Float[Tensor, "b k 2"]:
    """The mean place (u, v) of softmax(maps), each coordinate in [-1, 1]."""
    height, width = maps.shape[-2:]
    q = heat(maps)
    u = torch.linspace(-1, 1, width, dtype=q.dtype, device=q.device)
    v = torch.linspace(-1, 1, height, dtype=q.dtype, device=q.device)
    return torch.stack([q.sum(-2) @ u, q.sum(-1) @ v], -1)


def image_shape(shape: Sequence[int], *, encoder: str, minimum: int) -> tuple[int, int, int]:
    """(channels, height, width), or an error that says what this encoder takes."""
    if len(shape) != 3 or min(shape) < 1:
        raise KbrError(
            f"{encoder} takes images of shape (channels, height, width); got {tuple(shape)}. "
            "Reshape the observations (grey images: x[:, None]), or use the MLP encoder "
            "(encoder=mlp), which takes vectors."
        )
    c, h, w = (int(size) for size in shape)
    if min(h, w) < minimum:
        raise KbrError(
            f"{encoder} takes images of at least {minimum} x {minimum} pixels; got {h} x {w} "
            f"(shape {tuple(shape)}, read as channels, height, width). Use larger images, or the "
            "MLP encoder (encoder=mlp)."
        )
    return c, h, w


def describe_encoder(encoder: Encoder) -> dict[str, Any]:
    """Its class and arguments in plain words, for a checkpoint."""
    function = encoder.func if isinstance(encoder, partial) else encoder
    arguments = encoder.keywords if isinstance(encoder, partial) else {}
    name = getattr(function, "__qualname__", type(function).__qualname__)
    said = {key: _described(value) for key, value in arguments.items()}
    return {"target": f"{function.__module__}.{name}", "arguments": said}


def _described(argument: Any) -> Any:
    """Encoders that others are made of too."""
    if callable(argument):
        return describe_encoder(argument)
    if isinstance(argument, Mapping):
        return {str(key): _described(item) for key, item in argument.items()}
    return checkpoint.plain(argument)


def known_encoder(described: dict[str, Any]) -> Encoder:
    """The encoder a checkpoint names, if it is kbr's own: a file does not choose what to run."""
    module, _, name = described["target"].rpartition(".")
    encoder = getattr(import_module(module), name, None) if module in HOMES else None
    if not (isinstance(encoder, type) and issubclass(encoder, nn.Module)):
        raise KbrError(
            f"the checkpoint's encoder {described['target']} is not one of kbr's own. Pass it: "
            "load(path, encoder=functools.partial(YourEncoder, ...))."
        )
    return partial(encoder, **{k: _known(item) for k, item in described["arguments"].items()})


def _known(argument: Any) -> Any:
    if not isinstance(argument, Mapping):
        return argument
    if set(argument) == {"target", "arguments"}:
        return known_encoder(dict(argument))
    return {key: _known(item) for key, item in argument.items()}
