/* The common part of the plugin: settings, the shared memory of a node's tasks, the clock and signals.
 *
 * The plugin is one translation unit: slurmstepd's loader may see no symbol of it except Slurm's own calls.
 */
#ifndef MOORINGS_STEP_H
#define MOORINGS_STEP_H

#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <netdb.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <time.h>
#include <unistd.h>

#include <slurm/spank.h>

enum {
	REFUSED_EXIT = 121,       /* exit code of a task that must not start */
	LATE_EXIT = 122,          /* of a batch script without a partition: its job may be requeued */
	LINE_MAX_BYTES = 1 << 20, /* the agent's line; also munged's maximum */
	ENTRIES_MAX = 4096,
	NAME_MAX_BYTES = 128,
	GCDS_MAX = 4096,
	REPLICAS_MAX = 65536,
	AGENTS_MAX = 8,
	WAIT_MAX_S = 3600,
	LOOK_IN_MS = 5000,     /* the longest wait of a step identified by a note alone */
	LOOK_MS = 50,          /* interval at which a wait checks for a signal */
	CONNECT_MS = 3000,
	READ_MS = 25000,       /* the agent may hold a request for 20 s */
	PAUSE_MS_MAX = 1000,   /* between two tries */
	TELL_MS = 5000,        /* a longer wait is reported to the user */
	LOCK_MS = 5000,        /* for a lock that others hold for a moment */
	LOCK_PAUSE_MS = 5,
};

/* From slurm.h, without the rest of it: SLURM_EXTERN_CONT, SLURM_BATCH_SCRIPT, SLURM_INTERACTIVE_STEP. */
#define EXTERN_STEP 0xfffffffcU /* has no tasks */
#define BATCH_STEP 0xfffffffbU
#define INTERACTIVE_STEP 0xfffffffaU

/* ------------------------------------------------------------------------------------------------------- settings */

static struct {
	char agents[1024]; /* "host,host2" */
	char port[8];
	char munge_socket[PATH_MAX]; /* empty: libmunge's default */
	char run_dir[PATH_MAX];      /* a node's notes of jobs with their partition; root's, one for each cluster */
	long max;
	long wait_s;
	long agent_uid;
	bool bad;
} settings = {.port = "8091", .run_dir = "/run/moorings", .max = 256, .wait_s = 60};

/* Returns the number in `text` if it has only decimal digits and is in 1..max; else -1. */
static long parse_number(const char *text, long max)
{
	long number = 0;
	if (!text || !*text)
		return -1;
	for (const char *at = text; *at; at++) {
		if (*at < '0' || *at > '9' || number > max)
			return -1;
		number = number * 10 + (*at - '0');
	}
	return number >= 1 && number <= max ? number : -1;
}

static bool copy_text(char *to, size_t size, const char *from)
{
	int length = snprintf(to, size, "%s", from);
	return length >= 0 && (size_t)length < size;
}

/* agent=HOST[,HOST2]:PORT; the port is optional, an IPv6 address has brackets. */
static bool parse_agents(const char *text)
{
	const char *colon = strrchr(text, ':');
	if (!copy_text(settings.agents, sizeof settings.agents, text))
		return false;
	if (colon && !strchr(colon, ']')) {
		if (parse_number(colon + 1, 65535) < 0 || !copy_text(settings.port, sizeof settings.port, colon + 1))
			return false;
		settings.agents[colon - text] = '\0';
	}
	return settings.agents[0] != '\0';
}

static void parse_settings(int argc, char **argv)
{
	for (int i = 0; i < argc; i++) {
		const char *equals = strchr(argv[i], '=');
		const char *value = equals ? equals + 1 : "";
		size_t length = equals ? (size_t)(equals - argv[i]) : strlen(argv[i]);
		bool good = false;
#define IS(word) (length == strlen(word) && !strncmp(argv[i], word, length))
		if (IS("agent"))
			good = parse_agents(value);
		else if (IS("max"))
			good = (settings.max = parse_number(value, 65536)) > 0;
		else if (IS("wait"))
			good = (settings.wait_s = parse_number(value, WAIT_MAX_S)) > 0;
		else if (IS("munge_socket"))
			good = *value == '/' && copy_text(settings.munge_socket, sizeof settings.munge_socket, value);
		else if (IS("run_dir"))
			good = *value == '/' && copy_text(settings.run_dir, sizeof settings.run_dir, value);
		else if (IS("agent_uid"))
			good = !strcmp(value, "0") || (settings.agent_uid = parse_number(value, INT_MAX)) > 0;
#undef IS
		if (!good) {
			slurm_error("moorings: plugstack.conf: %.200s: allowed are agent=HOST[,HOST]:PORT, max=1..65536, "
				    "wait=1..%d (seconds), munge_socket=/PATH, run_dir=/PATH and agent_uid=UID", argv[i], WAIT_MAX_S);
			settings.bad = true;
		}
	}
	if (settings.max <= 0)
		settings.max = 256;
	if (settings.wait_s <= 0)
		settings.wait_s = 60;
}

