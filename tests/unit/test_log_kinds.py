"""The kinds of event of the log: ids that never change, and lines that carry what their kind declares."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from tidegauge import log_kinds
from tidegauge.collector import log_kinds as of_collector
from tidegauge.collector.metrics import REFUSALS
from tidegauge.log_kinds import FAULTS, PREFIX, Kind
from tidegauge.metrics import CAPTURE_RESULTS
from tidegauge.tidl.log_causes import LogCause

PACKAGE = Path(log_kinds.__file__).parent
KINDS = (*log_kinds.KINDS, *of_collector.KINDS)
#: Everything by which a line may name its kind.
NAMES = {**vars(of_collector), **vars(log_kinds)}

#: Ids as people have them in filters and alerts. A line is added for a new kind; none is ever changed or removed.
IDS = dict(
    line.split()
    for line in """
agent_started 4f749f309a97530ab3c0349a4dd8d8f9
agent_stopping d0703bb7a53e5bcf8516d4b85136971c
start_refused 91528582b66f5a17813626174a6903c8
alarm_raised 13b3f8b784105cb9963a0b57ab385e8a
alarm_cleared 0abd9ba1e12050aa8a393a65e760000b
worker_started 0a58aecb292a5c15a6cd256553be2481
worker_ended 63adeee13e8c588ca76730e046db38c4
worker_killed 16105cc3a65857c3b0df6b12af9f13f1
worker_stuck d5b6e352462f50e4ad2d0f7d29311e79
worker_left 1f5d1774041f5f8a82143016beb11f18
pipeline_up 8e6a7caad65c5bc3afb3f7c2b995792c
camera_up 3418f7def7625f51879de4541c878dd0
reference_up 6a1bb41101db5a9fa161dd77880a320d
sample_failed 4ae082b480c451799cceb0d3087ab40e
core_restarted 6ed197eb7ed059c2ad966d7cb89ac717
core_not_restarted 9d0092f5c2b55f709d2bec534e23271e
capture_taken 27c79faace25567184caa789467d0029
capture_refused 4037584cd5b850feb698253ff3854cfa
capture_failed 1c84678acb895d79a6107ea18f50a9bb
capture_cut_off 053e6b43df8e5f4cb73e526e66d0162a
traces_left d099610f29d85fa39a3255cde0d1cc60
golden_stopped ab923063d31c598e9bf6041c648ef006
accepted 459dc342c97a5118a8a8d6a46a279575
reference_void dbafbcebcaa252228529b377cc62e69c
state_unwritable 31bdf9382cbf5b09bf846029fc3b29c1
state_writable aeebe4022b275f3988caa9b555497806
state_set_aside adc4909af7cc5a1499aa3810e124529e
spool_fault ab7a6985b672509e90052c501458151c
bundle_set_aside 4007639b2a9450c3b96f00f8467410c6
bundle_stored 9e2d3a1ace2a5da1925e699212a4b25c
bundle_refused e0c2e2dc6c8451b6811252f47b0a684e
answer_ignored 7e57650a503b59938960f396e83d2703
link_up 1e919d5de652524097e308038cc9a031
link_down 192f06df74935812a1803248f5b6f304
link_refused dcf053c62d8d58c58cd774b5b0366ce6
certificate_taken ea7f0c4734ec534f884cfa1448af2321
certificate_refused bec55e0ece2559a6ab2207c3e1fb2d05
config_taken da34393b9f85598d9f0abb4985dd4f4d
config_refused 598c4dc9152d5b7eabefc75006f05787
files_taken f91b2cbdece25506af04b9182e65f3f1
files_refused b116e18ca9c9567d962d2b1e53149521
command_done 819763eee3d35b85a18a90ba03617d0e
command_refused cdb5796309115820b175620225c2eb65
remote_log_up 403dd91e705554a1b8d8890f2d36ed4c
remote_log_down ee937731c08356f4a6dfa3917d098d8d
application_up f5e948fe2b1c53b7ab41847104aaaf15
application_down b06aaef7f59b5c1b9db9392686743cf6
lines_suppressed 3990a2bb76f65001b7bc4f11535a31df
lines_lost 8e06faabb9f35275870ad4188f35d546
fault_descriptor_size f90df2fa4e3054829176bfddfcd98975
fault_network_version 993b2e7be1cf54c2b2f6d1f560d04178
fault_c7x_memory 50a48df67f195eeba59729db937f816a
fault_trace_memory 2fc912a880005fe2b337f306f01f8f5f
fault_create_failed 248ed116e4935214b1597a02ad9d05a9
fault_trace_file 9892c21d5a2254bc96550136a3ec4379
fault_trace_setup c5c0d65dcfef50df893ebe437a0232c3
fault_dma 230358eb18215472a7d4b3eebfcd7538
fault_shared_memory 9bb9ecb6b0f15502a0f3ac21cb5ef553
fault_firmware_silent 8165696e812e52d2b696f293ff8dcbba
fault_firmware_crashed 3e376b209b9c5d4eb22a95aff190f976
fault_no_allowed_nodes 3822f9ff842258afb00db8072089a251
fault_cpu_fallback 87ada976a792562d86541b44b9542664
fault_stock_runtime a4bd6ed831c653848b0c7c668c5ba24a
fault_library_missing 9d979eae731e5b719fabecb2a36c9a94
fault_numpy_abi a712ee7b1fc3574ebe2e2790dd76b6fb
fault_artifacts_folder 70ddbedca2e45c54a68be7f6561eb730
fault_artifact_missing ab84c26bb6e75972afb15f858ca30c15
fault_priority b04d942556d459c6b59fb1b3b8bdaa29
fault_model 89db7bf7a32e59159c77d0cd8c7c794b
fault_delegate_failed 21bb867fba08511eb2d36b3d4302a3fd
fault_invoke_failed 0052684b4a905506866cc92421114e66
fault_session_threads 1bfc486ee1e15eb2b15daddabd34a3b5
fault_suspended 4fa4e44ae2cb543385ef7fb90f6bc287
fault_layer_name 7806f6965f475c2fa831971774e8066c
fault_unsupported_layer 56f2b4f20f9c55379f7d6e3a6989c52d
fault_data_convert 3a48d3fe834f5a7aa4fce46ef7bb1c9a
fault_disk_full 78569fed7cab5994a1a622323b56e211
fault_shm_full e52e1bfc3f7b512487289593af997e4c
fault_host_memory af351892ae395e648e4573335fc1cffa
fault_process_crashed 3b371018a80d55c39e1840c7f7d13928
fault_command_failed c53a72bcb95059959f025246c447a60e
fault_core_error ba4df4d3b86d5a8dbe73ee14bb22b0de
fault_consequence 716dcfc7bf965de7a3b87533c8c1f969
fault_openvx_error 39d7b8840e39500abb381962e78ac38c
collector_started 273b28a9542c5e1fa90ef1ea35fa22a5
collector_stopping a67c6f7125c256e8b19547feb1963c01
collector_cut_short d7cc873716395d58a4f5a5c261e11ff8
collector_refused 6c3178cdf66b5df085ac7abafb6cd66c
collector_failed 62c4ee85e7a15d028bf1adb9a04047b6
storage_awaited d2b3e413acd3531e9d53c58e0d8ee71a
database_migrated 6c9f11b71b805d909630dcc2c810ee58
answer_key_made 18a3b010fba553c494b398ca7d940298
commands_open 360670d3d7d15a41b0e313ba64b8c5fc
broker_up 31949e5bf2035807bcfba81c545ca4d3
broker_down dfe8dfcb6e805867881a194942c3f6ac
broker_refused ddfbc9d4d75958b0b9e27e50dc56d1ee
stands_back 16fc8d93181d5579bf490d1fb255a0d6
serves_again c27c5c886af45cbc85456d1c53485033
messages_dropped 20c0b551a1835bfa8a168cb79bf2eb35
bundle_complete 94b1622716f85ced884304b0d3e38736
bundle_incomplete 438425eb419d5950beda343fcb098e2d
bundle_compared 253e6b26fd565cd3bc55721d21a68e3f
comparison_failed d7a9f30a273056a58ea029a0527560b6
run_failed 3b869ad3b36259ee874b666c351e85b6
comparison_moved 04e39f53e4a85dddac62b3ca1ea81a52
process_died a90f33d84df85138bbf44b49a6d4ef8d
manifest_refused 702a24f64de45502b437b82042514b11
key_refused a0387ea0207e502ba29e655363143c8e
key_taken 6c52a2b39b6e5148876da1d0574cf976
name_refused 16a1801e7576530087b5b572f9b8d8f4
message_ignored 98b2b6e5545551a8afce764b791cdf0c
file_not_kept 2148d1eb6f4c5519a798964c5396bcfa
file_damaged da7c1042c74e5d65bbab9652a698597b
blob_lost b65af2a89d7e56489997ab8037dc9184
records_damaged 6786f37f83cb559294b61cdfd2532164
database_failed 4b434aaea4db5f1595934b4c85f246b1
storage_failed bf041f9983c9508ca30cf63f9856066b
request_failed ef35fb05fbf65fbe9c0b4285ccd44019
board_alarm 51f9d980f2e55861a11ddfa94ed8364b
board_alarm_cleared 3f8cab6e03f3503b91bc30da660b4cb7
command_not_kept 8c8f20f035d0583699ae38ee1695c173
command_answer_ignored 691102f902f0570e9b03ca783b5102ee
upload_refused 17f3e49d0cc7563188986c678494dd09
chore_failed ec0782acc40355cfaad0a7297cf8f122
bundle_given_up aec47a4ae50056899a93d595d2ad96b6
retention_done a4518050385f59a2a6980a0f632192f3
""".strip().splitlines()
)


def test_ids_are_those_that_were_published() -> None:
    assert {kind.word: kind.id for kind in KINDS} == IDS


def test_words_and_ids_are_unique() -> None:
    assert len({kind.word for kind in KINDS}) == len({kind.id for kind in KINDS}) == len(KINDS)
    assert all(re.fullmatch(r"[0-9a-f]{32}", kind.id) for kind in KINDS)


def test_every_fault_and_every_result_of_a_capture_has_its_kind() -> None:
    assert set(FAULTS) == {fault.word for fault in LogCause}
    assert log_kinds.worker_ended("").word == "worker_ended"
    assert log_kinds.worker_ended("disk_full").id != log_kinds.worker_ended("").id
    assert set(log_kinds.CAPTURES) == set(CAPTURE_RESULTS)


def test_texts_name_fields_that_lines_carry() -> None:
    """The journal puts their values in: of one that no line has it would leave the place-holder."""
    for kind in KINDS:
        for named in re.findall(r"@(\w+)@", f"{kind.subject} {kind.effect} {kind.cure}"):
            assert named.removeprefix(PREFIX).lower() in kind.fields, (kind.word, named)
        assert kind.apart == "" or kind.apart in kind.fields
        assert all(each.endswith((".", ")")) for each in (kind.effect, kind.cure)), kind.word


def calls() -> list[tuple[str, ast.Call]]:
    """Every `KIND.of(…)` of the program, with the kind's name."""
    found = []
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "of":
                name = node.func.value
                while isinstance(name, ast.Subscript | ast.Call):
                    name = name.value if isinstance(name, ast.Subscript) else name.func
                if isinstance(name, ast.Name) and name.id in NAMES:
                    found.append((name.id, node))
    return found


