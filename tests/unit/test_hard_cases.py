"""The tests for each hard case: eighteen cases for which users must be able to trust such a tool.

Cases without a test are in docs/en/security.md under "Hard cases", with the reason.
"""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

import pytest

TESTS = Path(__file__).parent.parent

#: Item -> tests, as `file::test`; a file alone means all its tests.
COVERED: dict[str, tuple[str, ...]] = {
    "1. escape injection in every field of every renderer": (
        "faults/test_cli_hostile.py::test_no_command_lets_hostile_text_act",
        "faults/test_cli_hostile.py::test_json_and_yaml_are_lossless_and_harmless",
        "faults/test_cli_hostile.py::test_output_on_a_terminal_is_harmless_and_coloured_lines_are_reset",
        "faults/test_cli_hostile.py::test_errors_shows_hostile_exceptions_harmlessly",
        "unit/smoke/test_telling.py::test_hostile_words_and_names_are_harmless",
        "unit/smoke/test_telling.py::test_the_document_is_lossless_and_valid_whatever_a_worker_says",
        "integration/test_exec_output.py::test_raw_passes_everything_on_a_terminal",
        "integration/test_exec_output.py::test_the_payload_of_each_line_is_exact_on_a_pipe",
        "integration/test_exec_output.py::test_json_is_lossless_and_harmless",
        "integration/test_logs.py::test_on_a_terminal_bytes_are_made_visible_and_raw_passes_them",
        "faults/test_ssh_liars.py::test_what_hosts_say_forges_no_line_and_commands_no_terminal",
        "unit/render/test_page.py::test_no_hostile_text_breaks_out_of_any_place",
        "unit/cli/top/test_table.py::test_hostile_names",
        "unit/cli/test_doctor.py::test_hostile_words_are_made_harmless",
        "unit/cli/test_doctor_workers.py::test_hostile_words_are_harmless_on_a_terminal_and_whole_in_json",
    ),
    "2. sanitising is idempotent and the same for any chunk split": (
        "property/test_sanitize.py",
        "faults/test_cli_hostile.py::test_a_character_that_is_split_over_reads_is_shown_whole",
    ),
    "3. completion candidates run nothing": (
        "shell/test_completion.py::test_hostile_names_of_jobs_and_workers_run_nothing",
        "shell/test_completion.py::test_the_scripts_evaluate_no_candidate",
        "shell/test_completion_names.py",
        "unit/cli/test_names.py::test_any_content_gives_safe_names_or_none",
        "faults/test_cli_hostile.py::test_completion_offers_no_name_that_a_shell_could_run",
    ),
    "4. line forging, long lines, last lines, GBK, NUL": (
        "faults/test_cli_hostile.py::test_output_on_a_pipe_is_exact_and_a_forged_prefix_stands_behind_a_true_one",
        "faults/test_cli_hostile.py::test_gbk_and_nul_are_exact_on_a_pipe_visible_on_a_terminal_and_lossless_in_json",
        "faults/test_cli_volume.py::test_a_line_of_ten_megabytes_stays_one_line",
        "faults/test_cli_volume.py::test_a_long_line_of_a_log_stays_one_line",
        "integration/test_exec_output.py::test_a_newline_is_added_only_between_workers",
    ),
    "5. output that was cut is never a success": (
        "faults/test_kubernetes_faults.py::test_every_byte_of_outputs_of_megabytes_arrives_and_is_told_so",
        "faults/test_kubernetes_faults.py::test_an_output_that_stands_still_for_longer_than_any_patience_is_whole",
        "faults/test_kubernetes_faults.py::test_a_connection_that_ends_before_the_output_is_whole_is_lost",
        "faults/test_kubernetes_orphans.py::test_a_wrapper_that_is_killed_is_a_loss_within_seconds",
        "faults/test_cli_volume.py::test_output_that_does_not_fit_on_the_disk_is_no_success",
        "faults/test_kubernetes_faults.py::test_a_stream_that_is_cut_mid_output_is_lost_and_keeps_what_came",
        "integration/test_exec_codes.py::test_a_supervisor_that_dies_mid_run_is_255_never_success",
        "contract/test_results.py::test_a_loss_is_lost_and_never_a_success",
        "faults/test_cli_volume.py::test_a_child_that_keeps_the_pipe_open_holds_nobody_up",
        "faults/test_cli_bad_input.py::test_a_full_disk_behind_stdout_is_told_and_is_1",
        "faults/test_ssh_runs.py::test_a_connection_that_is_cut_in_the_middle_is_lost_and_its_command_ended",
    ),
    "6. a slow reader gets every line, one stream read and the other full": (
        "faults/test_cli_volume.py::test_64_workers_with_a_slow_reader_stay_in_bounds_and_every_line_arrives",
        "faults/test_cli_volume.py::test_a_slow_reader_of_json_gets_every_line",
        "faults/test_cli_volume.py::test_one_stream_full_while_the_other_is_read",
        "faults/test_cli_volume.py::test_stderr_after_the_end_of_stdout",
        "contract/test_bytes.py::test_a_slow_worker_does_not_slow_the_others",
        "faults/test_kubernetes_faults.py::test_a_slow_reader_gets_every_line_and_the_pod_waits",
        "faults/test_ssh_runs.py::test_a_flood_from_one_host_holds_up_no_other_and_no_memory",
    ),
    "7. many workers with bounded memory, descriptors that run out": (
        "faults/test_cli_volume.py::test_64_workers_stay_in_bounds_in_forms_that_hold_output",
        "faults/test_cli_bad_input.py::test_too_few_descriptors_are_told_with_the_way_out",
        "unit/hosts/test_supervisor.py::test_300_commands_at_once_through_one_connection",
    ),
    "8. fuzzed requests, error records, selections and logs": (
        "property/test_selection.py",
        "property/test_summaries.py",
        "unit/hosts/test_control_socket.py::test_parsing_any_bytes",
        "faults/test_cli_hostile.py::test_an_error_file_of_any_content_breaks_nothing",
        "faults/test_cli_bad_input.py::test_a_damaged_entry_is_named_and_the_others_are_shown",
    ),
    "8. fuzzed frames, objects and log streams of a cluster": (
        "unit/kubernetes/test_execs.py",
        "unit/kubernetes/test_kinds_fuzz.py",
        "unit/smoke/test_session.py::test_noise_is_not_heard_and_what_follows_is",
        "unit/kubernetes/test_logs.py",
        "faults/test_ssh_liars.py::test_a_server_that_lies",
    ),
    "9. hung and lost workers, deadlines, replaced jobs": (
        "faults/test_kubernetes_faults.py::test_a_hundred_workers_with_every_sort_of_fault",
        "faults/test_kubernetes_faults.py::test_a_token_that_expires_mid_run_ends_nothing_that_runs",
        "faults/test_kubernetes_faults.py::test_a_pod_that_is_deleted_mid_exec_is_no_success",
        "faults/test_kubernetes_faults.py::test_a_container_that_restarts_mid_exec_is_no_success",
        "faults/test_cli_signals.py::test_a_supervisor_that_hangs_is_named_and_not_waited_for",
        "integration/test_exec_codes.py::test_a_deadline_is_124_and_ends_the_command",
        "integration/test_exec_codes.py::test_a_command_that_ignores_sigterm_is_killed_at_the_deadline",
        "contract/test_results.py::test_an_executor_of_a_replaced_job_is_refused",
        "faults/test_local_kills.py",
        "faults/test_kubernetes_faults.py::test_a_refused_read_has_a_clear_line_and_its_code",
        "faults/test_kubernetes_faults.py::test_patience_that_is_asked_for_is_given",
        "unit/diagnosis/test_clockskew.py",
        "faults/test_ssh_runs.py::test_two_hundred_hosts_of_which_some_are_broken",
    ),
    "10. no orphans, whatever ends the client": (
        "faults/test_kubernetes_orphans.py",
        "faults/test_cli_signals.py::test_within_two_seconds_the_prompt_is_back_and_nothing_lives",
        "faults/test_cli_signals.py::test_what_has_left_its_session_is_ended_too",
        "faults/test_cli_signals.py::test_a_stopped_command_is_ended_too",
        "faults/test_cli_signals.py::test_the_second_ctrl_c_leaves_at_once_and_names_what_may_still_run",
        "integration/test_local_run.py::test_a_terminal_or_client_that_goes_away_leaves_the_job_running",
        "integration/test_demo.py::test_interrupted_it_leaves_nothing",
        "integration/test_smoke.py::test_a_killed_client_leaves_nothing",
        "integration/test_smoke.py::test_ctrl_c_tells_what_was_found_and_leaves_nothing",
        "faults/test_ssh_runs.py::test_the_end_of_the_client_ends_the_commands_on_64_hosts",
    ),
    "11. a closed pipe is silent, the terminal's mode comes back": (
        "faults/test_cli_signals.py::test_a_reader_that_has_gone_ends_everything_silently",
        "faults/test_cli_signals.py::test_every_command_is_silent_when_its_reader_has_gone",
        "faults/test_cli_signals.py::test_ctrl_c_in_every_form_of_output",
        "integration/test_shell.py::test_a_signal_to_atlctl_ends_the_shell_and_restores_the_terminal",
        "faults/test_cli_volume.py::test_a_reader_that_sleeps_holds_up_neither_stderr_nor_ctrl_c",
    ),
    "12. words stay words": (
        "contract/test_words.py",
        "integration/test_exec_usage.py::test_words_of_the_command_reach_it_unchanged",
        "integration/test_exec_usage.py::test_bytes_that_are_no_utf8_reach_the_command_unchanged",
        "integration/test_ssh_exec.py::test_words_are_quoted_exactly_once",
    ),
    "13. hosts, users and job names with metacharacters are refused": (
        "integration/test_jobs_ps.py::test_odd_job_names_are_refused_in_one_clear_line",
        "integration/test_local_run.py::test_an_odd_name_is_refused_with_the_rule_and_nothing_is_made",
        "unit/hosts/test_hostfile.py::test_what_is_refused",
        "unit/hosts/test_hostfile.py::test_no_text_gives_a_name_that_a_shell_or_a_parser_would_understand",
        "faults/test_ssh_faults.py::test_a_name_that_could_be_more_than_a_name",
    ),
    "14. host keys that are unknown, changed, revoked or missing": (
        "unit/hosts/test_hostkeys.py",
        "integration/test_ssh_exec.py::test_a_host_that_is_not_known_is_refused",
        "integration/test_ssh_exec.py::test_checks_cannot_be_configured_away",
        "faults/test_ssh_faults.py::test_the_commands_that_are_named_for_a_changed_key_cure_it",
        "faults/test_ssh_faults.py::test_a_key_that_was_revoked_for_a_port_is_not_trusted_for_the_host",
        "faults/test_ssh_faults.py::test_a_file_of_known_hosts_that_cannot_be_read",
    ),
    "15. copies follow no link and leave no folder": (
        "unit/transfer/test_unpack.py",
        "unit/transfer/test_tar.py",
        "integration/test_cp.py::test_links_in_the_target_are_not_followed",
        "integration/test_cp.py::test_neither_contents_nor_environment_are_told",
        "integration/test_cp.py::test_what_is_made_is_private_under_any_umask",
    ),
    "15. output folders: no links followed, no raw names": (
        "faults/test_cli_secrets.py::test_output_folders_are_private_and_links_in_them_are_not_followed",
        "faults/test_cli_secrets.py::test_an_output_folder_that_is_a_link_is_refused",
        "property/test_naming.py::test_file_names_are_safe_and_injective",
        "unit/output/test_folder.py::test_a_name_is_never_a_path",
        "unit/recording/test_redacted.py",
        "unit/recording/test_redacted.py",
    ),
    "16. canary tokens": (
        "faults/test_kubernetes_secrets.py",
        "faults/test_cli_secrets.py::test_no_command_tells_it_however_loud_and_failing",
        "faults/test_cli_secrets.py::test_only_private_files_that_must_hold_it_hold_it",
        "faults/test_cli_secrets.py::test_no_command_line_but_what_the_user_typed_tells_it",
        "integration/test_completion_names.py::test_no_secret_is_kept",
        "integration/test_report.py::test_no_secret_gets_into_it",
        "unit/render/test_redact.py",
    ),
    "17. private files under any umask, linked folders refused": (
        "faults/test_cli_secrets.py::test_folders_of_the_state_are_private_under_any_umask",
        "integration/test_local_run.py::test_the_registry_is_private_whatever_the_umask",
        "faults/test_cli_bad_input.py::test_a_state_folder_that_is_a_link_is_refused",
        "unit/jobs/test_statedir.py::test_a_linked_folder_is_refused_even_with_a_slash",
        "unit/cli/test_names.py::test_a_linked_folder_is_refused",
        "unit/cli/test_names.py::test_modes_whatever_the_umask",
        "integration/test_ssh_exec.py::test_a_key_that_others_may_read_is_not_used",
    ),
    "18. stop ends exactly what was shown": (
        "integration/test_stop.py::test_a_job_of_the_same_name_that_was_started_after_the_plan_is_left_alone",
        "integration/test_stop.py::test_without_a_terminal_and_without_yes_it_is_2_and_nothing_is_written",
        "integration/test_stop.py::test_a_dry_run_writes_nothing",
        "integration/test_stop.py::test_a_selection_that_means_nobody_stops_nobody",
        "integration/test_stop.py::test_a_second_stop_is_safe_and_says_there_is_nothing_to_do",
        "integration/test_kubernetes_stop.py::test_the_plan_says_where_whose_how_much_and_what_is_lost",
        "integration/test_kubernetes_stop.py::test_a_job_made_anew_between_plan_and_answer_is_left_alone",
        "unit/kubernetes/test_stopplan.py::test_an_empty_selector_is_refused",
    ),
}


@cache
def names(path: str) -> frozenset[str]:
    """The tests of a file; empty if the file does not exist."""
    file = TESTS / path
    tree = ast.parse(file.read_text()) if file.is_file() else ast.Module([], [])
    return frozenset(node.name for node in tree.body if isinstance(node, ast.FunctionDef) and node.name[:5] == "test_")


@pytest.mark.parametrize("item", COVERED)
def test_every_item_has_its_tests(item: str) -> None:
    for path, _, name in (test.partition("::") for test in COVERED[item]):
        assert names(path), path
        assert not name or name in names(path), f"{path}::{name}"


def test_no_item_is_left_out() -> None:
    assert {int(item.partition(".")[0]) for item in COVERED} == set(range(1, 19))
