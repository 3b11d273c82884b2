"""Guards of law 10: secrets stay secret, and nobody is who he only says he is."""

from __future__ import annotations

from tests.guards.guard import Guard

ACCESS = "tests/unit/core/test_access.py::"
KEYS = "tests/unit/controller/test_keys.py::"
REPLAY = "tests/unit/controller/test_replay.py::"
RUNS = "tests/unit/workloads/test_turn.py::"
LOGS = "tests/unit/app/test_logs.py::"
FOLDERS = "tests/unit/app/test_folders.py::"
CREDENTIALS = "tests/unit/app/test_credentials.py::"
SQLITE = "tests/contract/test_store_sqlite.py::"
RECORDS = "tests/unit/local/test_records.py::"
SUPERVISOR = "tests/unit/local/test_supervisor.py::"
MACHINE = "tests/unit/drivers/test_simulated_hardware.py::"
SECURITY = "tests/unit/api/test_security.py::"
LIMITS = "tests/unit/api/test_limits.py::"
REQUESTS = "tests/unit/api/test_bad_requests.py::"
CONTROLLER = "tests/e2e/test_controller.py::"

PRIVACY = (
    # -- secrets ----------------------------------------------------------------------------------------------------
    Guard(
        law="10",
        what="the log keeps no environment and no folder of a job",
        file="controller/record.py",
        old='        return replace(given, job=replace(given.job, environment={}, workdir=""))\n',
        new="        return given\n",
        tests=(f"{REPLAY}test_the_log_keeps_no_environment",),
    ),
    Guard(
        law="10",
        what="others see the names of a job's environment, not the values",
        file="api/render.py",
        old="        job = replace(job, environment=dict.fromkeys(job.environment, HIDDEN))\n",
        new="        pass\n",
        tests=(f"{CONTROLLER}test_the_values_of_a_job_s_environment_are_its_owner_s",),
    ),
    Guard(
        law="10",
        what="no access key gets into a log",
        file="app/logs.py",
        old=r'_KEY.sub(r"\1_***", text)',
        new="text",
        tests=(f"{LOGS}test_no_access_key_gets_through", f"{LOGS}test_what_is_taken_out_and_what_stays"),
    ),
    Guard(
        law="10",
        what="no password of a URL gets into a log",
        file="app/logs.py",
        old=r'return _PASSWORD.sub(r"\1:***@", ',
        new="return (",
        tests=(f"{LOGS}test_what_is_taken_out_and_what_stays",),
    ),
    Guard(
        law="10",
        what="every line of a log passes by what takes secrets out",
        file="app/logs.py",
        old="        _redact,\n",
        new="",
        tests=(f"{LOGS}test_no_access_key_gets_through",),
    ),
    Guard(
        law="10",
        what="the database holds digests of keys, not keys",
        file="controller/keys.py",
        old="return hmac.new(self._pepper, secret",
        new="return secret or hmac.new(self._pepper, secret",
        tests=(f"{KEYS}test_no_secret_is_in_the_database",),
    ),
    Guard(
        law="10",
        what="without the pepper the database proves nothing",
        file="controller/keys.py",
        old="hmac.new(self._pepper, secret",
        new='hmac.new(b"", secret',
        tests=(f"{KEYS}test_without_the_pepper_the_database_proves_nothing",),
    ),
    Guard(
        law="10",
        what="a key that was proved is remembered by its hash only",
        file="controller/keys.py",
        old='known = hashlib.sha256(secret.encode("utf-8", "surrogateescape")).digest()',
        new='known = secret.encode("utf-8", "surrogateescape")',
        tests=(f"{KEYS}test_a_secret_is_never_remembered_as_it_is",),
    ),
    Guard(
        law="10",
        what="a supervisor inherits none of the controller's secrets",
        file="local/engine.py",
        old="env={name: os.environ[name] for name in _INHERITED if name in os.environ},",
        new="env=dict(os.environ),",
        tests=(f"{SUPERVISOR}test_a_supervisor_is_nobodys_child_and_carries_no_secrets",),
    ),
    Guard(
        law="10",
        what="a supervisor's command line holds a folder and two descriptors, nothing of the job",
        file="local/engine.py",
        old="build_supervisor(folder.path, life, ready_inside),\n",
        new="[*build_supervisor(folder.path, life, ready_inside), *order.job.environment.values()],\n",
        tests=(f"{SUPERVISOR}test_a_supervisor_is_nobodys_child_and_carries_no_secrets",),
    ),
    Guard(
        law="10",
        what="a database that others could read is made private",
        file="store/sqlite.py",
        old="            file.chmod(0o600)\n",
        new="            pass\n",
        tests=(f"{SQLITE}test_files_that_others_could_read_are_made_private",),
    ),
    Guard(
        law="10",
        what="a controller's files (pepper, credentials, address) are its owner's alone",
        file="app/folders.py",
        old="os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)",
        new="os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)",
        tests=(
            f"{FOLDERS}test_a_file_is_replaced_as_a_whole_and_stays_private",
            f"{CREDENTIALS}test_only_its_owner_can_read_it",
        ),
    ),
    Guard(
        law="10",
        what="a controller's data folder is its owner's alone",
        file="app/folders.py",
        old="        path.chmod(0o700)\n",
        new="        pass\n",
        tests=(f"{FOLDERS}test_a_folder_that_others_could_enter_is_closed",),
    ),
    Guard(
        law="10",
        what="a run's records, job and environment included, are their owner's alone",
        file="local/rundir.py",
        old="            os.fchmod(file.fileno(), 0o600)\n",
        new="            os.fchmod(file.fileno(), 0o644)\n",
        tests=(f"{RECORDS}test_files_are_replaced_whole_and_are_the_owners_alone",),
    ),
    Guard(
        law="10",
        what="a run's folder is its owner's alone",
        file="local/rundir.py",
        old="            self.path.mkdir(mode=0o700)\n",
        new="            self.path.mkdir(mode=0o755)\n",
        tests=(f"{SUPERVISOR}test_the_files_are_the_owners_alone_and_the_bindings_go_with_the_run",),
    ),
    Guard(
        law="10",
        what="the files of a binding go with the run",
        file="local/settle.py",
        old="    folder.remove_bindings()\n",
        new="",
        tests=("tests/unit/local/test_engine.py::test_the_bindings_of_a_run_whose_supervisor_was_killed_are_gone",),
    ),
    Guard(
        law="10",
        what="the simulated machine's files are their owner's alone",
        file="drivers/simulated/journal.py",
        old="os.O_CREAT | os.O_CLOEXEC, 0o600)",
        new="os.O_CREAT | os.O_CLOEXEC, 0o644)",
        tests=(f"{MACHINE}test_files_are_for_their_owner_alone",),
    ),
    # -- identity ---------------------------------------------------------------------------------------------------
    Guard(
        law="10",
        what="nothing but health and version is open to who shows no key",
        file="api/security.py",
        old='    if scheme.lower() != b"bearer":\n',
        new="    if False:\n",
        tests=(f"{SECURITY}test_nothing_of_the_api_is_open",),
    ),
    Guard(
        law="10",
        what="a key is proved by its whole secret",
        file="controller/keys.py",
        old=" or not hmac.compare_digest(digest, key.digest):",
        new=":",
        tests=(f"{KEYS}test_a_secret_that_is_almost_right_is_wrong",),
    ),
    Guard(
        law="10",
        what="a revoked key is worth nothing",
        file="controller/keys.py",
        old="if key is None or key.revoked_at is not None or not",
        new="if key is None or not",
        tests=(f"{KEYS}test_a_revoked_key_is_worth_nothing_at_once",),
    ),
    Guard(
        law="10",
        what="a key that was proved is forgotten when one is revoked",
        file="controller/keys.py",
        old="        self._revocations += 1\n        self._proved.clear()\n",
        new="        self._revocations += 1\n",
        tests=(f"{KEYS}test_a_revoked_key_is_worth_nothing_at_once",),
    ),
    Guard(
        law="10",
        what="a key that is revoked while it is proved is not remembered",
        file="controller/keys.py",
        old="            if revocations != self._revocations:  # it may have been read before, and revoked since\n",
        new="            if False:\n",
        tests=(f"{KEYS}test_a_key_revoked_while_it_is_being_proved_is_not_remembered",),
    ),
    Guard(
        law="10",
        what="an owner prefix covers whole parts",
        file="core/access.py",
        old='owner.startswith(prefix + "/")',
        new="owner.startswith(prefix)",
        tests=(f"{ACCESS}test_a_prefix_does_not_cover_what_only_begins_alike",),
    ),
    Guard(
        law="10",
        what="an empty prefix covers nobody",
        file="core/access.py",
        old="        if prefix and (owner == prefix or",
        new="        if (owner == prefix or not prefix or",
        tests=(f"{ACCESS}test_an_empty_prefix_covers_nobody",),
    ),
    Guard(
        law="10",
        what="a local run's claim is its subject's",
        file="core/access.py",
        old='        if owner.startswith("local/") and subject == caller.subject:\n',
        new='        if owner.startswith("local/"):\n',
        tests=(f"{ACCESS}test_the_claim_of_a_run_belongs_to_who_started_it",),
    ),
    Guard(
        law="10",
        what="a viewer acts for nobody",
        file="core/access.py",
        old="    if caller.role in (Role.USER, Role.AGENT):\n",
        new="    if True:\n",
        tests=(f"{ACCESS}test_a_viewer_acts_for_nobody_not_even_itself",),
    ),
    Guard(
        law="10",
        what="only admins do what admins do",
        file="core/access.py",
        old="    if caller.role is not Role.ADMIN:\n",
        new="    if False:\n",
        tests=(f"{ACCESS}test_only_admins_do_what_admins_do",),
    ),
    Guard(
        law="10",
        what="nobody claims for another owner",
        file="controller/service.py",
        old='        check_may_act(caller, owner, "", "claim devices")\n',
        new="",
        tests=(f"{CONTROLLER}test_who_may_do_what",),
    ),
    Guard(
        law="10",
        what="nobody makes claims of local runs but the controller",
        file="controller/service.py",
        old='        if owner.startswith("local/"):\n',
        new="        if False:\n",
        tests=(f"{CONTROLLER}test_claims_of_local_runs_are_the_controller_s",),
    ),
    Guard(
        law="10",
        what="nobody ends what is another's",
        file="controller/service.py",
        old='        check_may_act(caller, claim.owner, claim.subject, "release a claim")\n',
        new="",
        tests=(f"{CONTROLLER}test_who_may_do_what",),
    ),
    Guard(
        law="10",
        what="nobody renews another's lease",
        file="controller/service.py",
        old='        check_may_act(caller, claim.owner, claim.subject, "renew a lease")\n',
        new="",
        tests=(f"{CONTROLLER}test_nobody_acts_on_leases_runs_or_output_of_another",),
    ),
    Guard(
        law="10",
        what="nobody reads another's binding",
        file="controller/service.py",
        old='        check_may_act(caller, claim.owner, claim.subject, "read a binding")\n',
        new="",
        tests=(f"{CONTROLLER}test_who_may_do_what",),
    ),
    Guard(
        law="10",
        what="nobody resets another's partition",
        file="controller/service.py",
        old='            check_may_act(caller, claim.owner, claim.subject, "reset a partition")\n',
        new="            pass\n",
        tests=(f"{CONTROLLER}test_who_may_do_what",),
    ),
    Guard(
        law="10",
        what="nobody cancels another's run",
        file="controller/service.py",
        old='        check_may_act(caller, f"local/{run.id}", run.subject, "cancel a run")\n',
        new="",
        tests=(f"{CONTROLLER}test_nobody_acts_on_leases_runs_or_output_of_another",),
    ),
    Guard(
        law="10",
        what="nobody reads the output of another's run",
        file="controller/service.py",
        old='        check_may_act(caller, f"local/{run.id}", run.subject, "read the output of a run")\n',
        new="",
        tests=(f"{CONTROLLER}test_nobody_acts_on_leases_runs_or_output_of_another",),
    ),
    Guard(
        law="10",
        what="only admins make, list and revoke keys",
        file="controller/service.py",
        old='        check_admin(caller, "make access keys")\n',
        new="",
        tests=(f"{CONTROLLER}test_only_admins_have_to_do_with_keys",),
    ),
    # -- one client cannot take what belongs to all -----------------------------------------------------------------
    Guard(
        law="10",
        what="one key cannot take all seats of a kind",
        file="api/limits.py",
        old="        if self._held.get(key, 0) + count > self._per_key or self._taken + count > self.total:\n",
        new="        if self._taken + count > self.total:\n",
        tests=(f"{LIMITS}test_seats_are_bounded_in_all_and_for_each_key",),
    ),
    Guard(
        law="10",
        what="an answer that waits takes a seat of its key",
        file="api/calls.py",
        old="        seats, key = self.service.waits, self.caller.key_id\n",
        new='        seats, key = self.service.waits, f"{id(self)}"\n',
        tests=(f"{REQUESTS}test_too_many_waits_of_one_key_are_told_to_come_back",),
    ),
)