#: What chooses among kinds, and one of those: their fields are the same.
CHOSEN = {
    "worker_ended": log_kinds.WORKER_ENDED,
    "CAPTURES": log_kinds.CAPTURE_TAKEN,
    "manifest_refused": of_collector.MANIFEST_REFUSED,
    "board_alarm": of_collector.BOARD_ALARM,
}


def test_lines_carry_no_field_that_their_kind_does_not_declare() -> None:
    undeclared = []
    for name, call in calls():
        kind = NAMES[name]
        if not isinstance(kind, Kind):
            kind = CHOSEN[name]
        undeclared += [(name, word.arg) for word in call.keywords if word.arg not in kind.fields]
    assert undeclared == []


def test_every_kind_is_said_somewhere() -> None:
    said = {name for name, _ in calls()}
    by_name = {name for name, kind in NAMES.items() if isinstance(kind, Kind)}
    indirect = {"WORKER_ENDED", "CAPTURE_TAKEN", "CAPTURE_REFUSED", "CAPTURE_FAILED"}
    indirect |= {"MANIFEST_REFUSED", "KEY_REFUSED", "BOARD_ALARM", "BOARD_ALARM_CLEARED"}
    assert by_name - said - indirect == set()
    assert set(CHOSEN) <= said


def test_a_refusal_for_its_key_is_a_kind_apart() -> None:
    of_keys = {word for word in REFUSALS if of_collector.manifest_refused(word) is of_collector.KEY_REFUSED}
    assert of_keys == {"bad_signature", "unsigned", "other_key"}
    chosen = (of_collector.manifest_refused("bad_manifest"), of_collector.board_alarm(True))
    assert chosen == (of_collector.MANIFEST_REFUSED, of_collector.BOARD_ALARM)
    assert of_collector.board_alarm(False) is of_collector.BOARD_ALARM_CLEARED
    for one, other in (("MANIFEST_REFUSED", "KEY_REFUSED"), ("BOARD_ALARM", "BOARD_ALARM_CLEARED")):
        assert NAMES[one].fields == NAMES[other].fields
