"""Alerts: what they say to the person who is woken, and when.

`summary` is one line, `description` says what it means for the product and what happens if nobody acts. Both name the
board, never a number that changes with each evaluation (a notification would be sent again for each).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from tidegauge_dashboards.recording import (
    ALARM,
    CAMERA,
    CERTIFICATE,
    DETECTOR,
    HEARD,
    SATURATION,
    SPOOL,
    of_board,
)

Severity = Literal["critical", "warning", "info"]

#: Detectors of supervision: they say that the accelerator does not work, not that its answers are wrong.
SUPERVISED = "accelerator_.+|not_offloaded"
#: Seconds without a word after which a board is silent, and those after which it is taken to be gone for good.
SILENT, GONE = 900, 14 * 86400
CERTIFICATE_DAYS = 21
SPOOL_SHARE = 0.8
SATURATED = 0.05
#: Answers of the last half hour that a restart of the agent explains: they were under way to the run before.
LATE_ANSWERS = 3


@dataclass(frozen=True)
class Alert:
    """`hold`: how long the condition must last, in Prometheus' notation."""

    name: str
    group: str
    severity: Severity
    expr: str
    summary: str
    description: str
    hold: str = "0s"

    @property
    def labels(self) -> dict[str, str]:
        return {"severity": self.severity}


def _cause(cause: str) -> str:
    return f'{ALARM}{{cause="{cause}"}} == 1'


def _detector(detector: str) -> str:
    return f'{DETECTOR}{{detector="{detector}"}} == 1'


def _grew(counter: str, window: str) -> str:
    """Whether a counter has grown; one that was never seen at zero has, too."""
    return f"(increase({counter}[{window}]) > 0 or ({counter} > 0 unless {counter} offset {window}))"


def _drift() -> list[Alert]:
    model = "of model {{ $labels.model }} on {{ $labels.device }}"
    supervised = f'{DETECTOR}{{detector=~"{SUPERVISED}"}} == 1'
    compared = of_board('increase(tidegauge_shadow_samples_total{result="ok"}[30m])')
    ran = of_board("increase(tidegauge_inferences_total[30m])")
    drifting = f'{DETECTOR}{{detector!~"{SUPERVISED}",cause="accelerator"}} == 1'
    undecided = f'{DETECTOR}{{{{detector{{}}"nmse",cause="undecided"}}}} == 1'
    errors_only = f"{undecided.format('=')}\n  unless on (device, model) {undecided.format('!=')}"
    return [
        Alert(
            "TidegaugeAcceleratorDrift",
            "tidegauge-drift",
            "critical",
            f"{_cause('accelerator')}\nunless on (device, model) (\n  {supervised}\n"
            f"  unless on (device, model) {drifting}\n)",
            f"The accelerator's answers {model} are wrong",
            "The accelerator no longer agrees with the same model in float on the CPU on the same input, and the "
            "accelerator is at fault. The product acts on wrong answers until the model, its artifacts or the SDK is "
            "put right; a restart does not cure it. The comparison of the captured layers names the culprit.",
        ),
        Alert(
            "TidegaugeUndecidedDrift",
            "tidegauge-drift",
            "critical",
            f"{_cause('undecided')}\nunless on (device, model) (\n  {errors_only}\n)",
            f"The answers {model} are in doubt",
            "Accelerator and CPU no longer agree, and the known-answer test could not tell which of them is wrong. "
            "The product may be acting on wrong answers.",
        ),
        Alert(
            "TidegaugeTensorErrors",
            "tidegauge-drift",
            "warning",
            f"{_cause('undecided')}\nand on (device, model) (\n  {errors_only}\n)",
            f"Tensor errors {model} have grown",
            "The accelerator's numbers are farther from the CPU's than at acceptance; neither is known to be wrong. "
            "No loss of the product's answers has raised an alarm; if one does, the answers are in doubt, which pages.",
        ),
        Alert(
            "TidegaugeReferenceFault",
            "tidegauge-drift",
            "warning",
            _cause("reference"),
            f"The CPU reference {model} is wrong",
            "The float model on the CPU no longer gives its accepted answers, so nothing on this board can be "
            "compared. The accelerator's answers are not known to be wrong, but drift would go unseen.",
        ),
        Alert(
            "TidegaugeDataDrift",
            "tidegauge-drift",
            "info",
            _cause("data"),
            f"The inputs {model} have changed",
            "Accelerator and CPU agree, but the pictures are no longer like those at acceptance. The accelerator is "
            "right about what it is shown; whether the model is good for such pictures is not known.",
        ),
        Alert(
            "TidegaugeCameraFault",
            "tidegauge-drift",
            "warning",
            f'max by (device) ({ALARM}{{cause="camera"}}) == 1\nor {CAMERA} == 1',
            "The camera of {{ $labels.device }} has a problem",
            "The board has no usable picture: no frames, a frozen, black or covered view. The product gets no answers, "
            "or answers about nothing.",
            "2m",
        ),
        Alert(
            "TidegaugeSaturation",
            "tidegauge-drift",
            "warning",
            f"{SATURATION} > {SATURATED}\nand {SATURATION} > 2 * quantile_over_time(0.95, {SATURATION}[7d] offset 1d)",
            f"An output {model} is clipped",
            "More of an output's elements are at an end of their quantised range than in the week before. Details "
            "there are lost. It is not counted as drift while the CPU's answer is as extreme.",
            "30m",
        ),
        Alert(
            "TidegaugeShadowStalled",
            "tidegauge-drift",
            "warning",
            f"sum by (device, model) ({compared}) == 0\nand sum by (device, model) ({ran}) > 0",
            f"Nothing {model} is compared",
            "The accelerator runs, but no frame was compared with the CPU for half an hour, so drift would go unseen. "
            "The known-answer test goes on.",
            "10m",
        ),
    ]


