"""`tidegauge profile`: what it writes is what the agent reads; what no file tells is asked for."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner, Result

from tidegauge.agent.config import read
from tidegauge.cli.profile import command
from tidegauge.configuration import load_toml
from tidegauge.errors import TidegaugeError
from tidegauge.profile import Profile
from tidegauge.tidl import io_descriptor
from tidegauge.tidl.io_descriptor import IoDescriptor, IoInput, IoOutput

ROOT = Path(__file__).parents[3]
TINY = IoDescriptor(
    (IoInput("x", 0, (1, 1, 1, 3, 24, 32), "uint8", 255.0, 0),),
    (IoOutput("y", 9, (1, 1, 1, 3, 24, 32), "float32", 1.0, 0, valid_dims=4),),
)


@pytest.fixture
def compiled(tmp_path: Path) -> Path:
    """A copy of the real package, with a model file where its param.yaml says."""
    named = os.environ.get("TIDEGAUGE_SAMPLES")
    folder = Path(named) if named else ROOT.parent / "shared" / "samples"
    if not folder.is_dir():
        pytest.skip(f"no samples of real TIDL compiles: neither TIDEGAUGE_SAMPLES nor {folder}")
    real = folder / "am62a-yolox-s-int16-tools-10_00_08"
    shutil.copytree(real / "artifacts", tmp_path / "artifacts")
    shutil.copy(real / "param.yaml", tmp_path)
    (tmp_path / "artifacts").chmod(0o755)
    (tmp_path / "model").mkdir()
    (tmp_path / "model/model.onnx").write_bytes(b"")
    return tmp_path


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    """Artifacts of a model whose compile left no param.yaml."""
    folder = tmp_path / "board" / "artifacts"
    folder.mkdir(parents=True)
    (folder / "subgraph_0_tidl_io_1.bin").write_bytes(io_descriptor.pack(TINY))
    (tmp_path / "enhancer.onnx").write_bytes(b"")
    return folder


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(command, [str(argument) for argument in arguments])


def refused(*arguments: str | Path) -> str:
    answer = run(*arguments)
    assert isinstance(answer.exception, TidegaugeError), answer.output
    assert answer.exception.cure
    return str(answer.exception)


def test_a_real_package_becomes_a_profile_that_the_agent_reads(compiled: Path) -> None:
    out = compiled / "yolox.toml"
    told = run(compiled / "artifacts", "--output", "dets", "--step", "0.5", "--name", "yolox", "-o", out)
    assert told.exit_code == 0, told.output
    assert "preprocess.mean: param.yaml: session.input_mean" in told.output
    assert "pads pictures to keep their aspect" in told.stderr
    profile = load_toml(out, Profile)
    made = profile.preprocess
    assert (profile.name, profile.runtime) == ("yolox", "onnx")
    assert (profile.model, profile.artifacts) == (str(compiled / "model/model.onnx"), str(compiled / "artifacts"))
    assert (made.width, made.height, made.channel_order, made.layout, made.dtype) == (
        640,
        640,
        "BGR",
        "NCHW",
        "float32",
    )
    assert (made.mean, made.scale) == ((0, 0, 0), (1, 1, 1))
    assert (profile.output.name, profile.output.kind, profile.output.step) == ("dets", "raw", 0.5)
    agent = (ROOT / "agent_config/agent.toml").read_text()
    config = compiled / "agent.toml"
    line = next(row for row in agent.splitlines() if row.startswith("profile"))
    config.write_text(agent.replace(line, 'profile = "yolox.toml"'))
    assert read(config).profile == profile


def test_every_option_that_no_file_tells_is_asked_for_at_once(tiny: Path) -> None:
    told = refused(tiny)
    for option in ("--model", "--mean", "--scale", "--channel-order", "--step"):
        assert option in told
    for option in ("--layout", "--output", "--kind", "--input"):
        assert option not in told
    model = tiny.parents[1] / "enhancer.onnx"
    options = ["--model", model, "--mean", "0,0,0", "--scale", ".5,.25,.125", "--channel-order", "RGB", "--step", ".01"]
    assert "--range" in refused(tiny, *options, "--kind", "image")
    assert "scale has 1 numbers" in refused(tiny, *options, "--scale", ".5")
    told = run(tiny, *options, "--kind", "image", "--range", "0,255").output
    (tiny / "p.toml").write_text(told[told.index("# A model") :])
    profile = load_toml(tiny / "p.toml", Profile)
    assert (profile.name, profile.runtime, profile.output.kind) == ("enhancer", "onnx", "image")
    assert (profile.preprocess.width, profile.preprocess.height, profile.preprocess.scale) == (
        32,
        24,
        (0.5, 0.25, 0.125),
    )
    assert (profile.output.name, profile.output.low, profile.output.high, profile.output.step) == ("y", 0, 255, 0.01)


def test_contradictions_between_the_files_are_refused(compiled: Path) -> None:
    options = ("--output", "dets", "--step", "1")
    text = (compiled / "param.yaml").read_text()
    (compiled / "param.yaml").write_text(text.replace("crop: 640", "crop: 416"))
    assert "crops to 416x416, io_1.bin expects 640x640" in refused(compiled / "artifacts", *options)
    (compiled / "param.yaml").write_text(text.replace("  - name: input", "  - name: images"))
    assert "param.yaml has the input images" in refused(compiled / "artifacts", *options)
    (compiled / "param.yaml").write_text(text + "\t")
    assert "param.yaml" in refused(compiled / "artifacts", *options)


def test_sizes_in_param_yaml_are_height_before_width(tiny: Path) -> None:
    yaml = (
        "preprocess:\n  crop:\n  - 24\n  - 32\n  resize:\n  - 27\n  - 36\n"
        "  data_layout: NCHW\n  reverse_channels: false\n"
        "session:\n  session_name: onnxrt\n"
        "  input_mean:\n  - 0\n  - 1\n  - 2\n  input_scale:\n  - 1.0\n  - 2.0\n  - 3.0\n"
    )
    (tiny / "param.yaml").write_text(yaml)
    told = run(tiny, "--model", tiny.parents[1] / "enhancer.onnx", "--step", "1")
    assert told.exit_code == 0, told.output
    for words in ("width = 32", "height = 24", "mean = [0.0, 1.0, 2.0]", 'channel_order = "RGB"', "resizes to 36x27"):
        assert words in told.output, words
    (tiny / "param.yaml").write_text(yaml.replace("  - 24\n  - 32\n", "  - 32\n  - 24\n"))
    assert "crops to 24x32, io_1.bin expects 32x24" in refused(tiny, "--step", "1")


def test_a_normalisation_inside_the_model_is_not_applied_twice(compiled: Path) -> None:
    text = (compiled / "param.yaml").read_text()
    text = text.replace("input_optimization: false", "input_optimization: true").replace("  - 1.0", "  - 0.017")
    (compiled / "param.yaml").write_text(text)
    told = run(compiled / "artifacts", "--output", "dets", "--step", "1").output
    assert "mean = [0.0, 0.0, 0.0]  # param.yaml: input_optimization" in told
    assert "scale = [1.0, 1.0, 1.0]  # param.yaml: input_optimization" in told


def test_names_are_never_chosen_among_several(compiled: Path, tiny: Path) -> None:
    assert "--output: dets, labels" in refused(compiled / "artifacts", "--step", "1")
    assert "no output boxes" in refused(compiled / "artifacts", "--step", "1", "--output", "boxes")
    assert "no input z" in refused(tiny, "--input", "z")
    two = msgspec.structs.replace(TINY, inputs=(*TINY.inputs, msgspec.structs.replace(TINY.inputs[0], name="z")))
    (tiny / "subgraph_0_tidl_io_1.bin").write_bytes(io_descriptor.pack(two))
    assert "--input: x, z" in refused(tiny)


def test_a_chain_of_sub_graphs_has_one_input_and_one_output(tiny: Path) -> None:
    middle = IoDescriptor(
        (IoInput("y", 0, (1, 1, 1, 3, 24, 32), "uint8", 255.0, 0),),
        (IoOutput("end", 9, (1, 1, 1, 3, 24, 32), "float32", 1.0, 0, valid_dims=4),),
    )
    (tiny / "subgraph_1_tidl_io_1.bin").write_bytes(io_descriptor.pack(middle))
    options = ["--mean", "0,0,0", "--scale", "1,1,1", "--channel-order", "RGB", "--step", "1"]
    told = run(tiny, "--model", tiny.parents[1] / "enhancer.onnx", *options).output
    assert 'name = "end"' in told


def test_files_are_kept_and_errors_name_them(tiny: Path) -> None:
    out = tiny / "p.toml"
    out.write_text("mine")
    assert "--force" in refused(tiny, "-o", out)
    assert out.read_text() == "mine"
    (tiny / "subgraph_0_tidl_io_1.bin").write_bytes(b"short")
    assert "subgraph_0_tidl_io_1.bin: tidl_io_1.bin: 5 bytes" in refused(tiny)
    (tiny / "subgraph_0_tidl_io_1.bin").unlink()
    assert "there is no *_tidl_io_1.bin" in refused(tiny)
