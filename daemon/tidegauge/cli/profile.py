"""`tidegauge profile`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args, get_type_hints

import click

from tidegauge.cli.numbers import FiniteRange, Numbers
from tidegauge.configuration import load_toml
from tidegauge.errors import TidegaugeError
from tidegauge.files import write_durably
from tidegauge.profile import Output, Profile
from tidegauge.tidl import artifacts as names
from tidegauge.tidl import io_descriptor, param_yaml
from tidegauge.tidl.errors import FormatError
from tidegauge.tidl.io_descriptor import IoDescriptor
from tidegauge.tidl.param_yaml import CompileParameters
from tidegauge.tidl.plain_yaml import LARGEST
from tidegauge.tidl.profile_draft import Draft, Told, draft, to_toml

_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)


#: What no file may tell; `tidegauge setup` takes the same.
_OPTIONS = (
    click.option(
        "--model", type=_FILE, help="The model file that was compiled (default: param.yaml's, if it is there)."
    ),
    click.option("--param", type=_FILE, help="The compile's param.yaml (default: in ARTIFACTS or the folder above)."),
    click.option("--name", help="Name of the profile (default: the model's)."),
    click.option("--runtime", type=click.Choice(["onnx", "tflite"])),
    click.option("--input", "input_name", metavar="NAME", help="The picture input, where there are several."),
    click.option("--mean", type=Numbers(), metavar="A,B,C", help="Where no param.yaml tells it."),
    click.option("--scale", type=Numbers(), metavar="A,B,C", help="(value - mean) * scale, of 8-bit values."),
    click.option("--channel-order", type=click.Choice(["RGB", "BGR"])),
    click.option("--layout", type=click.Choice(["NCHW", "NHWC"])),
    click.option("--output", "output_name", metavar="NAME", help="The watched output, where there are several."),
    click.option(
        "--kind", type=click.Choice(get_args(get_type_hints(Output)["kind"])), help="What the output is [raw]."
    ),
    click.option("--step", type=FiniteRange(0, min_open=True), help="What the product does not mind. Needed."),
    click.option("--range", type=Numbers(), metavar="LOW,HIGH", help="Of an output that is a picture, such as 0,1."),
)


def profile_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """The options out of which `drafted` makes a profile."""
    for option in reversed(_OPTIONS):
        function = option(function)
    return function


@click.command("profile")
@click.argument("artifacts", type=click.Path(exists=True, file_okay=False, path_type=Path))
@profile_options
@click.option("-o", "--out", type=click.Path(dir_okay=False, path_type=Path), help="Write this file; else print it.")
@click.option("--force", is_flag=True, help="Replace an existing file.")
def command(
    artifacts: Path, model: Path | None, param: Path | None, out: Path | None, force: bool, **told: Any
) -> None:
    """Write a model profile for agent_config/ from the compile in ARTIFACTS.

    Sizes and types come from io_1.bin, the preprocessing from param.yaml. What neither tells is asked for, never
    guessed; behind each value stands where it comes from.
    """
    if out is not None and out.exists() and not force:
        raise TidegaugeError(f"{out} exists already", "choose another name, or replace it with --force")
    made = drafted(artifacts, model, param, told)
    text = to_toml(made)
    for warning in made.warnings:
        click.echo(f"warning: {warning}", err=True)
    if out is None:
        click.echo(text, nl=False)
        return
    try:
        write_durably(out, text.encode())
    except OSError as error:
        raise TidegaugeError(f"{out} can't be written", error.strerror or "check the folder") from error
    if load_toml(out, Profile) != made.profile:
        raise TidegaugeError(f"{out} does not read back as it was written", "report this with the artifacts' names")
    for key, source in made.sources.items():
        click.echo(f"{key}: {source}")
    click.echo(f"{out}: profile {made.profile.name}")


def drafted(artifacts: Path, model: Path | None, param: Path | None, told: dict[str, Any]) -> Draft:
    """A profile of what lies in ARTIFACTS and of options. Raises TidegaugeError naming what is missing."""
    if told["range"] is not None and len(told["range"]) != 2:
        raise click.BadParameter("needs two numbers, the lowest and the highest", param_hint="--range")
    path = param or _parameters_beside(artifacts)
    parameters = None if path is None else _parse_parameters(path)
    model = model or _model_beside(path, parameters)
    named = {"input_name": "input", "output_name": "output"}
    wishes = Told(
        model=str(model.resolve()) if model is not None else None,
        **{named.get(name, name): value for name, value in told.items()},
    )
    return draft(wishes, parameters, _descriptors(artifacts), str(artifacts.resolve()))


def _parameters_beside(artifacts: Path) -> Path | None:
    places = (artifacts / "param.yaml", artifacts.resolve().parent / "param.yaml")
    return next((path for path in places if path.is_file()), None)


def _parse_parameters(path: Path) -> CompileParameters:
    try:
        with path.open("rb") as file:
            data = file.read(LARGEST + 1)
        return param_yaml.parse(data.decode())
    except UnicodeDecodeError as error:
        raise TidegaugeError(f"{path} is not UTF-8 text", "give the param.yaml of the compile with --param") from error
    except OSError as error:
        raise TidegaugeError(f"{path} can't be read", error.strerror or "check its owner and mode") from error
    except FormatError as error:
        raise error.in_file(str(path)) from error


def _model_beside(path: Path | None, parameters: CompileParameters | None) -> Path | None:
    """The model that param.yaml names, where the package has it; absolute paths in it are another machine's."""
    if path is None or parameters is None or parameters.model_path is None or Path(parameters.model_path).is_absolute():
        return None
    model = path.resolve().parent / parameters.model_path
    return model if model.is_file() else None


def _descriptors(artifacts: Path) -> list[IoDescriptor]:
    files = sorted(artifacts.glob(f"*{names.IO_SUFFIX}"))
    if not files:
        raise TidegaugeError(f"{artifacts}: there is no *{names.IO_SUFFIX}", "give the artifacts folder of a compile")
    found: list[IoDescriptor] = []
    for file in files:
        try:
            with file.open("rb") as opened:
                found.append(io_descriptor.parse(opened.read(io_descriptor.LARGEST + 1)))
        except OSError as error:
            raise TidegaugeError(f"{file} can't be read", error.strerror or "check its owner and mode") from error
        except FormatError as error:
            raise error.in_file(str(file)) from error
    return found
