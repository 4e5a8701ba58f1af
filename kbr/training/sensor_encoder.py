"""An encoder of its own for each sensor: frames through a CNN, columns beside them."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from kbr.core.errors import KbrError
from kbr.core.inputs import check_shares, check_sizes
from kbr.core.units.sensors import Sensors
from kbr.training.encoders import Encoder, SoftArgmaxCNN

DROPOUT = 0.5  # of the head, as in the CNN's

Part = Mapping[str, Any]  # the name of a sensor, its columns, and its shape, [] where it has none


class SensorEncoder(nn.Module):
    """What each sensor's encoder says, joined by a small network.

    Math: psi(x) = head(b_1 e_1(x_1), ..., b_g e_g(x_g), b),  b_k = 1 if sensor k is there, else 0.

    parts      the sensors: the filter fills them in, with the shape of its rows;
    frames     builds the encoder e_k of frames; numbers are taken as they are, e_k(x) = x;
    encoders   others, by the names of their sensors; each is given shape=(c, h, w) or (d,);
    dropout    of all parts; None: each its own, and in the head .5.

    Rows end in the flags b; what is absent is zero.
    """

    takes_parts = True

    def __init__(
        self,
        *,
        shape: Sequence[int],
        parts: Sequence[Part],
        n_features: int = 32,
        hidden: int = 64,
        dropout: float | None = None,
        frames: Encoder = SoftArgmaxCNN,
        encoders: Mapping[str, Encoder] | None = None,
    ) -> None:
        super().__init__()
        check_sizes(n_features=n_features, hidden=hidden)
        named, own = [str(part["name"]) for part in parts], dict(encoders or {})
        if unknown := [name for name in own if name not in named]:
            raise KbrError(
                f"encoders names {', '.join(map(repr, unknown))}, which is no sensor; there are "
                f"{', '.join(named)}. Correct encoders."
            )
        rate = {} if dropout is None else {"dropout": dropout}
        check_shares(**rate)
        self.shapes, self.each, width = [], nn.ModuleList(), len(parts)
        for k, (name, part) in enumerate(zip(named, parts, strict=True)):
            columns = torch.tensor(list(part["columns"]), device="cpu")
            self.register_buffer(f"columns_{k}", columns, persistent=False)
            size = tuple(part["shape"]) or (len(columns),)
            build = own.get(name, frames if part["shape"] else None)
            self.shapes.append(size)
            self.each.append(nn.Identity() if build is None else build(shape=size, **rate))
            width += _width_of(self.each[-1], size)
        self.head = nn.Sequential(
            nn.Linear(width, hidden),
            nn.ReLU(),
            nn.Dropout(DROPOUT if dropout is None else dropout),
            nn.Linear(hidden, n_features),
        )

    def forward(self, x: Float[Tensor, "b k"]) -> Float[Tensor, "b d"]:
        there = x[:, -len(self.shapes) :]
        said = [there]
        for k, (encoder, size) in enumerate(zip(self.each, self.shapes, strict=True)):
            seen = x.index_select(1, self.get_buffer(f"columns_{k}")).reshape(-1, *size)
            said.append(there[:, k : k + 1] * encoder(seen))
        psi: Tensor = self.head(torch.cat(said, 1))
        return psi


def routed(encoder: Encoder, sensors: Sensors | None) -> Encoder:
    """The encoder for rows of these sensors.

    One that takes their parts is told them; where some see frames, any other is that of the frames.
    """
    kind = encoder.func if isinstance(encoder, partial) else encoder
    takes_parts = getattr(kind, "takes_parts", False)
    if sensors is None:
        if takes_parts:
            raise KbrError(
                f"{getattr(kind, '__name__', kind)} is for x of several sensors. Name them "
                "(sensors=..., data.sensors), or take another encoder."
            )
        return encoder
    if not takes_parts:
        if not sensors.frames:
            return encoder
        encoder = partial(SensorEncoder, frames=encoder)
    shapes = sensors.shapes or ((),) * len(sensors.names)
    parts = [
        {"name": name, "columns": list(columns), "shape": list(shape)}
        for name, columns, shape in zip(sensors.names, sensors.columns, shapes, strict=True)
    ]
    return partial(encoder, parts=parts)


@torch.no_grad()
def _width_of(encoder: nn.Module, shape: tuple[int, ...]) -> int:
    """How many numbers it says."""
    training = encoder.training
    psi: Tensor = encoder.eval()(torch.zeros(1, *shape, device="cpu"))
    encoder.train(training)
    return psi.shape[-1]
