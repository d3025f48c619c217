"""TFLite on TIDL through the real `load_delegate` of LiteRT and a real external delegate, built here with gcc.

The delegate is the fake: it stands for TI's, and fails as TI's does. Each session runs in a child process, as the
pipeline worker does, because two of these failures take the process along.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import pytest
from ai_edge_litert.interpreter import Interpreter, OpResolverType

import tidegauge
from integration.runtimes.tflite_models import relu_chain
from needs import program
from tidegauge.profile import Output, Preprocess, Profile
from tidegauge.tidl import io_descriptor, net_header
from tidegauge.tidl.io_descriptor import IoDescriptor, IoInput, IoOutput
from tidegauge.tidl.log_report import LogReport, report

HERE = Path(__file__).parent
DEADLINE = 60.0


@pytest.fixture(scope="module")
def delegate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the freshly built libtidl_tfl_delegate.so."""
    compiler = program("gcc", "gcc")
    folder = tmp_path_factory.mktemp("delegate")
    options = ["-std=c11", "-Wall", "-Wextra", "-Werror", "-O1", "-fPIC", "-shared"]
    library = folder / "libtidl_tfl_delegate.so"
    subprocess.run(
        [compiler, *options, "-o", str(library), str(HERE / "fake_delegate.c")], check=True, timeout=DEADLINE
    )
    return folder


@pytest.fixture
def profile(tmp_path: Path) -> Profile:
    artifacts = tmp_path / "artifacts"
    artifacts.mkdir()
    dims = (1, 1, 1, 3, 4, 4)
    descriptor = IoDescriptor(
        (IoInput("x", 0, dims, "float32", 1.0, 0),), (IoOutput("y", 2, dims, "float32", 1.0, 0, valid_dims=4),)
    )
    (artifacts / "allowedNode.txt").write_text("1\n2\n0\n1\n")
    (artifacts / "9_tidl_net.bin").write_bytes(net_header.pack(0x20250821) + bytes(64))
    (artifacts / "9_tidl_io_1.bin").write_bytes(io_descriptor.pack(descriptor))
    model = relu_chain(tmp_path / "chain.tflite")
    return Profile(
        "chain", "tflite", str(model), str(artifacts), Preprocess(width=4, height=4), Output("y", "raw", 0.1)
    )


class Child:
    """One session in a process of its own; what C code printed is in `log`."""

    def __init__(self, folder: Path, delegate: Path, profile: Profile, mode: str, module: str) -> None:
        self.answer, self._log, self.record = folder / "answer.json", folder / "child.log", folder / "options"
        environment = os.environ | {
            "LD_LIBRARY_PATH": str(delegate),
            "PYTHONPATH": f"{HERE.parents[1]}:{Path(tidegauge.__file__).parents[1]}",
            "TIDEGAUGE_DELEGATE_MODE": mode,
            "TIDEGAUGE_DELEGATE_RECORD": str(self.record),
        }
        text = msgspec.json.encode(profile).decode()
        arguments = [sys.executable, str(HERE / "session_child.py"), text, module, str(self.answer)]
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(arguments, env=environment, stdout=log, stderr=subprocess.STDOUT)

    @property
    def log(self) -> LogReport:
        return report("child.log", self._log.read_text(errors="replace"))

    def wait_for_milestone(self, name: str) -> None:
        end = time.monotonic() + DEADLINE
        while self.log.milestone != name:
            assert time.monotonic() < end, self._log.read_text()
            assert self.process.poll() is None, self._log.read_text()
            time.sleep(0.02)


def told(child: Child) -> dict[str, object]:
    assert child.process.wait(DEADLINE) == 0, child._log.read_text()
    answer: dict[str, object] = json.loads(child.answer.read_bytes())
    return answer


STAMPED = "integration.runtimes.litert_with_stamps"


def test_a_healthy_delegate_gets_ti_s_options_and_is_proven(tmp_path: Path, delegate: Path, profile: Profile) -> None:
    child = Child(tmp_path, delegate, profile, "compute", STAMPED)
    assert told(child) == {"nodes": 1, "subgraphs": ["9"], "same": True}, "only the delegate keeps negative numbers"
    options = dict(line.split("=", 1) for line in child.record.read_text().splitlines())
    assert options == {"artifacts_folder": profile.artifacts, "debug_level": "3", "core_number": "1"}
    log = child.log
    assert log.faults == ()
    assert log.milestone == "subgraph_create"
    assert log.offload is not None
    assert (log.offload.subgraphs, log.offload.nodes, log.offload.total) == (1, 2, 2)


