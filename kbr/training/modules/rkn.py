"""The recurrent Kalman network: an elementwise Kalman filter in a learned latent space."""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import pad, softplus

from kbr.training.modules.belief import LEAST, BeliefCell, BeliefModule, BeliefReadout, Beliefs
from kbr.training.precision import WIDEST, Outputs, Whitening

WIDE = 10.0  # variances before the first frame
TURN = 0.2  # of the upper and lower part into each other, at first
NOISE = 0.1  # variance that a step adds, at first

Halves = Float[Tensor, "*s 2 m"]
Blocks = Float[Tensor, "*s 2 2 m"]


class RKNModule(BeliefModule):
    """Predicts z_t by a Kalman filter on `hidden` = 2m latent numbers, m of which a frame shows.

    Math: latent mean (u, l), covariance [[diag c_uu, diag c_ul], [diag c_ul, diag c_ll]]; w, r > 0:
          what a frame says of u, and its variance; all products and quotients elementwise:
          update   q = (c_uu, c_ul) / (c_uu + r),  (u, l) += q (w - u),  c_ij -= q_i c_uj;
          predict  (u, l) -> A_t (u, l) + B u_t,  A_t = sum_k softmax_k(alpha(u, l)) A_k, in blocks
                   A_uu, A_ul, A_lu, A_ll with `band` diagonals on each side of the main one;
                   c_ij -> sum_ab (A_ia * A_jb) c_ab + q_ij: the diagonals of the blocks of A C A'.
          A network decodes z's mean from (u, l), another its variances from (c_uu, c_ul, c_ll).
    Ref:  Becker et al. 2019, sections 4.1 to 4.3.
    """

    def __init__(self, *, basis: int = 8, band: int = 3, **shared: Any) -> None:
        self.basis, self.band = basis, band  # before the network is built
        super().__init__(**shared)

    def build(self, n_inputs: int, hidden: int) -> nn.Module:
        m = hidden // 2
        return RKNCell(self.n_features, self.controls, m, self.basis, min(self.band, m - 1))

    def build_readout(self, hidden: int, dz: int) -> nn.Module:
        return RKNReadout(hidden // 2, dz, has_variances=self.loss == "likelihood")

    def n_outputs(self, hidden: int) -> int:
        return 5 * (hidden // 2)


class RKNCell(BeliefCell):
    def __init__(self, n_features: int, controls: int, m: int, basis: int, band: int) -> None:
        super().__init__()
        self.value, self.variance = nn.Linear(n_features, m), nn.Linear(n_features, m)
        self.choice = nn.Linear(2 * m, basis)  # alpha
        self.push = nn.Linear(controls, 2 * m, bias=False) if controls else None
        bands = 0.05 * torch.randn(basis, 2, 2, m, 2 * band + 1, device="cpu")
        bands[..., band] += torch.tensor([[1.0, TURN], [-TURN, 1.0]], device="cpu").unsqueeze(-1)
        self.bands = nn.Parameter(bands)  # A_k; the middle one is the main diagonal
        noise = torch.full((2, m), NOISE, device="cpu")
        self.noise = nn.Parameter(noise.expm1().log())  # softplus's inverse

    def observe(self, psi: Float[Tensor, "s t d"]) -> tuple[Tensor, Tensor]:
        return self.value(psi), positive(self.variance(psi))

    def start(self, psi: Float[Tensor, "s d"]) -> Beliefs:
        m = self.noise.shape[-1]
        wide = torch.tensor([0.0, 0.0, WIDE, 0.0, WIDE], device=psi.device)
        return wide.to(psi).repeat_interleave(m).expand(len(psi), -1)

    def dynamics(self) -> tuple[Tensor, ...]:
        """The bands of all matrices, and q_ij."""
        noise = torch.diag_embed(positive(self.noise).mT).movedim(0, -1)
        return self.bands.flatten(1), noise

    def predict(self, belief: Beliefs, u: Float[Tensor, "s du"], *dynamics: Tensor) -> Beliefs:
        bands, noise = dynamics
        mean, cov = unpacked(belief)
        weights = self.choice(mean.flatten(-2)).softmax(-1)
        matrix = (weights @ bands).reshape(-1, *self.bands.shape[1:])
        mean, cov = moved(matrix, mean, cov)
        if self.push is not None:
            mean = mean + self.push(u).reshape_as(mean)
        return packed(mean, cov + noise)

    def update(self, belief: Beliefs, value: Tensor, variance: Tensor, seen: Tensor) -> Beliefs:
        mean, cov = unpacked(belief)
        return packed(*corrected(mean, cov, value, variance, seen))


class RKNReadout(BeliefReadout):
    def __init__(self, m: int, dz: int, *, has_variances: bool) -> None:
        super().__init__()
        self.sizes = [2 * m, 3 * m]
        self.mean = nn.Sequential(nn.Linear(2 * m, 2 * m), nn.ELU(), nn.Linear(2 * m, dz))
        if has_variances:
            self.log_scale = nn.Sequential(nn.Linear(3 * m, 2 * m), nn.ELU(), nn.Linear(2 * m, dz))

    def forward(self, outputs: Outputs) -> Float[Tensor, "*t dz"]:
        mean: Tensor = self.mean(torch.split(outputs, self.sizes, -1)[0])
        return mean

    def whitening(self, outputs: Outputs) -> Whitening:
        log_scale = self.log_scale(torch.split(outputs, self.sizes, -1)[1])
        return torch.diag_embed((-log_scale.clamp(-WIDEST, WIDEST)).exp())


def corrected(
    mean: Halves,
    cov: Blocks,
    value: Float[Tensor, "*s m"],
    variance: Float[Tensor, "*s m"],
    seen: Float[Tensor, "*s 1"],
) -> tuple[Halves, Blocks]:
    """Math: q_i = c_iu / (c_uu + r),  mean_i += q_i (w - u),  c_ij -= q_i c_uj."""
    upper = cov[..., 0, :]  # c_iu
    gain = seen.unsqueeze(-1) * upper / (upper[..., :1, :] + variance.unsqueeze(-2))
    mean = mean + gain * (value.unsqueeze(-2) - mean[..., :1, :])
    return mean, cov - gain.unsqueeze(-2) * upper.unsqueeze(-3)


def moved(bands: Float[Tensor, "*s 2 2 m w"], mean: Halves, cov: Blocks) -> tuple[Halves, Blocks]:
    """Math: mean_i -> sum_a A_ia mean_a,  c_ij -> sum_ab (A_ia * A_jb) c_ab, * elementwise."""
    near_mean, near_cov = neighbours(mean, bands.shape[-1]), neighbours(cov, bands.shape[-1])
    half = (bands.unsqueeze(-3) * near_cov.unsqueeze(-5)).sum(-4)  # sum_a A_ia c_ab
    cov = (half.unsqueeze(-4) * bands.unsqueeze(-5)).sum((-3, -1))
    return (bands * near_mean.unsqueeze(-4)).sum((-3, -1)), cov


def neighbours(rows: Float[Tensor, "*s m"], width: int) -> Float[Tensor, "*s m w"]:
    """Of every entry those around it, which a row of a banded matrix weighs; zeros at the ends."""
    return pad(rows, (width // 2, width // 2)).unfold(-1, width, 1)


def positive(values: Tensor) -> Tensor:
    return softplus(values) + LEAST


def unpacked(belief: Float[Tensor, "*s b"]) -> tuple[Halves, Blocks]:
    u, l, c_uu, c_ul, c_ll = belief.chunk(5, -1)  # noqa: E741
    cov = torch.stack([c_uu, c_ul, c_ul, c_ll], -2)
    return torch.stack([u, l], -2), cov.reshape(*cov.shape[:-2], 2, 2, -1)


def packed(mean: Halves, cov: Blocks) -> Float[Tensor, "*s b"]:
    return torch.cat(
        [mean.flatten(-2), cov[..., 0, 0, :], cov[..., 0, 1, :], cov[..., 1, 1, :]], -1
    )
