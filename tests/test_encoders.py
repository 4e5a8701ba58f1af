"""Encoders: shapes they take and refuse, and where the soft-argmax looks."""

from functools import partial

import pytest
import torch

from kbr.core.errors import KbrError
from kbr.training.encoders import (
    MLP,
    ResNet,
    SoftArgmaxCNN,
    describe_encoder,
    expected_coordinates,
    known_encoder,
)
from kbr.training.modules.features import FeatureModule
from kbr.training.sensor_encoder import SensorEncoder

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


PARTS = [
    {"name": "imu", "columns": [0, 17, 18], "shape": []},
    {"name": "camera", "columns": list(range(1, 17)), "shape": [1, 4, 4]},
]


def test_each_sensor_has_its_encoder_and_what_is_absent_says_nothing():
    small = partial(SoftArgmaxCNN, channels=2, n_maps=2)
    build = partial(SensorEncoder, frames=small, encoders={"imu": partial(MLP, hidden=(5,))})
    network = known_encoder(describe_encoder(build))(shape=(21,), parts=PARTS, n_features=7).eval()
    kinds = [type(encoder) for encoder in network.each]
    assert kinds == [MLP, SoftArgmaxCNN]
    rows = torch.randn(6, 21)
    rows[:, -2:] = torch.tensor([1.0, 0.0])  # no frame
    psi = network(rows)
    assert psi.shape == (6, 7)
    other = rows.clone()
    other[:, 1:17] += 1
    torch.testing.assert_close(network(other), psi)
    other[:, -1] = 1.0
    assert (network(other) - psi).abs().max() > 1e-4
    other = rows.clone()
    other[:, 17] += 1
    assert (network(other) - psi).abs().max() > 1e-4
    with pytest.raises(KbrError, match="dropout"):
        SensorEncoder(shape=(21,), parts=PARTS, dropout=1.0)


def test_no_noise_reaches_the_flags(monkeypatch):
    encoder = partial(SensorEncoder, parts=PARTS)
    module = FeatureModule(encoder=encoder, shape=(21,), dz=1, noise=3.0, flags=2).train()
    seen = []
    monkeypatch.setattr(module.encoder, "forward", lambda x: seen.append(x) or x)
    rows = torch.zeros(4, 21)
    rows[:, -2:] = 1.0
    module.encode(rows)
    torch.testing.assert_close(seen[0][:, -2:], rows[:, -2:])
    assert seen[0][:, :-2].std() > 1