def test_a_delegate_that_claims_nothing(tmp_path: Path, delegate: Path, profile: Profile) -> None:
    child = Child(tmp_path, delegate, profile, "nothing", STAMPED)
    answer = told(child)
    assert answer["fault"] == "NotOffloaded"
    assert "no DELEGATE operator" in str(answer["problem"])
    assert child.log.offload is not None
    assert child.log.offload.nodes == 0


def test_the_default_resolver_would_fake_the_proof(profile: Profile) -> None:
    """The premise of `BUILTIN_WITHOUT_DEFAULT_DELEGATES`: XNNPACK adds a DELEGATE operator without any accelerator."""
    counts = {}
    for resolver in (OpResolverType.AUTO, OpResolverType.BUILTIN_WITHOUT_DEFAULT_DELEGATES):
        interpreter = Interpreter(profile.model, experimental_op_resolver_type=resolver, num_threads=1)
        interpreter.allocate_tensors()
        names = [operator["op_name"] for operator in interpreter._get_ops_details()]
        counts[resolver] = names.count("DELEGATE")
    assert counts == {OpResolverType.AUTO: 1, OpResolverType.BUILTIN_WITHOUT_DEFAULT_DELEGATES: 0}


def test_stock_litert_has_no_proof(tmp_path: Path, delegate: Path, profile: Profile) -> None:
    answer = told(Child(tmp_path, delegate, profile, "compute", "ai_edge_litert.interpreter"))
    assert answer["fault"] == "NotOffloaded"
    assert "no get_TI_benchmark_data" in str(answer["problem"])


@pytest.mark.parametrize(
    ("mode", "problem"), [("zeros", "no processing time"), ("stamped_zeros", "every output is zero, also for a random")]
)
def test_zeros_after_a_create_that_failed(
    tmp_path: Path, delegate: Path, profile: Profile, mode: str, problem: str
) -> None:
    child = Child(tmp_path, delegate, profile, mode, STAMPED)
    answer = told(child)
    assert answer["fault"] == "NotOffloaded"
    assert problem in str(answer["problem"])
    assert [fault.cause for fault in child.log.faults] == ["descriptor_size"], "the log names what the answer hides"


def test_a_delegate_that_ends_the_process(tmp_path: Path, delegate: Path, profile: Profile) -> None:
    child = Child(tmp_path, delegate, profile, "exit", STAMPED)
    assert child.process.wait(DEADLINE) == 255
    assert not child.answer.exists()
    assert [fault.cause for fault in child.log.faults] == ["artifacts_folder"]


@pytest.mark.parametrize(
    ("mode", "problem"),
    [
        ("refuse", "libtidl_tfl_delegate.so can't be loaded.*artifacts_folder must be provided"),
        ("prepare_error", "TIDL can't open .*chain.tflite"),
        ("invoke_error", r"the device run failed: .*\(TIDLDelegate\) failed to invoke"),
    ],
)
def test_an_error_becomes_a_fault_with_a_cure(
    tmp_path: Path, delegate: Path, profile: Profile, mode: str, problem: str
) -> None:
    answer = told(Child(tmp_path, delegate, profile, mode, STAMPED))
    assert answer["fault"] == "RuntimeFault"
    assert re.search(problem, str(answer["problem"]), re.DOTALL)
    assert answer["cure"]


def test_a_hang_in_prepare_blocks_everything_but_sigkill(tmp_path: Path, delegate: Path, profile: Profile) -> None:
    """`load_delegate`'s caller holds the GIL: no signal handler of Python runs, so that only the parent can end it."""
    child = Child(tmp_path, delegate, profile, "sleep", STAMPED)
    try:
        child.wait_for_milestone("delegate_prepare")
        with pytest.raises(subprocess.TimeoutExpired):
            child.process.wait(1)
        assert not child.answer.exists()
        assert child.log.offload is None
    finally:
        child.process.kill()
    assert child.process.wait(DEADLINE) == -signal.SIGKILL
