"""Learned features: Lightning modules, data modules and encoders around `kbr.core`."""

import kbr._torchvision  # noqa: F401  (before lightning, which imports torchvision)
from kbr.training.encoders import MLP, ResNet, SoftArgmaxCNN
from kbr.training.filters.gru import GRUFilter
from kbr.training.filters.kalman_nn import KalmanNNFilter
from kbr.training.filters.learned import LearnedFilter
from kbr.training.filters.lru import LRUFilter
from kbr.training.filters.lstm import LSTMFilter
from kbr.training.filters.moving_readout import MovingReadoutFilter
from kbr.training.filters.paired import PairedFilter
from kbr.training.filters.readout import ReadoutFilter
from kbr.training.filters.rkn import RKNFilter
from kbr.training.filters.transformer import TransformerFilter
from kbr.training.sensor_encoder import SensorEncoder

__all__ = [
    "MLP",
    "GRUFilter",
    "KalmanNNFilter",
    "LRUFilter",
    "LSTMFilter",
    "LearnedFilter",
    "MovingReadoutFilter",
    "PairedFilter",
    "RKNFilter",
    "ReadoutFilter",
    "ResNet",
    "SensorEncoder",
    "SoftArgmaxCNN",
    "TransformerFilter",
]
