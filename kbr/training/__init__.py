"""Learned features: Lightning modules, data modules and encoders around `kbr.core`."""

import kbr._torchvision  # noqa: F401  (before lightning, which imports torchvision)
from kbr.training.encoders import MLP, ResNet, SoftArgmaxCNN
from kbr.training.filters.gru import GRUFilter
from kbr.training.filters.learned import LearnedFilter
from kbr.training.filters.lstm import LSTMFilter
from kbr.training.sensor_encoder import SensorEncoder

__all__ = [
    "MLP",
    "GRUFilter",
    "LSTMFilter",
    "LearnedFilter",
    "ResNet",
    "SensorEncoder",
    "SoftArgmaxCNN",
]
