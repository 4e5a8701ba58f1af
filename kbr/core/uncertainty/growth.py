"""Errors grow in new places: with the distance of the mean from all training latents.

A filter knows nothing of places that training has not seen. Held-out blocks hold some such steps,
and a belief tells by its mean how new its place is, so error bars can tell the two apart.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from kbr.core.linalg import or_one
from kbr.core.uncertainty.regions import widened

PLACES = 1000  # training latents that distances are taken from, evenly spaced
AT_ONCE = 4096  # means whose distances are computed together
STEPS = range(-4, 13)  # doublings that are tried: the latents' spread over 2^(k/2)


@dataclass(frozen=True, eq=False)
class Growth:
    """Variances of errors grow with the distance d from the nearest of the places.

    Math: g(d) = 1 + (d / l)^2,  l the distance at which it has doubled; infinite: it does not grow.
    """

    places: Float[Tensor, "*b p d"]  # training latents, in inner coordinates
    doubling: Float[Tensor, "*b h"]

    def factor(self, inner: Float[Tensor, "*s d"], doubling: Float[Tensor, "*s"]) -> Tensor:
        """At means [*b *s d] in inner coordinates, whose horizons have these doublings."""
        batch = self.places.shape[:-2]
        away = distances(inner.reshape(*batch, -1, inner.shape[-1]), self.places)
        return growth_of(away.reshape(inner.shape[:-1]), doubling)

    def changed(self, change: Callable[[Tensor], Tensor]) -> "Growth":
        """With something done to both tensors."""
        return Growth(change(self.places), change(self.doubling))


def growth_of(away: Tensor, doubling: Tensor) -> Tensor:
    """Math: 1 + (d / l)^2."""
    return 1 + (away / doubling).square()


def places_of(z: Float[Tensor, "*b n d"]) -> Float[Tensor, "*b p d"]:
    """Evenly spaced rows."""
    n = z.shape[-2]
    rows = torch.arange(min(n, PLACES), device=z.device) * n // min(n, PLACES)
    return z.index_select(-2, rows).to(torch.float64)


def distances(
    inner: Float[Tensor, "*b t d"], places: Float[Tensor, "*b p d"]
) -> Float[Tensor, "*b t"]:
    """From the nearest place."""
    exact = "donot_use_mm_for_euclid_dist"
    parts = torch.split(inner[..., : places.shape[-1]].to(places), AT_ONCE, -2)
    return torch.cat([torch.cdist(some, places, compute_mode=exact).amin(-1) for some in parts], -1)


def doublings(places: Float[Tensor, "*b p d"]) -> Float[Tensor, "k *b"]:
    """Those that are tried: none, and shares of the spread of the places."""
    spread = or_one(places.var(-2, unbiased=False).sum(-1).sqrt())
    return torch.stack([torch.inf * spread, *(spread / 2 ** (k / 2) for k in STEPS)])


def likeliest(
    error: Float[Tensor, "*b t dz"], away: Float[Tensor, "*b t"], trials: Float[Tensor, "k *b"]
) -> Float[Tensor, "*b"]:
    """The doubling under which Gaussian errors of covariance g V are likeliest, V at its best.

    Math: max over l of -log det V_l - dz mean_t log g_t,  V_l the mean of e_t e_t' / g_t.
    """
    grown = growth_of(away, trials.unsqueeze(-1))
    even = error / grown.sqrt().unsqueeze(-1)
    volume = torch.linalg.slogdet(widened(even.mT @ even / even.shape[-2])).logabsdet
    likelihood = -(volume + error.shape[-1] * grown.log().mean(-1))
    best = likelihood.nan_to_num(nan=-torch.inf).argmax(0, keepdim=True)
    return trials.gather(0, best).squeeze(0)
