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
STABLE = 0.999  # most of A's spectral norm

Mean = Float[Tensor, "*s k"]
Cov = Float[Tensor, "*s k k"]


class KalmanNNModule(BeliefModule):
    """Predicts z_t by the Kalman filter of a linear Gaussian model with `hidden` = k latents.

    Math: s_t = A s_t-1 + B u_t + a + N(0, Q),  z_t = C s_t,  w(x_t) = z_t + N(0, diag r(x_t));
          s_1 ~ N(0, I). w, r: linear functions of the features, r through softplus; the others
          weights, A divided by its spectral norm where that is above .999: any stable model is one
          of these in other coordinates, and variances stay bounded however long frames are missing.
    Ref:  Haarnoja et al. 2016 (a Kalman filter trained through its steps).

    The filter is in float64, also in training. Outputs are the moments of z.
    """

    def build(self, n_inputs: int, hidden: int) -> nn.Module:
        return KalmanCell(self.n_features, self.controls, hidden, self.hparams["dz"])

    def build_readout(self, hidden: int, dz: int) -> nn.Module:
        return KalmanReadout(dz)

    def n_outputs(self, hidden: int) -> int:
        dz: int = self.hparams["dz"]
        return dz + dz**2


class KalmanCell(BeliefCell):
    def __init__(self, n_features: int, controls: int, k: int, dz: int) -> None:
        super().__init__()
        self.value, self.variance = nn.Linear(n_features, dz), nn.Linear(n_features, dz)
        one = torch.eye(k, device="cpu")
        turn = TURN * one.roll(dz, 1).triu()  # coordinate i from i + dz
        self.matrix = nn.Parameter(one + turn - turn.mT)  # A
        self.shift = nn.Parameter(torch.zeros(k, device="cpu"))  # a
        self.push = nn.Linear(controls, k, bias=False) if controls else None  # B
        self.noise = nn.Parameter(NOISE * one)  # a root of Q
        self.show = nn.Parameter(one[:dz].clone())  # C

    def observe(self, psi: Float[Tensor, "s t d"]) -> tuple[Tensor, Tensor]:
        return self.value(psi).double(), softplus(self.variance(psi)).double() + LEAST

    def start(self, psi: Float[Tensor, "s d"]) -> Beliefs:
        one = torch.eye(len(self.shift), dtype=torch.float64, device=psi.device)
        return packed(one.new_zeros(len(one)), one).expand(len(psi), -1)

    def dynamics(self) -> tuple[Tensor, ...]:
        """A and Q."""
        matrix, root = self.matrix.double(), self.noise.double()
        norm: Tensor = torch.linalg.matrix_norm(matrix, ord=2)
        least = LEAST * torch.eye(len(root), dtype=root.dtype, device=root.device)
        return matrix * (STABLE / norm).clamp(max=1.0), root @ root.mT + least

    def predict(self, belief: Beliefs, u: Float[Tensor, "s du"], *dynamics: Tensor) -> Beliefs:
        """Math: m -> A m + B u + a,  P -> A P A' + Q."""
        matrix, noise = dynamics
        mean, cov = unpacked(belief, len(matrix))
        mean = mean @ matrix.mT + self.shift
        if self.push is not None:
            mean = mean + self.push(u)
        return packed(mean, matrix @ cov @ matrix.mT + noise)

    def update(self, belief: Beliefs, value: Tensor, variance: Tensor, seen: Tensor) -> Beliefs:
        """One coordinate of w after the other, as their errors are independent: no system to solve.

        Math: g = P c_j / (c_j' P c_j + r_j),  m += g (w_j - c_j' m),  P -= g (P c_j)'.
        """
        mean, cov = unpacked(belief, len(self.shift))
        for j, row in enumerate(self.show.double()):
            column = cov @ row
            gain = seen * column / (column @ row + variance[..., j]).unsqueeze(-1)
            mean = mean + gain * (value[..., j] - mean @ row).unsqueeze(-1)
            cov = cov - gain.unsqueeze(-1) * column.unsqueeze(-2)
        return packed(mean, cov)

    def shown(self, beliefs: Outputs) -> Outputs:
        """Math: C m and C P C'."""
        mean, cov = unpacked(beliefs, len(self.shift))
        show = self.show.double()
        return packed(mean @ show.mT, show @ cov @ show.mT)


class KalmanReadout(BeliefReadout):
    """The moments of z as they are."""

    def __init__(self, dz: int) -> None:
        super().__init__()
        self.dz = dz

    def forward(self, outputs: Outputs) -> Float[Tensor, "*t dz"]:
        return unpacked(outputs, self.dz)[0]

    def whitening(self, outputs: Outputs) -> Whitening:
        root = ridge_cholesky(unpacked(outputs, self.dz)[1], ridge=LEAST**2, name="variance")
        one = torch.eye(self.dz, dtype=root.dtype, device=root.device)
        whitening: Tensor = torch.linalg.solve_triangular(root, one.expand_as(root), upper=False)
        return whitening


def unpacked(belief: Float[Tensor, "*s b"], k: int) -> tuple[Mean, Cov]:
    return belief[..., :k], belief[..., k:].reshape(*belief.shape[:-1], k, k)


def packed(mean: Mean, cov: Cov) -> Float[Tensor, "*s b"]:
    return torch.cat([mean, cov.flatten(-2)], -1)
