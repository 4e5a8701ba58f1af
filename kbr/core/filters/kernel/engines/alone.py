"""The update of one sequence alone, as `step` makes it, in as few calls as it takes.

For one sequence, rank-sized operations cost less than calling them. The formula is that of the
rule and its engine, and so is the answer, to rounding; what needs a closer look (no evidence, a
system that is not positive definite) is left to them.
"""

from typing import TypeGuard

import torch
from jaxtyping import Float
from torch import Tensor

from kbr.core.filters.kernel.engine import Compressed, LowRank, Update
from kbr.core.linalg import quick_ridge_solve
from kbr.core.rules import NEGLIGIBLE, ImportanceWeightedRule, Rule
from kbr.core.tables import at_rows

One = Float[Tensor, "1 n"]


def is_alone(update: Update, rule: Rule, ratio: Tensor, lam: Tensor) -> TypeGuard[LowRank]:
    """Whether the ratio is of one sequence, and rule and engine are known here.

    Where gradients are wanted, or a program is traced, all is left to these.
    """
    return (
        ratio.ndim == 2
        and ratio.shape[0] == 1
        and ratio.is_cpu
        and type(update) in (Compressed, LowRank)
        and type(rule) is ImportanceWeightedRule
        and not isinstance(rule.floor, Tensor)
        and rule.floor == 0
        and not (ratio.requires_grad or lam.requires_grad)
        and not torch.compiler.is_compiling()
    )


def weights_alone(
    update: LowRank, rule: Rule, ratio: One, query: Float[Tensor, "1 d"], lam: float
) -> tuple[One, bool] | None:
    """Weights, scaled if the rule normalises, and whether they are evidence; None: not told here.

    Math: w = r . Psi (Psi' diag(r) Psi + ridge I)^-1 psi(x), r = max(r~, 0), with ridge = n lam;
          where only w / sum w counts, r stays as it is, and ridge = lam sum_i r_i does for it what
          n lam does for the r that averages one.
    Ref:  Xu et al. 2022, Algorithm 1, step 3.
    """
    r = ratio.clamp_min(0)
    ridge = lam * (r.sum().item() if rule.normalize else r.shape[-1])
    s = quick_ridge_solve(update.second(r)[0], query.mT, ridge=ridge)
    if s is None:
        return None
    weights = at_rows(s.mT, update.features.train).mul_(r)
    total, size = weights.sum().item(), torch.linalg.vector_norm(weights, 1).item()
    usable = total > NEGLIGIBLE * size
    if not rule.normalize:
        return weights, usable and total > NEGLIGIBLE
    return (weights.div_(total), True) if usable else None