def _accelerator() -> list[Alert]:
    model = "of {{ $labels.device }} (model {{ $labels.model }})"
    stuck = of_board('tidegauge_agent_state{state="stuck"}')
    restarts = of_board('increase(tidegauge_accelerator_restarts_total{reason!="capture"}[1h])')
    return [
        Alert(
            "TidegaugeNotOffloaded",
            "tidegauge-accelerator",
            "critical",
            _detector("not_offloaded"),
            f"The accelerator {model} does not run the model",
            "The runtime gave the model to the CPU without an error. The product is many times slower or gets no "
            "answers; artifacts and runtime do not belong together, or the artifacts are not found.",
        ),
        Alert(
            "TidegaugeAcceleratorDown",
            "tidegauge-accelerator",
            "critical",
            _detector("accelerator_down"),
            f"The accelerator {model} is given up",
            "It did not come back after the restarts that are allowed, and nothing is sent to it any more: the "
            "product gets no answers. It usually takes a reboot of the board.",
        ),
        Alert(
            "TidegaugeAcceleratorHung",
            "tidegauge-accelerator",
            "warning",
            _detector("accelerator_hung"),
            f"The accelerator {model} has hung",
            "A call did not return, its process was killed and a new one has answered again. Answers were missing "
            "for seconds, and the killed session has leaked accelerator memory until the next reboot.",
        ),
        Alert(
            "TidegaugeAcceleratorCrashed",
            "tidegauge-accelerator",
            "warning",
            _detector("accelerator_crashed"),
            f"The process that uses the accelerator {model} has crashed",
            "A new one has taken its place. Answers were missing for seconds, and the lost session has leaked "
            "accelerator memory until the next reboot.",
        ),
        Alert(
            "TidegaugeAcceleratorSlow",
            "tidegauge-accelerator",
            "warning",
            _detector("accelerator_slow"),
            f"The accelerator {model} is several times slower than at first",
            "Answers come late and frames are skipped: throttled by heat, or the clock or the memory is not what it "
            "was.",
        ),
        Alert(
            "TidegaugeAcceleratorTraces",
            "tidegauge-accelerator",
            "warning",
            _detector("accelerator_traces"),
            f"The accelerator {model} goes on dumping traces",
            "After a capture it still writes every layer of every frame into the trace folder: answers are right, but "
            "come many times later, until the board is rebooted.",
        ),
        Alert(
            "TidegaugeAcceleratorRestarting",
            "tidegauge-accelerator",
            "warning",
            f"sum by (device, model) ({restarts}) > 3",
            f"The accelerator {model} is restarted again and again",
            "Its process was replaced more than three times within an hour. Each replacement costs seconds without "
            "answers and leaks accelerator memory; the accelerator will be given up when the day's limit is reached.",
        ),
        Alert(
            "TidegaugeAgentStuck",
            "tidegauge-accelerator",
            "warning",
            f"max by (device) ({stuck}) == 1",
            "The agent on {{ $labels.device }} makes no progress",
            "Its pipeline is past the deadline of the state it is in. The product gets no answers; systemd restarts "
            "the agent where its watchdog is on.",
            "5m",
        ),
    ]


