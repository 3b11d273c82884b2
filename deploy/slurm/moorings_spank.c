/* SPANK plugin of Moorings: adds --ipus, --num-replicas and --ipu-preemptible, and holds each task of an IPU job until
 * the job's partition is ACTIVE.
 *
 *     gcc -std=c99 -shared -fPIC -O2 -o moorings_spank.so moorings_spank.c -ldl
 *
 * This file has the options and Slurm's calls. The other parts are moorings_step.h, moorings_ask.h, moorings_folders.h
 * and moorings_hello.h; only the last one runs in slurmd itself.
 *
 * plugstack.conf, on submit hosts and nodes (world-readable: no secrets here):
 *
 *     optional /usr/lib/.../moorings_spank.so agent=HOST[,HOST2]:8091 max=256 wait=60 munge_socket=PATH agent_uid=UID
 *         run_dir=PATH
 *
 * sbatch, srun and salloc only check the options. In slurmstepd each task's own process waits, in task_init_privileged,
 * and not the step before it forks them. Measured on 22.05: a step that waits in init or user_init leaves every signal
 * in its queue, so a cancelled job stays COMPLETING until the wait ends, and then its program still runs.
 * While the tasks wait, the step counts as running: nothing timed out in 80 s, a time limit and scancel take effect
 * within a second, and our messages reach the job's stderr (in init they do not).
 *
 * The first task of a node asks the agent and writes the files; the others read its answer in shared memory.
 *
 * A task that must not start exits with 121. A batch script exits with 122 if its wait is over: no part of its job
 * has run, and with RequeueExit=122 in slurm.conf Slurm requeues it. A step from another shell, identified as an IPU
 * job's only by a note on this node, starts without a binding if it gets none.
 *
 * All of this runs as root: it executes no program, a task inherits nothing from it, and it limits the agent's answer
 * and checks it to the last byte. src/moorings/slurm/host/bind_protocol.py has the other half of the protocol.
 */
#define _GNU_SOURCE
#include "moorings_ask.h"
#include "moorings_folders.h"
#include "moorings_hello.h"

SPANK_PLUGIN(moorings, 1)

/* -------------------------------------------------------------------------------------------------------- options */

static long ipus;     /* 0: --ipus was not given */
static long replicas; /* 0: --num-replicas was not given */

static int take_ipus(int val, const char *text, int remote)
{
	long number = parse_number(text, INT_MAX);
	(void)val;
	if (number > 0 && !(number & (number - 1)) && (remote || number <= settings.max)) {
		ipus = number;
		return 0;
	}
	if (remote) /* the agent knows the job's size; here only the presence of the option counts */
		ipus = 1;
	else
		slurm_error("--ipus=%.40s: the number of IPUs must be a power of two from 1 to %ld (1, 2, 4, 8, ...)",
			    text ? text : "", settings.max);
	return remote ? 0 : -1;
}

static int take_replicas(int val, const char *text, int remote)
{
	(void)val;
	replicas = parse_number(text, REPLICAS_MAX);
	if (replicas > 0 || remote)
		return 0;
	slurm_error("--num-replicas=%.40s: the number of model replicas of the whole job must be from 1 to %d, "
		    "a multiple of the tasks", text ? text : "", REPLICAS_MAX);
	return -1;
}

/* The signal that warns the job before its devices are reclaimed for their guarantee, as in --signal: USR1 or B:USR1.
 * It is only checked here; the submit script records it, for a batch job that may be requeued. */
static int take_preemptible(int val, const char *text, int remote)
{
	/* The signals that scancel knows and a program can catch; moorings_submit.lua has the same list. */
	static const char known[] = "HUP INT QUIT ABRT ALRM TERM USR1 USR2 URG CONT TSTP TTIN TTOU XCPU";
	const char *name = text && strncmp(text, "B:", 2) == 0 ? text + 2 : text;
	(void)val;
	if (remote || !text || !*text)
		return 0;
	for (const char *word = known; *word;) {
		size_t length = strcspn(word, " ");
		if (strlen(name) == length && strncmp(name, word, length) == 0)
			return 0;
		word += length + strspn(word + length, " ");
	}
	slurm_error("--ipu-preemptible=%.40s: say which signal warns the job's steps (USR1), or its batch script (B:USR1); "
		    "one of %s",
		    text, known);
	return -1;
}

static struct spank_option option_ipus = {
	.name = "ipus",
	.arginfo = "N",
	.usage = "run on a partition of N IPUs (a power of two); --ntasks is the number of its GCDs",
	.has_arg = 1,
	.cb = take_ipus,
};

