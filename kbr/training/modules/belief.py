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
    def dynamics(self) -> tuple[Tensor, ...]:
        """What predictions need of the weights, the same at every step."""

    @abstractmethod
    def predict(self, belief: Beliefs, u: Float[Tensor, "s du"], *dynamics: Tensor) -> Beliefs:
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

    def shown(self, beliefs: Outputs) -> Outputs:
        """What the readout is given of beliefs: all of it."""
        return beliefs


class BeliefReadout(nn.Module):
    """From beliefs about the latent state to means and precisions of scaled z."""

    @abstractmethod
    def forward(self, outputs: Outputs) -> Float[Tensor, "*t dz"]: ...

    @abstractmethod
    def whitening(self, outputs: Outputs) -> Whitening: ...


class BeliefModule(StateModule):
    """A filter whose parts are learned through it.

    Math: b_t = update(predict(b_t-1, u_t), w(x_t), r(x_t)), without the update where frame t is
          missing; b_1 = update(start, w(x_1), r(x_1)).

    A subclass builds a `BeliefCell` and a `BeliefReadout`. The covariances that beliefs lead to are
    trained with `loss="likelihood"`, its default.
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
        dynamics = cell.dynamics()
        for frame, move in zip(said, u.unbind(1), strict=True):
            if belief is None:
                belief = cell.start(psi[:, 0])
            else:
                belief = cell.predict(belief, move, *dynamics)
            belief = cell.update(belief, *frame)
            beliefs.append(belief)
        assert belief is not None
        return cell.shown(torch.stack(beliefs, 1)), belief
