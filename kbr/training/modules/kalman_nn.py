"""The encoder's answer into a Kalman filter whose linear dynamics are learned through it."""

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import softplus

from kbr.core.linalg import ridge_cholesky
from kbr.training.modules.belief import LEAST, BeliefCell, BeliefModule, BeliefReadout, Beliefs
from kbr.training.precision import Outputs, Whitening

TURN = 0.2  # of a latent coordinate into its rate, at first
NOISE = 0.3  # standard deviation of a step, at first

Mean = Float[Tensor, "*s k"]
Cov = Float[Tensor, "*s k k"]


class KalmanNNModule(BeliefModule):
    """Predicts z_t by the Kalman filter of a linear Gaussian model with `hidden` = k latents.

    Math: s_t = A s_t-1 + B u_t + a + N(0, Q),  z_t = C s_t,  w(x_t) = z_t + N(0, diag r(x_t));
          C = [I 0]: any model whose C has full rank is one of these in other coordinates.
          s_1 ~ N(0, I): z is scaled to mean zero and variance one.
          w, r: linear functions of the features, r through softplus; A, B, a, Q: weights.
    Ref:  Haarnoja et al. 2016 (a Kalman filter trained through its steps).
    """

    def build(self, n_inputs: int, hidden: int) -> nn.Module:
        return KalmanCell(self.n_features, self.controls, hidden, self.hparams["dz"])

    def build_readout(self, hidden: int, dz: int) -> nn.Module:
        return KalmanReadout(hidden, dz)

    def n_outputs(self, hidden: int) -> int:
        return hidden + hidden**2


class KalmanCell(BeliefCell):
    def __init__(self, n_features: int, controls: int, k: int, dz: int) -> None:
        super().__init__()
        self.k = k
        self.value, self.variance = nn.Linear(n_features, dz), nn.Linear(n_features, dz)
        turn = TURN * torch.eye(k, device="cpu").roll(dz, 1).triu()  # coordinate i from i + dz
        self.matrix = nn.Parameter(torch.eye(k, device="cpu") + turn - turn.mT)  # A
        self.shift = nn.Parameter(torch.zeros(k, device="cpu"))  # a
        self.push = nn.Linear(controls, k, bias=False) if controls else None  # B
        self.noise = nn.Parameter(NOISE * torch.eye(k, device="cpu"))  # a root of Q

    def observe(self, psi: Float[Tensor, "s t d"]) -> tuple[Tensor, Tensor]:
        return self.value(psi), softplus(self.variance(psi)) + LEAST

    def start(self, psi: Float[Tensor, "s d"]) -> Beliefs:
        one = torch.eye(self.k, dtype=psi.dtype, device=psi.device).flatten()
        return torch.cat([one.new_zeros(self.k), one]).expand(len(psi), -1)

    def predict(self, belief: Beliefs, u: Float[Tensor, "s du"]) -> Beliefs:
        """Math: m -> A m + B u + a,  P -> A P A' + Q."""
        mean, cov = unpacked(belief, self.k)
        mean = mean @ self.matrix.mT + self.shift
        if self.push is not None:
            mean = mean + self.push(u)
        noise = self.noise @ self.noise.mT + LEAST * torch.eye(self.k, device=cov.device).to(cov)
        return packed(mean, self.matrix @ cov @ self.matrix.mT + noise)

    def update(self, belief: Beliefs, value: Tensor, variance: Tensor, seen: Tensor) -> Beliefs:
        """One coordinate of w after the other, as their errors are independent: no system to solve.

        Math: g = P e_j / (P_jj + r_j),  m += g (w_j - m_j),  P -= g (P e_j)'.
        """
        mean, cov = unpacked(belief, self.k)
        for j in range(value.shape[-1]):
            column = cov[..., j]
            gain = seen * column / (column[..., j] + variance[..., j]).unsqueeze(-1)
            mean = mean + gain * (value[..., j] - mean[..., j]).unsqueeze(-1)
            cov = cov - gain.unsqueeze(-1) * column.unsqueeze(-2)
        return packed(mean, cov)


class KalmanReadout(BeliefReadout):
    """Math: z ~ N(C m, C P C')."""

    def __init__(self, k: int, dz: int) -> None:
        super().__init__()
        self.k, self.dz = k, dz

    def forward(self, beliefs: Outputs) -> Float[Tensor, "*t dz"]:
        return beliefs[..., : self.dz]

    def whitening(self, beliefs: Outputs) -> Whitening:
        cov = unpacked(beliefs, self.k)[1][..., : self.dz, : self.dz]
        root = ridge_cholesky(cov, ridge=LEAST**2, name="the least variance")
        one = torch.eye(self.dz, dtype=root.dtype, device=root.device)
        whitening: Tensor = torch.linalg.solve_triangular(root, one.expand_as(root), upper=False)
        return whitening.to(beliefs)


def unpacked(belief: Float[Tensor, "*s b"], k: int) -> tuple[Mean, Cov]:
    return belief[..., :k], belief[..., k:].unflatten(-1, (k, k))


def packed(mean: Mean, cov: Cov) -> Float[Tensor, "*s b"]:
    return torch.cat([mean, cov.flatten(-2)], -1)
