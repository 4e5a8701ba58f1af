"""More than one row at a time: the last observations as one, and latents with their rates.

What one row does not tell, several may: a sensor that sees changes only, or sensors that take
turns. And a latent that is a position alone has no law of motion; with its velocity it has one.
"""

from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate, pairwise

import torch
from jaxtyping import Float
from torch import Tensor

from kbr.core.errors import KbrError
from kbr.core.filters.sequences import split
from kbr.core.filters.training_data import TrainingData
from kbr.core.linalg import or_one
from kbr.core.units.scaling import Scaling

STEADY = 1e-8  # of the spread of a column: rates that differ by less do so by rounding
Pace = tuple[Tensor, Tensor]  # the mean of differences, and what makes them rates
PAYS, STEPS = 0.1, 200  # share of the error on so many steps that a longer history must take away


def windows(x: Tensor, history: int, axes: int = 1) -> Tensor:
    """The last observations at every step of a sequence x [*s T *o], *o being so many axes.

    They are stacked along the first axis of *o, the newest first. Where one is not there, as it is
    missing or would lie before the start, the next newer one stands in its place; that of a missing
    newest one is missing.

    Math: y_t = (x_t, x_t-1, ..., x_t-k+1), k the `history`.
    """
    time = x.ndim - axes - 1
    slots, nothing = [x], torch.full_like(x.narrow(time, 0, 1), torch.nan)
    for _ in range(1, history):
        x = torch.cat([nothing, x.narrow(time, 0, x.shape[time] - 1)], time)  # a row older
        there = x.flatten(time + 1).isfinite().all(-1)
        slots.append(torch.where(there.reshape(*there.shape, *(1,) * axes), x, slots[-1]))
    return torch.cat(slots, -axes) if history > 1 else x


def after_one(
    recent: Tensor | None, x: Tensor, history: int, axes: int = 1
) -> tuple[Tensor | None, Tensor]:
    """The window [*b *o] of one more observation x of a stream, and the `recent` rows after it.

    Those are the last k - 1, the newest last; None before any. A NaN stands for a row that is not
    there.
    """
    if history == 1:
        return None, x
    time = x.ndim - axes
    row = x.unsqueeze(time)
    if recent is None:
        recent = torch.full_like(row, torch.nan).repeat_interleave(history - 1, time)
    rows = torch.cat([recent, row], time)
    return rows.narrow(time, 1, history - 1), windows(rows, history, axes).select(time, -1)


def rates(
    z: Float[Tensor, "*b n k"], lengths: Sequence[int], scaling: Scaling
) -> Float[Tensor, "*b n d"]:
    """Differences of inner latents from row to row, each with the spread of its own column."""
    step = differences(z, lengths, scaling)
    middle, factor = pace_of(step, z, scaling)
    return (step - middle) * factor


def pace_of(step: Float[Tensor, "*b n d"], z: Float[Tensor, "*b n k"], scaling: Scaling) -> Pace:
    """What is taken from differences, and what they are multiplied by: rates of these rows."""
    spreads, at = [], 0
    for mark in _marks(z, scaling):
        inner = z[..., at : at + 1 + mark]
        spreads.append(inner.var(-2, correction=0, keepdim=True).mean(-1, keepdim=True).sqrt())
        at += 1 + mark
    spread, middle = torch.cat(spreads, -1), step.mean(-2, keepdim=True)
    own = (step - middle).square().mean(-2, keepdim=True).sqrt()
    return middle, torch.where(own > STEADY * spread, spread / or_one(own), 0.0)


def _marks(z: Float[Tensor, "*b n k"], scaling: Scaling) -> tuple[bool, ...]:
    """Which columns are angles, and take two."""
    return scaling.circular or (False,) * z.shape[-1]


def differences(
    z: Float[Tensor, "*b n k"], lengths: Sequence[int], scaling: Scaling
) -> Float[Tensor, "*b n d"]:
    """Of inner latents from row to row; that of an angle is the turn, the shorter way round.

    The first row of a sequence has the difference to its second; one that is alone has zero.

    Math: dz_t = z_t - z_t-1;  of an angle (c, s), from (a, b) before: atan2(a s - b c, a c + b s).
    """
    now, before = (torch.arange(start, start + z.shape[-2], device=z.device) for start in (0, -1))
    for start, stop in pairwise(accumulate(lengths, initial=0)):
        now[start], before[start] = min(start + 1, stop - 1), start
    steps, at = [], 0
    for mark in _marks(z, scaling):
        inner = z[..., at : at + 1 + mark]
        rows = scaling.linear(z)[..., at : at + 1 + mark] if mark else inner
        old, new = rows.index_select(-2, before), rows.index_select(-2, now)
        step = new - old
        if mark:
            cross = old[..., :1] * new[..., 1:] - old[..., 1:] * new[..., :1]
            step = torch.atan2(cross, (old * new).sum(-1, keepdim=True))
        steps.append(step)
        at += 1 + mark
    return torch.cat(steps, -1)


def lifted(data: TrainingData, history: int, velocity: bool) -> TrainingData:
    """Training data whose observations hold `history` rows and whose latents their rates too.

    Answers leave out the columns of the rates: see `Scaling.undo`.
    """
    if history > 1:
        if data.sensors is not None:
            raise KbrError(
                "history stacks whole rows, and sensors may be absent from one. Leave out history, "
                "or put earlier rows into x as sensors of their own."
            )
        if not data.shape:
            raise KbrError("history stacks rows x [T, dx]; got numbers x [T]. Pass x[:, None].")
        observed, *moves = split(data.x, data.controls)
        parts = torch.split(observed, data.lengths, -2)
        x = torch.cat([windows(part, history) for part in parts], -2)
        x = torch.cat([x, *(part for part in moves if part is not None)], -1)
        shape = (history * data.shape[0], *data.shape[1:])
        data = replace(data, x=x, shape=shape, history=history)
    if velocity:
        units = replace(data.units, z=data.units.z.of_columns(data.z))
        z = torch.cat([data.z, rates(data.z, data.lengths, units.z)], -1)
        data = replace(data, z=z, units=units, rates=z.shape[-1] - data.z.shape[-1])
    return data


def best(
    options: Sequence[TrainingData], errors: Sequence[float], steps: int = STEPS
) -> TrainingData:
    """The option of the least error; one that comes later, and holds more, has to pay for it.

    Math: by a share PAYS (STEPS / steps)^.5 of the least error before: errors averaged over few
          held-out `steps` differ by chance.
    """
    least, chosen, pays = errors[0], options[0], PAYS * (STEPS / steps) ** 0.5
    for option, error in zip(options[1:], errors[1:], strict=True):
        if error < (1 - pays) * least:
            least, chosen = error, option
    return chosen