def _board() -> list[Alert]:
    scraped = "max by (device) (last_over_time(tidegauge_device_info[{}]))"
    refused = _grew('tidegauge_mqtt_publishes_total{result="refused"}', "30m")
    bundles = _grew("tidegauge_bundles_refused_total", "6h")
    connected = of_board("max_over_time(tidegauge_mqtt_connected[5m])")
    configured = of_board("max_over_time(tidegauge_config_last_reload_successful[5m])")
    replaced = of_board("min_over_time(tidegauge_artifacts_refused[5m])")
    return [
        Alert(
            "TidegaugeDeviceSilent",
            "tidegauge-board",
            "warning",
            "(\n"
            f"  ({HEARD} > {SILENT} and {HEARD} < {GONE})\n"
            f"  or ({scraped.format('1d')} unless on (device) {HEARD})\n"
            ")\n"
            f"unless on (device) {scraped.format('15m')}",
            "{{ $labels.device }} has not been heard from for a quarter of an hour",
            "Neither Prometheus nor the collector hears the board: no power, no network, or no agent. Nobody watches "
            "its accelerator. What it measures meanwhile is kept in its spool and arrives when it is back.",
            "5m",
        ),
        Alert(
            "TidegaugeSpoolFilling",
            "tidegauge-board",
            "warning",
            f"{SPOOL} > {SPOOL_SHARE}",
            "The spool of {{ $labels.device }} is nearly full",
            "Evidence arrives faster than it is sent. When the spool is full, bundles are dropped: the first and the "
            "worst of each kind are kept longest.",
            "15m",
        ),
        Alert(
            "TidegaugeEvidenceDropped",
            "tidegauge-board",
            "warning",
            f"sum by (device) ({of_board(_grew('tidegauge_spool_dropped_total', '1h'))}) > 0",
            "{{ $labels.device }} has dropped evidence",
            "A bundle was given up before the collector had it: the spool was full, too old, or damaged. The layers "
            "of that anomaly can't be compared any more; the alarm itself is not lost.",
        ),
        Alert(
            "TidegaugeStateUnwritable",
            "tidegauge-board",
            "warning",
            f"max by (device) ({of_board('tidegauge_state_unwritable')}) == 1",
            "{{ $labels.device }} can't write to its disk",
            "The disk is full, read-only or broken. The agent goes on in memory: a reboot would lose alarms, "
            "evidence of the detectors and captures since.",
            "5m",
        ),
        Alert(
            "TidegaugeLinkDown",
            "tidegauge-board",
            "warning",
            f"max by (device) ({connected}) == 0",
            "{{ $labels.device }} has no link to its broker",
            "Prometheus reaches the board, but the board does not reach the broker, or is not let in. Its alarms "
            "show in Prometheus only, and its evidence waits in the spool.",
            "30m",
        ),
        Alert(
            "TidegaugeLinkRefused",
            "tidegauge-board",
            "warning",
            f"max by (device) ({of_board(refused)}) > 0\nor max by (device) ({of_board(bundles)}) > 0",
            "What {{ $labels.device }} sends is refused",
            "The broker refused a message, or the collector turned a bundle away. The board is connected, but its "
            "evidence does not arrive and will be dropped when the spool is full.",
        ),
        Alert(
            "TidegaugeAnswersDropped",
            "tidegauge-board",
            "warning",
            f"max by (device) ({of_board('increase(tidegauge_mqtt_answers_dropped_total[30m])')}) > {LATE_ANSWERS}",
            "{{ $labels.device }} does not believe answers of its collector",
            "Answers in the collector's name had no signature, a wrong one, or belonged to another run. They were "
            "dropped and no evidence was deleted for them; until true ones come, what waits in the spool stays there.",
        ),
        Alert(
            "TidegaugeConfigurationRefused",
            "tidegauge-board",
            "warning",
            f"max by (device) ({configured}) == 0",
            "{{ $labels.device }} does not run with its configuration file",
            "agent.toml was changed and is wrong. The agent goes on with the one before; after a restart it would not "
            "start, and nobody would watch the accelerator.",
            "5m",
        ),
        Alert(
            "TidegaugeArtifactsRefused",
            "tidegauge-board",
            "warning",
            f"max by (device) ({replaced}) == 1",
            "{{ $labels.device }} does not run the model that lies on its disk",
            "Model or artifacts were replaced by files that do not pass the check. The agent goes on with those "
            "before; a restart would not bring the accelerator up.",
            "5m",
        ),
        Alert(
            "TidegaugeCertificateExpiring",
            "tidegauge-board",
            "warning",
            f"{CERTIFICATE} - time() < {CERTIFICATE_DAYS * 86400}",
            "The certificate of {{ $labels.device }} ends within three weeks",
            "When it ends the broker no longer lets the board in: no alarms, no evidence, no commands, and nobody "
            "can send a new certificate over the link.",
            "1h",
        ),
    ]


