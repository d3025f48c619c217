"""A model profile out of `param.yaml` and the I/O descriptors: which value comes from where, and what nobody tells."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import msgspec

from tidegauge.errors import TidegaugeError
from tidegauge.profile import Output, Preprocess, Profile
from tidegauge.tidl.io_descriptor import IoDescriptor, IoInput, IoOutput
from tidegauge.tidl.param_yaml import CompileParameters


class DraftError(TidegaugeError):
    """The files do not tell enough, or contradict each other."""


class Told(msgspec.Struct, frozen=True):
    """What a person says on the command line; None leaves it to the files."""

    name: str | None = None
    runtime: Literal["onnx", "tflite"] | None = None
    model: str | None = None
    input: str | None = None
    mean: tuple[float, ...] | None = None
    scale: tuple[float, ...] | None = None
    channel_order: Literal["RGB", "BGR"] | None = None
    layout: Literal["NCHW", "NHWC"] | None = None
    output: str | None = None
    kind: str | None = None
    step: float | None = None
    range: tuple[float, ...] | None = None


class Draft(msgspec.Struct, frozen=True):
    """The profile, for each dotted key where its value comes from, and what a person must know about it."""

    profile: Profile
    sources: dict[str, str]
    warnings: tuple[str, ...]


class _Values:
    """Collects values with their sources; what is missing is asked for once, all together."""

    def __init__(self) -> None:
        self.sources: dict[str, str] = {}
        self.missing: list[str] = []

    def take(self, key: str, option: str, *offers: tuple[Any, str]) -> Any:
        """The first offer that is not None; else the option is asked for."""
        for value, source in offers:
            if value is not None:
                self.sources[key] = source
                return value
        self.missing.append(option)
        return None


def draft(
    told: Told, parameters: CompileParameters | None, descriptors: Sequence[IoDescriptor], artifacts: str
) -> Draft:
    """Raises DraftError naming every option that is needed, or the two files that contradict each other."""
    option = "the command line"
    tensor = _input(told, descriptors)
    _agree(tensor, parameters)
    values, yaml = _Values(), parameters
    folded = yaml is not None and yaml.normalised_inside
    colours = tensor.dims[3]
    layout: Literal["NCHW", "NHWC"] = "NHWC" if tensor.layout == 1 else "NCHW"
    mean, scale = (
        (tuple([number] * colours), "param.yaml: input_optimization, the model normalises by itself")
        if folded
        else (getattr(yaml, field) if yaml else None, f"param.yaml: session.input_{field}")
        for field, number in (("mean", 0.0), ("scale", 1.0))
    )
    fields = {
        "name": values.take("name", "--name", (told.name, option), (_stem(told.model), "the model's file name")),
        "runtime": values.take(
            "runtime", "--runtime", (told.runtime, option), (yaml and yaml.runtime, "param.yaml: session.session_name"),
            (_runtime(told.model), "the model's file name"),
        ),
        "model": values.take("model", "--model", (told.model, option)),
        "artifacts": artifacts,
    }  # fmt: skip
    preprocess = {
        "width": tensor.dims[5],
        "height": tensor.dims[4],
        "mean": values.take("preprocess.mean", "--mean", (told.mean, option), mean),
        "scale": values.take("preprocess.scale", "--scale", (told.scale, option), scale),
        "channel_order": values.take(
            "preprocess.channel_order", "--channel-order", (told.channel_order, option),
            (yaml and yaml.channel_order, "param.yaml: preprocess.reverse_channels"),
        ),
        "layout": values.take(
            "preprocess.layout", "--layout", (told.layout, option),
            (yaml and yaml.layout, "param.yaml: preprocess.data_layout"), (layout, "io_1.bin"),
        ),
        "dtype": tensor.raw_dtype,
    }  # fmt: skip
    values.sources["graph_optimization"] = "no file tells it; correct it where the compile set a level"
    values.sources |= dict.fromkeys(("preprocess.width", "preprocess.height", "preprocess.dtype"), "io_1.bin")
    output = {
        "name": values.take("output.name", "--output", *_output(told, descriptors)),
        "kind": values.take(
            "output.kind", "--kind", (told.kind, option), ("raw", "any tensor; say --kind image for a picture")
        ),
        "step": values.take("output.step", "--step", (told.step, option)),
    }
    if output["kind"] == "image":
        span = values.take("output.low", "--range", (told.range, option))
        output |= {"low": span[0], "high": span[-1], "layout": layout} if span else {}
        values.sources |= {"output.high": option, "output.layout": "io_1.bin"} if span else {}
    if values.missing:
        asked = ", ".join(values.missing)
        raise DraftError(f"no file tells what the profile needs for {asked}", f"give {asked} (see --help)")
    for word in ("mean", "scale"):
        if len(preprocess[word]) != colours:
            problem = f"{word} has {len(preprocess[word])} numbers, input {tensor.name} has {colours} channels"
            raise DraftError(problem, f"give one number a channel with --{word}")
    profile = _checked({**fields, "preprocess": preprocess, "output": output})
    return Draft(profile, values.sources, _warnings(parameters))


def _input(told: Told, descriptors: Sequence[IoDescriptor]) -> IoInput:
    """The model's picture input: an input of a sub-graph that no other sub-graph gives."""
    given = {tensor.name for descriptor in descriptors for tensor in descriptor.outputs}
    open_inputs = {
        tensor.name: tensor for descriptor in descriptors for tensor in descriptor.inputs if tensor.name not in given
    }
    names = ", ".join(open_inputs) or "none"
    if told.input is not None:
        if told.input not in open_inputs:
            raise DraftError(f"the artifacts have no input {told.input}", f"inputs are {names}")
        return open_inputs[told.input]
    if len(open_inputs) != 1:
        raise DraftError(f"the artifacts have {len(open_inputs)} inputs", f"name one with --input: {names}")
    return next(iter(open_inputs.values()))