static struct spank_option option_replicas = {
	.name = "num-replicas",
	.arginfo = "R",
	.usage = "model replicas of the whole job (default: one for each task)",
	.has_arg = 1,
	.val = 1,
	.cb = take_replicas,
};

static struct spank_option option_preemptible = {
	.name = "ipu-preemptible",
	.arginfo = "[B:]SIGNAL",
	.usage = "borrow IPUs that are guaranteed to others: warned by a signal to the steps (or the batch script, B:) "
		 "and requeued when they are needed",
	.has_arg = 2,
	.val = 2,
	.cb = take_preemptible,
};

/* -------------------------------------------------------------------------------------------------- a task's variables */

/* The submit script sets it in the environment of a job with --no-requeue, because RequeueExit of 22.05 ignores that
 * option (24.11 and 26.05 do not). A user who unsets it only has his own job restarted, and no part of it has run. */
#define NO_REQUEUE "MOORINGS_NO_REQUEUE"
#define PARTITION "MOORINGS_PARTITION_ID" /* every binding has it; others may also set RANK */

/* All variables of a binding. Its two forms cannot be combined: a program fails if it finds both the API's variables and
 * a file. */
static const char *const of_binding[] = {
	"IPUOF_CONFIG_PATH", "IPUOF_VIPU_API_HOST", "IPUOF_VIPU_API_PORT", "IPUOF_VIPU_API_PARTITION_ID",
	"IPUOF_VIPU_API_GCD_ID", "IPUOF_VIPU_API_TIMEOUT", PARTITION, "MOORINGS_DEVICES", "RANK", "LOCAL_RANK",
	"WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", NULL};

static bool set(spank_t sp, const char *name, const char *value)
{
	spank_err_t code = spank_setenv(sp, name, value, 1);
	if (code != ESPANK_SUCCESS)
		tell("%s cannot be set: %s", name, spank_strerror(code));
	return code == ESPANK_SUCCESS;
}

static bool set_number(spank_t sp, const char *name, unsigned long value)
{
	char text[24];
	(void)snprintf(text, sizeof text, "%lu", value);
	return set(sp, name, text);
}

static bool set_variables(spank_t sp, const struct job *job)
{
	uint32_t gcd = (uint32_t)((uint64_t)job->rank * shared->gcds / job->tasks);
	const char *text = shared->text;
	char path[2 * PATH_MAX];
	int local = 0;
	bool good = true;
	for (int i = 0; of_binding[i]; i++) /* inherited from a batch script, or set by a profile */
		(void)spank_unsetenv(sp, of_binding[i]);
	(void)spank_unsetenv(sp, NO_REQUEUE);
	for (uint32_t i = 0; good && i < shared->n_entries; i++) {
		const struct entry *entry = &shared->entries[i];
		if (entry->kind == ENTRY_ENV || (entry->kind == ENTRY_GENV && entry->gcd == gcd))
			good = set(sp, text + entry->name, text + entry->value);
		if (entry->kind == ENTRY_FILE && entry->gcd == gcd) {
			int length = snprintf(path, sizeof path, "%s/%s/%s", shared->base, shared->folder, text + entry->name);
			good = length > 0 && (size_t)length < sizeof path && set(sp, "IPUOF_CONFIG_PATH", path);
		}
	}
	good = good && set_number(sp, "RANK", job->rank) && set_number(sp, "WORLD_SIZE", job->tasks) &&
	       set(sp, "MASTER_ADDR", text + shared->master) && set(sp, "MASTER_PORT", text + shared->port);
	if (good && spank_get_item(sp, S_TASK_ID, &local) == ESPANK_SUCCESS && local >= 0)
		good = set_number(sp, "LOCAL_RANK", (unsigned long)local);
	return good;
}

/* Clear inherited variables of a step without a binding: those of its shell may be another job's. */
static void go_unbound(spank_t sp)
{
	char text[8];
	int local = 0;
	bool brought = spank_getenv(sp, PARTITION, text, sizeof text) != ESPANK_ENV_NOEXIST;
	for (int i = 0; brought && of_binding[i]; i++)
		(void)spank_unsetenv(sp, of_binding[i]);
	if (spank_get_item(sp, S_TASK_ID, &local) != ESPANK_SUCCESS || local == 0)
		tell("this step starts without a binding to its job's IPUs; with --ipus=N it would wait for one");
}

/* ------------------------------------------------------------------------------------------------------- Slurm's calls */

