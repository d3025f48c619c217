"""Every metric of the agent in one place: names, labels, buckets, and their known label values at zero from the start.

Names follow Prometheus' rules (base units, `_total`, timestamps rather than ages); no label carries a frame id, path,
pid, layer name or free text, so the number of series is fixed by the configuration.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum

import prometheus_client
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from tidegauge.attribution import TERMS
from tidegauge.detectors.camera import CONDITIONS
from tidegauge.link.gate import COUNTED as COMMAND_REFUSALS
from tidegauge.spool.planner import DropReason
from tidegauge.tidl.log_causes import LogCause


class Refusal(StrEnum):
    """Why a capture is refused: label of `captures_refused_total`."""

    SWITCHED_OFF = "switched_off"
    NO_EVIDENCE = "no_evidence"
    NO_SERVER = "no_server"
    SEVERAL_SERVERS = "several_servers"
    TRACE_FOLDER = "trace_folder"
    SPACE = "space"
    HEAP = "heap"
    RATE = "rate"
    QUIET_HOURS = "quiet_hours"
    VETO = "veto"
    CAMERA = "camera"
    FILES = "files_replaced"
    ACCELERATOR = "accelerator"
    OTHER_CLIENT = "other_client"


#: What the pipeline is declared to be at: DESIGN §12.5, and the two ways of being outside.
HEALTH_STATES = ("starting", "running", "no_camera", "capturing", "backing_off", "stopped_alarmed", "stuck")
CAUSES = ("accelerator", "reference", "data", "camera", "undecided")
FRAME_DROPS = ("camera_ring_full", "pipeline_busy", "pipeline_down", "stale_generation")
#: `skipped_…`: not measured, since the budget, the board's heat or load, or the product's latency forbade it, since no
#: slot or worker was free, or since the pipeline was replaced under it.
SAMPLE_RESULTS = (
    "ok",
    "skipped_budget",
    "skipped_temperature",
    "skipped_load",
    "skipped_latency",
    "skipped_no_slot",
    "skipped_stale",
    "error",
)
#: Measured samples that feed no paired detector: a faulty camera, light between two contexts, a context that still
#: collects its reference, a reference that is itself at fault.
HELD_OUT = ("camera", "light_changing", "uncommissioned", "reference")
#: Streams whose evidence is exported; of further ones `tidegauge status` and alarms tell it: series are bounded.
STREAMS = ("loss", "nmse")
#: Ends of the interval of the distance from acceptance.
BOUNDS = ("low", "high")
LIGHT_CONTEXTS = ("day", "low_light", "infrared")
#: `hung` in a run, `create_hung` and `first_run_hung` before; `create_failed`: no session; `failed`: a run did;
#: `not_offloaded`: the CPU ran it; `exited`: crash; `capture`: stopped in order; `stop_hung`: not even that.
RESTART_REASONS = (
    "failed",
    "hung",
    "exited",
    "capture",
    "create_failed",
    "create_hung",
    "first_run_hung",
    "not_offloaded",
    "stop_hung",
)
CORE_RESTARTS = ("restarted", "refused_bound", "refused_client", "not_found", "failed", "timed_out")
#: Faults that the remote log names; any other counts as `other`.
REMOTE_LOG_FAULTS = (
    LogCause.NETWORK_VERSION,
    LogCause.C7X_MEMORY,
    LogCause.TRACE_MEMORY,
    LogCause.TRACE_FILE,
    LogCause.TRACE_SETUP,
    LogCause.DMA,
    LogCause.CREATE_FAILED,
    LogCause.CORE_ERROR,
    LogCause.OPENVX_ERROR,
)
#: Causes by which ends of workers are counted; a bundle and the log tell all of them.
END_CAUSES = tuple(
    cause.word for cause in (LogCause.NETWORK_VERSION, LogCause.C7X_MEMORY, LogCause.CREATE_FAILED, LogCause.CORE_ERROR)
)
OTHER = "other"
WORKERS = ("camera", "shadow", "remote_log")
WORKER_RESTART_REASONS = ("failed", "hung", "exited")
CAPTURE_RESULTS = ("captured", "refused", "failed")
REFUSALS = tuple(refusal.value for refusal in Refusal)
KNOWN_ANSWER_SIDES = ("device", "reference")
CAMERA_PROBLEMS = ("down", *CONDITIONS)
PUBLISH_RESULTS = ("ok", "refused", "lost", "dropped")
#: Faults of the link by `link.errors`; while one of the others holds, `mqtt_connected` is 0.
LINK_FAULTS = ("refused", "certificate", "acl", "taken_over")
#: `declined`: a right command that the agent would not carry out; the others but `done`: refused by `link.gate`.
COMMAND_RESULTS = ("done", "declined", *COMMAND_REFUSALS)

#: Frame budgets of 30 and 20 pictures a second are edges.
LATENCY_BUCKETS = (0.01, 0.02, 0.033, 0.05, 0.1, 0.5)
#: Few buckets where their edges decide nothing: an agent with two models exports 300 series at most.
SHADOW_BUCKETS = (0.1, 1)
LOSS_BUCKETS = (0.01, 0.05, 0.1, 0.5)
NMSE_BUCKETS = (1e-4, 1e-2)
LAG_BUCKETS = (0.1,)


class AgentMetrics:
    """The agent's registry. Only the agent's event loop writes; the metrics server reads."""

    def __init__(self, model: str, outputs_limit: int = 2) -> None:
        prometheus_client.disable_created_metrics()  # type: ignore[no-untyped-call] # untyped in the library
        self.registry = CollectorRegistry()
        self.model = model
        self.outputs_limit = outputs_limit
        self.refused = self._counter(
            "observations_refused_total", "Observations of histograms that were negative or not a number: left out."
        )
        self._define_identity()
        self._define_pipeline()
        self._define_shadow()
        self._define_drift()
        self._define_capture_and_link()
        self._set_zeros()

    def _gauge(self, name: str, text: str, *labels: str) -> Gauge:
        return Gauge(f"tidegauge_{name}", text, labels, registry=self.registry)

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(f"tidegauge_{name}", text, labels, registry=self.registry)

    def _histogram(self, name: str, text: str, buckets: tuple[float, ...], *labels: str) -> Histogram:
        """Of observations that can't be negative: one that is would falsify the sum, so it is counted apart."""
        refused = self.refused

        class NonNegative(Histogram):
            def observe(self, amount: float, exemplar: dict[str, str] | None = None) -> None:
                if amount >= 0:
                    super().observe(amount, exemplar)
                else:
                    refused.inc()

        return NonNegative(f"tidegauge_{name}", text, labels, registry=self.registry, buckets=buckets)

    def _define_identity(self) -> None:
        self.device = self._gauge("device_info", "The board's own name, by which the collector knows it too.", "device")
        self.build = self._gauge("build_info", "Version of the agent.", "version", "virtual")
        self.artifact = self._gauge(
            "artifact_info",
            "Identity of what runs: the model, its artifacts (first 12 digits of their SHA-256) and its runtimes.",
            "model",
            "artifact_sha256_12",
            "runtime",
            "reference",
        )
        self.config_successful = self._gauge(
            "config_last_reload_successful", "1 while the agent runs with agent.toml as it is; 0 where that is wrong."
        )
        self.config_time = self._gauge(
            "config_last_reload_success_timestamp_seconds", "When agent.toml was last read and found right."
        )
        self.config_waiting = self._gauge(
            "config_restart_keys", "Keys whose values in agent.toml or the profile wait for a restart of the agent."
        )
        self.artifacts_refused = self._gauge(
            "artifacts_refused", "1 while model or artifacts on the disk are others than those that run."
        )
        self.log_lost = self._counter("log_lines_lost_total", "Lines of the log that the journal did not take.")
        self.loop_lag = self._histogram(
            "event_loop_lag_seconds", "How late a one-second tick of the agent's event loop came.", LAG_BUCKETS
        )
        self.progress = self._gauge(
            "pipeline_last_progress_seconds", "Monotonic time of the last completed device run.", "model"
        )
        self.state = self._gauge("agent_state", "1 for the state that the agent is in.", "state")
        self.now = self._gauge("monotonic_seconds", "Monotonic time at the last tick of the event loop.")

    def _define_pipeline(self) -> None:
        self.frames = self._counter("frames_total", "Frames delivered by the camera.")
        self.frames_dropped = self._counter("frames_dropped_total", "Frames not run, by reason.", "reason")
        self.camera_problem = self._gauge("camera_problem", "1 while the camera has this problem.", "problem")
        self.inferences = self._counter("inferences_total", "Completed device runs of frames.", "model")
        self.inference_errors = self._counter("inference_errors_total", "Device runs that failed.", "model")
        self.inference_seconds = self._histogram(
            "inference_duration_seconds", "Time of a device run.", LATENCY_BUCKETS, "model"
        )
        self.restarts = self._counter(
            "accelerator_restarts_total", "Restarts of the pipeline worker, by reason.", "model", "reason"
        )
        self.log_causes = self._counter(
            "worker_ends_total",
            "Workers with a session that ended out of turn, by the fault that TIDL's logs name.",
            "cause",
        )
        self.accelerator_down = self._gauge(
            "accelerator_down", "1 while nothing is sent to the accelerator because it is given up.", "model"
        )
        self.accelerator_suspect = self._gauge(
            "accelerator_suspect", "1 from a hang until a new worker has completed a device run.", "model"
        )
        self.remote_log_faults = self._counter(
            "remote_log_faults_total", "Lines of the agent's own remote-log server that name a fault.", "fault"
        )
        self.core_restarts = self._counter(
            "core_restarts_total", "Attempts to restart the C7x through remoteproc, by result.", "result"
        )
        self.worker_restarts = self._counter(
            "worker_restarts_total", "Restarts of the other workers, by reason.", "worker", "reason"
        )
        self.saturated = self._gauge(
            "saturated_elements_ratio",
            "Share of an output's elements at an end of its range.",
            "model",
            "tensor",
            "end",
        )

    def _define_shadow(self) -> None:
        self.samples = self._counter("shadow_samples_total", "Shadow samples, by result.", "model", "result")
        self.shadow_seconds = self._histogram(
            "shadow_duration_seconds", "CPU time of a shadow sample.", SHADOW_BUCKETS, "model"
        )
        self.loss = self._histogram(
            "shadow_disagreement_ratio", "Loss between device and reference on a shadow sample.", LOSS_BUCKETS, "model"
        )
        self.nmse = self._histogram(
            "shadow_nmse_ratio", "Normalised mean squared error of the watched output.", NMSE_BUCKETS, "model"
        )
        self.held_out = self._counter(
            "shadow_held_out_total", "Measured samples that feed no paired detector, by reason.", "model", "reason"
        )
        self.empty = self._counter(
            "shadow_empty_total", "Measured samples in which neither side found anything: their loss is 0.", "model"
        )
        self.light_context = self._gauge("light_context", "1 for the light context of the present frames.", "context")
        self.mix_distance = self._gauge(
            "shadow_context_mix_distance_ratio",
            "Total variation between the light contexts of samples that were run and of those that were skipped.",
            "model",
        )
        self.last_loss = self._gauge("shadow_last_disagreement_ratio", "Loss of the newest shadow sample.", "model")

    def _define_drift(self) -> None:
        self.evidence = self._gauge("drift_log_evidence", "Logarithm of a detector's evidence.", "model", "detector")
        self.evidence_limit = self._gauge(
            "drift_log_evidence_limit", "The evidence at which the detector raises its alarm.", "model", "detector"
        )
        self.evidence_observations = self._gauge(
            "drift_evidence_observations",
            "Observations since a detector's evidence was zero, of all light contexts.",
            "model",
            "detector",
        )
        self.alarm = self._gauge("drift_alarm", "1 while an alarm of this cause is latched.", "model", "cause")
        self.latched = self._gauge(
            "alarm_latched", "1 while an alarm of this detector is latched.", "model", "detector", "cause"
        )
        self.alarms = self._counter("drift_alarms_total", "Alarms raised, by cause.", "model", "cause")
        self.block = self._gauge(
            "drift_observation_samples", "Samples in an observation; 0 in a context not tested.", "model", "context"
        )
        self.change = self._gauge(
            "drift_loss_change_ratio",
            "Change of the mean loss since acceptance at the newest paired alarm, by term.",
            "model",
            "term",
        )
        self.distance = self._gauge(
            "drift_loss_distance_ratio",
            "Mean loss of the last day less acceptance's: ends of its interval; none while too few losses are known.",
            "model",
            "bound",
        )
        self.known_answer = self._counter(
            "known_answer_checks_total", "Known-answer checks, by side and result.", "model", "side", "result"
        )
        self.acceptance = self._gauge(
            "acceptance_progress_ratio", "Progress of the acceptance; 1 when the reference is frozen.", "model"
        )
        self.acceptance_failed = self._gauge("acceptance_failed", "1 when the acceptance has failed.", "model")

    def _define_capture_and_link(self) -> None:
        self.captures = self._counter("captures_total", "Captures at a trace level, by result.", "result")
        self.refusals = self._counter("captures_refused_total", "Captures refused, by reason.", "reason")
        self.capture_bytes = self._gauge("capture_bytes", "Bytes of traces that the last whole capture took.")
        self.capture_seconds = self._gauge("capture_duration_seconds", "Time from pause to proof of the last capture.")
        self.spool_bytes = self._gauge("spool_bytes", "Bytes in the spool.")
        self.spool_inodes = self._gauge("spool_inodes", "Files and folders in the spool.")
        self.spool_limit = self._gauge("spool_limit_bytes", "Bytes that the spool may hold.")
        self.spool_bundles = self._gauge("spool_bundles", "Bundles waiting in the spool.")
        self.disk_problem = self._gauge(
            "state_unwritable", "1 while the state folder can't be written: a full, read-only or broken disk."
        )
        self.spool_dropped = self._counter(
            "spool_dropped_total", "Bundles dropped from the spool, by reason.", "reason"
        )
        self.spool_faults = self._counter(
            "spool_faults_total", "What was wrong with the spool's disk, its files or the clock; the status names it."
        )
        self.mqtt_connected = self._gauge("mqtt_connected", "1 while the broker answers.")
        self.mqtt_publishes = self._counter("mqtt_publishes_total", "Publishes, by result.", "result")
        self.answers_dropped = self._counter("mqtt_answers_dropped_total", "Answers not believed; the status says why.")
        self.link_faults = self._counter("mqtt_faults_total", "Faults of the link to the broker, by kind.", "kind")
        self.commands = self._counter(
            "commands_total", "Commands over the broker: carried out, declined, or refused and why.", "result"
        )
        self.bundles_sent = self._counter("bundles_sent_total", "Bundles stored by the collector.")
        self.bundles_refused = self._counter("bundles_refused_total", "Bundles that the collector turned away.")
        self.certificate = self._gauge(
            "certificate_expiry_timestamp_seconds", "When a certificate of the link expires.", "use"
        )

    def _set_zeros(self) -> None:
        for reason in FRAME_DROPS:
            self.frames_dropped.labels(reason)
        for problem in CAMERA_PROBLEMS:
            self.camera_problem.labels(problem)
        for result in SAMPLE_RESULTS:
            self.samples.labels(self.model, result)
        for reason in HELD_OUT:
            self.held_out.labels(self.model, reason)
        for context in LIGHT_CONTEXTS:
            self.light_context.labels(context)
            self.block.labels(self.model, context)
        for term in TERMS[:3]:  # the share of the unknown is in the alarm's evidence
            self.change.labels(self.model, term)
        for reason in RESTART_REASONS:
            self.restarts.labels(self.model, reason)
        for cause in CAUSES:
            self.alarm.labels(self.model, cause)
            self.alarms.labels(self.model, cause)
        for side in KNOWN_ANSWER_SIDES:
            for result in ("ok", "mismatch"):
                self.known_answer.labels(self.model, side, result)
        for result in CAPTURE_RESULTS:
            self.captures.labels(result)
        for result in PUBLISH_RESULTS:
            self.mqtt_publishes.labels(result)
        for kind in LINK_FAULTS:
            self.link_faults.labels(kind)
        for result in COMMAND_RESULTS:
            self.commands.labels(result)
        for dropped in DropReason:
            self.spool_dropped.labels(dropped.value)
        for refusal in REFUSALS:
            self.refusals.labels(refusal)
        for named in (*(each.word for each in REMOTE_LOG_FAULTS), OTHER):
            self.remote_log_faults.labels(named)
        for result in CORE_RESTARTS:
            self.core_restarts.labels(result)
        for word in (*END_CAUSES, OTHER):
            self.log_causes.labels(word)
        for worker in WORKERS:
            for reason in WORKER_RESTART_REASONS:
                self.worker_restarts.labels(worker, reason)
        for state in HEALTH_STATES:
            self.state.labels(state)
        self.accelerator_down.labels(self.model)
        self.accelerator_suspect.labels(self.model)
        for each in (
            self.inferences,
            self.inference_errors,
            self.acceptance,
            self.acceptance_failed,
            self.last_loss,
            self.empty,
            self.mix_distance,
        ):
            each.labels(self.model)
        for histogram in (self.inference_seconds, self.shadow_seconds, self.loss, self.nmse):
            histogram.labels(self.model)
        self.progress.labels(self.model)

    def held_out_counts(self) -> dict[str, int]:
        """Measured samples that fed no paired detector, by reason."""
        return self._counts("shadow_held_out_total", "reason", HELD_OUT)

    def sample_counts(self) -> dict[str, int]:
        """Shadow samples by result."""
        return self._counts("shadow_samples_total", "result", SAMPLE_RESULTS)

    def _counts(self, name: str, label: str, values: Iterable[str]) -> dict[str, int]:
        found = {
            value: self.registry.get_sample_value(f"tidegauge_{name}", {"model": self.model, label: value})
            for value in values
        }
        return {value: int(count) for value, count in found.items() if count is not None}

    def render(self) -> bytes:
        """The registry in Prometheus' text format."""
        return prometheus_client.generate_latest(self.registry)
