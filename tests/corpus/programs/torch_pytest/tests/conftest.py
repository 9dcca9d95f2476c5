import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[1]))


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


@pytest.fixture(params=["lstm", "gru"])
def recurrent(request):
    from seq.models import Tagger

    return Tagger(request.param, vocab=7, dim=4, tags=3).eval()