static const char *const inherited[] = {
	"_SLURM_SPANK_OPTION_moorings_ipus", "_SLURM_SPANK_OPTION_moorings_num_replicas",
	"_SLURM_SPANK_OPTION_moorings_ipu_preemptible", "SLURM_SPANK__SLURM_SPANK_OPTION_moorings_ipus",
	"SLURM_SPANK__SLURM_SPANK_OPTION_moorings_num_replicas",
	"SLURM_SPANK__SLURM_SPANK_OPTION_moorings_ipu_preemptible"};

int slurm_spank_init(spank_t sp, int argc, char **argv)
{
	spank_context_t context = spank_context();
	if (context == S_CTX_SLURMD) { /* the daemon itself, at its start; there are no options here */
		if (!greeter.loaded_ms) { /* else its thread is alive, and reads the settings */
			parse_settings(argc, argv);
			begin_hello();
		}
		return 0;
	}
	if (context != S_CTX_LOCAL && context != S_CTX_ALLOCATOR && context != S_CTX_REMOTE)
		return 0;
	parse_settings(argc, argv);
	/* Slurm passes a job's options on in its environment: right for its steps, but an sbatch in the script of an IPU
	 * job would request IPUs for every job it submits. */
	bool new_job = context == S_CTX_ALLOCATOR || (context == S_CTX_LOCAL && !getenv("SLURM_JOB_ID"));
	for (size_t i = 0; new_job && i < sizeof inherited / sizeof *inherited; i++)
		(void)unsetenv(inherited[i]);
	/* Nor may it compute on the partition of the job whose script submits it: it would not be counted there. */
	bool brought = new_job && getenv(PARTITION);
	for (int i = 0; brought && of_binding[i]; i++)
		(void)unsetenv(of_binding[i]);
	if (spank_option_register(sp, &option_ipus) != ESPANK_SUCCESS ||
	    spank_option_register(sp, &option_replicas) != ESPANK_SUCCESS ||
	    spank_option_register(sp, &option_preemptible) != ESPANK_SUCCESS) {
		slurm_error("moorings: --ipus, --num-replicas and --ipu-preemptible cannot be added");
		return -1;
	}
	return 0;
}

static bool name_node(char *node, size_t size)
{
	const char *name = getenv("SLURMD_NODENAME"); /* slurmstepd's own, from slurmd: not the job's */
	if (name ? !copy_text(node, size, name) : gethostname(node, size - 1) != 0)
		return false;
	return only(node, LETTERS DIGITS "._-", size - 1);
}

/* Whether `moor exec` has started the step: it has the variables of the first task, and leases no GCD. */
static bool is_beside(spank_t sp)
{
	char text[8];
	return spank_getenv(sp, "MOORINGS_BESIDE", text, sizeof text) == ESPANK_SUCCESS;
}

int slurm_spank_init_post_opt(spank_t sp, int argc, char **argv)
{
	uint32_t id = 0, step = 0;
	char node[256] = "";
	(void)argc;
	(void)argv;
	if (spank_remote(sp) != 1 || spank_get_item(sp, S_JOB_ID, &id) != ESPANK_SUCCESS ||
	    spank_get_item(sp, S_JOB_STEPID, &step) != ESPANK_SUCCESS || step == EXTERN_STEP)
		return 0;
	/* `srun --jobid=ID` from another shell than the job's passes no option, and no other trustworthy sign:
	 * slurmstepd sets SLURM_JOB_LICENSES (24.11 and later) only after all root parts have run. */
	if (!ipus && step != BATCH_STEP && !is_beside(sp) && name_node(node, sizeof node) && find_note(id, node)) {
		ipus = 1;
		by_note = true;
	}
	if (!ipus)
		return 0;
	step_pid = getpid();
	shared_fd = memfd_create("moorings", MFD_CLOEXEC);
	if (shared_fd >= 0 && ftruncate(shared_fd, sizeof *shared) == 0) {
		void *memory = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED, shared_fd, 0);
		shared = memory == MAP_FAILED ? NULL : memory;
	}
	/* The tasks report a failure, and then must not start: from here no message reaches the user. */
	if (!shared || socketpair(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0, parking) != 0 || !load_munge())
		slurm_error("moorings: no memory, no socket or no libmunge.so.2: the tasks of this step will not start");
	return 0;
}

