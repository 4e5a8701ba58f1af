"""Networks whose state is a Gaussian belief: predicted, then corrected by what a frame says."""

from abc import abstractmethod
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from kbr.training.modules.memory import StateModule
from kbr.training.modules.recurrent import State
from kbr.training.precision import Outputs, Whitening

Beliefs = Float[Tensor, "s b"]  # means and covariances, as one row of numbers
LEAST = 1e-4  # of any variance


class BeliefCell(nn.Module):
    """One step: what a frame says, and how it and time change a belief."""

    @abstractmethod
    def observe(
        self, psi: Float[Tensor, "s t d"]
    ) -> tuple[Float[Tensor, "s t m"], Float[Tensor, "s t m"]]:
        """What frames say of the latent state, and with which variances."""

    @abstractmethod
    def start(self, psi: Float[Tensor, "s d"]) -> Beliefs:
        """Before the first frame, of which these are the features."""

    @abstractmethod
    def predict(self, belief: Beliefs, u: Float[Tensor, "s du"]) -> Beliefs:
        """One step of time later."""

    @abstractmethod
    def update(
        self,
        belief: Beliefs,
        value: Float[Tensor, "s m"],
        variance: Float[Tensor, "s m"],
        seen: Float[Tensor, "s 1"],
    ) -> Beliefs:
        """After a frame; the same as before where it is not there (seen = 0)."""


class BeliefReadout(nn.Module):
    """From beliefs about the latent state to means and precisions of scaled z."""

    @abstractmethod
    def forward(self, beliefs: Outputs) -> Float[Tensor, "*t dz"]: ...

    @abstractmethod
    def whitening(self, beliefs: Outputs) -> Whitening: ...


class BeliefModule(StateModule):
    """A filter whose parts are learned through it.

    Math: b_t = update(predict(b_t-1, u_t), w(x_t), r(x_t)), without the update where frame t is
          missing; b_1 = update(start, w(x_1), r(x_1)).

    A subclass builds a `BeliefCell` and a `BeliefReadout`. Outputs are the beliefs themselves; the
    covariances that they lead to are trained with `loss="likelihood"`, its default.
    """

    recurrence: BeliefCell
    readout: BeliefReadout

    def __init__(self, *, loss: str = "likelihood", **shared: Any) -> None:
        super().__init__(loss=loss, **shared)

    @property
    def is_told(self) -> bool:
        return True  # which frames are there: the others are no evidence

    @property
    def trains_precision(self) -> bool:
        return False

    def own_whitening(self, outputs: Outputs) -> Whitening:
        return self.readout.whitening(outputs)

    def recur(
        self, inputs: Float[Tensor, "s t d"], state: State | None
    ) -> tuple[Float[Tensor, "s t h"], State]:
        cell, belief, beliefs = self.recurrence, state, []
        psi, u, seen = torch.split(inputs, [self.n_features, self.controls, 1], -1)
        said = zip(*(part.unbind(1) for part in (*cell.observe(psi), seen)), strict=True)
        for frame, move in zip(said, u.unbind(1), strict=True):
            before = cell.start(psi[:, 0]) if belief is None else cell.predict(belief, move)
            belief = cell.update(before, *frame)
            beliefs.append(belief)
        assert belief is not None
        return torch.stack(beliefs, 1), belief