def _output(told: Told, descriptors: Sequence[IoDescriptor]) -> tuple[tuple[str | None, str], ...]:
    taken = {tensor.name for descriptor in descriptors for tensor in descriptor.inputs}
    outputs: dict[str, IoOutput] = {
        tensor.name: tensor for descriptor in descriptors for tensor in descriptor.outputs if tensor.name not in taken
    }
    if told.output is not None and told.output not in outputs:
        raise DraftError(f"the artifacts have no output {told.output}", f"outputs are {', '.join(outputs) or 'none'}")
    if told.output is None and len(outputs) > 1:
        raise DraftError(f"the artifacts have {len(outputs)} outputs", f"name one with --output: {', '.join(outputs)}")
    return (told.output, "the command line"), (next(iter(outputs), None), "io_1.bin")


def _agree(tensor: IoInput, parameters: CompileParameters | None) -> None:
    """Raises DraftError where param.yaml is of another compile than the descriptor."""
    if parameters is None:
        return
    batch, _, _, channels, height, width = tensor.dims
    if parameters.crop is not None and parameters.crop != (height, width):
        problem = f"param.yaml crops to {parameters.crop[1]}x{parameters.crop[0]}, io_1.bin expects {width}x{height}"
        raise DraftError(problem, "give the param.yaml of this compile with --param")
    shapes = {(batch, channels, height, width), (batch, height, width, channels)}
    detail = next((item for item in parameters.inputs if item.name == tensor.name), None)
    if parameters.inputs and (detail is None or detail.shape not in shapes):
        named = ", ".join(f"{item.name} {list(item.shape)}" for item in parameters.inputs)
        problem = f"param.yaml has the input {named}, io_1.bin {tensor.name} {[batch, channels, height, width]}"
        raise DraftError(problem, "give the param.yaml of this compile with --param")


def _warnings(parameters: CompileParameters | None) -> tuple[str, ...]:
    """Steps of the compile's preprocessing that a profile has no key for."""
    found: list[str] = []
    if parameters is None:
        found.append("no param.yaml: check mean, scale and channel order against the script that compiled the model")
        return tuple(found)
    if parameters.keep_aspect:
        found.append("the compile pads pictures to keep their aspect, the agent stretches them: crop the camera to it")
    if parameters.resize is not None and parameters.crop is not None and parameters.resize != parameters.crop:
        found.append(
            f"the compile resizes to {parameters.resize[1]}x{parameters.resize[0]} and crops the middle, the agent"
            " resizes at once: the scene appears smaller"
        )
    return tuple(found)


def _checked(fields: dict[str, Any]) -> Profile:
    try:
        return msgspec.convert(fields, Profile)
    except msgspec.ValidationError as error:
        raise DraftError(
            f"the profile would not be valid: {error}", "correct it with an option (see --help)"
        ) from error


def _stem(model: str | None) -> str | None:
    if model is None:
        return None
    stem = model.rsplit("/", 1)[-1].rsplit(".", 1)[0]
    return "".join(letter if letter.isascii() and (letter.isalnum() or letter in "_.-") else "_" for letter in stem)[
        :64
    ]


def _runtime(model: str | None) -> str | None:
    return {"onnx": "onnx", "tflite": "tflite"}.get((model or "").rsplit(".", 1)[-1].lower())


def to_toml(made: Draft) -> str:
    """The profile as TOML, each value with its source behind it. `configuration.load_toml` reads it back."""
    head = ["# A model profile, written by `tidegauge profile`. Paths are relative to this file's folder."]
    head += [f"# Look at: {warning}." for warning in made.warnings]
    tree = msgspec.to_builtins(made.profile)
    tree["output"] = {key: value for key, value in tree["output"].items() if f"output.{key}" in made.sources}
    rows = [_row(key, value, made.sources.get(key, "")) for key, value in tree.items() if not isinstance(value, dict)]
    for table in (Preprocess, Output):
        name = table.__name__.lower()
        rows += ["", f"[{name}]"]
        rows += [_row(key, value, made.sources.get(f"{name}.{key}", "")) for key, value in tree[name].items()]
    return "\n".join([*head, "", *rows, ""])


def _row(key: str, value: Any, source: str) -> str:
    return f"{key} = {_value(value)}" + (f"  # {source}" if source else "")


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(_value(item) for item in value) + "]"
    if isinstance(value, str):
        # JSON's escapes are those of TOML's basic strings.
        return msgspec.json.encode(value).decode().replace("\x7f", "\\u007f")
    return repr(value)