/* The first task asks for all; the others wait for its lock, which a killed task releases. */
static bool binding_here(struct job *job)
{
	struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
	while (fcntl(shared_fd, F_SETLKW, &lock) != 0)
		if (errno != EINTR) {
			tell("the tasks of this node cannot wait for each other: %s", strerror(errno));
			return false;
		}
	if (shared->state == STATE_NEW && !ended()) {
		shared->state = STATE_REFUSED; /* also if this task is killed on the way */
		enum state state = fetch_binding(job);
		if (state == STATE_READY && ((shared->text[shared->dir] && !write_files(job)) || ended()))
			state = STATE_REFUSED;
		if (state == STATE_READY)
			write_note(job);
		shared->state = state;
	}
	bool here = shared->state == STATE_READY;
	lock.l_type = F_UNLCK;
	(void)fcntl(shared_fd, F_SETLK, &lock);
	return here && !ended();
}

static bool describe_job(spank_t sp, struct job *job)
{
	char text[16] = "";
	if (spank_get_item(sp, S_JOB_ID, &job->id) != ESPANK_SUCCESS ||
	    spank_get_item(sp, S_JOB_STEPID, &job->step) != ESPANK_SUCCESS ||
	    spank_get_item(sp, S_JOB_UID, &job->uid) != ESPANK_SUCCESS ||
	    spank_get_item(sp, S_JOB_GID, &job->gid) != ESPANK_SUCCESS ||
	    spank_get_item(sp, S_TASK_GLOBAL_ID, &job->rank) != ESPANK_SUCCESS ||
	    spank_get_item(sp, S_JOB_TOTAL_TASK_COUNT, &job->tasks) != ESPANK_SUCCESS ||
	    spank_get_item(sp, S_JOB_NNODES, &job->nodes) != ESPANK_SUCCESS)
		return false;
	if (job->step == BATCH_STEP || job->step == INTERACTIVE_STEP) {
		job->rank = 0; /* one process in any job: Slurm reports 0 tasks here, or the job's */
		job->tasks = 1;
		job->nodes = 1;
	}
	if (job->rank >= job->tasks || !job->nodes)
		return false;
	if (spank_get_item(sp, S_SLURM_RESTART_COUNT, &job->restart) != ESPANK_SUCCESS)
		job->restart = 0;
	/* Measured on 22.05: Slurm reports the first run at every run of a batch script, and a step has the count in its
	 * environment, where the user can change it. The agent uses Slurm's own record. */
	if (!job->restart && spank_getenv(sp, "SLURM_RESTART_COUNT", text, sizeof text) == ESPANK_SUCCESS) {
		long number = parse_number(text, INT_MAX);
		job->restart = number > 0 ? (uint32_t)number : 0;
	}
	return name_node(job->node, sizeof job->node);
}

/* Whether the job may be requeued: no part of it has run, and it has no --no-requeue. */
static bool may_come_again(spank_t sp, const struct job *job)
{
	char text[8];
	return job->step == BATCH_STEP && shared->state == STATE_LATE &&
	       spank_getenv(sp, NO_REQUEUE, text, sizeof text) == ESPANK_ENV_NOEXIST;
}

int slurm_spank_task_init_privileged(spank_t sp, int argc, char **argv)
{
	struct job job = {0};
	sigset_t before;
	int code = REFUSED_EXIT;
	(void)argc;
	(void)argv;
	if (!ipus)
		return 0;
	hold_signals(&before);
	/* proctrack/linuxproc signals no process named slurmstepd; the program later sets its own name. */
	(void)prctl(PR_SET_NAME, "moorings-wait");
	if (settings.bad || !settings.agents[0])
		tell("the plugin's settings in plugstack.conf are wrong: agent=HOST:PORT is needed; the node's log says more");
	else if (!shared || parking[0] < 0 || !munge.error)
		tell("this node cannot ask for a partition: no memory, no socket or no libmunge.so.2");
	else if (!describe_job(sp, &job))
		tell("Slurm does not say which job, task and node this is");
	else if (binding_here(&job) && set_variables(sp, &job)) {
		(void)sigprocmask(SIG_SETMASK, &before, NULL);
		return 0;
	} else if (may_come_again(sp, &job))
		code = LATE_EXIT;
	/* A user looks into a running job. The step computes on no device, so it needs no binding. */
	if (by_note && !ended() && (!shared || shared->state != STATE_READY)) {
		go_unbound(sp);
		(void)sigprocmask(SIG_SETMASK, &before, NULL);
		return 0;
	}
	_exit(code); /* Slurm ignores an error of an `optional` plugin */
}

int slurm_spank_exit(spank_t sp, int argc, char **argv)
{
	(void)sp;
	(void)argc;
	(void)argv;
	if (shared && getpid() == step_pid) {
		remove_own(shared->base, shared->folder);
		remove_own(settings.run_dir, shared->note);
	}
	return 0;
}
