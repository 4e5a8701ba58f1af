"""Train and test a model: `python train.py data=oscillatory model=iw`. See `--help`."""

from kbr.app.cli import train

if __name__ == "__main__":
    train()
