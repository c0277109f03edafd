"""The shapes of scripts/models/make_model.py: the daemon reads a file of each.
scripts/checks/check_model_shapes.py compares what it computes."""

import dataclasses
import json
import subprocess
import sys

import pytest

from conftest import PROGRAM, ROOT, clean_environment

sys.path.insert(0, str(ROOT / "scripts/models"))
from make_model import made_up_vocabulary, write_header  # noqa: E402
from model_shapes import FAMILIES, SHAPES  # noqa: E402
from model_tensors import ALIGNMENT, choose_format, plan_tensors  # noqa: E402


def write_without_weights(path, shape, mix):
    """A file of the right size whose random weights are holes."""
    tensors = plan_tensors(shape)
    for tensor in tensors:
        tensor.format = choose_format(tensor, shape, mix, pure=False)
    write_header(path, shape, tensors, made_up_vocabulary(shape.vocabulary), "m", mix)
    place = path.stat().st_size
    with open(path, "rb+") as file:
        for tensor in tensors:
            place += -place % ALIGNMENT
            if tensor.values is not None:
                file.seek(place)
                file.write(tensor.values.tobytes())
            place += tensor.bytes()
        file.truncate(place)
    return tensors


@pytest.mark.parametrize("name", SHAPES)
def test_every_shape_is_read(name, tmp_path):
    shape = dataclasses.replace(SHAPES[name], vocabulary=512)  # a vocabulary is slow to write
    path = tmp_path / "model.gguf"
    tensors = write_without_weights(path, shape, "Q4_K_M")
    done = subprocess.run([str(PROGRAM), "inspect", "--json", "--model", str(path)], check=True,
                          capture_output=True, text=True, env=clean_environment())
    found = json.loads(done.stdout)
    assert found["model"]["is_read"], found["model"]["reason"]
    assert found["model"]["not_loaded"] == []
    assert found["model"]["layers"] == shape.layers
    assert found["parameters"] == sum(tensor.elements() for tensor in tensors)


def test_every_family_has_a_shape():
    assert set(FAMILIES) <= {shape.architecture for shape in SHAPES.values()}


# Billions that these models are known to have, without what sees and hears.
@pytest.mark.parametrize("name, billions", [
    ("gpt-oss-20b", 20.9), ("gemma-3-4b", 3.88), ("gemma-4-26b-a4b", 25.2), ("gemma-4-31b", 30.7),
    ("deepseek-v2-lite", 15.7), ("deepseek-v3", 671), ("kimi-k2", 1026), ("glm-4.7-flash", 29.9),
    ("mistral-small-4-119b", 119), ("glm-4.5-air", 107), ("minimax-m2", 229),
    ("qwen1.5-moe-a2.7b", 14.3), ("llama-4-scout", 108), ("gemma-2-2b", 2.61),
    ("olmoe-1b-7b", 6.92), ("command-r-35b", 35), ("dots.llm1", 142), ("ling-lite-1.5", 16.8),
    ("hunyuan-a13b", 80.4), ("ernie-4.5-21b-a3b", 21.8), ("granite-3.1-3b-a800m", 3.3),
    ("granite-4.0-h-1b", 1.46),
    ("starcoder2-3b", 3.03), ("qwen3-next-80b-a3b", 79.7), ("qwen3.5-35b-a3b", 34.7),
    ("kimi-linear-48b-a3b", 49.1)])
def test_shapes_have_as_many_parameters_as_the_models(name, billions):
    count = sum(tensor.elements() for tensor in plan_tensors(SHAPES[name]))
    assert count == pytest.approx(billions * 1e9, rel=0.01)
