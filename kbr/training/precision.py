"""How sure a network is at each step: a linear layer, fitted once the network is trained.

Its means are then fixed, and so cannot suffer: they are those of squared errors alone. Trained with
the network (`loss="likelihood"`), it weighs the errors instead.
"""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from kbr.core.uncertainty.regions import widened

Outputs = Float[Tensor, "*t h"]
Errors = Float[Tensor, "*t dz"]
Whitening = Float[Tensor, "*t dz dz"]

RIDGES = (1e-1, 1e-2, 1e-3)
ROWS = 5000  # training steps that are enough
ITERATIONS = 100
WIDEST = 7.0  # of the logarithm of a scale, up or down


class PrecisionLayer(nn.Linear):
    """From a network's outputs to the Cholesky factor of the precision of its errors.

    Math: P_t = lower(B h_t + b), its diagonal exponentiated; e_t ~ N(0, P_t^-1 V P_t^-T), V the
          same at every step. Zeros, as at first, are P_t = I.
    Ref:  Dorta et al. 2018 (structured uncertainty); Seitzer et al. 2022, on means that a joint
          likelihood spoils.
    """

    def __init__(self, n_outputs: int, dz: int) -> None:
        super().__init__(n_outputs, dz * (dz + 1) // 2)
        nn.init.zeros_(self.weight)
        nn.init.zeros_(self.bias)
        self.requires_grad_(False)  # no part of training, unless a network says so
        self.dz = dz

    def forward(self, outputs: Outputs) -> Whitening:
        values = super().forward(outputs)
        rows, columns = torch.tril_indices(self.dz, self.dz, device=values.device)
        lower = values.new_zeros(*values.shape[:-1], self.dz, self.dz)
        lower[..., rows, columns] = values
        scales = lower.diagonal(dim1=-2, dim2=-1).clamp(-WIDEST, WIDEST).exp()
        return lower.tril(-1) + torch.diag_embed(scales)

    def loss(self, outputs: Outputs, errors: Errors) -> Tensor:
        """Math: mean_t |P_t e_t|^2 / 2 - log det P_t: of V = I, without constants."""
        return likelihood_loss(self(outputs), errors)

    def fit(self, train: tuple[Outputs, Errors], held_out: tuple[Outputs, Errors]) -> None:
        """Minimise the loss plus ridge |B|^2; the ridge is that under which held-out errors are
        likeliest. The same covariance at every step is one of the candidates.
        """
        every = max(1, len(train[0]) // ROWS)
        outputs, errors = (rows[::every].detach() for rows in train)
        kept = [torch.zeros_like(part) for part in self.parameters()]
        self._take(kept)
        best = self._held_out_loss(*held_out)
        for ridge in RIDGES:
            self._minimise(outputs, errors, ridge)
            score = self._held_out_loss(*held_out)
            if score < best:
                best, kept = score, [part.detach().clone() for part in self.parameters()]
            self._take([torch.zeros_like(part) for part in kept])
        self._take(kept)

    def _minimise(self, outputs: Outputs, errors: Errors, ridge: float) -> None:
        weights = list(self.parameters())
        search = torch.optim.LBFGS(weights, max_iter=ITERATIONS, line_search_fn="strong_wolfe")

        def loss() -> Tensor:
            search.zero_grad()
            value = self.loss(outputs, errors) + ridge * self.weight.square().sum()
            value.backward()  # type: ignore[no-untyped-call]
            return value

        self.requires_grad_(True)
        with torch.enable_grad():
            search.step(loss)  # type: ignore[no-untyped-call]
        self.requires_grad_(False)

    @torch.no_grad()
    def _held_out_loss(self, outputs: Outputs, errors: Errors) -> float:
        """Math: log det V / 2 - mean_t log det P_t, V the mean of (P_t e_t)(P_t e_t)'."""
        whitening = self(outputs)
        white = whitened(whitening, errors)
        volume = torch.linalg.slogdet(widened(white.mT @ white / len(white))).logabsdet
        return float(volume / 2 - log_volume(whitening).mean())

    @torch.no_grad()
    def _take(self, values: list[Tensor]) -> None:
        for part, value in zip(self.parameters(), values, strict=True):
            part.copy_(value.float())  # as a file keeps them


def likelihood_loss(whitening: Whitening, errors: Errors) -> Tensor:
    """Math: mean_t |P_t e_t|^2 / 2 - log det P_t: minus the log-likelihood, without constants."""
    white = whitened(whitening, errors)
    return (0.5 * white.square().sum(-1) - log_volume(whitening)).mean()


def whitened(whitening: Whitening, errors: Errors) -> Errors:
    return (whitening @ errors.unsqueeze(-1)).squeeze(-1)


def log_volume(whitening: Whitening) -> Float[Tensor, "*t"]:
    return whitening.diagonal(dim1=-2, dim2=-1).log().sum(-1)


def covariance(whitening: Whitening, common: Float[Tensor, "dz dz"]) -> Whitening:
    """Math: P_t^-1 V P_t^-T."""
    half = torch.linalg.solve_triangular(whitening, common, upper=False)
    cov: Tensor = torch.linalg.solve_triangular(whitening, half.mT, upper=False)
    return (cov + cov.mT) / 2