def _collector() -> list[Alert]:
    seen = "max by (job) (last_over_time(tidegauge_collector_build_info[{}]))"
    own = "tidegauge_certificate_expiry_timestamp_seconds and on (job, instance) tidegauge_collector_build_info"
    waiting = 'sum by (job) (tidegauge_collector_bundles{state=~"complete|comparing"})'
    ended = "sum by (job) (increase(tidegauge_collector_comparisons_total[1h]))"
    finding = "last_over_time(tidegauge_collector_finding_boards[6h])"
    return [
        Alert(
            "TidegaugeFinding",
            "tidegauge-collector",
            "warning",
            f"max by (job, finding, model, sdk, layer, cause) ({finding}) > 0",
            "Layer {{ $labels.layer }} of model {{ $labels.model }} computes wrongly ({{ $labels.cause }})",
            "The comparison of captured layers has named a culprit. However many boards have the same fault, this is "
            "one finding: its page lists them, and the report has the compile option that cures it.",
        ),
        Alert(
            "TidegaugeCollectorDown",
            "tidegauge-collector",
            "critical",
            f"{seen.format('1d')}\nunless on (job) {seen.format('10m')}",
            "The collector ({{ $labels.job }}) is down",
            "No board that Prometheus can't scrape itself can raise an alert, and nothing is received or compared. "
            "The boards keep their evidence in their spools meanwhile.",
        ),
        Alert(
            "TidegaugeCollectorDisconnected",
            "tidegauge-collector",
            "critical",
            "max by (job) (max_over_time(tidegauge_collector_mqtt_connected[5m])) == 0",
            "The collector ({{ $labels.job }}) has no link to its broker",
            "It hears no board: no alarm of a board that Prometheus can't scrape itself comes through, and nothing is "
            "received. The boards keep their evidence in their spools meanwhile.",
            "5m",
        ),
        Alert(
            "TidegaugeComparisonsFailing",
            "tidegauge-collector",
            "warning",
            'sum by (job) (increase(tidegauge_collector_comparisons_total{result="failed"}[1h])) > 0',
            "Comparisons fail at the collector ({{ $labels.job }})",
            "The evidence is there, but no culprit was named: the bundle's page gives the reason. Alarms are not "
            "affected.",
        ),
        Alert(
            "TidegaugeComparisonsStalled",
            "tidegauge-collector",
            "warning",
            f"{waiting} > 0\nand on (job) {ended} == 0",
            "No comparison ends at the collector ({{ $labels.job }})",
            "Complete bundles wait, and none was compared within an hour: no culprit is named. Alarms are not "
            "affected.",
            "1h",
        ),
        Alert(
            "TidegaugeCollectorStorage",
            "tidegauge-collector",
            "warning",
            'sum by (job) (increase(tidegauge_collector_postponed_total{reason=~"disk|database"}[15m])) > 0',
            "The collector ({{ $labels.job }}) can't store what boards send",
            "Its disk is full or its database does not answer. Boards are told to come back later; their spools fill "
            "up.",
        ),
        Alert(
            "TidegaugeCollectorCertificateExpiring",
            "tidegauge-collector",
            "warning",
            f"min by (job) ({own}) - time() < {CERTIFICATE_DAYS * 86400}",
            "The collector's certificate ({{ $labels.job }}) ends within three weeks",
            "When it ends the broker no longer lets the collector in: no alarm of any board behind it comes through.",
            "1h",
        ),
    ]


def alerts() -> list[Alert]:
    """In the order of the runbook."""
    return [*_drift(), *_accelerator(), *_board(), *_collector()]
