"""Encoders: shapes they take and refuse, and where the soft-argmax looks."""

import pytest
import torch

from kbr.core.errors import KbrError
from kbr.training.encoders import MLP, ResNet, SoftArgmaxCNN, expected_coordinates

IMAGES = [(1, 64, 64), (3, 36, 48), (4, 33, 41)]


@pytest.mark.parametrize("shape", IMAGES)
@pytest.mark.parametrize("encoder", [SoftArgmaxCNN, MLP, ResNet])
def test_images_of_any_size_and_channel_count(encoder, shape):
    network = encoder(shape=shape, n_features=7)
    psi = network(torch.randn(3, *shape))
    assert psi.shape == (3, 7)
    assert psi.isfinite().all()
    psi.square().sum().backward()
    for name, parameter in network.named_parameters():
        assert parameter.grad is not None, name


def test_mlp_takes_vectors_and_has_the_papers_layers():
    network = MLP(shape=(2,))
    assert network(torch.randn(5, 2)).shape == (5, 32)
    units = [m.out_features for m in network.modules() if isinstance(m, torch.nn.Linear)]
    assert units == [1024, 512, 128, 32]


@pytest.mark.parametrize("encoder", [SoftArgmaxCNN, ResNet])
@pytest.mark.parametrize("shape", [(2,), (64, 64), (3, 2, 2), (0, 64, 64)])
def test_a_shape_that_is_no_image_is_refused_before_any_work(encoder, shape):
    with pytest.raises(KbrError, match=encoder.__name__):
        encoder(shape=shape)


def test_image_too_small_for_resnet_names_the_limit():
    with pytest.raises(KbrError, match="at least 32 x 32"):
        ResNet(shape=(3, 16, 64))


@pytest.mark.parametrize("encoder", [SoftArgmaxCNN, MLP, ResNet])
def test_bad_settings_are_named(encoder):
    with pytest.raises(KbrError, match="n_features"):
        encoder(shape=(1, 64, 64), n_features=0)
    with pytest.raises(KbrError, match="dropout"):
        encoder(shape=(1, 64, 64), dropout=1.0)


def test_mlp_without_numbers_is_refused():
    with pytest.raises(KbrError, match="MLP"):
        MLP(shape=())


def test_expected_coordinates_find_a_peak():
    maps = torch.full((1, 2, 9, 5), -50.0)
    maps[0, 0, 8, 4] = 50.0
    maps[0, 1, 4, 0] = 50.0
    found = expected_coordinates(maps)
    torch.testing.assert_close(found[0], torch.tensor([[1.0, 1.0], [-1.0, 0.0]]))


def test_expected_coordinates_are_the_softmax_average():
    maps = torch.randn(2, 3, 6, 4, dtype=torch.float64)
    u, v = torch.linspace(-1, 1, 4).double(), torch.linspace(-1, 1, 6).double()
    for b in range(2):
        for k in range(3):
            q = maps[b, k].exp() / maps[b, k].exp().sum()
            expected = torch.stack([(q * u).sum(), (q * v[:, None]).sum()])
            torch.testing.assert_close(expected_coordinates(maps)[b, k], expected)


def test_what_the_encoder_looks_at_moves_with_the_image():
    torch.manual_seed(0)
    network = SoftArgmaxCNN(shape=(1, 32, 32))
    assert network.coordinates(torch.randn(4, 1, 32, 32)).shape == (4, 16, 2)