#define DIGITS "0123456789"
#define LETTERS "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"

/* Whether `text` is 1..max characters, all of them allowed. */
static bool only(const char *text, const char *allowed, size_t max)
{
	size_t length = strlen(text);
	return length > 0 && length <= max && strspn(text, allowed) == length;
}

/* ---------------------------------------------------------------------------------- shared memory of a node's tasks */

enum entry_kind { ENTRY_ENV, ENTRY_GENV, ENTRY_FILE };

struct entry {
	uint32_t kind;
	uint32_t gcd;
	uint32_t name;   /* offset in text */
	uint32_t value;  /* offset in text */
	uint32_t length; /* of the value, in bytes */
};

enum state { STATE_NEW, STATE_REFUSED, STATE_LATE, STATE_READY };

/* The agent's answer. The step and its tasks can read it until they start their program; the program never can. */
struct shared {
	uint32_t state;
	uint32_t gcds;
	uint32_t n_entries;
	uint32_t dir, partition, master, port; /* offsets in text */
	char base[PATH_MAX];   /* the folder for files; empty: there are none */
	char folder[NAME_MAX]; /* this step's folder in it; empty: none to remove */
	char note[NAME_MAX];   /* and in run_dir */
	struct entry entries[ENTRIES_MAX];
	char text[LINE_MAX_BYTES + 1]; /* text[0] is 0: offset 0 is "" */
};

static struct shared *shared;
static int shared_fd = -1;
static int parking[2] = {-1, -1}; /* a socket that keeps the locks of the step's folders until the step ends */
static pid_t step_pid;
static bool by_note; /* identified by a note, not by --ipus: it may start without a binding */

struct job {
	uint32_t id, step, restart, rank, tasks, nodes; /* tasks and nodes of the step */
	uid_t uid;
	gid_t gid;
	char node[256];
	char nonce[17];
};

static void tell(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* Prints one line for the user, without control characters. */
static void tell(const char *format, ...)
{
	char line[1024];
	va_list arguments;
	va_start(arguments, format);
	(void)vsnprintf(line, sizeof line, format, arguments);
	va_end(arguments);
	for (char *at = line; *at; at++)
		if ((unsigned char)*at < ' ' || *at == 0x7f)
			*at = '?';
	slurm_spank_log("moorings: %s", line);
}

static long long now_ms(void)
{
	struct timespec now;
	(void)clock_gettime(CLOCK_MONOTONIC, &now);
	return (long long)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

static const int endings[] = {SIGTERM, SIGINT, SIGQUIT, SIGHUP};

/* Blocks the signals that end a task until ended() checks them: 22.05 already blocks them, 24.11 ignores them. */
static void hold_signals(sigset_t *before)
{
	sigset_t set;
	(void)sigemptyset(&set);
	for (size_t i = 0; i < sizeof endings / sizeof *endings; i++)
		(void)sigaddset(&set, endings[i]);
	(void)sigprocmask(SIG_BLOCK, &set, before);
}

/* Whether the job was cancelled, reached its time limit or lost its srun. */
static bool ended(void)
{
	sigset_t set;
	bool found = false;
	if (sigpending(&set) == 0)
		for (size_t i = 0; i < sizeof endings / sizeof *endings; i++)
			found = found || sigismember(&set, endings[i]) == 1;
	return found;
}

/* Whether `fd` is ready before `until` (a pause if negative); returns at the latest LOOK_MS after a signal. */
static bool ready(int fd, short events, long long until)
{
	struct pollfd one = {.fd = fd, .events = events};
	for (;;) {
		long long left = until - now_ms();
		if (left <= 0 || ended())
			return false;
		int found = poll(&one, 1, left < LOOK_MS ? (int)left : LOOK_MS);
		if (found > 0)
			return true;
		if (found < 0 && errno != EINTR)
			return false;
	}
}

#endif
