"""Evaluate a finished run from its folder alone: `python evaluate.py run=outputs/...`."""

from kbr.app.cli import evaluate

if __name__ == "__main__":
    evaluate()
