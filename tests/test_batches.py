"""Steps of training that see some pieces of the sequences: the loss of all, on average."""

from functools import partial

import pytest
import torch
from networks import ENCODER, FILTERS, MODULES
from torch import nn

from kbr import KbrError
from kbr.training.modules import recurrent
from kbr.training.modules.pieces import Piece, block, cut, rows_of
from kbr.training.modules.recurrent import RecurrentModule

LENGTHS = [60, 70]
BATCH = 50


@pytest.fixture(params=MODULES)
def built(request):
    """A module by its batch, in float64; the data it is trained on."""
    generator = torch.Generator().manual_seed(1)
    x, z = (torch.randn(sum(LENGTHS), d, generator=generator) for d in (3, 2))
    made = partial(MODULES[request.param], encoder=lambda shape: nn.Linear(*shape, 4))

    def module(**settings):
        torch.manual_seed(0)
        one = made(shape=(3,), dz=2, noise=0.0, **settings).double()
        one.fit_scales(x, z)
        return one

    return module, x.double(), z.double()


def loss(module, x, z, rank=0, world=1):
    return module.share(x, z, lengths=LENGTHS, rank=rank, world=world)


def gradient(value, module):
    weights = [part for part in module.parameters() if part.requires_grad]
    return torch.cat([part.flatten() for part in torch.autograd.grad(value, weights)])


def test_pieces_cover_all_rows_once_and_look_back_within_their_sequence():
    pieces = cut([7, 2, 5], 3, 2, 4)
    assert pieces[:3] == [Piece(0, 0, 2), Piece(0, 2, 5), Piece(1, 5, 7)]
    assert pieces[3:] == [Piece(7, 7, 9), Piece(9, 9, 11), Piece(9, 11, 14)]
    assert cut([7], 3, 2) == [Piece(0, 0, 2), Piece(2, 2, 5), Piece(5, 5, 7)]
    rows, counted = rows_of([pieces[2], pieces[5]])
    assert rows[counted].tolist() == [5, 6, 11, 12, 13]
    assert rows.tolist() == [1, 2, 3, 4, 5, 6, 9, 10, 11, 12, 13]
    assert block([4, 4], None, 1, 2) == [Piece(4, 4, 8)]
    assert block([5, 3], 1, 1, 2) == [Piece(3, 4, 5), Piece(5, 5, 8)]
    assert rows_of(block([5, 3], None, 1, 2))[0] == slice(0, 8)


def test_a_batch_of_all_is_the_loss_of_all(built):
    module, x, z = built
    assert torch.equal(loss(module(batch=130), x, z), loss(module(), x, z))


def test_on_average_a_batch_has_the_gradient_of_all(built, monkeypatch):
    """Over all turns of the order in which pieces are drawn, each is seen as often."""
    module, x, z = built
    some, every = module(batch=BATCH), module()
    pieces, times = some.looked_at(LENGTHS, 0, 1)
    count = round(times * len(pieces))
    assert len(pieces) < count
    values = []
    for turn in range(count):
        order = torch.arange(count).roll(turn)
        monkeypatch.setattr(recurrent.torch, "randperm", lambda *_, order=order, **__: order)
        values.append(loss(some, x, z))
    assert max(values) > 1.01 * min(values)
    mean, whole = torch.stack(values).mean(), loss(every, x, z)
    torch.testing.assert_close(mean, whole, rtol=1e-10, atol=0)
    found, expected = gradient(mean, some), gradient(whole, every)
    torch.testing.assert_close(found, expected, rtol=1e-8, atol=1e-12)


def test_workers_share_the_pieces_of_a_step(built):
    module, x, z = built
    one = module(batch=BATCH)
    both = torch.stack([loss(one, x, z, rank, 2) for rank in range(2)])
    torch.testing.assert_close(both.mean(), loss(one, x, z), rtol=1e-12, atol=0)
    with pytest.raises(KbrError, match=r"batch=50 is \d pieces .* the 9 workers. Raise batch to"):
        loss(one, x, z, 0, 9)


def test_pieces_are_drawn_by_seed_and_step(built, monkeypatch):
    module, _, _ = built

    def drawn(epoch, **settings):
        monkeypatch.setattr(RecurrentModule, "current_epoch", epoch)
        return module(batch=BATCH, **settings).looked_at([600, 700], 0, 1)[0]

    assert drawn(3) == drawn(3)
    assert drawn(3) != drawn(4)
    assert drawn(3) != drawn(3, seed=1)


@pytest.mark.parametrize(("kind", "least"), [("gru", 20), ("lstm", 50), ("transformer", 50)])
def test_less_than_a_piece_is_refused(kind, least):
    with pytest.raises(KbrError, match=rf"batch must be at least {least}.*got {least - 1}. Raise"):
        FILTERS[kind](encoder=ENCODER, batch=least - 1)
    FILTERS[kind](encoder=ENCODER, batch=least)


def test_with_a_batch_whole_sequences_are_held_out():
    lengths = [100] * 30
    made = FILTERS["gru"]
    assert made(encoder=ENCODER, batch=100).held_out_from(lengths) == 2600  # .15 of them, even
    assert made(encoder=ENCODER).held_out_from(lengths) == 2800
    assert made(encoder=ENCODER, batch=100).held_out_from([300]) == 200
